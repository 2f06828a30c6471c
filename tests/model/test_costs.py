"""Cost tables: exact at nodes, bilinear between, tagged everywhere, honest about gamma."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.costs import CostCell, CostTable, LookupDraft, cost_tables
from specgauge.model.provenance import Known

HERE, BETWEEN, BEYOND = Known.MEASURED, Known.INTERPOLATED, Known.EXTRAPOLATED


def law(batch: float, context: float) -> float:
    return 5.0 + 0.25 * batch + 0.01 * context + 0.001 * batch * context


def cell(batch: int, context: int, **changes: object) -> CostCell:
    t = law(batch, context)
    values: dict[str, object] = {
        "t_decode_s": t,
        "t_draft_chain_s": [t / 8, t / 4, 3 * t / 8],
        "t_verify_s": {1: 1.25 * t, 3: 1.5 * t},
    }
    return CostCell(pair="p", mode="eager", batch_size=batch, context=context, **{**values, **changes})  # type: ignore[arg-type]


def table(*cells: CostCell) -> CostTable:
    return cost_tables(cells)["p", "eager"]


FULL = table(*(cell(b, s) for b in (1, 4, 16) for s in (64, 256, 1024)))


@given(st.integers(1, 16), st.integers(64, 1024))
def test_weights_plus_cache_are_interpolated_exactly(batch: int, context: int) -> None:
    costs = FULL.at(batch, context, [1, 3])
    assert float(costs.t_decode_s) == pytest.approx(law(batch, context), rel=1e-12)
    np.testing.assert_allclose(costs.t_verify_s, np.array([1.25, 1.5]) * law(batch, context), rtol=1e-12)
    np.testing.assert_allclose(costs.t_draft_total_s, np.array([1 / 8, 3 / 8]) * law(batch, context), rtol=1e-12)
    on_node = batch in (1, 4, 16) and context in (64, 256, 1024)
    assert costs.known.tolist() == [HERE if on_node else BETWEEN] * 2


def test_nodes_keep_their_exact_values() -> None:
    batch, context = np.array([1, 4, 16])[:, None], np.array([64, 256, 1024])
    costs = FULL.at(batch, context, [1, 3])
    assert costs.t_decode_s.tolist() == FULL.t_decode_s.tolist()
    assert costs.t_verify_s.tolist() == FULL.t_verify_s.tolist()
    assert costs.known.max() == HERE
    assert not costs.across_gamma.any()


def test_beyond_the_largest_node_the_slope_goes_on_and_below_the_smallest_the_edge_stays() -> None:
    costs = FULL.at([32, 1, 1], [1024, 2048, 1], [1])
    assert costs.t_decode_s == pytest.approx([law(32, 1024), law(1, 2048), law(1, 64)], rel=1e-12)
    assert costs.known[:, 0].tolist() == [BEYOND, BEYOND, BEYOND]


@given(st.lists(st.floats(0.1, 10), min_size=9, max_size=9), st.data())
def test_a_rising_table_stays_rising(steps: list[float], data: st.DataObject) -> None:
    grid = np.array(steps).reshape(3, 3).cumsum(0).cumsum(1)
    rising = table(
        *(cell(b, s, t_decode_s=grid[i, j]) for i, b in enumerate((1, 4, 16)) for j, s in enumerate((8, 64, 512)))
    )
    b, s = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 1000))
    t = rising.at([b, b + data.draw(st.integers(0, 9)), b], [s, s, s + data.draw(st.integers(0, 99))], [1]).t_decode_s
    assert t[1] >= t[0] * (1 - 1e-12)
    assert t[2] >= t[0] * (1 - 1e-12)


def test_a_falling_last_slope_is_not_carried_on() -> None:
    falling = table(cell(1, 64, t_decode_s=3.0), cell(2, 64, t_decode_s=2.0))
    assert float(falling.at(8, 64, [1]).t_decode_s) == 2.0


def test_unmeasured_gammas_are_marked() -> None:
    costs = FULL.at(1, 64, [1, 2, 3, 5])
    t = law(1, 64)
    np.testing.assert_allclose(costs.t_verify_s, np.array([1.25, 1.375, 1.5, 1.75]) * t, rtol=1e-12)
    np.testing.assert_allclose(costs.t_draft_total_s, np.array([1, 2, 3, 5]) * t / 8, rtol=1e-12)
    assert costs.known.tolist() == [HERE, BETWEEN, HERE, BEYOND]
    assert costs.across_gamma.tolist() == [False, True, False, True]


def test_below_the_smallest_measured_gamma_its_cost_is_an_upper_bound() -> None:
    cliff = table(cell(1, 64, t_decode_s=19.0, t_verify_s={5: 41.1}))
    costs = cliff.at(1, 64, [1])
    assert costs.t_verify_s.tolist() == [41.1]
    assert costs.known.tolist() == [BEYOND]


def test_a_hole_is_filled_from_its_neighbours_and_a_missing_corner_is_extrapolated() -> None:
    holed = table(*(cell(b, s) for b in (1, 4, 16) for s in (64, 256, 1024) if (b, s) not in {(4, 256), (16, 1024)}))
    costs = holed.at([4, 16, 8], [256, 1024, 1024], [1])
    assert costs.t_decode_s == pytest.approx([law(4, 256), law(16, 1024), law(8, 1024)], rel=1e-12)
    assert costs.known[:, 0].tolist() == [BETWEEN, BEYOND, BEYOND]


def test_a_hole_at_the_end_of_a_line_is_bridged_across_batches() -> None:
    bridged = table(cell(1, 64), cell(1, 256), cell(4, 64), cell(16, 64), cell(16, 256))
    costs = bridged.at(4, 256, [1])
    assert float(costs.t_decode_s) == pytest.approx(law(4, 256), rel=1e-12)
    assert costs.known.tolist() == [BETWEEN]


def test_overhead_and_catch_up_are_kept_apart() -> None:
    assert FULL.at(1, 64, [1]).t_overhead_s is None
    assert float(FULL.at(1, 64, [1]).t_draft_catch_up_s) == 0.0
    timed = table(cell(1, 64, t_overhead_s={1: -0.1, 3: 0.3}, t_draft_catch_up_s=0.5))
    costs = timed.at(1, 64, [1, 2, 3])
    assert costs.t_overhead_s == pytest.approx([[-0.1, 0.1, 0.3]][0])
    assert costs.overhead_known is not None
    assert costs.overhead_known.tolist() == [HERE, BETWEEN, HERE]
    assert float(costs.t_draft_catch_up_s) == 0.5


def test_a_cost_function_replaces_the_chain_and_is_assumed() -> None:
    costs = FULL.at(1, 64, [1, 3], draft=LookupDraft(t_lookup_s=0.125))
    assert costs.t_draft_total_s.tolist() == [0.125, 0.125]
    assert costs.known.tolist() == [Known.ASSUMED, Known.ASSUMED]


def test_tables_are_kept_by_pair_and_mode() -> None:
    other = CostCell(pair="q", mode="compile", batch_size=1, context=8, t_decode_s=1.0)
    assert set(cost_tables([cell(1, 64), other])) == {("p", "eager"), ("q", "compile")}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: table(cell(1, 64), cell(1, 64)), "cell p, eager, batch 1, context 64: found twice"),
        (lambda: table(cell(1, 64, t_decode_s=-1.0)), "batch 1, context 64: t_decode_s: found -1"),
        (lambda: table(cell(1, 64, t_verify_s={2: 0.0})), "t_verify_s at gamma 2: found 0, allowed: seconds, above 0"),
        (lambda: table(cell(1, 64, t_verify_s={})).at(1, 64, [1]), "t_verify_s: found no measured cell of pair p"),
        (lambda: table(cell(1, 64, t_draft_chain_s=[])).at(1, 64, [1]), "t_draft_chain_s: found no measured cell"),
        (lambda: FULL.at(0, 64, [1]), "batch_size: found 0, allowed: a whole number, at least 1"),
        (lambda: FULL.at(1, 64, [0]), r"gammas \(item 1\): found 0"),
    ],
)
def test_bad_tables_are_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
