"""Load on the engine without HTTP, JSON or an event loop: what its client would have seen, thirty times sooner.

with direct_load():                       # blocks of load of whatever client has an engine
    measure(path, config, DirectServers(engines))
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from unittest.mock import patch

from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.bench.serving.streams import OpenAIClient, Prompt, Stream
from specgauge.configs.engines import EngineConfig
from tests.engine_server.engine import Engine


class DirectClient:
    """What measuring needs of a client, of an engine that answers at once."""

    metrics_url = "metrics"

    def __init__(self, engine: Engine, base_url: str) -> None:
        self.engine, self.base_url = engine, base_url
        self.options: frozenset[str] | None = frozenset()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def check_model(self) -> None:
        """It has it."""

    async def tokenize(self, text: str, **_: Any) -> None:
        """Nobody tells the ids of a text."""

    async def stream(self, prompt: Prompt, **_: Any) -> Stream:
        return Stream(prompt_tokens=len(str(prompt).split()), tokens=1)


class DirectServers:
    """The engines by γ, as what connects to them."""

    def __init__(self, engines: Mapping[int, Engine]) -> None:
        self.engines = engines

    def connect(self, engine: EngineConfig, base_url: str) -> OpenAIClient:
        assert engine.gamma is not None
        client: Any = DirectClient(self.engines[engine.gamma], base_url)
        made: OpenAIClient = client
        return made


@contextmanager
def direct_load(*, pace_spread: float = 0.0, seed: int = 0) -> Iterator[None]:
    """Blocks of load are worked out; each has a pace of its own, of that standard deviation on the log scale."""
    draw = random.Random(seed)

    async def run_block(client: DirectClient, prompts: Sequence[Prompt], **options: Any) -> LoadBlock:
        options = {name: options[name] for name in ("batch_size", "max_new_tokens", "gamma")}
        pace = math.exp(draw.gauss(0.0, pace_spread)) if pace_spread else 1.0
        return load_block(client.engine, [len(str(one).split()) for one in prompts], pace=pace, **options)

    with patch("specgauge.sweeps.served.load.run_block", run_block):
        yield


def load_block(
    engine: Engine, prompt_tokens: Sequence[int], *, batch_size: int, max_new_tokens: int, gamma: int, pace: float
) -> LoadBlock:
    """A closed loop of streams on an engine at rest, step by step as `Engine` takes them."""
    now = 0.0
    waiting = deque(range(batch_size))
    later = deque(range(batch_size, len(prompt_tokens)))
    sent = dict.fromkeys(waiting, 0.0)
    running: dict[int, _Seen] = {}
    done: list[Stream] = []
    stopped_s = None
    while waiting or running:
        fresh = list(waiting)
        waiting.clear()
        decoding = list(running.items())
        now += pace * (
            sum(prompt_tokens[number] for number in fresh) * engine.settings.prefill_token_s
            + (engine.t_round_s(len(decoding), gamma) if decoding else 0.0)
        )
        for number, seen in decoding:
            accepted = engine.accepts(gamma)
            seen.round(now, gamma, accepted, max_new_tokens)
            if seen.tokens == max_new_tokens:
                done.append(seen.stream(number, prompt_tokens[number], gamma))
                del running[number]
                if later:
                    waiting.append(later.popleft())
                    sent[waiting[-1]] = now
                else:
                    stopped_s = now if stopped_s is None else stopped_s
        for number in fresh:
            running[number] = _Seen(sent[number], now)
    return LoadBlock(
        batch_size=batch_size,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        streams=tuple(done),
        started_s=0.0,
        stopped_s=now if stopped_s is None else stopped_s,
        ended_s=now,
        client_share=0.0,
    )


class _Seen:
    """What the client sees of one request."""

    def __init__(self, sent_s: float, now: float) -> None:
        self.sent_s, self.tokens = sent_s, 1
        self.chunk_s, self.chunk_tokens, self.accepted = [now - sent_s], [1], list[int]()

    def round(self, now: float, gamma: int, accepted: int, limit: int) -> None:
        tokens = min(accepted + 1, limit - self.tokens)
        self.tokens += tokens
        self.chunk_s.append(now - self.sent_s)
        self.chunk_tokens.append(tokens)
        if gamma:
            self.accepted.append(accepted)

    def stream(self, number: int, prompt_tokens: int, gamma: int) -> Stream:
        steps = {"per_step_accepted": self.accepted, "per_step_drafted": [gamma] * len(self.accepted)}
        return Stream(
            prompt=number,
            prompt_tokens=prompt_tokens,
            tokens=self.tokens,
            sent_s=self.sent_s,
            chunk_s=tuple(self.chunk_s),
            chunk_tokens=tuple(self.chunk_tokens),
            ended_s=self.chunk_s[-1],
            finish_reason="length",
            speculative=steps if gamma else None,
        )
