"""What stands in the place of launched processes: simulated engines made of the words of their commands."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from specgauge.bench.serving.streams import OpenAIClient
from specgauge.configs.engines import EngineConfig
from specgauge.sweeps.served import launching
from tests.engine_server.engine import Engine, EngineSettings
from tests.engine_server.simulated import EngineTransport


@dataclass
class Started:
    """A process that is none."""

    base_url: str
    start_s: float = 30.0

    def __enter__(self) -> "Started":
        return self

    def ended(self) -> str | None:
        return None

    def stop(self) -> None:
        pass


@dataclass
class Starts:
    """Every server that was started, by the name of its log, and its engine by address."""

    settings: EngineSettings
    failing: tuple[str, ...] = ()
    """Names of servers that do not start."""
    slower: Mapping[str, float] = field(default_factory=dict)
    """Servers by name whose steps take so many times as long."""
    names: list[str] = field(default_factory=list)
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What vLLM was last told of its speculation, by the name of its log."""
    engines: dict[str, Engine] = field(default_factory=dict)

    def server(self, words: Sequence[str], *, port: int, log: Path, **_: Any) -> Started:

        self.names.append(log.stem)
        if log.stem in self.failing:
            raise RuntimeError(f"{log}: the simulated model does not fit")
        own = json.loads(words[words.index("--speculative-config") + 1]) if "--speculative-config" in words else {}
        self.told[log.stem] = own
        base_url = f"http://engine{len(self.engines)}:{port}"
        self.engines[base_url] = Engine(_settings(self.settings, own, self.slower.get(log.stem, 1.0)))
        return Started(base_url)

    def connect(self, engine: EngineConfig, base_url: str) -> OpenAIClient:
        return OpenAIClient(base_url, engine.model, transport=EngineTransport(self.engines[base_url]), timeout_s=30.0)

    @contextmanager
    def instead(self) -> Iterator[None]:
        with mock.patch.object(launching, "LaunchedServer", self.server):
            yield


def _settings(settings: EngineSettings, own: Mapping[str, Any], slower: float) -> EngineSettings:
    made = replace(settings, gamma=own.get("num_speculative_tokens", 0), adapts=own.get("adapts", False))
    if "num_speculative_tokens_per_batch_size" in own:
        made = replace(made, schedule=tuple(map(tuple, own["num_speculative_tokens_per_batch_size"])))
    if own.get("rejection_sample_method") == "synthetic":
        made = replace(made, alpha=own["synthetic_acceptance_rates"][0])
    times = {name: slower * getattr(made, name) for name in ("step_s", "draft_s", "token_s")}
    return replace(made, **times)
