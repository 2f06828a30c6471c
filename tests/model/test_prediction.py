"""Acceptance joined with costs over batches and contexts."""

import numpy as np
import pytest

from specgauge.model.acceptance.profiles import profile_from_marginal
from specgauge.model.costs import CostCell, cost_tables
from specgauge.model.prediction import predict
from specgauge.model.provenance import Known
from specgauge.model.speedup import round_time_s, speedup

CELLS = [
    CostCell(
        pair="p",
        mode="eager",
        batch_size=b,
        context=s,
        t_decode_s=b * 1.0 + s / 100,
        t_draft_chain_s=[0.25, 0.5, 0.75],
        t_draft_catch_up_s=0.125,
        t_verify_s={1: b * 1.5, 2: b * 1.75, 3: b * 4.0},
        **({"t_overhead_s": {1: 0.25, 2: 0.25, 3: 0.5}} if b == 1 else {}),
    )
    for b in (1, 4)
    for s in (100, 200)
]
PROFILE = profile_from_marginal([0.75, 0.5])


def test_every_cell_is_the_scalar_formula() -> None:
    table = cost_tables(CELLS)["p", "eager"]
    batch, context = np.array([[1], [4]]), np.array([100, 200])
    found = predict(PROFILE, table.at(batch, context, [1, 2, 3]), batch_size=batch)
    assert found.speedup.shape == (2, 2, 3)
    np.testing.assert_allclose(found.tokens_per_round, [1.75, 2.25, 2.25 + 1 / 3], rtol=1e-15)
    assert not found.optimistic
    t_round = round_time_s(
        t_draft_total_s=0.5,
        t_verify_s=7.0,
        t_draft_catch_up_s=0.125,
        full_acceptance=0.5,
        batch_size=4,
        t_overhead_s=0.25,
    )
    assert float(found.t_round_s[1, 0, 1]) == float(t_round)
    assert float(found.speedup[1, 0, 1]) == float(speedup(2.25, t_decode_s=5.0, t_round_s=t_round))
    assert found.best_gamma.shape == (2, 2)
    assert found.best_gamma.tolist() == [[2, 2], [2, 2]]


def test_tags_of_acceptance_and_cost_are_kept_apart() -> None:
    table = cost_tables(CELLS)["p", "eager"]
    found = predict(PROFILE, table.at([2], 100, [1, 2, 3]), batch_size=2)
    assert found.acceptance_known.tolist() == [Known.INTERPOLATED, Known.MEASURED, Known.EXTRAPOLATED]
    assert found.cost_known.tolist() == [[Known.INTERPOLATED] * 3]


def test_a_latency_limit_binds_the_choice() -> None:
    table = cost_tables(CELLS)["p", "eager"]
    costs = table.at(1, 100, [1, 2, 3])
    free = predict(PROFILE, costs)
    tight = predict(PROFILE, costs, max_itl_s=float(free.t_round_s[0]))
    assert int(free.best_gamma) == 2
    assert int(tight.best_gamma) == int(tight.recommended_gamma) == 1
    assert int(predict(PROFILE, costs, max_itl_s=1e-3).best_gamma) == 0


def test_without_a_measured_overhead_the_prediction_is_optimistic() -> None:
    table = cost_tables([c for c in CELLS if c.batch_size == 4])["p", "eager"]
    assert predict(PROFILE, table.at(4, 100, [1])).optimistic
    with pytest.raises(ValueError, match="batch_size: found 0"):
        predict(PROFILE, table.at(4, 100, [1]), batch_size=0)
