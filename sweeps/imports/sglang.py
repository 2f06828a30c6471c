"""What SGLang writes: bench_speculative.py's JSON lines, the meta_info of answers, and scrapes of its counters.

    bench_speculative    {batch_size, steps, topk, num_draft_tokens, acc_length, step_time, speed, completion_tokens}
    meta_info            {spec_verify_ct, spec_correct_drafts_histogram, spec_num_correct_drafts, completion_tokens, …}
    counters             spec_verify_calls, generation_tokens, two scrapes a run

acc_length has the bonus in it, speed is acc_length / step_time, and γ is steps: num_draft_tokens is γ + 1 in a chain.
Counts of accepted drafts have other names by release; histograms hold rounds by accepted drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specgauge.configs.prometheus import Between
from specgauge.sweeps.imports.engine_run import (
    Counted,
    EngineRun,
    Given,
    Imported,
    by_position,
    checked_gamma,
    located,
)
from specgauge.sweeps.imports.files import Record, json_records
from specgauge.sweeps.imports.prometheus import betweens_of
from specgauge.sweeps.imports.requests import Request, check_histogram, decode_time_s, histogram_of, runs_of
from specgauge.sweeps.store.schema import WarningRow

_NEAR = 0.05
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""By release, the newest first."""
_TOKENS, _ROUNDS = "sglang:generation_tokens", "sglang:spec_verify_calls"


def is_bench(head: str) -> bool:
    """Whether a file begins as bench_speculative.py's lines do."""
    return all(f'"{name}"' in head for name in ("steps", "topk", "acc_length", "step_time"))


def read_bench(paths: Sequence[Path], given: Given) -> Imported:
    """A run for each line.

    Raises:
        ValueError: as `json_records`; a draft tree, under one token a round, or figures that contradict each other.
    """
    runs = [_line(record) for path in paths for record in json_records(path)]
    percentile = WarningRow(
        code="step_time_percentile",
        message="step_time is a 20th percentile: times are those of quick steps, with γ and without",
        remedy="compare S, not tokens a second, with other sources",
    )
    return Imported(runs=located(runs, given), notes=(percentile,))


def _line(record: Record) -> EngineRun:
    gamma = checked_gamma(record.whole("steps"), f"{record.where}, steps")
    topk, drafts = record.whole("topk"), record.whole("num_draft_tokens")
    if gamma and (topk != 1 or drafts != gamma + 1):
        raise ValueError(
            f"{record.where}: expected a chain (topk 1, num_draft_tokens {gamma + 1} at steps {gamma}), got topk "
            f"{topk} and num_draft_tokens {drafts}; draft trees are not covered"
        )
    length, step_s = record.acceptance_length("acc_length"), record.number("step_time")
    speed = record.maybe_number("speed")
    if speed is not None and abs(speed * step_s / length - 1) > _NEAR:
        raise ValueError(
            f"{record.where}: expected speed to be acc_length / step_time, {length / step_s:.4g}, got {speed:.4g}: "
            "another release?"
        )
    return EngineRun(
        source=record.where,
        gamma=gamma,
        batch_size=record.whole("batch_size", least=1),
        t_round_s=step_s,
        counts=(_mean_counted(record, length),) if gamma else (),
    )


def _mean_counted(record: Record, length: float) -> Counted:
    tokens = record.maybe_whole("completion_tokens")
    rounds = round(tokens / length) if tokens else 0
    if not tokens or not rounds:
        return Counted(source=record.where, tokens_per_round=length)
    return Counted(source=record.where, rounds=rounds, tokens=tokens)


def is_meta_info(head: str) -> bool:
    """Whether a file begins with answers of SGLang."""
    return '"meta_info"' in head and '"completion_tokens"' in head


def read_meta_info(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from answers, a run for each file and γ.

    Raises:
        ValueError: as `json_records`; answers without meta_info; histograms that contradict the counts; γ not told.
    """
    runs: list[EngineRun] = []
    for index, path in enumerate(paths):
        gamma = given.of("gamma", index, len(paths))
        infos = [info for record in json_records(path) for info in _infos(record)]
        if not infos:
            raise ValueError(f"{path}: expected answers with meta_info, got none")
        runs += runs_of(str(path), [_request(info, gamma) for info in infos], is_complete=False)
    return Imported(runs=located(runs, given))


def _infos(record: Record) -> Iterator[Record]:
    own = record.maybe_record("meta_info")
    if own is not None:
        yield own
    for number, choice in enumerate(record.values.get("choices") or ()):
        if isinstance(choice, Mapping) and isinstance(choice.get("meta_info"), Mapping):
            yield Record(where=f"{record.where}, choices[{number}].meta_info", values=choice["meta_info"])


def _first(record: Record, names: Sequence[str]) -> str | None:
    return next((name for name in names if record.has(name)), None)


def _request(info: Record, gamma: int | None) -> Request:
    tokens = info.whole("completion_tokens", least=1)
    if not info.has("spec_verify_ct") and any(name.startswith("spec_") for name in info.values):
        info.required("spec_verify_ct")  # without it a release that speculates would be taken as plain decoding
    rounds = info.maybe_whole("spec_verify_ct") or 0
    latency_s, first_s = info.maybe_number("e2e_latency"), info.maybe_number("time_to_first_token")
    return Request(
        counts=_counts(info, rounds, tokens, gamma) if rounds else {},
        prompt_tokens=info.maybe_whole("prompt_tokens"),
        output_tokens=tokens,
        decode_s=decode_time_s(info.where, latency_s, first_s),
    )


def _counts(info: Record, rounds: int, tokens: int, gamma: int | None) -> dict[int, Counted]:
    if info.has("spec_accept_length"):
        info.acceptance_length("spec_accept_length")
    accepted_name, proposed_name, histogram_name = (
        _first(info, names) for names in (_ACCEPTED, _PROPOSED, _HISTOGRAMS)
    )
    drafted = None if proposed_name is None else info.whole(proposed_name)
    histogram = [] if histogram_name is None else histogram_of(info, histogram_name)
    accepted = None if accepted_name is None else info.whole(accepted_name)
    if accepted is None and histogram:
        accepted = sum(number * count for number, count in enumerate(histogram))
    if gamma is None:
        if not drafted or drafted % rounds:
            told = "nothing" if drafted is None else f"{drafted} in {rounds} rounds"
            raise ValueError(f"{info.where}: expected a whole gamma of drafts a round, got {told}; give --gamma")
        gamma = drafted // rounds
    positions = None
    if histogram and accepted is not None and histogram_name is not None:
        check_histogram(info, histogram_name, histogram, steps=rounds, accepted=accepted)
        positions = by_position(histogram, gamma, info.where)
    return {
        checked_gamma(gamma, info.where): Counted(
            source=info.where,
            rounds=rounds,
            tokens=None if accepted is not None else tokens,
            drafted=drafted,
            accepted=accepted,
            accepted_by_position=positions,
        )
    }


def is_scrape(head: str) -> bool:
    """Whether a file begins as SGLang's metrics do."""
    return "sglang:" in head and not head.lstrip().startswith("{")


def read_scrapes(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from pairs of scrapes, BEFORE AFTER; errors as `betweens_of`, and for a γ that was not given."""
    betweens = betweens_of(paths, needs=_TOKENS)
    runs = [_scraped(between, given.of("gamma", index, len(betweens))) for index, between in enumerate(betweens)]
    models = betweens[-1].after.models
    return Imported(runs=located(runs, given), target=models[0] if models else None)


def _scraped(between: Between, gamma: int | None) -> EngineRun:
    rounds, tokens = between.whole(_ROUNDS), between.whole(_TOKENS)
    tokens -= between.whole("sglang:time_to_first_token_seconds_count")
    if rounds and gamma is None:
        raise ValueError(f"{between.where}: expected --gamma, since SGLang's counters do not tell it, got none")
    steps = rounds or between.whole("sglang:inter_token_latency_seconds_count")
    seconds = between.counter("sglang:inter_token_latency_seconds_sum")
    more: dict[str, Any] = {"t_round_s": seconds / steps} if seconds and steps else {}
    counts = (Counted(source=between.where, rounds=rounds, tokens=tokens),) if rounds else ()
    return EngineRun(source=between.where, gamma=(gamma or 0) if rounds else 0, counts=counts, **more)
