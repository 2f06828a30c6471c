"""Lookups replayed: certain given the text, equal to their renewal, their bound by brute force, and rounds by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.acceptance.lookups import confidence
from specgauge.model.acceptance.renewal import text_ends
from specgauge.model.acceptance.renewal_lookups import renewal_by_start
from specgauge.model.policies.policy import FixedPolicy
from specgauge.model.policies.stopping import RenewalStoppingPolicy
from specgauge.model.policies.tuning import MAKERS
from specgauge.model.replay.bounds import best_lookups_time_s
from specgauge.model.replay.replay import replay
from specgauge.model.replay.rounds import ReplayCosts
from specgauge.model.replay.texts import LookupStarts, ReplayTexts
from tests.model.policy_cases import PLAIN_FORECAST, ROUNDS_S
from tests.model.replay_cases import linear_costs, looked_up, random_lookups, simulated

DEPTH = 4
STOPPING = RenewalStoppingPolicy(forecast=PLAIN_FORECAST, t_round_s=ROUNDS_S, seconds_saved_per_token=0.5)
"""A draft costs .1 s, a token is worth half a second."""
DEAR = ReplayCosts(t_decode_s=1.0, t_round_s=(1.0, 1.25, 1.75, 1.5, 2.5))


@pytest.mark.parametrize("seed", range(6))
def test_fixed_gamma_is_the_renewal_by_start(seed: int) -> None:
    texts = random_lookups(seed)
    ends, lookups = texts.ends, offers(texts)
    survival = (np.arange(1, DEPTH + 1) <= lookups.matching[:, :, None]).astype(np.float64)
    sizes = (ends.lengths, ends.ended_by_eos, range(DEPTH + 1), DEPTH)
    wanted = renewal_by_start(survival, survival, lookups.offered, *sizes, length_limits=ends.limits)
    for gamma in range(DEPTH + 1):
        found = simulated(FixedPolicy(gamma=gamma), texts, DEAR)
        assert found.rounds.tolist() == wanted.rounds[:, gamma].tolist()
        assert found.accepted.tolist() == wanted.accepted[:, gamma].tolist()
        alone_s = [time_of(texts, text, [gamma] * 12, DEAR.t_round_s) for text in range(ends.lengths.size)]
        assert found.time_s == pytest.approx(alone_s, rel=1e-12)


def offers(texts: ReplayTexts) -> LookupStarts:
    assert texts.lookups is not None
    return texts.lookups


def time_of(texts: ReplayTexts, text: int, gammas: Sequence[int], rounds_s: Sequence[float]) -> float:
    """Seconds of a text, round by round, with the γ of each start."""
    lookups, limit, time_s, t = offers(texts), int(texts.ends.limits[text]), 0.0, 0
    while t < texts.ends.lengths[text]:
        drafts = max(0, min(gammas[t], int(lookups.offered[text, t]), limit - t - 1))
        time_s += rounds_s[drafts]
        t += min(drafts, int(lookups.matching[text, t])) + 1
    return time_s


@pytest.mark.parametrize("seed", range(4))
def test_their_bound_is_the_best_of_all_choices(seed: int) -> None:
    texts, costs = random_lookups(seed, texts=3, longest=6, gamma_max=3), DEAR.t_round_s[:4]
    found = best_lookups_time_s(offers(texts).offered, offers(texts).matching, texts.ends, costs)
    for text, size in enumerate(texts.ends.lengths):
        assert found[text] == pytest.approx(
            min(time_of(texts, text, gammas, costs) for gammas in product(range(4), repeat=int(size)))
        )


def test_confidence_grows_with_agreement() -> None:
    assert confidence([0, 1, 2, 3]).tolist() == [0.0, 1 / 2, 2 / 3, 3 / 4]


def test_a_stopping_rule_sees_how_much_agreed_before_each_draft() -> None:
    """One token matched: z is 1/2 for the first draft, 2/3 for the second; a further draft is accepted with .5."""
    texts = looked_up([[4, 0, 0, 0, 0, 0]], [[1, 0, 0, 0, 0, 0]], [[1, 0, 0, 0, 0, 0]])
    costs = linear_costs(6, 0.1)
    # worth .5: 1/2 · .5 · .5 > .1, then 1/2 · 2/3 · .5 · .5 < .1 (nor do those behind it pay): two drafts, one kept
    found = simulated(STOPPING, texts, costs)
    assert [int(n[0]) for n in (found.rounds, found.drafted, found.accepted, found.early_stop_checks)] == [5, 2, 1, 2]
    assert found.time_s.tolist() == [pytest.approx(1.2 + 4)]  # nothing is offered for the other four tokens
    # worth .35: 1/2 · .5 · .35 < .1: the first draft is verified alone
    found = simulated(replace(STOPPING, seconds_saved_per_token=0.35), texts, costs)
    assert [int(n[0]) for n in (found.rounds, found.drafted, found.accepted, found.early_stop_checks)] == [5, 1, 1, 1]


def test_a_batch_is_as_wide_as_its_widest_offer() -> None:
    texts = looked_up([[2, 0, 0], [0, 1, 0]], [[2, 0, 0], [0, 0, 0]])
    found = simulated(FixedPolicy(gamma=3), texts, linear_costs(3, 0.25, batch_size=2))
    # both rows: 2 drafts and none; then row 1 alone: its offer fails, and a plain step
    assert found.time_s.tolist() == [1.5 + 1.25 + 1.0]
    assert [int(n[0]) for n in (found.rounds, found.row_rounds, found.drafted, found.accepted)] == [3, 4, 3, 2]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), batch_size=st.sampled_from([1, 2]))
def test_no_policy_beats_the_bound_and_none_ends_below_it(seed: int, batch_size: int) -> None:
    texts = random_lookups(seed, texts=6)
    costs = ReplayCosts(t_decode_s=1.0, t_round_s=(1.1, 1.3, 1.5, 1.7, 1.9), batch_size=batch_size)
    found = replay(texts, costs, folds=2, replicates=4, tuning_replicates=2)
    assert set(found.policies) == set(MAKERS)
    for judged in found.policies.values():
        assert judged.speedup.value <= found.bound_oracle_speedup * (1 + 1e-9)
    assert found.bound_oracle_speedup >= found.best_fixed_speedup * (1 - 1e-9) >= 1 - 2e-9
    assert (found.off_path, found.bound_by_start_speedup) == ("measured", found.bound_oracle_speedup)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lookup_match: expected .*got 0 where drafts are offered"):
        looked_up([[1, 0]], [[0, 0]], [[0, 0]])
    with pytest.raises(ValueError, match=r"lookups: expected .*got shapes \(1, 2\), \(1, 2\), \(1, 1\)"):
        looked_up([[1, 0]], [[0, 0]], [[1]])
    with pytest.raises(ValueError, match=r"matching: expected .*got shape \(1, 3\)"):
        best_lookups_time_s([[1, 0]], [[1, 0, 0]], text_ends((1, 2), [2], [False], None), [1.0, 1.2])


def test_texts_of_some_prompts_keep_their_lookups() -> None:
    texts = looked_up([[1, 0], [2, 1], [0, 0]], [[1, 0], [0, 1], [0, 0]], [[1, 0], [3, 2], [0, 0]])
    some = offers(texts.of_prompts([1]))
    assert [some.offered.tolist(), some.matching.tolist(), some.matched.tolist()] == [[[2, 1]], [[0, 1]], [[3, 2]]]
