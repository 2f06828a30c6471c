"""Every format that `specgauge import` reads, by name, and which of them a file is.

    form = find_format("vllm-bench")
    form, = guess([path])
    imported = read(form, paths, given)

A new format is a file with a function that reads it, and one entry of `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specgauge.configs.errors import did_you_mean
from specgauge.configs.reading import check_regular
from specgauge.sweeps.imports import (
    acceptance_files,
    aiperf,
    llama_cpp,
    sglang,
    table,
    vllm_bench,
    vllm_metrics,
    vllm_requests,
)
from specgauge.sweeps.imports.engine_run import Format, Given, Imported, digest
from specgauge.sweeps.imports.files import IMPORT_BYTES, refuse_twice

_HEAD_CHARACTERS = 65_536

FORMATS: tuple[Format, ...] = (
    Format(
        name="table",
        engine="table",
        about="our own CSV: a row for each γ, batch size and context",
        read=table.read_table,
        matches=table.is_table,
    ),
    Format(
        name="aiperf",
        engine="aiperf",
        about="records of AIPerf (profile_export.jsonl) or sums over them (profile_export_aiperf.json): a file a run",
        read=aiperf.read_aiperf,
        matches=aiperf.is_aiperf,
    ),
    Format(
        name="vllm-metrics",
        engine="vllm",
        about="scrapes of /metrics: BEFORE AFTER, and more pairs of them",
        read=vllm_metrics.read_scrapes,
        matches=vllm_metrics.is_scrape,
        shares_files=True,
    ),
    Format(
        name="vllm-bench",
        engine="vllm",
        about="results of `vllm bench serve`, a file a run, or folders of `vllm bench sweep serve`",
        read=vllm_bench.read_bench,
        matches=vllm_bench.is_bench,
        takes_folders=True,
    ),
    Format(
        name="vllm-requests",
        engine="vllm",
        about="answers with per-request metrics, JSON or streams: a file a run",
        read=vllm_requests.read_answers,
        matches=vllm_requests.is_answer,
    ),
    Format(
        name="sglang-bench",
        engine="sglang",
        about="JSON lines of bench_speculative.py: a line a run",
        read=sglang.read_bench,
        matches=sglang.is_bench,
    ),
    Format(
        name="sglang-requests",
        engine="sglang",
        about="answers with meta_info: a file a run",
        read=sglang.read_meta_info,
        matches=sglang.is_meta_info,
    ),
    Format(
        name="sglang-metrics",
        engine="sglang",
        about="scrapes of /metrics: BEFORE AFTER, with --gamma",
        read=sglang.read_scrapes,
        matches=sglang.is_scrape,
        shares_files=True,
    ),
    Format(
        name="llama-bench",
        engine="llama.cpp",
        about="llama-bench -o json or jsonl: T_decode, T_verify, and the draft model beside it",
        read=llama_cpp.read_bench,
        matches=llama_cpp.is_bench,
    ),
    Format(
        name="llama-batched-bench",
        engine="llama.cpp",
        about="llama-batched-bench --output-format jsonl: T_decode by batch size",
        read=llama_cpp.read_batched_bench,
        matches=llama_cpp.is_batched_bench,
    ),
    Format(
        name="llama-server",
        engine="llama.cpp",
        about="answers of llama-server with timings: a file a run",
        read=llama_cpp.read_answers,
        matches=llama_cpp.is_answer,
    ),
    Format(
        name="llama-metrics",
        engine="llama.cpp",
        about="scrapes of llama-server's /metrics: BEFORE AFTER, and more pairs of them",
        read=llama_cpp.read_scrapes,
        matches=llama_cpp.is_scrape,
        shares_files=True,
    ),
    Format(
        name="speed-bench",
        engine="speed-bench",
        about="acceptance_rate.json: acceptance alone",
        read=acceptance_files.read_speed_bench,
        matches=acceptance_files.is_speed_bench,
    ),
    Format(
        name="spec-bench",
        engine="spec-bench",
        about="answers of Spec-Bench, a line a question: a file a run",
        read=acceptance_files.read_spec_bench,
        matches=acceptance_files.is_spec_bench,
    ),
    Format(
        name="golden",
        engine="golden",
        about="golden acceptance lengths, YAML: acceptance alone",
        read=acceptance_files.read_golden,
        matches=acceptance_files.is_golden,
    ),
)


def find_format(name: str) -> Format:
    """The format of that name; ValueError for another, with the nearest."""
    for form in FORMATS:
        if form.name == name:
            return form
    names = [form.name for form in FORMATS]
    raise ValueError(f"format: expected one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}")


def guess(paths: Sequence[Path]) -> dict[Format, list[Path]]:
    """The files by the formats that they are of, in the order given.

    Raises:
        ValueError: a file of no format known.
        OSError: a file is missing or cannot be read.
    """
    found: dict[Format, list[Path]] = {}
    for path in paths:
        found.setdefault(_guessed(path), []).append(path)
    return found


def _guessed(path: Path) -> Format:
    file = path
    if path.is_dir():
        file = next(iter(sorted(path.rglob("run=*.json"))), path)
    check_regular(file, IMPORT_BYTES)
    with file.open(encoding="utf-8", errors="replace") as opened:
        head = opened.read(_HEAD_CHARACTERS)
    for form in FORMATS:
        if form.matches(head) and (form.takes_folders or not path.is_dir()):
            return form
    names = ", ".join(form.name for form in FORMATS)
    raise ValueError(f"{path}: expected a file of one of {names}, got none that begins like one; name its format")


def read(form: Format, paths: Sequence[Path], given: Given) -> Imported:
    """What the files hold.

    Raises:
        ValueError: a file given twice, or as the format's own reader raises.
        OSError: a file is missing or cannot be read.
    """
    for path in paths:
        if path.is_dir() and not form.takes_folders:
            raise ValueError(f"{path}: expected a file of {form.name}, got a directory")
        if not path.is_dir():
            check_regular(path, IMPORT_BYTES)
    if not form.shares_files:
        refuse_twice([(path, digest(path)) for path in paths if path.is_file()])
    imported = form.read(paths, given)
    if not imported.runs:
        raise ValueError(f"{paths[0]}: expected at least one run, got none")
    return imported
