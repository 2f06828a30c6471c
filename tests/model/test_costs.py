"""Cost tables: exact at nodes, bilinear between, tagged everywhere, honest about gamma."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray
from specgauge.model.costs import CostTable, DraftKind, RoundCosts, cost_table, measured_costs
from specgauge.model.settings import Point, Provenance
from tests.model.made import made_costs

HERE, BETWEEN, BEYOND, GUESS = (
    Provenance.MEASURED, Provenance.INTERPOLATED, Provenance.EXTRAPOLATED, Provenance.ASSUMED
)  # fmt: skip


def seconds(batch: float, context: float) -> float:
    return 5.0 + 0.25 * batch + 0.01 * context + 0.001 * batch * context


def cell(batch: int, context: int, **changes: ArrayLike) -> tuple[Point, RoundCosts]:
    """Gammas 1 to 3, of which 2 has no T_verify."""
    t = seconds(batch, context)
    times_s: dict[str, ArrayLike] = {
        "t_decode_s": t,
        "t_draft_total_s": [t / 8, t / 4, 3 * t / 8],
        "t_verify_s": [1.25 * t, np.nan, 1.5 * t],
    }
    return Point(batch_size=batch, context=context), made_costs([1, 2, 3], **{**times_s, **changes})


def table(*cells: tuple[Point, RoundCosts]) -> CostTable:
    return cost_table("p, eager", dict(cells))


def known_times(found: FloatArray | None) -> Any:
    assert found is not None
    return found.tolist()


FULL = table(*(cell(b, s) for b in (1, 4, 16) for s in (64, 256, 1024)))


@given(st.integers(1, 16), st.integers(64, 1024))
def test_weights_plus_cache_are_interpolated_exactly(batch: int, context: int) -> None:
    costs = FULL.costs(batch, context, [1, 3])
    assert float(costs.t_decode_s) == pytest.approx(seconds(batch, context), rel=1e-12)
    np.testing.assert_allclose(costs.t_verify_s, np.array([1.25, 1.5]) * seconds(batch, context), rtol=1e-12)
    np.testing.assert_allclose(costs.t_draft_total_s, np.array([1 / 8, 3 / 8]) * seconds(batch, context), rtol=1e-12)
    on_node = batch in (1, 4, 16) and context in (64, 256, 1024)
    assert costs.provenance.tolist() == [HERE if on_node else BETWEEN] * 2
    if on_node:
        at = (1, 4, 16).index(batch), (64, 256, 1024).index(context)
        assert costs.t_decode_s == FULL.cells.t_decode_s[at]


def test_beyond_the_largest_node_the_slope_goes_on_and_below_the_smallest_the_edge_stays() -> None:
    costs = FULL.costs([32, 1, 1], [1024, 2048, 1], [1])
    assert costs.t_decode_s == pytest.approx([seconds(32, 1024), seconds(1, 2048), seconds(1, 64)], rel=1e-12)
    assert costs.provenance[:, 0].tolist() == [BEYOND, BEYOND, BEYOND]
    falling = table(cell(1, 64, t_decode_s=3.0), cell(2, 64, t_decode_s=2.0))
    assert float(falling.costs(8, 64, [1]).t_decode_s) == 2.0


@given(st.lists(st.floats(0.1, 10), min_size=9, max_size=9), st.data())
def test_a_rising_table_stays_rising(steps: list[float], data: st.DataObject) -> None:
    grid = np.array(steps).reshape(3, 3).cumsum(0).cumsum(1)
    rising = table(
        *(cell(b, s, t_decode_s=grid[i, j]) for i, b in enumerate((1, 4, 16)) for j, s in enumerate((8, 64, 512)))
    )
    b, s = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 1000))
    t = rising.costs(
        [b, b + data.draw(st.integers(0, 9)), b], [s, s, s + data.draw(st.integers(0, 99))], [1]
    ).t_decode_s
    assert t[1] >= t[0] * (1 - 1e-12)
    assert t[2] >= t[0] * (1 - 1e-12)


def test_unmeasured_gammas_are_marked() -> None:
    costs = FULL.costs(1, 64, [1, 2, 3, 5])
    t = seconds(1, 64)
    np.testing.assert_allclose(costs.t_verify_s, np.array([1.25, 1.375, 1.5, 1.75]) * t, rtol=1e-12)
    np.testing.assert_allclose(costs.t_draft_total_s, np.array([1, 2, 3, 5]) * t / 8, rtol=1e-12)
    assert costs.provenance.tolist() == [HERE, GUESS, HERE, GUESS]
    cliff = table(cell(1, 64, t_decode_s=19.0, t_verify_s=[np.nan, np.nan, 41.1])).costs(1, 64, [1])
    assert (cliff.t_verify_s.tolist(), cliff.provenance.tolist()) == ([41.1], [GUESS])  # an upper bound


def test_a_chain_that_was_not_measured_at_every_gamma() -> None:
    """C(2) = 0.5 and C(4) = 1.5: 0.25 and 1.0 on the lines from 0 on, then 0.5 a step."""
    point, costs = cell(1, 64)
    sparse = replace(costs, gammas=np.array([2, 4]), t_draft_total_s=np.array([0.5, 1.5]), t_verify_s=np.ones(2))
    found = table((point, sparse)).costs(1, 64, [1, 2, 3, 4, 6])
    assert found.t_draft_total_s.tolist() == [0.25, 0.5, 1.0, 1.5, 2.5]
    assert table((point, sparse)).costs(1, 64, [2, 4]).provenance.tolist() == [HERE, HERE]
    one = replace(sparse, gammas=np.array([2]), t_draft_total_s=np.array([0.5]), t_verify_s=np.ones(1))
    assert table((point, one)).costs(1, 64, [1, 4]).t_draft_total_s.tolist() == [0.25, 1.0]


def test_a_hole_is_filled_from_its_neighbours_and_a_missing_corner_is_extrapolated() -> None:
    holed = table(*(cell(b, s) for b in (1, 4, 16) for s in (64, 256, 1024) if (b, s) not in {(4, 256), (16, 1024)}))
    costs = holed.costs([4, 16, 8], [256, 1024, 1024], [1])
    assert costs.t_decode_s == pytest.approx([seconds(4, 256), seconds(16, 1024), seconds(8, 1024)], rel=1e-12)
    assert costs.provenance[:, 0].tolist() == [BETWEEN, BEYOND, BEYOND]
    ends = table(cell(1, 64), cell(1, 256), cell(4, 64), cell(16, 64), cell(16, 256)).costs(4, 256, [1])
    assert float(ends.t_decode_s) == pytest.approx(seconds(4, 256), rel=1e-12)
    assert ends.provenance.tolist() == [BETWEEN]


def test_a_catch_up_that_no_cell_has_takes_no_time() -> None:
    assert FULL.costs(1, 64, [1]).t_draft_catch_up_s == 0.0
    assert FULL.costs(1, 64, [1]).is_optimistic
    assert table(cell(1, 64, t_draft_catch_up_s=0.5)).costs(1, 64, [1]).t_draft_catch_up_s == 0.5


def test_transfers_between_devices_are_looked_up_and_weigh_what_they_are_known_by() -> None:
    """Linear in the batch size, measured at γ = 1 and 3."""
    cells = [cell(batch, 64, t_transfer_s=[batch / 8, np.nan, batch / 2]) for batch in (1, 4)]
    found = table(*cells).costs([1, 2], 64, [1, 2, 3])
    assert found.t_transfer_s is not None
    np.testing.assert_allclose(found.t_transfer_s, [[0.125, 0.3125, 0.5], [0.25, 0.625, 1.0]])
    assert found.provenance.tolist() == [[HERE, GUESS, HERE], [BETWEEN, GUESS, BETWEEN]]
    assert known_times(found.row(1).only([3]).t_transfer_s) == [1.0]
    assert FULL.costs(1, 64, [1]).t_transfer_s is None


def test_some_gammas_of_costs() -> None:
    found = FULL.costs([1, 4], 64, [1, 2, 3]).only([3, 1])
    assert found.gammas.tolist() == [3, 1]
    np.testing.assert_array_equal(found.t_verify_s, np.outer([seconds(1, 64), seconds(4, 64)], [1.5, 1.25]))
    with pytest.raises(ValueError, match="4 is not in list"):
        found.only(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: table(), "p, eager: expected at least one cell"),
        (lambda: table(cell(1, 64, t_decode_s=-1.0)), "batch 1, context 64: t_decode_s: expected .*got -1"),
        (
            lambda: table(cell(1, 64, t_verify_s=[1, 0, 1])),
            r"t_verify_s \(item 2\): expected seconds, above 0, got 0",
        ),
        (
            lambda: table(cell(1, 64, t_verify_s=[np.nan] * 3)).costs(1, 64, [1]),
            "t_verify_s: expected at least one measured cell of p",
        ),
        (
            lambda: table(cell(1, 64, t_draft_total_s=[np.nan] * 3)).costs(1, 64, [1]),
            "t_draft_total_s: expected at least one measured",
        ),
        (lambda: FULL.costs(0, 64, [1]), "batch_size: expected a whole number, at least 1, got 0"),
        (lambda: DraftKind("tree", 1.0), "got 'tree'.*draft trees are not covered"),
        (lambda: DraftKind("paralel", 1.0), r"got 'paralel' \(nearest: parallel\)"),
        (lambda: DraftKind("lookup", [1.0, 2.0]), "for a lookup draft, got 2"),
        (lambda: DraftKind("autoregressive", [1.0]).total_s(2), "a step for each of 2 drafts.*, got 1"),
    ],
)
def test_bad_tables_and_kinds_are_one_clear_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "t_draft_s", "total_s", "passes"),
    [
        ("autoregressive", 2.0, [0.0, 2.0, 6.0], [0, 1, 3]),
        ("autoregressive", [1.0, 2.0, 4.0], [0.0, 1.0, 7.0], [0, 1, 3]),
        ("parallel", 2.0, [0.0, 2.0, 2.0], [0, 1, 1]),
        ("lookup", [0.5], [0.0, 0.5, 0.5], [0, 1, 1]),
    ],
)
def test_costs_and_passes_by_kind(
    name: str, t_draft_s: float | list[float], total_s: list[float], passes: list[int]
) -> None:
    kind = DraftKind(name, t_draft_s)
    assert kind.total_s([0, 1, 3]).tolist() == total_s
    assert kind.passes([0, 1, 3]).tolist() == passes


def test_a_figure_is_as_good_as_its_weakest_part() -> None:
    rising = ["measured", "imported", "interpolated", "extrapolated", "predicted", "assumed"]
    assert [Provenance(value).label for value in range(6)] == rising
    assert max(Provenance.EXTRAPOLATED, Provenance.INTERPOLATED) is Provenance.EXTRAPOLATED


def test_noise_in_medians_is_put_right_in_one_place() -> None:
    """A chain that falls is as long as it was before; two tokens never save time; what is unknown stays so."""
    found = measured_costs(
        [1, 3],
        t_decode_s=np.array([10.0, 11.0]),
        t_draft_marks_s=np.array([[2.0, 1.5, 1.75, 4.0], [2.0, 3.0, 4.0, 5.0]]),
        t_verify_s=np.array([[12.0, 13.0], [12.0, np.nan]]),
        t_draft_two_tokens_s=np.array([1.75, 2.25]),
        t_transfer_marks_s=np.array([[0.5, 0.25, 0.375, 1.0], [0.25, 0.5, 0.75, 1.0]]),
    )
    np.testing.assert_array_equal(found.t_transfer_s, [[0.5, 0.5], [0.25, 0.75]])
    assert found.t_draft_total_s.tolist() == [[2.0, 2.0], [2.0, 4.0]]
    np.testing.assert_array_equal(found.t_draft_catch_up_s, [0.0, 0.25])
    np.testing.assert_array_equal(found.t_verify_s, [[12.0, 13.0], [12.0, np.nan]])
    assert (found.gammas.tolist(), found.provenance.tolist()) == ([1, 3], [HERE, HERE])


def test_rounds_timed_whole_are_looked_up_whole() -> None:
    def whole(batch: int, context: int) -> tuple[Point, RoundCosts]:
        unknown = [np.nan] * 3
        t_round_s = [seconds(batch, context), np.nan, 2 * seconds(batch, context)]
        return cell(batch, context, t_draft_total_s=unknown, t_verify_s=unknown, t_round_s=t_round_s)

    costs = table(*(whole(b, s) for b in (1, 4) for s in (64, 256))).costs(2, 100, [1, 2, 3])
    t = seconds(2, 100)
    assert costs.t_round_s is not None
    np.testing.assert_allclose(costs.t_round_s, [t, 1.5 * t, 2 * t], rtol=1e-12)
    assert costs.provenance.tolist() == [BETWEEN, GUESS, BETWEEN]
    assert np.isnan(costs.t_verify_s).all()
    assert not costs.is_optimistic
    assert FULL.costs(2, 100, [1]).t_round_s is None
    assert FULL.costs(2, 100, [1]).is_optimistic


def test_one_row_of_costs() -> None:
    costs = replace(
        FULL.costs([1, 4], 64, [1, 2, 3]), t_overhead_s=np.array([[0.5], [0.25]]), provenance=np.array(HERE)
    )
    found = costs.row(1)
    t = seconds(4, 64)
    assert found.t_decode_s == pytest.approx(t)
    assert found.t_draft_total_s == pytest.approx([t / 8, t / 4, 3 * t / 8])
    assert found.t_verify_s == pytest.approx([1.25 * t, 1.375 * t, 1.5 * t])
    assert found.t_overhead_s is not None
    assert found.t_overhead_s.tolist() == [0.25, 0.25, 0.25]
    assert (found.t_round_s, found.provenance.tolist(), found.gammas.tolist()) == (None, [HERE] * 3, [1, 2, 3])


def test_some_gammas_of_whole_rounds() -> None:
    parts = {"t_draft_total_s": [np.nan] * 3, "t_verify_s": [np.nan] * 3}
    costs = made_costs([1, 2, 3], t_decode_s=1.0, **parts, t_round_s=[1.0, 2.0, 3.0])
    assert costs.t_round_s is not None
    chosen = costs.only([3, 1]).t_round_s
    assert chosen is not None
    assert chosen.tolist() == [3.0, 1.0]
