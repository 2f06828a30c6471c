"""What rounds with fewer drafts than asked for spend on verification."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.acceptance.lookups import draft_share_replicates, mean_verify_s, widest_share
from specgauge.model.acceptance.renewal_starts import renewal_by_start
from specgauge.model.costs import RoundCosts
from specgauge.model.provenance import Provenance


def costs(replicates: int = 1) -> RoundCosts:
    """T_decode 1, T_verify(2) = 1.5, T_verify(4) = 2.5, in every replicate."""
    return RoundCosts(
        gammas=np.array([2, 4]),
        t_decode_s=np.full(1 + replicates, 1.0),
        t_draft_total_s=np.full((1 + replicates, 2), 0.1),
        t_verify_s=np.tile([1.5, 2.5], (1 + replicates, 1)),
        provenance=np.array(Provenance.MEASURED),
    )


@given(
    weights=st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any),
    rows=st.integers(1, 4),
)
def test_the_widest_of_independent_rows_is_that_of_all_combinations(weights: list[int], rows: int) -> None:
    single = np.array(weights) / sum(weights)
    expected = np.zeros(len(weights))
    for drafts in itertools.product(range(len(weights)), repeat=rows):
        expected[max(drafts)] += np.prod(single[list(drafts)])
    assert widest_share(single, rows) == pytest.approx(expected, abs=1e-12)


def test_verification_is_averaged_over_the_drafts_that_rounds_have() -> None:
    shares = np.zeros((2, 2, 5))
    shares[:, 0, [0, 2]] = 0.25, 0.75
    shares[:, 1, [0, 1, 3, 4]] = 0.5, 0.25, 0.125, 0.125
    found = mean_verify_s(costs(), shares, batch_size=1)
    # T_verify(1) lies half way between decode and T_verify(2), T_verify(3) half way between the measured two
    assert found[0].tolist() == [0.25 * 1 + 0.75 * 1.5, 0.5 * 1 + 0.25 * 1.25 + 0.125 * 2 + 0.125 * 2.5]
    assert found[1].tolist() == found[0].tolist()
    # of two rows both must find nothing for the block to stay plain
    found = mean_verify_s(costs(), shares, batch_size=2)
    assert found[0, 0] == pytest.approx(0.0625 * 1 + 0.9375 * 1.5, abs=1e-12)


def test_rounds_that_always_verify_gamma_cost_what_was_measured() -> None:
    shares = np.zeros((2, 2, 5))
    shares[:, 0, 2] = shares[:, 1, 4] = 1.0
    for rows in (1, 8):
        assert mean_verify_s(costs(), shares, batch_size=rows)[0].tolist() == [1.5, 2.5]


def test_shares_are_pooled_over_prompts_and_drawn_with_them() -> None:
    # two texts of four positions, γ_max 2: the first finds nothing anywhere, the second two drafts that always fail
    survival, offered = np.zeros((2, 4, 2)), [[0] * 4, [2] * 4]
    result = renewal_by_start(survival, survival, offered, [4, 4], [False, False], [1, 2], 2).by_prompt([0, 1])
    assert result.starts.tolist() == [[3, 3], [3, 3]]
    weights = np.array([[2, 0], [0, 2], [1, 1]])
    shares = draft_share_replicates(result, weights)
    assert shares.shape == (4, 2, 3)
    assert shares[0].tolist() == [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]
    assert shares[3].tolist() == shares[0].tolist()
    # deviations are widened for the two prompts and clipped to shares: all or nothing
    assert shares[1].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert shares[2].tolist() == [[0, 1, 0], [0, 0, 1]]
