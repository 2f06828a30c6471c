"""A few of the experiments: what the whole command promises of a thousand each."""

import pytest

from tests.benchmarks.coverage import figures


@pytest.mark.parametrize(
    ("kind", "blocks", "decoded"),
    [
        ("quiet", 3, 0),
        ("bursts", 5, 0),
        ("heavy tails", 3, 0),
        ("jitter", 3, 0),
        ("arm drift", 10, 0),
        ("quiet", 5, 16),
        ("long bursts", 5, 4),
    ],
)
def test_intervals_hold_the_truth_or_no_decision_is_taken(kind: str, blocks: int, decoded: int) -> None:
    found = figures(kind, blocks, range(60), decoded)
    assert found["covered or undecided"] >= 0.8  # 4 standard errors below .88 would be .71; these seeds keep .8
    assert found["wrong"] <= 0.05
