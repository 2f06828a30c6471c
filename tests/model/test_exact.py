"""Speculative sampling in exact arithmetic: the output is distributed as the target's, whatever the draft."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.checks import FloatArray
from specgauge.model.exact import AcceptanceRule, DraftSampling, position_distribution

RULES: list[AcceptanceRule] = ["ratio", "match"]
DRAFTS: list[DraftSampling] = ["same", "greedy"]
WEIGHTS = st.one_of(
    st.just(0.0), st.floats(1e-300, 1e-290), st.floats(1e-18, 1e-10), st.floats(1e-3, 1.0), st.sampled_from([0.25, 1.0])
)


@st.composite
def distributions(draw: st.DrawFn, size: int) -> FloatArray:
    weights = np.array(draw(st.lists(WEIGHTS, min_size=size, max_size=size)))
    if weights.sum() == 0:
        weights[draw(st.integers(0, size - 1))] = 1.0
    return np.asarray(weights / weights.sum())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[FloatArray, FloatArray]:
    size = draw(st.integers(1, 7))
    target = draw(distributions(size))
    return target, target if draw(st.booleans()) and draw(st.booleans()) else draw(distributions(size))


@pytest.mark.parametrize(
    ("target", "draft", "options", "expected"),
    [
        (
            [0.2, 0.4, 0.4],
            [0.1, 0.1, 0.8],
            {},
            {
                "accepted": [0.1, 0.1, 0.4],
                "accept": [1.0, 1.0, 0.5],
                "surplus": [0.0, 0.0, 0.4],
                "deficit": [0.1, 0.3, 0.0],
                "residual": [0.25, 0.75, 0.0],
                "output": [0.2, 0.4, 0.4],
                "overlap": 0.6,
                "rejected": 0.4,
            },
        ),
        (
            [0.6, 0.4],
            [0.8, 0.2],
            {"draft_sampling": "greedy"},
            {"draft_probs": [1.0, 0.0], "accepted": [0.6, 0.0], "output": [0.6, 0.4]},
        ),
        ([0.4, 0.6, 0.0], [0.625, 0.375, 0.0], {}, {"accept": [0.64, 1.0, 0.0], "output": [0.4, 0.6, 0.0]}),
        (
            [0.5, 0.5],
            [0.8, 0.2],
            {"rule": "match"},
            {"accepted": [0.4, 0.1], "residual": [0.2, 0.8], "output": [0.5, 0.5]},
        ),
        ([0.1, 0.2, 0.7], [0.1, 0.2, 0.7], {}, {"rejected": 0.0, "residual": [0.0, 0.0, 0.0]}),
        ([0.5, 0.5, 0.0], [0.0, 0.0, 1.0], {}, {"overlap": 0.0, "residual": [0.5, 0.5, 0.0]}),
        ([[0.2, 0.8], [0.5, 0.5]], [0.5, 0.5], {}, {"overlap": [0.7, 1.0], "residual": [[0.0, 1.0], [0.0, 0.0]]}),
    ],
)
def test_distributions_by_hand(target: Any, draft: Any, options: Any, expected: dict[str, Any]) -> None:
    here = position_distribution(target, draft, **options)
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(here, name), values, atol=1e-15, err_msg=name)


def test_a_large_vocabulary_puts_no_floor_under_the_residual() -> None:
    target, draft = np.zeros(100_000), np.zeros(100_000)
    target[:2], draft[:2] = (0.6, 0.4), (0.8, 0.2)
    here = position_distribution(target, draft)
    assert here.residual[1] == 1.0
    assert np.count_nonzero(here.residual) == 1


@settings(max_examples=300)
@given(pairs(), st.sampled_from(RULES), st.sampled_from(DRAFTS))
def test_output_is_the_target(
    pair: tuple[FloatArray, FloatArray], rule: AcceptanceRule, draft_sampling: DraftSampling
) -> None:
    target, draft = pair
    here = position_distribution(target, draft, rule=rule, draft_sampling=draft_sampling)
    np.testing.assert_allclose(here.output, here.target_probs, atol=1e-12)
    assert np.all(here.accepted[here.target_probs == 0] == 0)
    assert np.all(here.residual[here.target_probs == 0] == 0)
    assert np.all(here.accepted[here.draft_probs == 0] == 0)
    assert np.all((here.accept >= 0) & (here.accept <= 1))
    np.testing.assert_allclose(here.draft_probs * here.accept, here.accepted, atol=1e-15)
    assert float(here.overlap + here.rejected) == pytest.approx(1.0, abs=1e-12)
    assert float(here.rejected) == pytest.approx(float(here.deficit.sum()), abs=1e-12)


@pytest.mark.parametrize(
    ("target", "draft", "options", "message"),
    [
        ([0.2, 0.4], [0.1, 0.9], {}, r"sum of target_probs: expected .*got 0\.6"),
        ([0.5, 0.5], [0.5, 0.25, 0.25], {}, "draft_probs: expected .*got 3 tokens for 2 in target_probs"),
        ([], [], {}, "target_probs: expected .*got no list of probabilities"),
        ([1.0], [1.0], {"rule": "typical"}, "rule: expected .*got 'typical'"),
        ([1.0], [1.0], {"draft_sampling": "beam"}, "draft_sampling: expected .*got 'beam'"),
    ],
)
def test_bad_distributions_and_unknown_rules_are_refused(
    target: list[float], draft: list[float], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        position_distribution(target, draft, **options)
