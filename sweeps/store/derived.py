"""Whether a run's files still belong together: what its answers were derived from, and what was altered since.

    write_answers(path, recommendations, warnings)     # recommendation.yaml, with `derived_from`: a hash of every file
    stands(path)                                       # whether predictions.csv, … may be believed
    doubts(path)                                       # a warning for whatever was altered

predictions.csv, validation.csv and recommendation.yaml follow from the other files. Where one of them all is not as it
was when recommendation.yaml was written, readers derive the answers anew from what was measured, and say so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specgauge.configs.canonical import HASH_DIGITS, short_hash
from specgauge.configs.errors import short
from specgauge.configs.reading import JOURNAL_BYTES, PARQUET_BYTES, TABLE_BYTES, check_regular
from specgauge.sweeps.store.journal import read_journal
from specgauge.sweeps.store.rows import read_mapping, write_mapping
from specgauge.sweeps.store.rundir import ACCEPTANCE, CELLS, MEASURED, PREDICTIONS, RECOMMENDATION
from specgauge.sweeps.store.schema import WarningRow

DERIVED_FROM = "derived_from"
_SHOWN = 3


def write_answers(path: Path, recommendations: Sequence[Any], warnings: Sequence[Any], **more: Any) -> None:
    """Write recommendation.yaml after all other files; StorageError where the disk refuses, the older one stays.

    more: what stands before them: how far to trust them, how large the models are.
    """
    content = {**more, "recommendations": list(recommendations), "warnings": list(warnings)}
    write_mapping(path / RECOMMENDATION, {**content, DERIVED_FROM: _hashes(path, content)})


def stands(path: Path) -> bool:
    """Whether there are answers, derived from the files as they are now, that nobody has altered."""
    return all((path / name).exists() for name in (PREDICTIONS, RECOMMENDATION)) and not _differing(path)


def doubts(path: Path) -> tuple[WarningRow, ...]:
    """What in a run directory is not as it was written; empty where all is well, or nothing was derived yet.

    Raises:
        ValueError: the journal cannot be read.
    """
    return (*_altered_lines(path), *_altered_files(path))


def _altered_lines(path: Path) -> Iterator[WarningRow]:
    altered = read_journal(path / CELLS).altered if (path / CELLS).exists() else ()
    if altered:
        one = len(altered) == 1
        more = f" and {len(altered) - _SHOWN} more" if len(altered) > _SHOWN else ""
        shown = ", ".join(map(str, altered[:_SHOWN]))
        yield WarningRow(
            code="altered",
            message=f"{CELLS}, line{'' if one else 's'} {shown}{more}: not as written "
            f"({'its checksum differs' if one else 'their checksums differ'}), left out",
            remedy=f"delete {'it' if one else 'them'} and run the same command again, which measures what is missing",
        )


def _altered_files(path: Path) -> Iterator[WarningRow]:
    if (path / RECOMMENDATION).exists() and (why := _differing(path)):
        yield WarningRow(
            code="altered",
            message=f"{RECOMMENDATION}: {why}; what is shown is derived anew from what was measured",
            remedy="run the same command again, which writes the answers anew; undo the change if it was not meant",
        )


def _differing(path: Path) -> str:
    """Why the answers do not stand; "" where they do."""
    try:
        content = read_mapping(path / RECOMMENDATION)
    except ValueError as error:
        return str(error).removeprefix(f"{path / RECOMMENDATION}: ").partition("; ")[0]
    kept = content.pop(DERIVED_FROM, None)
    if not isinstance(kept, dict):
        return f"expected {DERIVED_FROM}, got {short(kept)}"
    try:
        now = _hashes(path, {name: value for name, value in content.items() if name != "schema"})
    except (ValueError, TypeError) as error:  # infinity, for instance
        return f"holds what was not written: {error}"
    names = [str(name) for name in {**kept, **now} if kept.get(name) != now.get(name)]
    names = ["its own text" if name == RECOMMENDATION else name for name in names]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"{shown} changed since it was written" if names else ""


def _hashes(path: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """Short hashes of every measured and derived file by name, and of the answers themselves."""
    names = sorted(MEASURED - {RECOMMENDATION}) + sorted(
        f"{ACCEPTANCE}/{file.name}" for file in (path / ACCEPTANCE).glob("*.parquet")
    )
    hashes = {name: _hash_of(path / name) for name in names if (path / name).exists()}
    return {**hashes, RECOMMENDATION: short_hash(content)}


def _hash_of(path: Path) -> str:
    """Of what a reader would take; a file that none would is not read for its hash."""
    most_bytes = {".parquet": PARQUET_BYTES, ".jsonl": JOURNAL_BYTES}.get(path.suffix, TABLE_BYTES)
    try:
        check_regular(path, most_bytes)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:HASH_DIGITS]
    except (OSError, ValueError):  # told by whoever reads what is in it
        return "unreadable"
