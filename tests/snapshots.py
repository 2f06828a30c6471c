"""Snapshots of what the program shows: one file a surface; `python -m pytest TESTS --snapshot-update` renews them."""

from __future__ import annotations

import difflib
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"


def check_snapshot(name: str, text: str, *, update: bool) -> None:
    """Compare ``text`` with ``tests/snapshots/<name>.txt``, or write it there.

    Raises:
        AssertionError: they differ, or there is no such file; the message is the difference, line by line.
    """
    path = FOLDER / f"{name}.txt"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if text == kept and path.exists():
        return
    ends = (f"kept in {path.name}", "what the program shows now")
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), *ends, lineterm="", n=1)
    raise AssertionError("\n".join([*lines, "", "where this is meant: python -m pytest TESTS --snapshot-update"]))
