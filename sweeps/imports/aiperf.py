"""AIPerf's records (profile_export.jsonl): a line a request, whichever engine served it. A file is a run.

    "metrics": {"request_latency": {"value": …, "unit": "ms"}, "time_to_first_token": …, "output_sequence_length": …}
    "spec_decode_acceptance": {"acceptance_histogram": {"0": …}, "num_spec_steps": …, "num_accepted_draft_tokens": …}

Warm-up, cancelled and failed requests are left out. A file without spec_decode_acceptance is taken as plain decoding,
with a warning, unless --gamma 0 says so; beside a gamma above 0 it is refused. Omega is 1 + accepted / rounds: a
client's count of tokens may be of another tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from specgauge.sweeps.imports.engine_run import EngineRun, Given, Imported, located
from specgauge.sweeps.imports.files import Record, json_records, record_of
from specgauge.sweeps.imports.requests import Request, counts_of, decode_time_s, runs_of
from specgauge.sweeps.store.schema import WarningRow

_ACCEPTANCE = "spec_decode_acceptance"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def is_records(head: str) -> bool:
    """Whether a file begins as AIPerf's records do."""
    return '"request_latency"' in head and '"metrics"' in head and '"metadata"' in head


def read_records(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from files of records; ValueError as `counts_of`, and for a file without a request that was served."""
    runs: list[EngineRun] = []
    notes: list[WarningRow] = []
    release = None
    for index, path in enumerate(paths):
        records = [record for record in json_records(path) if _is_served(record)]
        if not records:
            raise ValueError(
                f"{path}: expected records of requests that were served, a line each (profile_export.jsonl; AIPerf's "
                "sums over a run are not read), got none"
            )
        _refuse_twice(path, records)
        gamma = given.of("gamma", index, len(paths))
        if all(_acceptance(record) is None for record in records):
            _note_plain(path, gamma, notes)
        found = runs_of(str(path), [_request(record, gamma) for record in records])
        if len(found) > 1 and found[0].gamma == 0:
            # requests too short to have a round stand beside those that speculated
            found = found[1:]
        runs += found
        release = release or next(filter(None, map(_engine, records)), None)
    return Imported(runs=located(runs, given), release=release, notes=tuple(notes))


def _note_plain(path: Path, gamma: int | None, notes: list[WarningRow]) -> None:
    """Records without acceptance: of plain decoding, or of a server that does not tell it."""
    if gamma:
        raise ValueError(
            f"{path}: expected {_ACCEPTANCE} in its records at gamma {gamma}, got none: have the server and AIPerf "
            "record it"
        )
    if gamma is None:
        notes.append(
            WarningRow(
                code="gamma_derived",
                message=f"{path}: γ is taken as 0 (plain decoding), since no record has {_ACCEPTANCE}",
                remedy="give --gamma 0 where that is so; a server that speculated must tell its acceptance",
            )
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
    for holder in (record, record.maybe_record("metrics"), record.maybe_record("metadata")):
        if holder is not None and holder.has(_ACCEPTANCE):
            found = holder.record(_ACCEPTANCE)
            inner = found.maybe_record("value")
            return found if inner is None else inner
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


def _value(metrics: Record, name: str) -> Record:
    """A metric as a mapping of value and unit, whether or not its release wraps it."""
    value = metrics.required(name)
    where = f"{metrics.where}, {name}"
    return metrics.record(name) if isinstance(value, dict) else record_of({"value": value}, where)


def _seconds(metrics: Record, name: str) -> float | None:
    if not metrics.has(name):
        return None
    found = _value(metrics, name)
    unit = found.maybe_text("unit") or "ms"
    if unit not in _SECONDS:
        raise ValueError(f"{found.where}, unit: expected one of {', '.join(_SECONDS)}, got {unit!r}")
    return found.number("value") * _SECONDS[unit]
