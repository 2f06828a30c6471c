"""Runs of simulated engines, in simulated time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from specgauge.bench.prompts import read_prompts
from specgauge.bench.serving.streams import OpenAIClient
from specgauge.configs.engines import EngineConfig
from specgauge.configs.loader import config_of
from specgauge.configs.schema import Config
from specgauge.sweeps.run.progress import Progress
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.served.environment import served_environment
from specgauge.sweeps.served.measure import ServedPair
from specgauge.sweeps.served.servers import ArmKey, running_key
from specgauge.sweeps.store.outcomes import PairOutcome, keep_outcomes
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.writer import OpenRun
from tests.engine_server.engine import Engine
from tests.engine_server.simulated import EngineTransport, simulate


def served_config(gammas: tuple[int, ...] = (0, 1, 3), **sections: Any) -> Config:
    """A pair with a server for each γ; `http://gamma2:1` is that of γ = 2."""
    engines = [{"base_url": f"http://gamma{gamma}:1", "gamma": gamma} for gamma in gammas]
    content = {
        "name": "served",
        "pairs": [{"name": "a", "engine": engines}],
        "grid": {"batch_size": [1, 4], "context": 64},
        "precision": {"max_blocks": 3, "bootstrap_replicates": 200},
        "workload": {"max_new_tokens": 32},
    }
    return config_of(content | sections, "served.yaml")


class Connects(Protocol):
    """Whatever has clients of engines."""

    def connect(self, engine: EngineConfig, base_url: str) -> OpenAIClient: ...


class Servers:
    """The engines by γ, as what connects to them."""

    def __init__(self, engines: Mapping[int, Engine]) -> None:
        self.engines = engines
        self.transports: dict[ArmKey, EngineTransport] = {
            gamma: EngineTransport(engine) for gamma, engine in engines.items()
        }

    def add(self, policy: str, engine: Engine) -> None:
        self.transports[policy] = EngineTransport(engine)

    def connect(self, engine: EngineConfig, base_url: str) -> OpenAIClient:
        transport = self.transports[running_key(engine)]
        return OpenAIClient(base_url, engine.model, api_key_env=engine.api_key_env, transport=transport, timeout_s=30.0)


def measure(path: Path, config: Config, servers: Connects, progress: Progress | None = None) -> PairOutcome:
    """One call of a run, as far as its first pair goes."""
    with OpenRun(path, config, fresh=False) as opened:
        opened.check_environment(served_environment(config))
        session = Session(opened, config.pairs[0], read_prompts(config.workload), progress or Progress())
        pair = ServedPair(session, servers.connect)
        with session.mark:
            try:
                simulate(pair.run())
            except ValueError as error:
                session.outcome.bad_input = str(error)
        keep_outcomes(path, {config.pairs[0].name: session.outcome})
    return session.outcome


def opened(path: Path) -> Run:
    return Run.open(path)
