"""AIPerf's records (profile_export.jsonl), a line a request, and its sums over a run (profile_export_aiperf.json).

    "metrics": {"request_latency": {"value": …, "unit": "ms"}, "time_to_first_token": …, "output_sequence_length": …}
    "spec_decode_acceptance": {"acceptance_histogram": {"0": …}, "num_spec_steps": …, "num_accepted_draft_tokens": …}

    "request_latency": {"unit": "ms", "avg": …, "count": …}, "total_spec_decode_steps": {"unit": "count", "avg": …}
    "pooled_spec_decode_acceptance_histogram": {"0": …}

A file is a run, whichever engine served it. Warm-up, cancelled and failed requests are left out. A file without
acceptance is taken as plain decoding, with a warning, unless --gamma 0 says so; beside a gamma above 0 it is refused.
Omega is 1 + accepted / rounds: a client's count of tokens may be of another tokenizer. Of the sums all requests of a
run share one gamma: drafts over rounds, or --gamma; the records tell several apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from specgauge.sweeps.imports.engine_run import (
    Counted,
    EngineRun,
    Given,
    Imported,
    by_position,
    checked_gamma,
    located,
)
from specgauge.sweeps.imports.files import Record, json_records, record_of
from specgauge.sweeps.imports.requests import (
    Request,
    check_histogram,
    counts_of,
    decode_time_s,
    histogram_of,
    runs_of,
)
from specgauge.sweeps.store.schema import WarningRow

_ACCEPTANCE = "spec_decode_acceptance"
_HISTOGRAM = "pooled_spec_decode_acceptance_histogram"
_ROUNDS, _ACCEPTED, _DRAFTED = "total_spec_decode_steps", "total_accepted_draft_tokens", "total_draft_tokens"
_LENGTH = "spec_decode_token_weighted_acceptance_length"
_MEAN = "avg"
_NEAR = 1e-3
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def is_aiperf(head: str) -> bool:
    """Whether a file begins as AIPerf's records do, or as its sums over a run."""
    is_records = '"request_latency"' in head and '"metrics"' in head and '"metadata"' in head
    return is_records or f'"{_HISTOGRAM}"' in head or ('"request_latency"' in head and '"aiperf_version"' in head)


def read_aiperf(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from files of records or of sums.

    Raises:
        ValueError: as `json_records` and `counts_of`; a file without a request that was served; sums of a run that did
            not end, that contradict each other, or with the acceptance of some of their requests alone.
    """
    runs: list[EngineRun] = []
    plain: list[str] = []
    release = None
    for index, path in enumerate(paths):
        gamma = given.of("gamma", index, len(paths))
        every = json_records(path)
        if len(every) == 1 and _is_sums(every[0]):
            runs.append(_sums_run(every[0], gamma, plain))
            continue
        records = [record for record in every if _is_served(record)]
        if not records:
            raise ValueError(
                f"{path}: expected records of requests that were served, a line each (profile_export.jsonl), or sums "
                "over them (profile_export_aiperf.json), got none"
            )
        _refuse_twice(path, records)
        if all(_acceptance(record) is None for record in records):
            _take_as_plain(str(path), _ACCEPTANCE, gamma, plain)
        found = runs_of(str(path), [_request(record, gamma) for record in records])
        if len(found) > 1 and found[0].gamma == 0:
            # requests too short to have a round stand beside those that speculated
            found = found[1:]
        runs += found
        release = release or next(filter(None, map(_engine, records)), None)
    return Imported(runs=located(runs, given), release=release, notes=tuple(_plain_notes(plain)))


def _take_as_plain(where: str, name: str, gamma: int | None, plain: list[str]) -> None:
    """Add a file without acceptance to those taken as plain decoding, unless --gamma says what it is."""
    if gamma:
        raise ValueError(f"{where}: expected {name} at gamma {gamma}, got none: have the server and AIPerf record it")
    if gamma is None:
        plain.append(where)


def _plain_notes(plain: Sequence[str]) -> Iterator[WarningRow]:
    """Files without acceptance: of plain decoding, or of a server that does not tell it."""
    if plain:
        others = f" and {len(plain) - 1} more" if len(plain) > 1 else ""
        yield WarningRow(
            code="gamma_derived",
            message=f"{plain[0]}{others}: γ is taken as 0 (plain decoding), since no acceptance is told",
            remedy="give --gamma 0 where that is so; a server that speculated must tell its acceptance",
        )


def _refuse_twice(path: Path, records: Sequence[Record]) -> None:
    metadata = [found for record in records if (found := record.maybe_record("metadata")) is not None]
    ids = Counter(name for one in metadata if (name := one.maybe_text("x_request_id")) is not None)
    for name, times in ids.most_common(1):
        if times > 1:
            raise ValueError(f"{path}: expected every request once, got x_request_id {name!r} {times} times")


def _is_served(record: Record) -> bool:
    metadata = record.maybe_record("metadata")
    phase = None if metadata is None else metadata.values.get("benchmark_phase", metadata.values.get("credit_phase"))
    is_cancelled = metadata is not None and bool(metadata.values.get("was_cancelled"))
    metrics = record.maybe_record("metrics")
    return record.values.get("error") is None and phase != "warmup" and not is_cancelled and metrics is not None


def _acceptance(record: Record) -> Record | None:
    """Of a record, wherever its release puts it."""
    holders = [one for one in (record, *map(record.maybe_record, ("metrics", "metadata"))) if one is not None]
    for holder in holders:
        if holder.has(_ACCEPTANCE):
            found = holder.record(_ACCEPTANCE)
            inner = found.maybe_record("value")
            return found if inner is None else inner
    record.refuse_other_name(_ACCEPTANCE)
    return None


def _engine(record: Record) -> str | None:
    found = _acceptance(record)
    return None if found is None else found.maybe_text("engine")


def _request(record: Record, gamma: int | None) -> Request:
    metrics, metadata = record.record("metrics"), record.maybe_record("metadata")
    latency_s, first_s = _seconds(metrics, "request_latency"), _seconds(metrics, "time_to_first_token")
    acceptance = _acceptance(record)
    tokens = int(_value(metrics, "output_sequence_length").number("value", least=1))
    prompt = (
        int(_value(metrics, "input_sequence_length").number("value")) if metrics.has("input_sequence_length") else None
    )
    start, end = (
        None if metadata is None else metadata.maybe_number(name) for name in ("request_start_ns", "request_end_ns")
    )
    return Request(
        counts={} if acceptance is None else counts_of(acceptance, gamma),
        prompt_tokens=prompt,
        output_tokens=tokens,
        decode_s=decode_time_s(record.where, latency_s, first_s),
        start_s=None if start is None else start * 1e-9,
        end_s=None if end is None else end * 1e-9,
    )


def _value(metrics: Record, name: str, key: str = "value") -> Record:
    """A metric as a mapping of value (or mean) and unit, whether or not its release wraps it."""
    value = metrics.required(name)
    where = f"{metrics.where}, {name}"
    return metrics.record(name) if isinstance(value, dict) else record_of({key: value}, where)


def _seconds(metrics: Record, name: str, key: str = "value") -> float | None:
    if not metrics.has(name):
        return None
    found = _value(metrics, name, key)
    unit = found.maybe_text("unit") or "ms"
    if unit not in _SECONDS:
        raise ValueError(f"{found.where}, unit: expected one of {', '.join(_SECONDS)}, got {unit!r}")
    return found.number(key) * _SECONDS[unit]


def _is_sums(record: Record) -> bool:
    names = (_HISTOGRAM, _ROUNDS, "aiperf_version", "request_latency")
    return not record.has("metrics") and any(record.has(name) for name in names)


def _sums_run(record: Record, gamma: int | None, plain: list[str]) -> EngineRun:
    """The run that a file of sums is."""
    if record.values.get("is_complete") is False:
        why = record.maybe_text("incomplete_reason") or "no reason is told"
        raise ValueError(f"{record.where}: expected a run that ended, got is_complete false: {why}")
    counted = None
    if record.has(_HISTOGRAM) or record.has(_ROUNDS):
        gamma, counted = _pooled(record, gamma)
    else:
        _take_as_plain(record.where, _HISTOGRAM, gamma, plain)
    latency_s = _seconds(record, "request_latency", _MEAN)
    tokens, prompt = (
        _value(record, name, _MEAN).number(_MEAN) if record.has(name) else None
        for name in ("output_sequence_length", "input_sequence_length")
    )
    requests, duration_s = _requests(record), _seconds(record, "benchmark_duration", _MEAN)
    decode_s = decode_time_s(record.where, latency_s, _seconds(record, "time_to_first_token", _MEAN))
    rounds: float | None = None if counted is None else counted.rounds
    if counted is None and requests and tokens is not None:
        rounds = requests * (tokens - 1)
    in_flight = requests * latency_s / duration_s if requests and latency_s and duration_s else None
    return EngineRun(
        source=record.where,
        gamma=gamma or 0,
        batch_size=None if in_flight is None else max(1, round(in_flight)),
        is_mean_batch=in_flight is not None,
        context=None if tokens is None or prompt is None else max(1, round(prompt + tokens / 2)),
        t_round_s=requests * decode_s / rounds if requests and decode_s and rounds and rounds > 0 else None,
        counts=() if counted is None else (counted,),
    )


def _requests(record: Record) -> int | None:
    """How many requests the means are of; where acceptance is told, of each of them."""
    latency, drafting = record.maybe_record("request_latency"), record.maybe_record("spec_decode_steps")
    requests = None if latency is None else latency.maybe_whole("count", least=1)
    if requests is None and record.has("request_count"):
        requests = _value(record, "request_count", _MEAN).whole(_MEAN, least=1)
    told = None if drafting is None else drafting.maybe_whole("count")
    if None not in (requests, told) and requests != told:
        raise ValueError(
            f"{record.where}: expected the acceptance of all {requests} requests, got that of {told}: import the "
            "records (profile_export.jsonl)"
        )
    return requests


def _pooled(record: Record, gamma: int | None) -> tuple[int, Counted]:
    """γ, and the rounds of all requests together."""
    histogram = histogram_of(record, _HISTOGRAM)
    rounds, accepted, drafted = (
        _value(record, name, _MEAN).whole(_MEAN) if record.has(name) else None
        for name in (_ROUNDS, _ACCEPTED, _DRAFTED)
    )
    rounds = sum(histogram) if rounds is None else rounds
    accepted = sum(number * count for number, count in enumerate(histogram)) if accepted is None else accepted
    check_histogram(record, _HISTOGRAM, histogram, steps=rounds, accepted=accepted)
    if not rounds:
        raise ValueError(f"{record.where}, {_HISTOGRAM}: expected rounds, got none")
    if record.has(_LENGTH):
        length = _value(record, _LENGTH, _MEAN).acceptance_length(_MEAN)
        if abs(length / (1 + accepted / rounds) - 1) > _NEAR:
            raise ValueError(
                f"{record.where}, {_LENGTH}: expected 1 + {_ACCEPTED} / {_ROUNDS}, {1 + accepted / rounds:.4g}, got "
                f"{length:.4g}"
            )
    if gamma is None:
        if drafted is None:
            raise ValueError(f"{record.where}: expected {_DRAFTED}, it is missing; give --gamma")
        gamma = checked_gamma(drafted / rounds, f"{record.where}, {_DRAFTED} over {_ROUNDS}")
    counted = Counted(
        source=record.where,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        accepted_by_position=by_position(histogram, gamma, f"{record.where}, {_HISTOGRAM}"),
    )
    return gamma, counted
