import json

import pytest

from specgauge.sweeps.analysis.validation import summarise
from tests.sweeps.validation_rows import forced_row, validation_row


def test_errors_are_means_and_worst_of_absolute_values() -> None:
    found = summarise(
        [
            validation_row(error=0.1, cost_error=-0.03),
            validation_row(gamma=3, error=-0.02, cost_error=0.01),
            validation_row(context=256, error=0.03, cost_error=0.02),
        ]
    )
    assert found is not None
    assert (found.cells, found.rows, found.forced) == (2, 3, 0)
    assert found.speedup is not None
    assert found.cost is not None
    assert (found.speedup.mean, found.speedup.worst) == pytest.approx((0.05, 0.1))
    assert (found.cost.mean, found.cost.worst) == pytest.approx((0.02, 0.03))
    assert found.text() == (
        "Decoded end to end in 2 cells: predicted S within 5.0 % of measured on average, 10.0 % at worst; S from the "
        "rounds counted in these texts within 2.0 % on average, 3.0 % at worst"
    )


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(-0.1, 0.1, 1), (0.01, 0.1, 0), (-0.2, -0.01, 0), (0.0, 0.1, 1), (1e-12, 0.1, 1), (-0.1, 0.0, 1)],
)
def test_an_interval_holds_zero_up_to_rounding(low: float, high: float, holds: int) -> None:
    found = summarise([validation_row(acceptance_error_low=low, acceptance_error_high=high)])
    assert found is not None
    assert (found.acceptance_known, found.acceptance_agrees) == (1, holds)


def test_what_is_unknown_is_not_counted() -> None:
    lacking = dict.fromkeys(("acceptance_error_low", "acceptance_error_high", "rounds_agree", "speedup_whole"))
    found = summarise([validation_row(**lacking), validation_row(gamma=3, rounds_agree=False, speedup_whole=0.9)])
    assert found is not None
    assert (found.acceptance_known, found.rounds_known, found.rounds_agree) == (1, 1, 0)
    assert (found.whole_low, found.whole_high) == (0.9, 0.9)


def test_nothing_decoded_has_no_summary() -> None:
    assert summarise([]) is None


def test_one_row_has_no_average() -> None:
    found = summarise([validation_row(error=-0.034, cost_error=0.012)])
    assert found is not None
    assert found.text() == (
        "Decoded end to end in 1 cell: predicted S within 3.4 % of measured; S from the rounds counted in these texts "
        "within 1.2 %"
    )
    unknown = summarise([validation_row(error=-0.034, cost_error=None)])
    assert unknown is not None
    assert unknown.text() == "Decoded end to end in 1 cell: predicted S within 3.4 % of measured"


def test_forced_acceptance_is_said_and_only_costs_are_judged() -> None:
    found = summarise([forced_row(), forced_row(gamma=3, cost_error=-0.04)])
    assert found is not None
    assert (found.forced, found.speedup) == (2, None)
    assert found.text() == (
        "Decoded end to end in 1 cell, acceptance forced by coin (not lossless): S from the measured costs and the "
        "rounds counted within 3.0 % of measured on average, 4.0 % at worst"
    )


def test_texts_too_short_to_compare_say_so() -> None:
    nothing = dict.fromkeys(("error", "cost_error", "speedup_predicted", "speedup_from_counts", "speedup_measured"))
    found = summarise([validation_row(**nothing)])
    assert found is not None
    assert found.text() == "Decoded end to end in 1 cell: no stretch with all rows active to compare"


def test_the_mapping_is_strict_json() -> None:
    found = summarise([forced_row(cost_error=None)])
    assert found is not None
    content = json.loads(json.dumps(found.as_mapping(), allow_nan=False))
    assert content["speedup_error_mean"] is None
    assert content["cost_error_worst"] is None
    assert (content["cells"], content["rows"], content["forced"]) == (1, 1, 1)
    assert content["text"] == found.text()
