"""Requests that an engine or a load generator tells of one by one, added up to runs by γ.

    T_round(γ)    seconds after the first token over rounds, of the requests whose rounds all drafted γ
    T_decode      the same over tokens, of requests without speculation
    batch size    requests in flight on average (Little's law), where starts and ends are told

vLLM's per-request metrics and AIPerf's records share the mapping that `counts_of` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specgauge.configs.fields import LARGEST_GAMMA
from specgauge.sweeps.imports.engine_run import Counted, EngineRun, by_position, checked_gamma
from specgauge.sweeps.imports.files import Record


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request."""

    counts: Mapping[int, Counted] = field(default_factory=dict)
    """Its rounds by γ; none of plain decoding."""
    prompt_tokens: int | None = None
    output_tokens: int
    decode_s: float | None = None
    """Seconds from its first token to its last."""
    start_s: float | None = None
    end_s: float | None = None


def runs_of(where: str, requests: Sequence[Request], *, is_complete: bool = True) -> list[EngineRun]:
    """A run for every γ that requests of one load have, plain decoding first.

    is_complete: whether they are all of the load, so that those in flight tell its batch size.
    """
    batch_size = _in_flight(requests) if is_complete else None
    gammas = sorted({gamma for request in requests for gamma in request.counts or (0,)})
    return [_run(where, gamma, requests, batch_size) for gamma in gammas]


def _run(where: str, gamma: int, requests: Sequence[Request], batch_size: int | None) -> EngineRun:
    own = [request for request in requests if tuple(request.counts or (0,)) == (gamma,)]
    mixed = [request for request in requests if gamma in request.counts]
    seconds = steps = 0.0
    for request in own:
        rounds = request.counts[gamma].rounds if gamma else request.output_tokens - 1
        if request.decode_s is not None and rounds:
            seconds, steps = seconds + request.decode_s, steps + rounds
    lengths = [
        request.prompt_tokens + request.output_tokens / 2
        for request in own or mixed
        if request.prompt_tokens is not None
    ]
    return EngineRun(
        source=where,
        gamma=gamma,
        batch_size=batch_size,
        is_mean_batch=batch_size is not None,
        context=max(1, round(sum(lengths) / len(lengths))) if lengths else None,
        t_round_s=seconds / steps if steps and seconds > 0 else None,
        counts=tuple(request.counts[gamma] for request in mixed),
    )


def _in_flight(requests: Iterable[Request]) -> int | None:
    spans = [(one.start_s, one.end_s) for one in requests if one.start_s is not None and one.end_s is not None]
    if not spans:
        return None
    duration_s = max(end for _, end in spans) - min(start for start, _ in spans)
    return max(1, round(sum(end - start for start, end in spans) / duration_s)) if duration_s > 0 else None


def counts_of(record: Record, gamma: int | None, tokens: int | None = None) -> dict[int, Counted]:
    """The rounds of a request by γ, from its histogram of accepted drafts; {} where it had none.

    gamma: as given beside the file; tokens: committed in its rounds, where they are known.

    Raises:
        ValueError: a histogram whose sums are not those told beside it, a mean under 1, or a γ that nothing tells.
    """
    steps = record.whole("num_spec_steps")
    if not steps:
        return {}
    if record.has("mean_acceptance_length"):
        record.acceptance_length("mean_acceptance_length")
    histogram = histogram_of(record, "acceptance_histogram")
    accepted, drafted = record.whole("num_accepted_draft_tokens"), record.maybe_whole("num_draft_tokens")
    check_histogram(record, "acceptance_histogram", histogram, steps=steps, accepted=accepted)
    if drafted is not None and accepted > drafted:
        raise ValueError(
            f"{record.where}: expected at most {drafted} accepted drafts, as many as drafted, got {accepted}"
        )
    by_step = [
        _each_step(record, name, steps) for name in ("per_step_drafted", "per_step_accepted") if record.has(name)
    ]
    if record.has("per_step_accepted") and sum(by_step[-1]) != accepted:
        raise ValueError(f"{record.where}, per_step_accepted: expected {accepted} in all, got {sum(by_step[-1])}")
    if len(by_step) == 2 and len({drafts for drafts in by_step[0] if drafts}) > 1:
        return _by_step(record, *by_step)
    if gamma is None:
        drafts = {one for one in by_step[0] if one} if by_step and len(by_step) == 2 else set()
        gamma = drafts.pop() if len(drafts) == 1 else record.maybe_whole("num_spec_tokens")
    if gamma is None and drafted is not None:
        gamma = checked_gamma(drafted / steps, f"{record.where}, num_draft_tokens over num_spec_steps")
    if gamma is None:
        raise ValueError(f"{record.where}: expected num_spec_tokens or num_draft_tokens, got neither; give --gamma")
    return {
        checked_gamma(gamma, record.where): Counted(
            source=record.where,
            rounds=steps,
            tokens=tokens,
            drafted=drafted,
            accepted=accepted,
            accepted_by_position=by_position(histogram, gamma, record.where),
        )
    }


def _each_step(record: Record, name: str, steps: int) -> list[int]:
    entries = record.wholes(name)
    if len(entries) != steps:
        raise ValueError(f"{record.where}, {name}: expected one for each of {steps} rounds, got {len(entries)}")
    return entries


def _by_step(record: Record, drafted: Sequence[int], accepted: Sequence[int]) -> dict[int, Counted]:
    """Of a γ that changes: the rounds of each; those without drafts were plain steps."""
    found = {}
    for gamma in sorted({drafts for drafts in drafted if drafts}):
        own = [passed for drafts, passed in zip(drafted, accepted, strict=True) if drafts == gamma]
        histogram = counted_runs(own, f"{record.where}, per_step_accepted")
        found[checked_gamma(gamma, record.where)] = Counted(
            source=record.where,
            rounds=len(own),
            drafted=gamma * len(own),
            accepted=sum(own),
            accepted_by_position=by_position(histogram, gamma, record.where),
        )
    return found


def histogram_of(record: Record, name: str) -> list[int]:
    """Rounds that accepted 0, 1, 2, … drafts, from a list or a mapping.

    Raises:
        ValueError: a key that is no number of drafts, or more than any γ.
    """
    if not isinstance(record.required(name), Mapping):
        return record.wholes(name)
    inner = record.record(name)
    keys = {key: int(key) for key in inner.values if str(key).isascii() and str(key).isdigit()}
    wrong = next((key for key in inner.values if key not in keys), None)
    if wrong is not None:
        raise ValueError(f"{inner.where}: expected counts by accepted drafts 0, 1, …, got the key {wrong!r}")
    found = [0] * (_longest(keys.values(), inner.where) + 1)
    for key, accepted in keys.items():
        found[accepted] = inner.whole(key)
    return found


def counted_runs(accepted: Sequence[int], where: str) -> list[int]:
    """Rounds that accepted 0, 1, 2, … drafts, from what each round accepted; ValueError as `histogram_of`."""
    found = [0] * (_longest(accepted, where) + 1)
    for drafts in accepted:
        found[drafts] += 1
    return found


def _longest(accepted: Iterable[int], where: str) -> int:
    """The most drafts that a round accepted; a number that no γ reaches would fill the memory with zeros."""
    longest = max(accepted, default=-1)
    if longest > LARGEST_GAMMA:
        raise ValueError(f"{where}: expected at most {LARGEST_GAMMA} drafts accepted in a round, got {longest}")
    return longest


def decode_time_s(where: str, latency_s: float | None, first_s: float | None) -> float | None:
    """Seconds from a request's first token to its last, None where either is unknown.

    Raises:
        ValueError: the first token came after the last.
    """
    if latency_s is None or first_s is None:
        return None
    if first_s > latency_s:
        raise ValueError(
            f"{where}: expected the first token within the {latency_s:g} s of the request, got it after {first_s:g} s"
        )
    return latency_s - first_s


def check_histogram(record: Record, name: str, histogram: Sequence[int], *, steps: int, accepted: int) -> None:
    """Refuse a histogram that is not of the rounds and accepted drafts told beside it; ValueError with both."""
    if sum(histogram) != steps:
        raise ValueError(f"{record.where}, {name}: expected counts that add up to {steps} rounds, got {sum(histogram)}")
    passed = sum(number * rounds for number, rounds in enumerate(histogram))
    if passed != accepted:
        with_bonus = " (with a bonus each: its keys are tokens, not drafts?)" if passed == accepted + steps else ""
        raise ValueError(f"{record.where}, {name}: expected {accepted} accepted drafts in it, got {passed}{with_bonus}")
