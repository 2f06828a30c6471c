"""The whole replay: exact where it can be, other prompts for tuning, what the renewal rule gains; and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgauge.model.acceptance.renewal import TextEnds, renewal, text_ends
from specgauge.model.policies.policy import FixedPolicy, GammaPolicy
from specgauge.model.policies.tuning import MAKERS, PolicyMaker
from specgauge.model.replay.bounds import accepted_length_oracle_time_s, best_by_start_time_s
from specgauge.model.replay.replay import ReplayResult, replay, replayed_seconds
from specgauge.model.replay.rounds import ReplayBatches, ReplayCosts
from specgauge.model.replay.texts import ReplayTexts
from tests.model.made import known
from tests.model.policy_cases import linear_costs, made_texts, regions

TWO = made_texts([[0.5], [0.5]])


def some(*names: str) -> dict[str, PolicyMaker]:
    return {name: MAKERS[name] for name in names}


def quick(
    texts: ReplayTexts, costs: ReplayCosts, makers: dict[str, PolicyMaker], *, replicates: int = 20
) -> ReplayResult:
    return replay(texts, costs, makers=makers, folds=2, replicates=replicates, tuning_replicates=4)


def test_fixed_gamma_bounds_and_plain_are_exact() -> None:
    a = np.random.default_rng(3).random((6, 20)) ** 0.3
    texts, costs = made_texts(a), linear_costs(6, 0.1, catch_up=0.04)
    result = quick(texts, costs, {"three": lambda _: FixedPolicy(gamma=3)})
    sizes, eos = np.full(6, 20), np.zeros(6, dtype=np.bool_)
    exact = renewal(a, a, sizes, eos, np.arange(7), 6, costs.rounds_s)
    assert exact.time_s is not None
    fixed_s = (exact.time_s + 0.04 * exact.catch_ups).sum(axis=0)
    assert result.policies["three"].speedup.value == pytest.approx(120 / fixed_s[3], rel=1e-12)
    assert result.best_fixed_gamma == fixed_s.argmin()
    assert result.best_fixed_speedup == pytest.approx(120 / fixed_s.min(), rel=1e-12)
    assert result.loop_speedup == 1.0
    by_start_s = best_by_start_time_s(a, texts.ends, costs.rounds_s).sum()
    oracle_s = accepted_length_oracle_time_s(a, texts.ends, costs.rounds_s).sum()
    assert result.bound_by_start_speedup == pytest.approx(120 / by_start_s, rel=1e-12)
    assert result.bound_oracle_speedup == pytest.approx(120 / oracle_s, rel=1e-12)
    three = result.policies["three"]
    assert known(three.gap_closed_oracle)[0] == pytest.approx((fixed_s.min() - fixed_s[3]) / (fixed_s.min() - oracle_s))
    assert three.over_best_fixed.value == pytest.approx(fixed_s.min() / fixed_s[3])
    assert three.switches_per_round == 0
    assert (result.prompts, result.off_path) == (6, "assumed")


def test_a_prompt_that_beats_its_bound_by_luck_counts_as_it_is() -> None:
    """In a batch the best fixed γ meets random numbers, its bound is an expectation: shares are those of the totals."""
    texts = made_texts(np.random.default_rng(5).random((6, 12)))
    result = quick(texts, linear_costs(3, 0.1, batch_size=2), {"two": lambda _: FixedPolicy(gamma=2)}, replicates=1)
    two, best_s = result.policies["two"], 1 / result.best_fixed_speedup
    assert known(two.gap_closed_oracle)[0] == pytest.approx(
        (best_s - 1 / two.speedup.value) / (best_s - 1 / result.bound_oracle_speedup), rel=1e-9
    )


def test_both_plain_baselines_are_told_apart() -> None:
    costs = ReplayCosts(t_decode_s=1.0, t_round_s=(1.25, 1.5))
    result = quick(made_texts(np.full((3, 8), 0.0)), costs, some("fixed"))
    assert (result.loop_speedup, result.best_fixed_gamma, result.best_fixed_speedup) == (0.8, 0, 1.0)
    assert (result.bound_by_start_speedup, result.bound_oracle_speedup) == (1.0, 1.0)  # who never drafts needs no loop
    assert result.policies["fixed"].speedup.value == 1.0


def test_no_policy_is_tuned_on_the_prompts_it_is_judged_on() -> None:
    met: list[set[int]] = []

    def noted(tuning: ReplayBatches) -> GammaPolicy:
        met.append(set(tuning.texts.prompts.tolist()))
        return FixedPolicy(gamma=1)

    prompts = np.array([0, 0, 1, 2, 3, 3])  # two texts of some prompts
    texts = replace(made_texts(np.full((6, 5), 0.5)), prompts=prompts, repetitions=np.array([0, 1, 0, 0, 0, 1]))
    result = replay(texts, linear_costs(2, 0.1), makers={"noted": noted}, folds=4, replicates=2, tuning_replicates=2)
    everyone = {0, 1, 2, 3}
    assert sorted(map(sorted, (everyone - tuned_on for tuned_on in met))) == [[0], [1], [2], [3]]
    assert result.prompts == 4


@pytest.mark.parametrize(("per_draft", "gains"), [(0.1, 1.12), (0.25, 1.08)])
def test_confidence_that_tells_easy_from_hard_beats_the_best_fixed_gamma(per_draft: float, gains: float) -> None:
    texts = made_texts(regions(12, 36, easy=0.95, hard=0.1, width=12), gamma_max=4)
    result = quick(texts, linear_costs(4, per_draft), some("renewal"))
    ours = result.policies["renewal"]
    assert ours.over_best_fixed.value > gains
    assert known(ours.over_best_fixed)[1] > 1.01
    value, low, high = known(ours.gap_closed_oracle)
    assert value > 0.2
    assert 0 < low < value < high < 1
    assert result.best_fixed_speedup * ours.over_best_fixed.value == pytest.approx(ours.speedup.value)
    assert ours.speedup.value < result.bound_oracle_speedup
    assert ours.switches_per_round < 0.5


@pytest.mark.parametrize("seed", range(5))
def test_the_renewal_rule_is_never_much_slower_than_plain(seed: int) -> None:
    generator = np.random.default_rng(seed)
    levels = generator.random((16, 1)) ** generator.choice([0.5, 1.0, 3.0])
    a = np.clip(levels + 0.2 * generator.standard_normal((16, 16)), 0, 1)
    tops = np.clip(a + 0.3 * generator.standard_normal(a.shape), 0, 1)
    costs = linear_costs(3, float(generator.choice([0.05, 0.2, 0.5, 0.8])), batch_size=int(generator.choice([1, 3])))
    result = quick(made_texts(a, tops, gamma_max=3), costs, some("renewal"), replicates=10)
    assert result.policies["renewal"].speedup.value > 0.99


def test_alternating_acceptance_does_not_make_gamma_switch_every_round() -> None:
    a = np.tile([1.0, 1.0, 1.0, 0.0, 0.0], 7)[None].repeat(6, axis=0)
    result = quick(
        made_texts(a, np.full(a.shape, 0.5), gamma_max=4),
        linear_costs(4, 0.15),
        some("renewal", "goodput", "heuristic"),
    )
    for name in ("renewal", "goodput"):
        assert result.policies[name].switches_per_round < 0.35
    assert result.policies["heuristic"].switches_per_round > 0.6


@pytest.mark.parametrize("batch_size", [2, 8])
def test_batches_stay_under_the_bounds_of_free_rows(batch_size: int) -> None:
    generator = np.random.default_rng(7)
    a = generator.random((6, 16)) ** 0.5
    texts = made_texts(a, lengths=generator.integers(4, 17, 6))
    costs = linear_costs(4, 0.15, batch_size=batch_size)
    result = quick(texts, costs, some("fixed", "goodput", "renewal"))
    assert result.batch_size == batch_size
    for judged in result.policies.values():
        assert judged.speedup.value < result.bound_by_start_speedup < result.bound_oracle_speedup
        assert 0 < judged.speedup.value <= result.best_fixed_speedup * judged.over_best_fixed.value + 1e-9
        assert known(judged.speedup)[1] > 0


def test_a_batch_of_like_rows_is_as_fast_as_one_row() -> None:
    texts = made_texts(np.tile([1.0, 1.0, 0.0, 1.0], 3)[None].repeat(4, axis=0))
    makers: dict[str, PolicyMaker] = {"two": lambda _: FixedPolicy(gamma=2)}
    alone = quick(texts, linear_costs(4, 0.1), makers)
    batch = quick(texts, linear_costs(4, 0.1, batch_size=3), makers)
    assert batch.policies["two"].speedup.value == pytest.approx(alone.policies["two"].speedup.value)
    assert batch.best_fixed_speedup == pytest.approx(alone.best_fixed_speedup)


def test_one_policy_by_hand() -> None:
    """12 positions, all accepted: three rounds of 3 and a bonus, the last two after a catch-up of 1/4 s."""
    texts = made_texts(np.ones((2, 12)))
    costs = linear_costs(4, 0.5, catch_up=0.25)
    found = replayed_seconds(FixedPolicy(gamma=3), texts, [[1], [0], [1]], costs, replicates=3, seed=0)
    assert found.plain_s.tolist() == [12.0] * 3
    assert found.policy_s.tolist() == [3 * 2.5 + 2 * 0.25] * 3


@pytest.mark.parametrize(
    ("lengths", "numbers", "prompts", "replicates", "plain_s"),
    [
        ([12, 4, 2], [0, 1, 2], [[0, 1], [2, 1]], 2, [12.0, 4.0]),  # the longest row
        ([12, 2, 4], [5, 2, 5], [[5], [2]], 1, [12.0, 2.0]),  # texts of a prompt interleave
        ([12, 2, 4], [5, 2, 5], [[5], [2]], 2, [8.0, 2.0]),
        ([12, 2, 4], [5, 2, 5], [[5], [2]], 4, [8.0, 2.0]),
        ([12, 4], [5, 5], [[5, 5]], 3, [12.0]),  # both texts in every replay
        ([9], [0], np.zeros((0, 1)), 2, []),
    ],
)
def test_a_batch_takes_as_long_as_its_longest_row(
    lengths: list[int], numbers: list[int], prompts: list[list[int]], replicates: int, plain_s: list[float]
) -> None:
    texts = made_texts(np.ones((len(lengths), 12)), lengths=lengths, prompts=numbers)
    costs = linear_costs(4, 0.5, batch_size=np.shape(prompts)[1])
    found = replayed_seconds(FixedPolicy(gamma=0), texts, prompts, costs, replicates=replicates, seed=0)
    assert (found.plain_s.tolist(), found.policy_s.tolist()) == (plain_s, plain_s)


def replay_nine(gamma: int, prompts: list[list[int]]) -> object:
    texts, costs = made_texts(np.ones((1, 9))), linear_costs(4, 0.1)
    return replayed_seconds(FixedPolicy(gamma=gamma), texts, prompts, costs, replicates=1, seed=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replay(made_texts([[0.5]]), linear_costs(2, 0.1)), "replay: expected at least 2 prompts, .* got 1"),
        (lambda: replay(TWO, linear_costs(0, 0.1)), "replay: expected .*got costs of plain rounds only"),
        (lambda: replay(TWO, linear_costs(2, 0.1), folds=1), "folds"),
        (lambda: replay_nine(5, [[0]]), "expected 0 to 4, .*got gamma 5"),
        (lambda: replay_nine(3, [[0, 0]]), r"expected \(L, 1\), .*got shape \(1, 2\)"),
        (lambda: replay_nine(3, [[0], [7]]), "expected .*got 7, of which no text was recorded"),
    ],
)
def test_what_cannot_be_simulated_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


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
