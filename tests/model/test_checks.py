"""What a number may be, and the one line that says so."""

import numpy as np
import pytest

from specgauge.model.checks import (
    distribution,
    numbers,
    positive_times_s,
    probabilities,
    survival_rates,
    times_s,
    whole_numbers,
)


def test_good_numbers_keep_their_shape_as_float64() -> None:
    assert numbers("x", [[1, 2], [3, 4]]).dtype == np.float64
    assert times_s("t", 0).shape == ()
    assert whole_numbers("n", [1.0, 2.0], minimum=1).dtype == np.int64
    assert survival_rates("rates", [0.5, 0.5, 0.0]).tolist() == [0.5, 0.5, 0.0]
    assert distribution("probs", [[0.3333333, 0.6666666], [0.5, 0.5]]).sum(axis=1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: numbers("x", "fast"), "x: expected numbers, .*got 'fast'"),
        (
            lambda: numbers("x", [["long" * 40], []]),
            r"x: expected .*, in lists of equal .*got \[\['longlong.*\.\.\.",
        ),
        (lambda: numbers("x", [1.0, np.inf]), r"x \(item 2\): expected a finite number, got inf"),
        (lambda: numbers("x", [[1.0, 2.0], [3.0, np.nan]]), r"x \(item 2, 2\): expected .*got nan"),
        (lambda: times_s("t_draft_s", -1), "t_draft_s: expected seconds, at least 0, got -1"),
        (lambda: positive_times_s("t_decode_s", 0), "t_decode_s: expected seconds, above 0, got 0"),
        (lambda: probabilities("alpha", 1.01), "alpha: expected a probability .*got 1.01"),
        (
            lambda: survival_rates("rates", [[0.5, 0.4], [0.2, 0.3]]),
            "rates: expected .*got 0.2 at position 1 and 0.3 at position 2",
        ),
        (lambda: whole_numbers("gamma", 2.5, minimum=1), "gamma: expected a whole number, at least 1, got 2.5"),
        (lambda: distribution("probs", [0.5, 0.4]), "sum of probs: expected 1, got 0.9"),
        (lambda: distribution("probs", 1.0), "probs: expected .*got no list of probabilities"),
    ],
)
def test_bad_numbers_are_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
