"""Cells timed by a search, on a device whose times are written down: what is taken, left out, and resumed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from specgauge.bench.timing.adaptive import batch_order
from specgauge.bench.timing.blocks import BlockRecord, TimingCell
from specgauge.model.arms import Arm, verify_gammas
from specgauge.model.search.candidates import SearchObjective
from specgauge.model.search.search import SEARCH_NOTE
from tests.bench.timing.conftest import Run, cell
from tests.model.made import question

PREFILLS = ("prefill_target", "prefill_draft")
BASE = ("decode", "draft", "draft_catch_up")
GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8)
QUESTION = question(0.8, len(GAMMAS))
CLIFF_S = (1.0, 1.0, 1.0, 1.0, 1.0, 1.6, 1.6, 1.6, 1.6)
"""A target forward of 1 to 9 tokens; with a draft step of .1 s and alpha .8, γ = 4 is best."""


@pytest.fixture
def search(timed: Run) -> Run:
    """Search cells: a draft step takes .1 s, a target forward what ``target_s`` (batch size, context, tokens) says."""

    def run(
        cells: Sequence[TimingCell],
        target_s: Callable[[int, int, int], float] = lambda batch_size, context, tokens: CLIFF_S[tokens - 1],
        asked: SearchObjective = QUESTION,
        fail: Callable[[str, int, int], None] = lambda arm, batch_size, context: None,
        **precision: Any,
    ) -> list[BlockRecord]:
        def seconds_of(arm: str, batch_size: int, context: int) -> float:
            fail(arm, batch_size, context)
            tokens = (Arm.parse(arm).gamma or 0) + 1
            return 0.1 if arm in ("draft", "draft_catch_up") else target_s(batch_size, context, tokens)

        return timed(cells, seconds_of, gammas=GAMMAS, questions=[asked], **{"max_blocks": 20, **precision})

    return run


def arms_by_block(lines: Sequence[BlockRecord], cell_id: str) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for line in lines:
        if line.cell_id == cell_id and line.status == "ok":
            found.setdefault(line.block, set()).add(line.arm)
    return found


def gammas_timed(lines: Sequence[BlockRecord], cell_id: str) -> set[int]:
    arms = set().union(*arms_by_block(lines, cell_id).values())
    return set(verify_gammas(arms))


def test_every_step_is_what_the_search_asks_for_and_what_is_left_out_says_why(search: Any) -> None:
    lines = search([cell()])
    assert arms_by_block(lines, "1-64") == {
        0: {*BASE, *PREFILLS, "verify:1"},
        1: {*BASE, *PREFILLS, "verify:1", "verify:5", "verify:6"},
        2: {*BASE, *PREFILLS, "verify:6", "verify:3", "verify:4"},
        3: {"verify:3", "verify:4", "verify:5"},
        4: {"verify:3", "verify:4", "verify:5"},
    }
    notes = {(line.block, line.notes[SEARCH_NOTE]) for line in lines if line.status == "ok"}
    assert notes == {(0, "opening"), (1, "scouting"), (2, "scouting"), (3, "neighbours"), (4, "neighbours")}
    assert [line.block for line in lines] == sorted(line.block for line in lines)
    skipped = [line for line in lines if line.status != "ok"]
    assert {line.arm: line.reason for line in skipped} == {
        "verify:1": "cannot be best: S at most 1.64, best is 2.4",
        "verify:2": "cannot be best: S at most 2.03, best is 2.4",
        "verify:6": "cannot be best: S at most 1.8, best is 2.4",
        "verify:7": "cannot be best: S at most 1.81, best is 2.4",
        "verify:8": "cannot be best: S at most 1.8, best is 2.4",
    }
    assert {(line.status, line.block, line.notes[SEARCH_NOTE]) for line in skipped} == {("skipped", 5, "decided")}
    assert search([cell()]) == [], "a search that ended is not resumed"


def test_cells_are_interleaved_and_a_stopped_search_resumes(search: Any, memory_journal: Any) -> None:
    """After any line, the rest of its step, then the same steps as without the stop."""

    def keys(lines: Sequence[BlockRecord]) -> list[tuple[str, str, int, str, str | None]]:
        return sorted((line.cell_id, line.arm, line.block, line.status, line.reason) for line in lines)

    cells = [cell(1, 64), cell(1, 128), cell(2, 64)]
    whole = search(cells)
    order = [(line.cell_id, line.block) for line in whole if line.status == "ok"]
    steps = [step for step, _ in itertools.groupby(order)]
    assert len(steps) == len(set(steps)) == 15, "the cells of a batch size are interleaved step by step"
    assert {cell_id for cell_id, _ in steps[:10]} == {"1-64", "1-128"}
    assert [block for _, block in steps[:10]] == sorted(block for _, block in steps[:10])
    for kept in range(0, len(whole), 7):
        memory_journal.lines = whole[:kept]
        search(cells)
        assert memory_journal.lines[:kept] == whole[:kept]
        assert keys(memory_journal.lines) == keys(whole)


@pytest.mark.parametrize("limit", ["max_seconds", "max_cell_seconds"])
def test_time_that_is_spent_ends_the_search_after_what_an_answer_needs(search: Any, limit: str) -> None:
    """The opening alone takes 16 s: two samples of 1 + .8 + .1 + 1 s, a first call and a warm-up of each as well."""
    lines = search([cell()], **{limit: 10.0})
    assert arms_by_block(lines, "1-64") == {block: {*BASE, *PREFILLS, "verify:1"} for block in range(3)}
    reasons = {line.arm: line.reason for line in lines if line.status == "skipped"}
    assert set(reasons) == {f"verify:{gamma}" for gamma in range(2, 9)}
    assert reasons["verify:4"] == "left out: time or blocks are spent; S at most 2.4, best is 1.64 so far"
    assert search([cell()], **{limit: 10.0}) == []


def test_more_seconds_resume_an_ended_search(search: Any, memory_journal: Any) -> None:
    search([cell()], max_seconds=10.0)
    more = search([cell()])
    assert gammas_timed(more, "1-64") >= {3, 4, 5}
    for gamma in (2, 7, 8):
        blocks = memory_journal.blocks("1-64", f"verify:{gamma}")
        reasons = [blocks[number].reason for number in sorted(blocks) if blocks[number].status != "ok"]
        assert [reason.partition(":")[0] for reason in reasons] == ["left out", "cannot be best"]
    assert search([cell()]) == []


@pytest.mark.parametrize("max_seconds", range(20, 80, 4))
def test_time_may_be_spent_by_another_cell_of_the_same_pass(search: Any, memory_journal: Any, max_seconds: int) -> None:
    search([cell(1, 64), cell(1, 128)], max_seconds=float(max_seconds))
    for cell_id in ("1-64", "1-128"):
        assert all(sorted(memory_journal.blocks(cell_id, arm)) >= [0, 1, 2] for arm in BASE)


def test_seconds_are_those_of_the_batch_size(search: Any) -> None:
    lines = search([cell(1, 64), cell(2, 64)], max_seconds=150.0)
    spent = {one: sum(line.device_s for line in lines if line.cell_id == one) for one in ("1-64", "2-64")}
    assert spent["1-64"] == pytest.approx(spent["2-64"])
    assert gammas_timed(lines, "1-64") == gammas_timed(lines, "2-64") == {1, 3, 4, 5, 6}


def test_cells_between_others_are_checked(search: Any) -> None:
    """Costs rise with batch size and context on lines: only the four corners are searched."""

    def target_s(batch_size: int, context: int, tokens: int) -> float:
        return CLIFF_S[tokens - 1] * (1 + batch_size / 10 + context / 1000)

    cells = [cell(b, s) for b in (1, 2, 4) for s in (64, 128, 192)]
    lines = search(cells, target_s)
    for one in cells:
        is_corner = one.batch_size in (1, 4) and one.context in (64, 192)
        timed = gammas_timed(lines, one.cell_id)
        assert timed > {1, 3, 4, 5} if is_corner else timed == {3, 4, 5}, one
        assert is_corner or len(arms_by_block(lines, one.cell_id)) == 3
    order = list(dict.fromkeys(line.cell_id for line in lines))
    assert [one.partition("-")[0] for one in order] == ["1"] * 3 + ["4"] * 3 + ["2"] * 3
    assert {order[2], order[5]} == {"1-128", "4-128"}
    reasons = {line.arm: line.reason for line in lines if line.cell_id == "2-128" and line.status == "skipped"}
    assert str(reasons["verify:8"]).startswith("not timed: S about 1.")
    assert "by the costs of cells around, which this one keeps to; best is 2." in str(reasons["verify:8"])


def test_the_ends_of_the_batch_sizes_come_first() -> None:
    assert batch_order([4, 1, 2, 8, 1]) == [1, 8, 2, 4]
    assert (batch_order([3]), batch_order([])) == ([3], [])


def test_cells_that_fail_end_larger_ones_without_memory_and_no_others(search: Any, memory_journal: Any) -> None:
    def fail(arm: str, batch_size: int, context: int) -> None:
        if batch_size * context >= 128:
            raise torch.OutOfMemoryError("no memory left")
        if (arm, context) == ("verify:3", 32):
            raise RuntimeError("kernel exploded")

    cells = [cell(1, 32), cell(1, 64), cell(1, 128), cell(1, 192), cell(2, 64), cell(2, 128)]
    search(cells, fail=fail)
    status = {one.cell_id: memory_journal.blocks(one.cell_id, "decode")[0].status for one in cells}
    assert status == {"1-32": "ok", "1-64": "ok", "1-128": "oom", "1-192": "oom", "2-64": "oom", "2-128": "skipped"}
    failed = [line for line in memory_journal.lines if line.status == "failed"]
    assert {(line.cell_id, line.reason) for line in failed} == {("1-32", "RuntimeError: kernel exploded")}
    assert gammas_timed(memory_journal.lines, "1-64") == {1, 3, 4, 5, 6}
    assert search(cells, fail=fail) == []
