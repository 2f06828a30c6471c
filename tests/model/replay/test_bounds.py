from itertools import product

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


def by_start_brute_force(a: Array, by_eos: bool, depth: int, costs: Array) -> float:
    """The least expected time over every map from place to γ."""
    longest = a.size
    most = [depth if by_eos else min(depth, longest - t - 1) for t in range(longest)]
    best = np.inf
    for policy in product(*(range(m + 1) for m in most)):
        left = np.zeros(longest + depth + 2)
        for t in reversed(range(longest)):
            law = runs(a, t, policy[t])
            left[t] = costs[policy[t]] + sum(chance * left[t + j + 1] for j, chance in enumerate(law))
        best = min(best, left[0])
    return float(best)


def oracle_brute_force(a: Array, by_eos: bool, depth: int, costs: Array) -> float:
    """The least expected time over every map from (place, run) to γ."""
    longest = a.size
    most = [depth if by_eos else min(depth, longest - t - 1) for t in range(longest)]
    laws = [runs(a, t, most[t]) for t in range(longest)]
    best = np.inf
    places = [(t, j) for t in range(longest) for j in range(most[t] + 1)]
    for choice in product(*(range(most[t] + 1) for t, _ in places)):
        policy = dict(zip(places, choice, strict=True))
        left = np.zeros(longest + depth + 2)
        for t in reversed(range(longest)):
            left[t] = sum(
                chance * (costs[policy[t, j]] + left[t + min(policy[t, j], j) + 1]) for j, chance in enumerate(laws[t])
            )
        best = min(best, left[0])
    return float(best)


@pytest.mark.parametrize("by_eos", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_best_by_start_equals_brute_force_over_all_policies(seed: int, by_eos: bool) -> None:
    generator = np.random.default_rng(seed)
    a, costs = generator.random(5), 1 + generator.random(3)
    found = best_by_start_time_s(a[None], one(5, by_eos), costs)
    assert found[0] == pytest.approx(by_start_brute_force(a, by_eos, 2, costs), abs=1e-12)


@pytest.mark.parametrize(("by_eos", "longest"), [(False, 4), (True, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_the_run_oracle_equals_brute_force_over_all_policies(seed: int, by_eos: bool, longest: int) -> None:
    generator = np.random.default_rng(seed)
    a, costs = generator.random(longest), 1 + generator.random(3)
    found = accepted_length_oracle_time_s(a[None], one(longest, by_eos), costs)
    assert found[0] == pytest.approx(oracle_brute_force(a, by_eos, 2, costs), abs=1e-12)


def test_bounds_by_hand() -> None:
    # A draft costs .5 of a step and is accepted for sure at 0 and 1, never at 2: draft 2 at the start, then nothing.
    costs = 1 + 0.5 * np.arange(4)
    assert best_by_start_time_s([[1.0, 1.0, 0.0, 0.0]], one(4, False), costs)[0] == 3.0
    assert accepted_length_oracle_time_s([[1.0, 1.0, 0.0, 0.0]], one(4, False), costs)[0] == 3.0
    # Costs alike for all γ, an EOS at the third place: a round of 2 drafts ends it with the EOS as bonus.
    assert best_by_start_time_s(np.ones((1, 3)), one(3, True), np.ones(4))[0] == 1.0


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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_where_other_gammas_are_too_dear_the_bound_is_the_renewal_time(seed: int) -> None:
    """Two ways to one number: backwards over starts, and forwards over the mass of starts."""
    generator = np.random.default_rng(seed)
    a, lengths, eos = generator.random((4, 10)), generator.integers(1, 11, 4), np.ones(4, dtype=np.bool_)
    costs = np.array([1e6, 1e6, generator.random()])
    fixed = renewal(a, a, lengths, eos, [2], 2, costs).time_s
    assert fixed is not None
    np.testing.assert_allclose(
        best_by_start_time_s(a, text_ends(a.shape, lengths, eos, None), costs), fixed[:, 0], rtol=1e-12
    )


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
