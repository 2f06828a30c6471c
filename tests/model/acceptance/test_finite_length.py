"""Finite texts against laws worked out by hand, exhaustive enumeration and the long-text limit."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.acceptance.finite_length import (
    expected_last_row_rounds,
    expected_rounds,
    expected_time_s,
    rounds_cdf,
    run_law,
    speedup_batch,
    speedup_request,
)
from specgauge.model.speedup import survival_iid, tokens_per_round


def test_run_law_of_three_drafts() -> None:
    assert run_law([0.75, 0.5, 0.25]).tolist() == [0.25, 0.25, 0.25, 0.25]


def test_expected_rounds_by_hand() -> None:
    assert expected_rounds([0.5], 4).tolist() == [0.0, 1.0, 1.5, 2.25, 2.875]


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_perfect_and_useless_drafts(gamma: int) -> None:
    perfect = expected_rounds(np.ones(gamma), 12)
    assert perfect.tolist() == [-(-n // (gamma + 1)) for n in range(13)]
    assert expected_rounds(np.zeros(gamma), 12).tolist() == list(range(13))


def test_long_texts_approach_tokens_per_round() -> None:
    survival = survival_iid(0.8, 5)
    rounds = expected_rounds(survival, 4000)
    assert 1000 / (rounds[4000] - rounds[3000]) == pytest.approx(float(tokens_per_round(survival)), rel=1e-9)


def test_expected_time_shrinks_gamma_before_the_limit() -> None:
    times = expected_time_s([1.0, 1.0], t_decode_s=1.0, t_round_s=[10.0, 100.0], tokens=5)
    assert times.tolist() == [0.0, 1.0, 10.0, 100.0, 101.0, 110.0]


def test_constant_costs_are_rounds_times_cost() -> None:
    survival = survival_iid([0.5, 0.9], 3)
    times = expected_time_s(survival, t_decode_s=2.0, t_round_s=[2.0, 2.0, 2.0], tokens=9)
    np.testing.assert_allclose(times, 2 * expected_rounds(survival, 9), rtol=1e-14)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=3), st.integers(1, 6))
def test_rounds_cdf_is_the_enumerated_law(rates: list[float], tokens: int) -> None:
    survival = np.cumprod(rates)
    law = run_law(survival)
    expected = np.zeros(tokens + 1)
    for runs in product(range(len(law)), repeat=tokens):
        left, rounds = tokens, 0
        while left > 0:
            left -= runs[rounds] + 1
            rounds += 1
        expected[rounds:] += np.prod([law[j] for j in runs])
    np.testing.assert_allclose(rounds_cdf(survival, tokens), expected, atol=1e-12)


def test_last_row_of_one_row_is_its_expectation() -> None:
    survival = survival_iid(0.7, 4)
    assert expected_last_row_rounds(survival, [20]) == pytest.approx(
        float(expected_rounds(survival, 20)[20]), rel=1e-13
    )


def test_last_row_of_two_rows_by_hand() -> None:
    assert rounds_cdf([0.5], 2).tolist() == [0.0, 0.5, 1.0]
    assert expected_last_row_rounds([0.5], [2, 2]) == 1.0 + 0.75
    assert expected_last_row_rounds([0.5], [2, 1]) == 1.5


def test_speedup_request_with_and_without_prefill() -> None:
    assert float(speedup_request([1.0], tokens=6, t_decode_s=1.0, t_round_s=[1.5])) == pytest.approx(6 / 4.5)
    with_prefill = speedup_request(
        [1.0], tokens=6, t_decode_s=1.0, t_round_s=[1.5], t_prefill_target_s=4.0, t_prefill_draft_s=1.5
    )
    assert float(with_prefill) == 1.0


def test_speedup_batch_waits_for_the_last_row() -> None:
    alone = speedup_batch([0.5], tokens_per_row=[2], t_decode_s=1.0, t_round_s=1.0)
    together = speedup_batch([0.5], tokens_per_row=[2, 2], t_decode_s=1.0, t_round_s=1.0)
    assert alone == 2 / 1.5
    assert together == 2 / 1.75


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"t_round_s: found shape \(1,\), allowed: one time for each of 1 … 2 drafts"):
        expected_time_s([0.5, 0.2], t_decode_s=1.0, t_round_s=[1.0], tokens=3)
    with pytest.raises(ValueError, match="allowed: one list A_1"):
        rounds_cdf([[0.5], [0.4]], 3)
