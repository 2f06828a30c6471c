"""Acceptance from counts: what is measured, what is interpolated, and how uncertain it is."""

from typing import Any

import numpy as np
import pytest

from specgauge.model.settings import Provenance
from specgauge.sweeps.analysis.counts import counted_acceptance
from specgauge.sweeps.store.counts import CountsRow

R = 4000


def row(**changes: Any) -> CountsRow:
    plain: dict[str, Any] = {
        "pair": "p", "sampling": "s", "source": "a", "gamma": 3, "rounds": 400, "tokens": 1000.0, "accepted": 600,
        "accepted_by_position": (300, 200, 100),
    }  # fmt: skip
    return CountsRow(**(plain | changes))


def counted(*rows: CountsRow, gammas: tuple[int, ...] = (3,)) -> Any:
    return counted_acceptance(rows, gammas, replicates=R, seed=0, confidence=0.9)


def test_counts_are_pooled() -> None:
    found = counted(row(), row(source="b", rounds=100, tokens=100.0, accepted=0, accepted_by_position=(0, 0, 0)))
    assert found.tokens_per_round[0, 0] == 1100 / 500
    assert found.full_acceptance[0, 0] == 100 / 500
    assert found.provenance.tolist() == [Provenance.IMPORTED]


def test_a_smaller_gamma_takes_the_rates_of_the_larger_one() -> None:
    found = counted(row(), gammas=(1, 2, 3, 4))
    assert found.tokens_per_round[0, :3].tolist() == [1.75, 2.25, 2.5]
    assert np.isnan(found.tokens_per_round[0, 3])
    assert found.provenance[:3].tolist() == [Provenance.INTERPOLATED, Provenance.INTERPOLATED, Provenance.IMPORTED]


def test_one_count_varies_as_independent_rounds() -> None:
    omega = counted(row()).tokens_per_round[1:, 0]
    variance = (0 + 1 + 4 + 9) / 4 - 1.5**2  # rounds accept 0, 1, 2 and 3 drafts alike
    assert omega.std() == pytest.approx(np.sqrt(variance / 400), rel=0.05)
    assert omega.mean() == pytest.approx(2.5, abs=0.01)


def test_totals_alone_vary_as_one_alpha_spreads_them() -> None:
    omega = counted(row(accepted_by_position=None)).tokens_per_round[1:, 0]
    assert 0.04 < omega.std() < 0.07


def test_several_counts_are_drawn_apart() -> None:
    units = [row(source=str(index), tokens=900.0 + 50 * index) for index in range(5)]
    omega = counted(*units).tokens_per_round
    assert omega[0, 0] == 2.5
    assert omega[1:, 0].std() > counted(row()).tokens_per_round[1:, 0].std()


def test_without_counts_nothing_varies() -> None:
    found = counted(row(rounds=None, tokens=None, accepted=None, accepted_by_position=None, tokens_per_round=2.4))
    assert set(found.tokens_per_round[:, 0].tolist()) == {2.4}
    assert np.isnan(found.full_acceptance).all()
