from __future__ import annotations

from pathlib import Path

import pytest

from tests import snapshots


def test_a_snapshot_is_written_once_and_then_held_against_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "FOLDER", tmp_path)
    with pytest.raises(AssertionError, match="--snapshot-update"):
        snapshots.check_snapshot("lines", "", update=False)
    snapshots.check_snapshot("lines", "a\nb\n", update=True)
    snapshots.check_snapshot("lines", "a\nb\n", update=False)
    with pytest.raises(AssertionError, match=r"-b\n\+c\n"):
        snapshots.check_snapshot("lines", "a\nc\n", update=False)
