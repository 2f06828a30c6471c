import json
from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(-0.1, 0.1, 1), (0.01, 0.1, 0), (-0.2, -0.01, 0), (0.0, 0.1, 1), (1e-12, 0.1, 1), (-0.1, 0.0, 1)],
)
def test_an_interval_holds_zero_up_to_rounding(low: float, high: float, holds: int) -> None:
    found = summarise([validation_row(acceptance_error_low=low, acceptance_error_high=high)])
    assert found is not None
    assert (found.acceptance_provenance, found.acceptance_agrees) == (1, holds)


def test_what_is_unknown_is_not_counted() -> None:
    lacking = dict.fromkeys(("acceptance_error_low", "acceptance_error_high", "rounds_agree", "speedup_whole"))
    found = summarise([validation_row(**lacking), validation_row(gamma=3, rounds_agree=False, speedup_whole=0.9)])
    assert found is not None
    assert (found.acceptance_provenance, found.rounds_known, found.rounds_agree) == (1, 1, 0)
    assert (found.whole_low, found.whole_high) == (0.9, 0.9)


NOTHING = dict.fromkeys(("error", "cost_error", "speedup_predicted", "speedup_from_counts", "speedup_measured"))
CASES = {
    "several rows": [validation_row(error=0.1, cost_error=-0.03), validation_row(context=256, error=0.03)],
    "one row": [validation_row(error=-0.034, cost_error=0.012)],
    "without costs": [validation_row(error=-0.034, cost_error=None)],
    "forced": [forced_row(), forced_row(gamma=3, cost_error=-0.04)],
    "too short": [validation_row(**NOTHING)],
}


def test_the_line_and_the_mapping_say_the_same(snapshot: Callable[[str, str], None]) -> None:
    assert summarise([]) is None
    lines = []
    for name, rows in CASES.items():
        found = summarise(rows)
        assert found is not None
        content = json.loads(json.dumps(found.as_mapping(), allow_nan=False))
        assert (content["text"], content["rows"]) == (found.text(), len(rows))
        lines.append(f"{name}: {found.text()}")
    forced = summarise([forced_row(cost_error=None)])
    assert forced is not None
    content = forced.as_mapping()
    assert (content["forced"], content["speedup_error_mean"], content["cost_error_worst"]) == (1, None, None)
    snapshot("validation_summary", "\n".join([*lines, ""]))
