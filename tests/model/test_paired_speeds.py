"""Which γ is fastest, by hand; and intervals that cover what they claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specgauge.model.validate import PairedSpeeds


def speeds(seconds: Any, prompts: Any, committed: Any = None) -> PairedSpeeds:
    times = np.asarray(seconds, dtype=np.float64)
    tokens = np.full(times.shape, 12.0) if committed is None else np.asarray(committed, dtype=np.float64)
    return PairedSpeeds(gammas=(1, 2, 4), committed=tokens, seconds=times, prompts=np.asarray(prompts))


def test_speeds_are_sums_over_sums() -> None:
    """36 tokens in 4 + 8 s, 24 in 6 + 2 s, 24 in 3 + 5 s: 3, 3 and 3 tokens a second, and then one that is faster."""
    found = speeds([[4, 6, 3], [8, 2, 5]], [0, 1], [[12, 12, 12], [24, 12, 12]])
    assert found.best() == 1
    assert found.share_of_best(2).value == pytest.approx(1.0, rel=1e-15)
    faster = speeds([[4, 6, 3], [8, 2, 3]], [0, 1], [[12, 12, 12], [24, 12, 12]])
    assert faster.best() == 4
    assert faster.share_of_best(2).value == pytest.approx(0.75, rel=1e-15)
    assert faster.share_of_best(4).value == 1.0
    with pytest.raises(ValueError, match="not in tuple"):
        faster.share_of_best(3)


def test_the_best_is_doubted_where_another_may_be_faster() -> None:
    """Two γ that are fastest in turn: which is best is a matter of chance, and so is what the other loses."""
    found = speeds([[1.0, 1.3, 9.0], [1.25, 1.0, 9.0]] * 4, [0, 0, 1, 1, 2, 2, 3, 3])
    assert found.best() == 1
    doubt = found.share_of_best(1)
    assert doubt.value == 1.0
    assert doubt.half_width is not None
    assert 0.02 < doubt.half_width < 0.2
    sure = speeds([[1.0, 1.3, 9.0], [1.0, 1.4, 9.0]] * 4, [0, 0, 1, 1, 2, 2, 3, 3]).share_of_best(1)
    assert (sure.value, sure.half_width, sure.half_width_of_others) == (1.0, 0.0, 0.0)


def test_one_block_of_each_prompt_says_nothing_of_the_same_again() -> None:
    share = speeds([[1, 2, 3], [1, 3, 4]], [0, 1]).share_of_best(2)
    assert share.half_width is None
    assert share.half_width_of_others is not None


def test_one_prompt_says_nothing_of_others() -> None:
    share = speeds([[1, 2, 3], [1, 3, 4]], [7, 7]).share_of_best(2)
    assert share.half_width is not None
    assert share.half_width_of_others is None


def test_what_differs_between_prompts_alone_is_no_doubt_about_these() -> None:
    share = speeds([[1, 2, 3], [1, 2, 3], [1, 5, 6], [1, 5, 6]], [0, 0, 1, 1]).share_of_best(2)
    assert share.half_width == pytest.approx(0.0, abs=1e-12)
    assert share.half_width_of_others is not None
    assert share.half_width_of_others > 0.1


@pytest.mark.parametrize(("prompts", "repetitions"), [(1, 3), (4, 2), (8, 3), (24, 2)])
def test_intervals_cover_what_they_claim(prompts: int, repetitions: int) -> None:
    """The share of these prompts had they been decoded forever: inside in 95 % of 300 experiments, give or take."""
    generator = np.random.default_rng(3)
    inside = 0
    for _ in range(300):
        level = np.exp(generator.normal([0.3, 0.0, 2.0], 0.1, (prompts, 1, 3)))
        noise = np.exp(generator.normal(0.0, 0.02, (prompts, repetitions, 3)))
        found = speeds((level * noise).reshape(-1, 3), np.repeat(np.arange(prompts), repetitions)).share_of_best(1)
        truth = level[:, 0, 1].sum() / level[:, 0, 0].sum()
        assert found.half_width is not None
        inside += abs(found.value - truth) <= found.half_width
    assert 0.9 <= inside / 300 <= 0.99


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": np.ones((1, 2))}, r"committed: found shapes \(2, 3\) and \(1, 2\) of 2 blocks and 3 gammas"),
        ({"committed": np.zeros((2, 3))}, "committed: found 0, allowed: values above 0"),
        ({"seconds": np.full((2, 3), -1.0)}, "seconds: found -1, allowed: values above 0"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], words: str) -> None:
    fitting: dict[str, Any] = {
        "gammas": (1, 2, 4), "committed": np.ones((2, 3)), "seconds": np.ones((2, 3)), "prompts": np.arange(2)
    }  # fmt: skip
    with pytest.raises(ValueError, match=words):
        PairedSpeeds(**fitting | changes)
