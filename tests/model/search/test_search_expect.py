"""What cells around make of one between them: on lines, or nothing at all."""

from __future__ import annotations

import numpy as np
import pytest

from specgauge.model.costs import RoundCosts
from specgauge.model.search.levels import summarise_block
from specgauge.model.search.search import expected_levels, searched_costs
from specgauge.model.settings import Point
from tests.model.made import made_costs

Cells = dict[Point, RoundCosts]


def costs(batch_size: int, context: int, scale: float, gammas: tuple[int, ...] = (1, 2)) -> Cells:
    found = made_costs(
        [1, 2],
        t_decode_s=scale,
        t_draft_total_s=[0.1 * scale, 0.2 * scale],
        t_draft_catch_up_s=0.05 * scale,
        t_verify_s=[scale * (1 + gamma) if gamma in gammas else np.nan for gamma in (1, 2)],
    )
    return {Point(batch_size=batch_size, context=context): found}


def at(cells: Cells, context: int, *, batch_size: int = 1, **options: bool) -> dict[str, list[float]]:
    """The marks that are expected of each arm."""
    found = expected_levels(cells, Point(batch_size=batch_size, context=context), (1, 2), **options)
    return {} if found is None else {arm: found.marks_s(arm).tolist() for arm in found.arms}


TWO = {**costs(1, 100, 1.0), **costs(1, 300, 2.0)}


def test_a_cell_between_two_is_on_their_line_and_one_between_four_on_their_plane() -> None:
    marks = {"decode": [1.25], "draft": [0.125, 0.25], "draft_catch_up": [0.125 + 0.0625], "verify:1": [2.5]}
    assert at(TWO, 150) == {arm: pytest.approx(own) for arm, own in (marks | {"verify:2": [3.75]}).items()}
    corners = {k: v for b in (1, 3) for s in (100, 300) for k, v in costs(b, s, b * s / 100).items()}
    assert at(corners, 200, batch_size=2)["decode"] == pytest.approx([4.0])


@pytest.mark.parametrize(
    ("cells", "context"),
    [
        ({}, 100),
        (costs(1, 100, 1.0), 200),
        ({**costs(1, 100, 1.0), **costs(1, 200, 2.0)}, 300),
        ({**costs(2, 100, 1.0), **costs(2, 300, 2.0)}, 200),
        ({**costs(1, 100, 1.0, ()), **costs(1, 300, 2.0, ())}, 200),
    ],
    ids=["no cell", "one cell", "beyond them", "at another batch size", "no round timed"],
)
def test_nothing_is_expected_elsewhere(cells: Cells, context: int) -> None:
    assert at(cells, context) == {}


def test_what_was_timed_on_one_side_only_or_is_no_arm_of_lookups_is_not_expected() -> None:
    assert set(at(TWO | costs(1, 300, 2.0, (1,)), 200)) == {"decode", "draft", "draft_catch_up", "verify:1"}
    assert set(at(TWO, 200, catches_up=False)) == {"decode", "draft", "verify:1", "verify:2"}


def test_a_searched_cell_costs_what_its_arms_take_at_one_pace() -> None:
    """Block 1 is twice as slow; T_verify(1) has too few blocks to count."""
    marks = {"decode": [1.0], "draft": [0.1, 0.2], "draft_catch_up": [0.15], "verify:1": [2.0], "verify:2": [3.0]}
    blocks = {arm: {b: summarise_block(np.tile(own, (3, 1)) * (1 + b)) for b in (0, 1)} for arm, own in marks.items()}
    del blocks["verify:1"][1]
    cell = searched_costs(blocks, (1, 2), min_blocks=2)
    assert cell is not None
    assert cell.gammas.tolist() == [1, 2]
    assert cell.t_verify_s / cell.t_decode_s == pytest.approx([np.nan, 3.0], nan_ok=True)
    assert cell.t_draft_total_s / cell.t_decode_s == pytest.approx([0.1, 0.2])
    assert cell.t_draft_catch_up_s == pytest.approx(0.05 * float(cell.t_decode_s))
    assert searched_costs({"decode": blocks["decode"]}, (1,), min_blocks=1) is None
