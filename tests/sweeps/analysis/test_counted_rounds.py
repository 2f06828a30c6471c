"""Costs at the contexts that counted rounds have."""

from typing import cast

import numpy as np

from specgauge.model.costs import CostSource, RoundCosts
from specgauge.model.settings import Provenance
from specgauge.sweeps.analysis.counted_rounds import costs_along


class Source:
    """T_decode is the context in seconds."""

    name = "made"

    def __init__(self) -> None:
        self.asked: list[int] = []

    def costs(self, batch_size: int, context: object, gammas: object) -> RoundCosts:
        contexts, columns = np.asarray(context), np.atleast_1d(np.asarray(gammas))
        self.asked += contexts.tolist()
        by_gamma = np.ones((contexts.size, columns.size))
        return RoundCosts(
            gammas=columns,
            t_decode_s=contexts.astype(float),
            t_draft_total_s=by_gamma,
            t_verify_s=by_gamma,
            provenance=np.full(columns.size, int(Provenance.ASSUMED)),
        )


def test_costs_are_asked_for_at_the_contexts_met_alone_however_far_apart() -> None:
    source, context = Source(), np.array([65, 999_999, 64, 65])
    found = costs_along(cast(CostSource, source), 1, context, np.array([2, 0, 2, 1]))
    assert source.asked == [64, 65, 999_999]
    assert found.by_context.t_decode_s[found.rows(context)].tolist() == [65.0, 999_999.0, 64.0, 65.0]
    assert found.by_context.gammas.tolist() == [1, 2]
