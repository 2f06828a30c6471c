"""The engine as a process, as a launched server is: `python -m tests.engine_server --port 8000 --gamma 2`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from tests.engine_server.engine import Engine, EngineSettings
from tests.engine_server.live import LiveLog
from tests.engine_server.server import HOST, application


async def _serve(engine: Engine, port: int, ready_s: float) -> int:
    await asyncio.sleep(ready_s)
    gone = asyncio.Event()
    runner = web.AppRunner(application(engine, gone), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    print(f"ready on port {port}", flush=True)
    await gone.wait()
    print("RuntimeError: the simulated engine crashed", file=sys.stderr, flush=True)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gamma", type=int, default=0)
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--key-env", help="the variable with the key that it wants, which it prints, too")
    parser.add_argument("--ready-s", type=float, default=0.0)
    parser.add_argument("--crash-at-start", action="store_true")
    parser.add_argument("--speculative-config", type=json.loads)
    given, others = parser.parse_known_args()
    if others and given.speculative_config is None:
        parser.error(f"unknown: {others}")
    if given.speculative_config is not None:
        given.gamma = given.speculative_config["num_speculative_tokens"]
    print(f"loading the model at gamma {given.gamma}", flush=True)
    if given.crash_at_start:
        print("ValueError: the simulated model does not fit", file=sys.stderr, flush=True)
        return 1
    settings = replace(EngineSettings(**json.loads(given.settings)), gamma=given.gamma)
    if given.key_env:
        settings = replace(settings, api_key=os.environ[given.key_env])
        print(f"options: api_key={settings.api_key}", flush=True)
    engine = Engine(settings)
    if "SPECGAUGE_GAMMA_DIR" in os.environ:
        engine.live = LiveLog(Path(os.environ["SPECGAUGE_GAMMA_DIR"]), given.gamma)
    return asyncio.run(_serve(engine, given.port, given.ready_s))


if __name__ == "__main__":
    sys.exit(main())
