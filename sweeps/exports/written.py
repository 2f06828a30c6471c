"""Settings of an engine as files: the content, and where it takes no comments a text file beside it."""

from __future__ import annotations

from pathlib import Path

from specgauge.sweeps.exports.registry import Settings
from specgauge.sweeps.store.files import check_output, write_text_atomically
from specgauge.sweeps.store.rundir import CONFIG, MEASURED


def write_settings(settings: Settings, out: Path) -> list[Path]:
    """Write them to `out`; the paths written.

    Raises:
        ValueError: `out` cannot be a file, or holds what a run measured.
        StorageError: the disk refused a write; an older file stays.
    """
    _refuse(out)
    files = {out: settings.text}
    if settings.comment is None:
        files[out.with_name(f"{out.name}.txt")] = settings.header
    for path in files:
        _refuse(path)
    for path, text in files.items():
        write_text_atomically(path, text)
    return list(files)


def _refuse(path: Path) -> None:
    check_output(path, "speculative.json")
    if path.suffix == ".parquet" or (path.name in MEASURED and (path.parent / CONFIG).is_file()):
        raise ValueError(f"{path}: holds what a run measured, give another --out")
