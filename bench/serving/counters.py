"""What a server's own counters say of a block: rounds, tokens and accepted drafts between two scrapes of its metrics.

    counts = count(before, after, where="http://127.0.0.1:8000/metrics", first_tokens=24)
    counts.rounds, counts.tokens, counts.accepted_by_position

    vLLM         rounds are inter_token_latency_seconds_count: num_drafts has none where a lookup found nothing
    SGLang       rounds are spec_verify_calls, at gamma 0 inter_token_latency_seconds_count
    llama.cpp    rounds are tokens less accepted drafts (n_decode times busy slots), less each request's first token

Omega = tokens after first ones / rounds, as the client saw them. Drafts accepted beyond a length limit are in vLLM's
accepted, and were nobody's tokens. Accepted by position is A_i times rounds where gamma did not change in between;
where it did, the steps of each request tell (`request_counts`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from specgauge.bench.serving.streams import Stream
from specgauge.configs.prometheus import Between, Scrape

_GAUGES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "cache_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
}
_LINES = {
    field: re.compile(rf"^(?:{'|'.join(names)})(?:\{{.*\}})?\s+(\S+)", re.MULTILINE) for field, names in _GAUGES.items()
}
_GENERATED = {
    "vllm": "vllm:generation_tokens",
    "sglang": "sglang:generation_tokens",
    "llama.cpp": "llamacpp:tokens_predicted",
}
"""Each engine's counter of tokens."""
_GENERATED_LINE = re.compile(rf"^(?:{'|'.join(_GENERATED.values())})(?:_total)?(?:\{{.*\}})?\s+(\S+)", re.MULTILINE)
_LATENCIES = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""By release, the newer one first."""


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """What a server says of the moment it was asked; None where it does not."""

    running: float | None = None
    waiting: float | None = None
    cache_share: float | None = None
    """Of its cache, in use: 1 is full."""


def read_gauges(text: str) -> Gauges:
    """The gauges in the text of a server's metrics, several engines (data parallelism) added up."""
    found = {field: [_number(one) for one in line.findall(text)] for field, line in _LINES.items()}
    shares = found.pop("cache_share")
    sums = {field: sum(values) if values else None for field, values in found.items()}
    return Gauges(**sums, cache_share=max(shares, default=None))


def read_generated(text: str) -> float | None:
    """Tokens that a server has generated so far; None where it is of no engine that is known."""
    found = _GENERATED_LINE.findall(text)
    return sum(_number(one) for one in found) if found else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class EngineCounts:
    """What an engine counted of some rounds, those that had nothing to verify too; None where it does not tell."""

    engine: str
    rounds: int
    tokens: int
    """Tokens committed in them, the bonus or replacement included: without the first token of each request."""
    drafted: int | None = None
    accepted: int | None = None
    """Drafts accepted, those too that a length limit cut off."""
    accepted_by_position: tuple[int, ...] | None = None
    """Rounds that accepted at least 1, 2, … drafts, up to the last position at which any did."""
    round_s: float | None = None
    """Seconds of all rounds together, by the engine's clock."""
    preemptions: int | None = None
    cached_tokens: int | None = None
    """Tokens of prompts that were in the prefix cache."""
    steps: int | None = None
    """Steps of the engine, of prefill too."""
    speculates: bool = True
    """Whether it has the counters of a server that does."""

    @property
    def tokens_per_round(self) -> float | None:
        """Ω; None without a round."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def t_round_s(self) -> float | None:
        """The mean time of a round, prefills of other requests in between included."""
        return self.round_s / self.rounds if self.rounds and self.round_s else None


def count(before: str, after: str, *, where: str = "metrics", first_tokens: int | None = None) -> EngineCounts | None:
    """What was counted between the texts of two scrapes; None where they are of no engine that is known.

    `first_tokens` are the requests that got their first token in between, which llama.cpp does not tell.

    Raises:
        ValueError: text that is no metrics, or a counter that fell: the server restarted in between.
    """
    first, last = Scrape.parse(before, f"{where}, before"), Scrape.parse(after, f"{where}, after")
    engine = next((name for name, counter in _GENERATED.items() if counter in last.samples), None)
    if engine is None:
        return None
    between = Between(before=first, after=last)
    if engine == "vllm":
        return vllm_counts(between)
    return _sglang(between) if engine == "sglang" else _llama_cpp(between, first_tokens)


def vllm_counts(between: Between) -> EngineCounts:
    """What vLLM counted between two scrapes.

    Raises:
        ValueError: without the counter of rounds, or a counter that fell: the server restarted in between.
    """
    latency = next((name for name in _LATENCIES if between.has(f"{name}_count")), None)
    if latency is None:
        raise ValueError(f"{between.after.where}: expected {_LATENCIES[0]}, it is missing: another release of vLLM?")
    own = "vllm:spec_decode_num"
    speculates = between.has(f"{own}_drafts")
    accepted = between.whole(f"{own}_accepted_tokens")
    return EngineCounts(
        engine="vllm",
        rounds=between.whole(f"{latency}_count"),
        tokens=between.whole("vllm:generation_tokens") - between.whole("vllm:time_to_first_token_seconds_count"),
        drafted=between.whole(f"{own}_draft_tokens") if speculates else None,
        accepted=accepted if speculates else None,
        accepted_by_position=_positions(between, f"{own}_accepted_tokens_per_pos", accepted) if speculates else None,
        round_s=between.counter(f"{latency}_sum"),
        preemptions=_maybe(between, "vllm:num_preemptions"),
        cached_tokens=_maybe(between, "vllm:prefix_cache_hits"),
        steps=between.whole("vllm:iteration_tokens_total_count") or None,
        speculates=speculates,
    )


def _sglang(between: Between) -> EngineCounts:
    latency = "sglang:inter_token_latency_seconds"
    verified = between.whole("sglang:spec_verify_calls")
    rounds = verified or between.whole(f"{latency}_count")
    tokens = between.whole("sglang:generation_tokens") - between.whole("sglang:time_to_first_token_seconds_count")
    return EngineCounts(
        engine="sglang",
        rounds=rounds,
        tokens=tokens,
        accepted=tokens - rounds if verified else None,
        round_s=between.counter(f"{latency}_sum") or None,
        cached_tokens=_maybe(between, "sglang:cached_tokens"),
        speculates=between.has("sglang:spec_verify_calls"),
    )


def _llama_cpp(between: Between, first_tokens: int | None) -> EngineCounts:
    own = "llamacpp:spec_decode_num"
    tokens, accepted = between.whole("llamacpp:tokens_predicted"), between.whole(f"{own}_accepted_tokens")
    first = first_tokens or 0
    return EngineCounts(
        engine="llama.cpp",
        rounds=tokens - accepted - first,
        tokens=tokens - first,
        drafted=between.whole(f"{own}_draft_tokens"),
        accepted=accepted,
        accepted_by_position=_positions(between, f"{own}_accepted_tokens_per_pos", accepted),
        round_s=between.counter("llamacpp:tokens_predicted_seconds") or None,
        cached_tokens=_maybe(between, "llamacpp:prompt_tokens_cached"),
        steps=between.whole("llamacpp:n_decode") or None,
    )


def _maybe(between: Between, name: str) -> int | None:
    return between.whole(name) if between.has(name) else None


def _positions(between: Between, name: str, accepted: int) -> tuple[int, ...] | None:
    found = between.by_position(name)
    if accepted and not found:
        return None
    return tuple(found.get(position, 0) for position in range(max(found, default=-1) + 1))


def request_counts(stream: Stream, *, is_by_round: bool = True) -> Mapping[int, EngineCounts]:
    """What the speculative metrics of one request tell of its steps, by the drafts they had: its γ, where that changed.

    At γ = 0 are the rounds that its stream had beside them: vLLM tells no step without drafts; not where chunks are no
    rounds. Tokens are those committed, a length limit aside. Empty where the metrics do not tell every step.

    Raises:
        ValueError: metrics that contradict themselves, or the stream.
    """
    told = stream.speculative or {}
    drafted, accepted = told.get("per_step_drafted"), told.get("per_step_accepted")
    rounds = max(0, len(stream.chunk_s) - 1)
    if not drafted or not accepted:
        is_plain = is_by_round and rounds and told.get("num_spec_steps") == 0  # a lookup that never found anything
        return {0: EngineCounts(engine="vllm", rounds=rounds, tokens=rounds)} if is_plain else {}
    if len(drafted) != len(accepted) or any(took > had for took, had in zip(accepted, drafted, strict=True)):
        raise ValueError("per_step_accepted: expected at most per_step_drafted in each step, got more, or other steps")
    if is_by_round and rounds < len(drafted):
        raise ValueError(f"per_step_drafted: expected at most the {rounds} rounds of its stream, got {len(drafted)}")
    found: dict[int, EngineCounts] = {}
    for gamma in sorted(set(drafted)):
        own = [took for took, had in zip(accepted, drafted, strict=True) if had == gamma]
        found[gamma] = EngineCounts(
            engine="vllm",
            rounds=len(own),
            tokens=sum(own) + len(own),
            drafted=gamma * len(own),
            accepted=sum(own),
            accepted_by_position=tuple(sum(took >= position for took in own) for position in range(1, gamma + 1)),
        )
    if is_by_round and rounds > len(drafted):
        plain = rounds - len(drafted)
        found[0] = EngineCounts(engine="vllm", rounds=plain, tokens=plain)
    return found
