from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgauge.model.acceptance.renewal import TextEnds, renewal, text_ends
from specgauge.model.replay.bounds import accepted_length_oracle_time_s, best_by_start_time_s

Array = NDArray[np.float64]


def one(longest: int, by_eos: bool) -> TextEnds:
    return text_ends((1, longest), [longest], [by_eos], None)


def runs(a: Array, t: int, most: int) -> list[float]:
    """P(run = j) for j = 0 … most, a run cut at `most` drafts and at the end of the text."""
    ahead = [float(a[t + j]) if t + j < a.size else 0.0 for j in range(most)]
    law, running = [], 1.0
    for accepted in ahead:
        law.append(running * (1 - accepted))
        running *= accepted
    return [*law, running]


def brute_force(a: Array, by_eos: bool, depth: int, costs: Array, *, knows_run: bool) -> float:
    """The least expected time over every map from place, or from (place, run), to γ."""
    longest = a.size
    most = [depth if by_eos else min(depth, longest - t - 1) for t in range(longest)]
    laws = [runs(a, t, most[t]) for t in range(longest)]
    best = np.inf
    places = [(t, j) for t in range(longest) for j in (range(most[t] + 1) if knows_run else [0])]
    for choice in product(*(range(most[t] + 1) for t, _ in places)):
        policy = dict(zip(places, choice, strict=True))
        left = np.zeros(longest + depth + 2)
        for t in reversed(range(longest)):
            drafts = [policy[t, j * knows_run] for j in range(most[t] + 1)]
            left[t] = sum(
                chance * (costs[made] + left[t + min(made, j) + 1])
                for j, (chance, made) in enumerate(zip(laws[t], drafts, strict=True))
            )
        best = min(best, left[0])
    return float(best)


@pytest.mark.parametrize(
    ("bound", "by_eos", "longest"),
    [
        (best_by_start_time_s, False, 5),
        (best_by_start_time_s, True, 5),
        (accepted_length_oracle_time_s, False, 4),
        (accepted_length_oracle_time_s, True, 3),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_bounds_equal_brute_force_over_all_policies(bound: Any, by_eos: bool, longest: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, costs = generator.random(longest), 1 + generator.random(3)
    expected = brute_force(a, by_eos, 2, costs, knows_run=bound is accepted_length_oracle_time_s)
    assert bound(a[None], one(longest, by_eos), costs)[0] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4), st.booleans(), st.sampled_from([0, 2, None]))
def test_oracle_below_best_by_start_below_best_fixed_below_plain(
    seed: int, longest: int, depth: int, by_eos: bool, room: int | None
) -> None:
    generator = np.random.default_rng(seed)
    a = generator.random((3, longest)) ** generator.choice([0.2, 1.0, 5.0])
    lengths = generator.integers(1, longest + 1, 3)
    eos = np.full(3, by_eos)
    limits = None if room is None else lengths + room
    costs = generator.random(depth + 1) + 0.1
    fixed = renewal(a, a, lengths, eos, np.arange(depth + 1), depth, costs, length_limits=limits).time_s
    assert fixed is not None
    ends = text_ends(a.shape, lengths, eos, limits)
    by_start_s, oracle_s = best_by_start_time_s(a, ends, costs), accepted_length_oracle_time_s(a, ends, costs)
    tiny = 1e-12
    assert (fixed.min(axis=1) <= fixed[:, 0] + tiny).all()
    assert (by_start_s <= fixed.min(axis=1) + tiny).all()
    assert (oracle_s <= by_start_s + tiny).all()
    assert (oracle_s > 0).all()


def test_texts_do_not_depend_on_their_neighbours() -> None:
    generator = np.random.default_rng(9)
    a, lengths = generator.random((5, 8)), np.array([8, 1, 5, 3, 7])
    costs = generator.random(4) + 0.5
    eos = np.array([True, False, True, False, False])
    ends = text_ends(a.shape, lengths, eos, None)
    for bound in (best_by_start_time_s, accepted_length_oracle_time_s):
        together = bound(a, ends, costs)
        for row, size in enumerate(lengths):
            alone = bound(a[row : row + 1, :size], one(size, eos[row]), costs)
            assert alone[0] == pytest.approx(together[row], rel=1e-14)
