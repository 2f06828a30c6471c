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
from specgauge.sweeps.imports import table, vllm_bench, vllm_metrics
from specgauge.sweeps.imports.engine_run import Format, Given, Imported, digest
from specgauge.sweeps.imports.files import IMPORT_BYTES, refuse_twice

_HEAD_CHARACTERS = 65_536

FORMATS: tuple[Format, ...] = (
    Format(
        name="table",
        engine="table",
        about="our own CSV: a row for each gamma, batch size and context",
        read=table.read_table,
        matches=table.is_table,
    ),
    Format(
        name="vllm-metrics",
        engine="vllm",
        about="scrapes of /metrics: BEFORE AFTER, and more pairs of them",
        read=vllm_metrics.read_scrapes,
        matches=vllm_metrics.is_scrape,
    ),
    Format(
        name="vllm-bench",
        engine="vllm",
        about="results of `vllm bench serve`, a JSON file a run, or folders of `vllm bench sweep serve`",
        read=vllm_bench.read_bench,
        matches=vllm_bench.is_bench,
        takes_folders=True,
    ),
)


def find_format(name: str) -> Format:
    """The format of that name; ValueError for another, with the nearest."""
    for form in FORMATS:
        if form.name == name:
            return form
    names = [form.name for form in FORMATS]
    raise ValueError(f"format: expected one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}")


def guess(paths: Sequence[Path]) -> Format:
    """The one format that all files are of.

    Raises:
        ValueError: a file of no format known, or files of several.
        OSError: a file is missing or cannot be read.
    """
    found = [_guessed(path) for path in paths]
    for path, form in zip(paths, found, strict=True):
        if form is not found[0]:
            raise ValueError(
                f"{path}: expected {found[0].name} as {paths[0]} is, got {form.name}; import one format at once"
            )
    return found[0]


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
    refuse_twice([(path, digest(path)) for path in paths if path.is_file()])
    imported = form.read(paths, given)
    if not imported.runs:
        raise ValueError(f"{paths[0]}: expected at least one run, got none")
    return imported
