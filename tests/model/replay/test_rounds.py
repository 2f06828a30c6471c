"""Rounds of many calls: exact expectations of fixed γ, signals on and off the path, lookups, and counts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.acceptance.lookups import confidence
from specgauge.model.acceptance.renewal import renewal, text_ends
from specgauge.model.acceptance.renewal_lookups import renewal_by_start
from specgauge.model.checks import BoolArray
from specgauge.model.policies.feedback import HeuristicPolicy
from specgauge.model.policies.policy import FixedPolicy, GammaChoices, GammaPolicy, RoundSeen, Signals
from specgauge.model.policies.stopping import SvipPolicy
from specgauge.model.policies.tuning import MAKERS
from specgauge.model.replay.bounds import accepted_length_oracle_time_s, best_lookups_time_s
from specgauge.model.replay.replay import replay
from specgauge.model.replay.rounds import ReplayBatches, ReplayCosts, rejections
from specgauge.model.replay.texts import LookupStarts, ReplayTexts, Rollouts
from tests.model.policy_cases import STOPPING, linear_costs, looked_up, made_texts, random_lookups, simulated


@pytest.mark.parametrize(("by_eos", "limit"), [(False, None), (True, None), (True, 26)])
@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_fixed_gamma_converges_to_its_exact_expectation(gamma: int, by_eos: bool, limit: int | None) -> None:
    generator = np.random.default_rng(1)
    a = generator.random((4, 24)) ** 0.5
    texts = made_texts(a, lengths=[24, 9, 1, 17], ended_by_eos=by_eos, length_limits=limit)
    costs, replicates = linear_costs(6, 0.13, catch_up=0.05), 400
    batches = ReplayBatches.drawn(texts, costs, replicates=replicates, seed=0)
    played, ends = batches.simulate(FixedPolicy(gamma=gamma)), texts.ends
    exact = renewal(a, a, ends.lengths, ends.ended_by_eos, [gamma], 6, costs.rounds_s, length_limits=ends.limits)
    assert exact.time_s is not None
    wanted_s = exact.time_s[:, 0] + 0.05 * exact.catch_ups[:, 0]
    for text in range(4):
        mine = batches.rows[:, 0] == text
        for found, wanted in (
            (played.time_s[mine], wanted_s[text]),
            (played.rounds[mine], exact.rounds[text, 0]),
            (played.accepted[mine], exact.accepted[text, 0] if gamma else 0.0),
        ):
            error = found.std(ddof=1) / np.sqrt(replicates)
            assert abs(found.mean() - wanted) <= 4 * error + 1e-9
    if gamma:
        assert (played.tested >= played.accepted).all()


def test_a_call_by_hand() -> None:
    # accepted, accepted, rejected, accepted, accepted, accepted: γ = 2 of 7 positions
    texts = made_texts([[1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]])
    costs = linear_costs(6, 0.5, catch_up=0.25)
    found = simulated(FixedPolicy(gamma=2), texts, costs)
    # 2 and a bonus (the rejected position), 2 and a bonus, the last position alone: 2 + 2 + .25 + 1
    assert found.time_s.tolist() == [5.25]
    assert [int(n[0]) for n in (found.rounds, found.drafted, found.tested, found.accepted)] == [3, 4, 4, 4]
    assert found.switches.tolist() == [0]
    found = simulated(HeuristicPolicy(start=1, cap=6), texts, costs)
    # γ 1: position 0, bonus 1.  γ 3: rejected at 2.  γ 2: 3, 4, bonus 5.  γ 4, none left: position 6
    assert found.time_s.tolist() == [1.5 + (2.5 + 0.25) + 2.0 + 1.0]
    assert found.switches.tolist() == [3]
    assert [int(n[0]) for n in (found.drafted, found.tested, found.accepted)] == [6, 4, 3]
    # an accepted EOS ends the text at the cost of all drafts
    found = simulated(FixedPolicy(gamma=5), made_texts([[1.0] * 3], ended_by_eos=True), linear_costs(6, 0.1))
    assert found.time_s.tolist() == [1.5]
    assert [int(n[0]) for n in (found.drafted, found.accepted)] == [5, 3]


def test_a_draft_that_missed_plain_rounds_catches_up() -> None:
    class Twice(GammaPolicy):
        """Plain rounds and rounds of one draft in turn."""

        def begin_many(self, calls: int) -> GammaChoices:
            return Turns(np.zeros(calls, dtype=np.int64))

    class Turns(GammaChoices):
        def observe(self, seen: RoundSeen) -> None:
            self.gammas = 1 - self.gammas

    texts = made_texts([[0.0] * 6])
    played = simulated(Twice(), texts, linear_costs(6, 0.5, catch_up=0.25))
    # 1, 1.5 + .25, 1, 1.5 + .25, 1, and the last position alone
    assert played.time_s.tolist() == [1 + 1.75 + 1 + 1.75 + 1 + 1]
    assert played.switches.tolist() == [5]


class Asked(GammaPolicy):
    """Drafts on to the cap and notes every signal it is shown."""

    reads_signals = True

    def __init__(self, cap: int, stop_below: float = 0.0) -> None:
        self.cap, self.stop_below = cap, stop_below
        self.shown: list[tuple[int, list[float]]] = []

    def begin_many(self, calls: int) -> GammaChoices:
        policy = self

        class Choices(GammaChoices):
            def goes_on(self, depth: int, signals: Signals) -> BoolArray:
                policy.shown.append((depth, signals.top_probs.ravel().tolist()))
                tops = np.where(np.isnan(signals.top_probs), -1.0, signals.top_probs).max(axis=1)
                return np.asarray((depth < self.gammas) & (tops >= policy.stop_below), dtype=np.bool_)

        return Choices(np.full(calls, policy.cap))


def test_signals_follow_the_path_and_leave_it_after_a_rejection() -> None:
    texts = made_texts([[1.0, 0.0, 0.0, 0.0, 1.0, 1.0]], [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]], gamma_max=4)
    off = np.array([[0.91, 0.92, 0.93], [0.81, 0.82, 0.83]])
    texts = replace(
        texts, chains=replace(texts.chains, top_probs=off, entropies_nats=off, chain_of=np.array([[0, 1, 0, 0, 0, 0]]))
    )
    policy = Asked(4)
    simulated(policy, texts, linear_costs(4, 0.1))
    # drafts 1 and 2 (rejected at position 1) are on the path, draft 3 follows the rejected one; nobody looks after 4
    assert policy.shown[:3] == [(1, [0.1]), (2, [0.2]), (3, [0.81])]
    # from position 2, rejected at once; three drafts are in force, and after the third there is none to ask for
    assert policy.shown[3:5] == [(1, [0.3]), (2, [0.91])]
    # from position 3: two drafts in force, rejected at once; from 4: one
    assert policy.shown[5:] == [(1, [0.4])]


def test_early_stop_checks_cost_time_where_the_policy_reads() -> None:
    texts = made_texts([[1.0] * 6])
    costs = replace(linear_costs(4, 0.1), t_early_stop_check_s=0.01)
    read = simulated(Asked(4), texts, costs)
    # after drafts 1, 2 and 3 of the first round; the second has one position left
    assert read.early_stop_checks.tolist() == [3]
    assert read.time_s.tolist() == pytest.approx([1.4 + 0.03 + 1.0])
    assert simulated(FixedPolicy(gamma=4), texts, costs).time_s.tolist() == pytest.approx([2.4])


def test_a_stop_is_a_switch_of_gamma_and_a_limit_is_none() -> None:
    texts = made_texts([[1.0] * 12], [[0.9, 0.1, 0.9, 0.9, 0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9]])
    played = simulated(Asked(3, stop_below=0.5), texts, linear_costs(6, 0.1))
    # two drafts and a bonus, three (the cap) and a bonus, from 7 two and a bonus, from 10 the limit leaves one
    assert played.drafted.tolist() == [2 + 3 + 2 + 1]
    assert played.switches.tolist() == [2]


def test_perfect_signals_reach_the_bound_of_who_knows_the_run() -> None:
    """The signal of a draft says whether the next one will be accepted."""
    generator = np.random.default_rng(5)
    stretches = [generator.integers(1, 7, 30) for _ in range(6)]
    a = np.stack([np.concatenate([[1.0] * int(run) + [0.0] for run in runs])[:40] for runs in stretches])
    signals = np.concatenate([a[:, 1:], np.zeros((6, 1))], axis=1)
    texts, costs = made_texts(a, signals, gamma_max=8), linear_costs(8, 0.1)
    found = simulated(Asked(8, stop_below=0.5), texts, costs)
    np.testing.assert_allclose(found.time_s, accepted_length_oracle_time_s(a, texts.ends, costs.rounds_s), rtol=1e-12)


def test_random_numbers_belong_to_a_text_whoever_stands_beside_it() -> None:
    a = np.random.default_rng(2).random((5, 20))
    texts = made_texts(a)
    part = texts.of_prompts([1, 3])
    np.testing.assert_array_equal(rejections(texts, 7, 4)[[1, 3], :4], rejections(part, 4, 4))
    policy, costs = SvipPolicy(threshold=0.8, cap=6), linear_costs(6, 0.2)
    whole, alone = (ReplayBatches.drawn(some, costs, replicates=3, seed=0) for some in (texts, part))
    whole_s, alone_s = whole.simulate(policy).time_s, alone.simulate(policy).time_s
    for index, prompt in enumerate((1, 3)):
        np.testing.assert_array_equal(whole_s[whole.rows[:, 0] == prompt], alone_s[alone.rows[:, 0] == index])


def test_a_batch_waits_for_its_last_row_and_drafts_as_its_widest() -> None:
    texts = made_texts([[1.0] * 9, [0.0] * 9], lengths=[9, 3])
    costs = linear_costs(6, 0.5, batch_size=2)
    batches = ReplayBatches.of_prompts(texts, costs, np.array([[0, 1]]), replicates=1, seed=0)
    played = batches.simulate(FixedPolicy(gamma=2))
    # rounds: (2 + bonus | rejected), (2 + bonus | rejected: one left, one draft), (2 + bonus | the last alone)
    assert played.time_s.tolist() == [6.0]
    assert [int(n[0]) for n in (played.rounds, played.row_rounds, played.drafted)] == [3, 6, 2 + 2 + 2 + 1 + 2 + 0]


@pytest.mark.parametrize(("count", "batch_size"), [(7, 1), (7, 3), (2, 5), (4, 4)])
def test_batches_hold_every_text_in_every_replicate(count: int, batch_size: int) -> None:
    texts = made_texts(np.full((count, 3), 0.5))
    batches = ReplayBatches.drawn(texts, linear_costs(2, 0.1, batch_size=batch_size), replicates=20, seed=1)
    groups = -(-count // batch_size)
    assert batches.rows.shape == (groups * 20, batch_size)
    for replicate in range(20):
        mine = slice(replicate * groups, (replicate + 1) * groups)
        assert set(batches.rows[mine].ravel().tolist()) == set(range(count))
        assert set((batches.replicates[mine] % 20).ravel().tolist()) == {replicate}
        for text, drawn in zip(batches.rows[mine], batches.replicates[mine], strict=True):
            pairs = list(zip(text.tolist(), drawn.tolist(), strict=True))
            assert len(set(pairs)) == batch_size
    if count > 1 and batch_size > 1:
        assert len({tuple(row) for row in batches.rows.tolist()}) > groups


DEPTH = 4
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


def rollouts(rows: list[tuple[int, int, int, int, float]]) -> Rollouts:
    """Rows of prompt, repetition, start, depth, top probability; entropy is ten times that."""
    prompt, repetition, start, depth, top = (np.array(column) for column in zip(*rows, strict=True))
    return Rollouts(prompt=prompt, repetition=repetition, start=start, depth=depth, top_prob=top, entropy_nats=10 * top)


def after(texts: ReplayTexts, text: int, position: int) -> list[float]:
    """The top probabilities that follow a rejection there."""
    return texts.chains.top_probs[texts.chains.chain_of[text, position]].tolist()  # type: ignore[no-any-return]


TOPS = [[0.1, 0.5, 0.9, 0.52], [0.2, 0.6, 0.85, 0.3]]
SAMPLED = rollouts([(0, 0, 2, 1, 0.31), (0, 0, 2, 2, 0.32), (0, 0, 0, 1, 0.21), (0, 0, 0, 2, 0.22), (0, 0, 0, 3, 0.23)])


def test_a_sampled_start_has_its_own_chain_whose_last_signals_stay() -> None:
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=SAMPLED)
    assert texts.chains.off_path == "measured"
    assert after(texts, 0, 0) == [0.21, 0.22, 0.23]
    assert after(texts, 0, 2) == [0.31, 0.32, 0.32]
    np.testing.assert_allclose(texts.chains.entropies_nats, 10 * texts.chains.top_probs)


def test_another_start_takes_the_nearest_in_confidence_first_of_its_own_text() -> None:
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=SAMPLED)
    assert after(texts, 0, 1)[0] == 0.21  # .5 is as near to .1 as to .9: the lower
    assert after(texts, 0, 3)[0] == 0.31  # .52 is nearer to .9
    assert [after(texts, 1, place)[0] for place in range(4)] == [0.21, 0.31, 0.31, 0.21]
    own = rollouts([(0, 0, 2, 1, 0.31), (1, 0, 0, 1, 0.77)])
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=own)
    assert [after(texts, 1, place)[0] for place in range(4)] == [0.77] * 4
    assert [after(texts, 0, place)[0] for place in range(4)] == [0.31] * 4


def test_rows_of_other_texts_places_and_depths_are_left_out() -> None:
    odd = [(7, 0, 1, 1, 0.9), (0, 3, 1, 1, 0.9), (0, 0, 40, 1, 0.9), (0, 0, 1, 9, 0.9), (0, 0, 3, 2, 0.9)]
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=rollouts([*odd, (0, 0, 2, 1, 0.31)]))
    assert texts.chains.top_probs.tolist() == [[0.31, 0.31, 0.31]]
    with pytest.raises(ValueError, match="rollouts: expected chains of these texts, got none"):
        made_texts(TOPS, TOPS, gamma_max=4, rollouts=rollouts(odd))


def test_without_rollouts_the_path_after_another_position_stands_in() -> None:
    texts = made_texts(TOPS, TOPS, gamma_max=3, lengths=[4, 2], seed=3)
    assert texts.chains.off_path == "assumed"
    inside = [TOPS[0][place : place + 2] for place in range(3)] + [[0.52, 0.52], [0.2, 0.6], [0.6, 0.6]]
    for text, length in ((0, 4), (1, 2)):
        for place in range(length):
            assert after(texts, text, place) in inside
    own = {(0, place): place for place in range(4)} | {(1, 0): 4, (1, 1): 5}
    assert all(int(texts.chains.chain_of[where]) != chain for where, chain in own.items())
    again = made_texts(TOPS, TOPS, gamma_max=3, lengths=[4, 2], seed=3)
    np.testing.assert_array_equal(texts.chains.chain_of, again.chains.chain_of)


def test_a_part_of_the_prompts_keeps_its_chains() -> None:
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=SAMPLED)
    part = texts.of_prompts([1])
    assert part.prompts.tolist() == [1]
    assert [after(part, 0, place) for place in range(4)] == [after(texts, 1, place) for place in range(4)]
    np.testing.assert_array_equal(part.acceptance, texts.acceptance[1:])


def test_signals_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="draft_top_prob"):
        made_texts([[0.5, 0.5]], [[0.5, 1.5]])
    with pytest.raises(ValueError, match=r"signals: expected .*got shapes \(1, 3\)"):
        made_texts([[0.5, 0.5]], [[0.5, 0.5, 0.5]])
    with pytest.raises(ValueError, match=r"replay: expected .*got no recorded position"):
        made_texts([[0.5, 0.5]], lengths=[0])
