"""Rounds of many calls: exact expectations of fixed γ, signals on and off the path, and counts by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specgauge.model.acceptance.renewal import renewal
from specgauge.model.checks import BoolArray
from specgauge.model.policies.feedback import HeuristicPolicy
from specgauge.model.policies.policy import FixedPolicy, GammaChoices, GammaPolicy, RoundSeen, Signals
from specgauge.model.policies.stopping import SvipPolicy
from specgauge.model.replay.bounds import accepted_length_oracle_time_s
from specgauge.model.replay.rounds import ReplayBatches, rejections
from tests.model.replay_cases import linear_costs, made_texts, simulated


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
    assert read.early_stop_checks.tolist() == [
        3
    ]  # after drafts 1, 2 and 3 of the first round; the second has one position left
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
