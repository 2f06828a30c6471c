"""Answers of a vLLM server started with --per-request-spec-decode-metrics detailed: JSON, JSON lines or streams.

    "metrics": {"generation_time_ms": …, "speculative_decoding": {"acceptance_histogram": …, "num_spec_steps": …}}

A file is a load: its requests were in flight together, in a batch that --batch-size says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specgauge.sweeps.imports.engine_run import EngineRun, Given, Imported, located
from specgauge.sweeps.imports.files import Record, json_records
from specgauge.sweeps.imports.requests import Request, counts_of, runs_of


def is_answer(head: str) -> bool:
    """Whether a file begins as an answer with such metrics does."""
    return '"metrics"' in head and '"generation_time_ms"' in head and '"choices"' in head


def read_answers(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from answers, a run for each file and γ; ValueError as `counts_of`, and for answers without metrics."""
    runs: list[EngineRun] = []
    release = target = None
    for index, path in enumerate(paths):
        records = [record for record in json_records(path) if record.maybe_record("metrics") is not None]
        if not records:
            raise ValueError(
                f"{path}: expected answers with `metrics`, got none; start vLLM with --per-request-spec-decode-metrics "
                "detailed"
            )
        gamma = given.of("gamma", index, len(paths))
        runs += runs_of(str(path), [_request(record, gamma) for record in records], is_complete=False)
        target = target or records[0].maybe_text("model")
        release = release or next(_releases(records), None)
    return Imported(runs=located(runs, given), target=target, release=release)


def _releases(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        fingerprint = record.maybe_text("system_fingerprint") or ""
        if fingerprint.startswith("vllm-"):
            yield fingerprint.removeprefix("vllm-").partition("-")[0]


def _request(record: Record, gamma: int | None) -> Request:
    usage, metrics = record.record("usage"), record.record("metrics")
    tokens = usage.whole("completion_tokens", least=1)
    metrics.refuse_other_name("speculative_decoding")
    speculative = metrics.maybe_record("speculative_decoding")
    milliseconds = metrics.maybe_number("generation_time_ms")
    return Request(
        counts={} if speculative is None else counts_of(speculative, gamma, tokens - 1 or None),
        prompt_tokens=usage.maybe_whole("prompt_tokens"),
        output_tokens=tokens,
        decode_s=None if milliseconds is None else milliseconds / 1e3,
    )
