"""Rounds counted against rounds expected: exact z, and the cases without a standard error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specgauge.model.validate import round_check


def test_z_by_hand() -> None:
    """Differences 1, −1, 3: total 3, deviation 2, so z = 3 / (√3 · 2); of t with 2 degrees, p = 1 − z / √(z² + 2)."""
    check = round_check([11, 9, 13], [10.0, 10.0, 10.0])
    assert check.standard_errors == pytest.approx(3 / (math.sqrt(3) * 2), abs=1e-12)
    assert check.p_value == pytest.approx(1 - math.sqrt(0.75) / math.sqrt(0.75 + 2), abs=1e-12)
    assert (check.counted, check.expected, check.prompts, check.agrees) == (33, 30.0, 3, True)
    assert check.warning() is None


def test_five_standard_errors_disagree_in_one_line() -> None:
    """100 prompts that differ by 1 ± 2: z is near 5."""
    expected = np.full(100, 20.0)
    counted = expected + np.where(np.arange(100) % 2 == 0, 3, -1)
    check = round_check(counted.astype(int), expected)
    assert check.standard_errors == pytest.approx(100 / (10 * 2 * math.sqrt(100 / 99)), abs=1e-9)
    assert not check.agrees
    assert check.warning() == (
        "the decoder took 2100 rounds where its own texts' acceptance says 2000.0, +5.0 standard errors; "
        "decoder and acceptance do not describe the same process"
    )


def test_two_prompts_prove_little() -> None:
    """Differences 5 and 4: z is 9, but with one degree of freedom p = 2 arctan(1 / 9) / π = .07."""
    check = round_check([30, 29], [25.0, 25.0])
    assert check.standard_errors == pytest.approx(9.0, abs=1e-12)
    assert check.p_value == pytest.approx(2 * math.atan(1 / 9) / math.pi, abs=1e-12)
    assert check.agrees


def test_rounds_that_are_certain_must_be_equal() -> None:
    """Greedy rounds leave nothing to chance: no difference at all agrees, the same one in 16 prompts does not."""
    equal = round_check([4, 7], [4.0, 7.0])
    assert (equal.agrees, equal.standard_errors, equal.p_value) == (True, None, None)
    off = round_check([5, 8] * 8, [4.0, 7.0] * 8)
    assert (off.agrees, off.standard_errors, off.p_value) == (False, None, 2.0**-15)
    assert off.warning() is not None
    few = round_check([5, 8], [4.0, 7.0])
    assert (few.agrees, few.p_value) == (True, 0.5)


def test_rounding_of_probabilities_is_no_disagreement() -> None:
    assert round_check([1000, 1000], [1000 - 1e-4, 1000 - 1.1e-4]).agrees


def test_one_prompt_is_judged_only_roughly() -> None:
    assert round_check([9], [6.0]).agrees
    assert not round_check([13], [6.0]).agrees


@pytest.mark.parametrize(
    ("counted", "expected"), [([], []), ([1, 2], [1.0]), ([[1]], [[1.0]])], ids=["none", "shapes", "two axes"]
)
def test_shapes_that_do_not_fit_are_refused(counted: list[int], expected: list[float]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        round_check(counted, expected)
