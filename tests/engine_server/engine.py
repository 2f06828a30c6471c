"""The engine: requests wait, run in one batch, and each step gives every one of them a round's tokens.

A step takes prefill of new requests and T_round(B, γ) = γ·draft_s + step_s + max(0, B(γ+1) − free_tokens)·token_s where
B rows decode; B is that of the graph that holds them, tokens those of whole tiles, where it has any. Steps end at
absolute times of the event loop's clock, so late wake-ups do not add up.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from tests.engine_server.live import LiveLog


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    gamma: int = 0
    alpha: float = 0.8
    """Each draft is accepted with it, after those before it."""
    seed: int = 0
    schedule: tuple[tuple[int, int, int], ...] = ()
    """Ranges [first, last, γ] of batch sizes, each γ at most `gamma`; beyond the last its γ goes on."""
    adapts: bool = False
    """Whether it takes the γ up to `gamma` with the most tokens a second at the batch size of a step, known to it."""
    step_s: float = 0.01
    draft_s: float = 0.001
    token_s: float = 0.001
    free_tokens: int = 16
    """Tokens that a step verifies in the time of one."""
    tile: int = 1
    """Tokens that are verified together, or the time of as many taken."""
    graphs: tuple[int, ...] = ()
    """Rising batch sizes of graphs: rows take the time of the first that holds them; beyond the last, their own."""
    prefill_token_s: float = 0.0001
    most_running: int = 256
    prefix_cache: bool = False
    finds: float = 1.0
    """Rounds in which a lookup finds drafts; the others decode plainly."""
    model: str = "target"
    draft_sampling: str = "greedy"
    tells: str = "ids"
    """How a chunk tells its tokens: ids, usage, nothing, or singly (llama.cpp: a token an event, with timings)."""
    letters: int = 0
    """Of a token: a longer word has several; 0 is a token a word."""
    tokenizes: str = ""
    """What /tokenize calls its text; empty: there is none."""
    begins: bool = False
    """Whether the tokenizer puts a token before a text."""
    adds_to_ids: int = 0
    """Tokens put before a prompt of ids."""
    takes_ids: bool = True
    per_request: bool = False
    has_metrics: bool = True
    n_max_honoured: bool = False
    preempts_every: int = 0
    # faults
    api_key: str | None = None
    fails_every: int = 0
    """Every so many-th request is answered by `fail_status`."""
    fail_status: int = 500
    hangs_every: int = 0
    merges: int = 1
    """Events that a proxy sends on together."""
    joins: int = 1
    """Rounds whose tokens the server puts into one event."""
    crash_after: int | None = None
    """Requests after which the engine is gone."""
    strict: tuple[str, ...] = ()
    """Fields that are refused."""
    usage_off_by: int = 0
    """Tokens by which the usage differs from the stream."""
    lag_s: float = 0.0
    """Time after which the counters show what was sent."""
    counts_off: float = 1.0
    """What the accepted drafts of the counters are multiplied by."""
    echoes_key: bool = False


@dataclass(eq=False)
class Request:
    """A request in the engine."""

    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    gamma: int | None
    key: tuple[Any, ...]
    out: asyncio.Queue[list[int] | None] = field(default_factory=asyncio.Queue)
    tokens: int = 0
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    last_s: float = 0.0


class GoneError(Exception):
    """The engine crashed."""


class Engine:
    def __init__(self, settings: EngineSettings = EngineSettings()) -> None:
        self.settings = settings
        self.gamma = settings.gamma
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.counters: dict[str, float] = dict.fromkeys(
            (
                *("generation_tokens", "prompt_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits"),
                *("inter_token_latency_seconds_count", "inter_token_latency_seconds_sum", "first_tokens"),
                *("num_drafts", "num_draft_tokens", "num_accepted_tokens", "iterations", "requests", "step_tokens"),
            ),
            0.0,
        )
        self._shown = {**self.counters}
        self.accepted_by_position = [0] * 16
        self.requests = 0
        self.tokenized = 0
        """Requests to /tokenize."""
        self.is_gone = False
        self._random = random.Random(settings.seed)
        self._cached: set[tuple[Any, ...]] = set()
        self._loop: asyncio.Task[None] | None = None
        self.live: LiveLog | None = None
        self.step_log: list[tuple[float, int, int]] = []
        """End, rows decoding and γ of every step."""

    def t_round_s(self, rows: int, gamma: int) -> float:
        """T_round(B, γ); T_decode(B) at γ = 0."""
        own = self.settings
        rows = next((size for size in own.graphs if size >= rows), rows)
        tokens = -(-rows * (gamma + 1) // own.tile) * own.tile
        return gamma * own.draft_s + own.step_s + max(0, tokens - own.free_tokens) * own.token_s

    def omega(self, gamma: int) -> float:
        """Tokens a round, the bonus included."""
        alpha, finds = self.settings.alpha, self.settings.finds
        return 1 + finds * sum(alpha**position for position in range(1, gamma + 1))

    def gamma_at(self, rows: int) -> int:
        """What a step of so many rows drafts: by its schedule, by its policy, or always the same."""
        own = self.settings
        if own.schedule:
            return min(self.gamma, next((k for _, last, k in own.schedule if rows <= last), own.schedule[-1][2]))
        if own.adapts:
            return max(range(self.gamma + 1), key=lambda gamma: self.omega(gamma) / self.t_round_s(rows, gamma))
        return self.gamma

    def submit(self, key: tuple[Any, ...], prompt_tokens: int, max_tokens: int, gamma: int | None = None) -> Request:
        hit = prompt_tokens - 1 if self.settings.prefix_cache and key in self._cached else 0
        self._cached.add(key)
        self.counters["prefix_cache_queries"] += prompt_tokens
        self.counters["prefix_cache_hits"] += hit
        one = Request(
            prompt_tokens=prompt_tokens, cached_tokens=hit, max_tokens=max_tokens, key=key,
            gamma=gamma if self.settings.n_max_honoured else None,
        )  # fmt: skip
        self.waiting.append(one)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._run())
        return one

    def drop(self, one: Request) -> None:
        """The client left."""
        for where in (self.waiting, self.running):
            if one in where:
                where.remove(one)

    def crash(self) -> None:
        self.is_gone = True
        for one in (*self.waiting, *self.running):
            one.out.put_nowait(None)
        self.waiting, self.running = [], []

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        now = clock()
        while self.waiting or self.running:
            decoding = [*self.running]
            fresh = self.waiting[: max(0, self.settings.most_running - len(decoding))]
            del self.waiting[: len(fresh)]
            self.running += fresh
            if self.live is not None:
                self.gamma = self.live.follow()
            begun_s = now
            chosen = self.gamma_at(len(decoding))
            gammas = [chosen if one.gamma is None else one.gamma for one in decoding]
            prefill = sum(one.prompt_tokens - one.cached_tokens for one in fresh) * self.settings.prefill_token_s
            longest = max(gammas, default=0)
            now += prefill + self.t_round_s(len(decoding), longest) if decoding else prefill
            await asyncio.sleep(max(0.0, now - clock()))
            self.step_log.append((now, len(decoding), longest))
            self.counters["iterations"] += 1
            accepted = [
                self._round(one, gamma, now) for one, gamma in zip(decoding, gammas, strict=True) if one in self.running
            ]
            if self.live is not None:
                self.live.add(begun_s, accepted, len(fresh))
            for one in fresh:
                if one in self.running:
                    self.counters["first_tokens"] += 1
                    self.counters["prompt_tokens"] += one.prompt_tokens
                    self._give(one, 1, now)
            if self.settings.lag_s:
                shown = {**self.counters}
                asyncio.get_running_loop().call_later(self.settings.lag_s, self._show, shown)

    def _show(self, counters: dict[str, float]) -> None:
        self._shown = counters

    def accepts(self, gamma: int) -> int:
        """Drafts that one round accepts."""
        accepted = 0
        while accepted < gamma and self._random.random() < self.settings.alpha:
            self.accepted_by_position[accepted] += 1
            accepted += 1
        return accepted

    def _round(self, one: Request, gamma: int, now: float) -> int:
        """The drafts that it accepted."""
        counters, own = self.counters, self.settings
        if gamma and own.finds < 1 and self._random.random() >= own.finds:
            gamma = 0
        accepted = self.accepts(gamma)
        if gamma:
            counters["num_drafts"] += 1
            counters["num_draft_tokens"] += gamma
            counters["num_accepted_tokens"] += accepted * own.counts_off
            one.accepted.append(accepted)
            one.drafted.append(gamma)
        counters["inter_token_latency_seconds_count"] += 1
        counters["inter_token_latency_seconds_sum"] += now - one.last_s
        if own.preempts_every and counters["inter_token_latency_seconds_count"] % own.preempts_every == 0:
            counters["num_preemptions"] += 1
        self._give(one, accepted + 1, now)
        return accepted

    def _give(self, one: Request, tokens: int, now: float) -> None:
        tokens = min(tokens, one.max_tokens - one.tokens)
        one.tokens += tokens
        one.last_s = now
        self.counters["generation_tokens"] += tokens
        one.out.put_nowait([self._random.randrange(1000) for _ in range(tokens)])
        if one.tokens >= one.max_tokens:
            one.out.put_nowait(None)
            self.running.remove(one)
            self.counters["requests"] += 1

    def metrics(self) -> str:
        """The text at /metrics, in vLLM's names."""
        own = self._shown if self.settings.lag_s else self.counters
        labels = f'engine="0",model_name="{self.settings.model}"'
        values: list[tuple[str, float]] = [
            ("num_requests_running", len(self.running)), ("num_requests_waiting", len(self.waiting)),
            ("kv_cache_usage_perc", len(self.running) / self.settings.most_running),
            *((f"{name}_total", own[name]) for name in (
                "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens")),
            ("iteration_tokens_total_count", own["iterations"]),
            ("request_prompt_tokens_count", own["first_tokens"]), ("request_prompt_tokens_sum", own["prompt_tokens"]),
            ("time_to_first_token_seconds_count", own["first_tokens"]),
            *((name, own[name]) for name in ("inter_token_latency_seconds_count", "inter_token_latency_seconds_sum")),
        ]  # fmt: skip
        if self.settings.gamma or self.gamma:
            names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
            values += [(f"spec_decode_{name}_total", own[name]) for name in names]
        lines = [f"vllm:{name}{{{labels}}} {float(value)}" for name, value in values]
        if self.settings.gamma or self.gamma:
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{position}"}} {float(count)}'
                for position, count in enumerate(self.accepted_by_position[: max(self.settings.gamma, self.gamma)])
            ]
        return "\n".join(["# HELP vllm:num_requests_running Number of requests running.", *lines, ""])
