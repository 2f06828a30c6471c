"""Counts of rounds decoded elsewhere, as a run directory keeps them."""

from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.store.counts import COUNTS, CountsRow, read_counts, write_counts


def row(**changes: Any) -> CountsRow:
    plain: dict[str, Any] = {
        "pair": "p", "sampling": "greedy", "source": "a.json", "gamma": 3, "batch_size": 4, "context": None,
        "rounds": 4, "tokens": 10.0, "drafted": 12, "accepted": 6, "accepted_by_position": (3, 2, 1),
    }  # fmt: skip
    return CountsRow(**(plain | changes))


def test_counts_come_back(tmp_path: Path) -> None:
    rows = (row(), row(rounds=None, tokens=None, accepted_by_position=None, tokens_per_round=2.5))
    write_counts(tmp_path, rows)
    assert read_counts(tmp_path) == rows
    assert read_counts(tmp_path / "elsewhere") == ()


@pytest.mark.parametrize(
    ("changes", "omega"),
    [
        ({}, 2.5),
        ({"tokens": 9.0}, 2.25),  # fewer than accepted with a bonus each: a length limit cut one off
        ({"tokens": None}, 2.5),
        ({"rounds": None, "tokens_per_round": 2.4}, 2.4),
    ],
)
def test_tokens_per_round(changes: dict[str, Any], omega: float) -> None:
    assert row(**changes).omega == omega


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rounds": None}, "rounds, or tokens_per_round where there are no counts"),
        ({"tokens": None, "accepted": None}, "tokens or accepted beside rounds"),
        ({"tokens": 3.0}, "1 to 4 tokens a round at gamma 3"),
        ({"tokens": 17.0}, "1 to 4 tokens a round at gamma 3"),
        ({"accepted_by_position": (3, 2)}, "accepted_by_position of 3 positions"),
        ({"accepted_by_position": (5, 2, 1)}, "accepted_by_position that never rises"),
    ],
)
def test_counts_that_no_chain_has_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        row(**changes)


def test_a_damaged_line_is_told_by_its_number(tmp_path: Path) -> None:
    write_counts(tmp_path, [row()])
    path = tmp_path / COUNTS
    path.write_text(path.read_text(encoding="utf-8") + '{"pair": "p"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"counts\.jsonl, line 2"):
        read_counts(tmp_path)
