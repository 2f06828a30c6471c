"""A few of the experiments: what the whole command promises of a thousand each."""

import pytest

from tests.benchmarks.coverage import figures


@pytest.mark.parametrize(
    ("kind", "blocks"), [("quiet", 3), ("bursts", 5), ("heavy tails", 3), ("jitter", 3), ("arm drift", 10)]
)
def test_intervals_hold_the_truth_or_no_decision_is_taken(kind: str, blocks: int) -> None:
    found = figures(kind, blocks, range(60))
    assert found["covered or undecided"] >= 0.8  # 4 standard errors below .88 would be .71; these seeds keep .8
    assert found["wrong"] <= 0.05
