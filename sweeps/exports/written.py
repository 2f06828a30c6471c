"""Settings of an engine as files: the content, and where it takes no comments a text file beside it."""

from __future__ import annotations

from pathlib import Path

from specgauge.sweeps.exports.registry import Settings
from specgauge.sweeps.store.files import write_text_atomically
from specgauge.sweeps.store.rundir import check_written


def write_settings(settings: Settings, out: Path) -> list[Path]:
    """Write them to `out`; the paths written.

    Raises:
        ValueError: `out` cannot be a file, or holds what a run measured.
        StorageError: the disk refused a write; an older file stays.
    """
    check_written(out, "speculative.json")
    files = {out: settings.text}
    if settings.comment is None:
        beside = out.with_name(f"{out.name}.txt")
        check_written(beside, "speculative.json.txt")
        files[beside] = settings.header
    for path, text in files.items():
        write_text_atomically(path, text)
    return list(files)
