"""The simulation against the closed forms, within its own standard error, and its rules on certain drafts."""

import numpy as np
import pytest

from specgauge.model.acceptance.finite_length import expected_last_row_rounds, expected_rounds, expected_time_s, run_law
from specgauge.model.acceptance.renewal import renewal
from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.speedup import survival_iid
from tests.model.simulation import simulate, simulate_runs
from tests.model.simulation_inputs import (
    PolicyView,
    RoundShape,
    eos_lengths,
    fixed_costs,
    iid_acceptance,
    per_position_acceptance,
    trajectory_acceptance,
)

UNIT = fixed_costs(t_decode_s=1.0, t_round_s=np.ones(8))


def lengths(replications: int, requests: int, tokens: int) -> IntArray:
    return np.full((replications, requests), tokens)


def test_independent_rounds_follow_the_run_law() -> None:
    rates = [0.9, 0.6, 0.3]
    runs = simulate_runs(rates, 3, rounds=20_000, seed=1)
    law = run_law(np.cumprod(rates))
    counts = np.bincount(runs, minlength=4)
    error = np.sqrt(law * (1 - law) / runs.size)
    assert np.all(np.abs(counts / runs.size - law) <= 4 * error)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.3, 1), (0.8, 4), (0.95, 8)])
def test_rounds_and_time_of_one_row_agree_with_the_closed_form(alpha: float, gamma: int) -> None:
    t_round = 1.0 + 0.1 * np.arange(1, gamma + 1)
    runs = simulate(
        iid_acceptance(alpha),
        lengths=lengths(2000, 1, 60),
        slots=1,
        policy=gamma,
        cost=fixed_costs(t_decode_s=1.0, t_round_s=t_round),
        seed=2,
    )
    survival = survival_iid(alpha, gamma)
    assert runs.mean_batch_rounds().agrees_with(float(expected_rounds(survival, 60)[60]))
    time = expected_time_s(survival, t_decode_s=1.0, t_round_s=t_round, tokens=60)
    assert runs.mean_seconds().agrees_with(float(time[60]))
    assert int(runs.emitted.sum()) == 2000 * 60


def test_rates_per_position_agree_with_the_closed_form() -> None:
    rates = [0.95, 0.5, 0.8]
    runs = simulate(per_position_acceptance(rates), lengths=lengths(3000, 1, 40), slots=1, policy=3, cost=UNIT, seed=3)
    expected = float(expected_rounds(np.cumprod(rates), 40)[40])
    assert runs.mean_batch_rounds().agrees_with(expected)
    assert runs.tokens_per_round().agrees_with(40 / expected)


def test_a_static_batch_waits_for_its_last_row() -> None:
    ragged = np.tile([10, 25, 25, 40], (3000, 1))
    runs = simulate(iid_acceptance(0.7), lengths=ragged, slots=4, policy=3, cost=UNIT, seed=4)
    expected = expected_last_row_rounds(survival_iid(0.7, 3), ragged[0])
    assert runs.mean_batch_rounds().agrees_with(expected)
    assert runs.mean_seconds().agrees_with(expected)
    assert runs.mean_request_seconds().value < expected


def test_trajectories_agree_with_the_renewal_pass_rounds_time_and_end_of_text() -> None:
    rng = np.random.default_rng(5)
    acceptance = rng.uniform(0.2, 1.0, size=(3, 50))
    sizes, eos = np.array([50, 31, 18]), np.array([False, True, True])
    costs_s = 1.0 + np.arange(5.0)[:, None] * 0.25 + 0.01 * np.arange(50)[None, :]

    def cost(shape: RoundShape) -> FloatArray:
        return np.asarray(1.0 + 0.25 * shape.gamma + 0.01 * shape.context)

    expected = renewal(acceptance, acceptance, sizes, eos, [4], 4, costs_s)
    assert expected.time_s is not None
    for text in range(3):
        runs = simulate(
            trajectory_acceptance(acceptance[text : text + 1]),
            lengths=lengths(3000, 1, int(sizes[text])),
            slots=1,
            policy=4,
            cost=cost,
            seed=6 + text,
            ended_by_eos=bool(eos[text]),
        )
        assert runs.mean_batch_rounds().agrees_with(float(expected.rounds[text, 0]))
        assert runs.mean_seconds().agrees_with(float(expected.time_s[text, 0]))
        assert int(runs.emitted.sum()) == 3000 * int(sizes[text])


def test_catch_ups_agree_with_the_renewal_pass() -> None:
    acceptance = np.random.default_rng(8).uniform(0.5, 1.0, size=(1, 40))
    expected = renewal(acceptance, acceptance, [40], [False], [2], 2)
    runs = simulate(
        trajectory_acceptance(acceptance),
        lengths=lengths(4000, 1, 40),
        slots=1,
        policy=2,
        cost=fixed_costs(t_decode_s=1.0, t_round_s=[1.0, 1.0], t_draft_catch_up_s=1.0),
        seed=9,
    )
    excess = runs.seconds - runs.batch_rounds
    error = float(excess.std(ddof=1)) / np.sqrt(excess.size)
    assert abs(float(excess.mean()) - float(expected.catch_ups[0, 0])) <= 4 * error


def test_an_end_of_text_inside_a_block_ends_it_without_a_bonus() -> None:
    runs = simulate(iid_acceptance(1.0), lengths=[[3]], slots=1, policy=5, cost=UNIT, seed=0, ended_by_eos=True)
    assert (runs.emitted[0], runs.accepted[0], runs.drafted[0], runs.batch_rounds[0]) == (3, 3, 5, 1)


def test_a_length_limit_shrinks_gamma_and_is_never_overrun() -> None:
    runs = simulate(iid_acceptance(1.0), lengths=[[7]], slots=1, policy=3, cost=UNIT, seed=0)
    assert (runs.emitted[0], runs.accepted[0], runs.drafted[0], runs.batch_rounds[0]) == (7, 5, 5, 2)
    near = simulate(
        iid_acceptance(1.0), lengths=[[2]], slots=1, policy=5, cost=UNIT, seed=0, ended_by_eos=True, length_limits=3
    )
    assert (near.drafted[0], near.emitted[0]) == (2, 2)


def test_static_batches_refill_together_and_continuous_ones_at_once() -> None:
    queue = [[4, 2, 2, 2]]
    shapes: list[tuple[int, int]] = []

    def cost(shape: RoundShape) -> FloatArray:
        shapes.append((int(shape.batch_size[0]), int(shape.context[0])))
        return np.ones(1)

    static = simulate(iid_acceptance(0.0), lengths=queue, slots=2, policy=1, cost=cost, seed=0, prompt_tokens=10)
    assert static.seconds.tolist() == [6.0]
    assert static.finished_s.tolist() == [[4.0, 2.0, 6.0, 6.0]]
    assert shapes == [(2, 10), (2, 11), (2, 12), (2, 13), (2, 10), (2, 11)]
    shapes.clear()
    continuous = simulate(
        iid_acceptance(0.0),
        lengths=queue,
        slots=2,
        policy=1,
        cost=cost,
        seed=0,
        prompt_tokens=10,
        batching="continuous",
    )
    assert continuous.seconds.tolist() == [6.0]
    assert continuous.finished_s.tolist() == [[4.0, 2.0, 4.0, 6.0]]
    assert shapes == [(2, 10), (2, 11), (2, 12), (2, 13), (1, 10), (1, 11)]


def test_prefills_are_waited_for() -> None:
    runs = simulate(
        iid_acceptance(1.0),
        lengths=[[2, 2, 2]],
        slots=2,
        policy=1,
        cost=UNIT,
        seed=0,
        t_prefill_s=0.5,
        batching="continuous",
    )
    assert runs.seconds.tolist() == [0.5 * 3 + 2]
    assert runs.finished_s.tolist() == [[2.0, 2.0, 3.5]]
    assert runs.started_s.tolist() == [[0.0, 0.0, 2.0]]


def test_a_policy_sees_the_last_round_and_gets_the_gamma_it_asks_for() -> None:
    seen: list[tuple[int, int, int]] = []

    def policy(view: PolicyView) -> IntArray:
        seen.append((int(view.position[0, 0]), int(view.last_drafted[0, 0]), int(view.last_accepted[0, 0])))
        return np.where(view.last_accepted == view.last_drafted, view.last_drafted + 1, 1)

    runs = simulate(iid_acceptance(1.0), lengths=[[14]], slots=1, policy=policy, gamma_max=4, cost=UNIT, seed=0)
    assert seen == [(0, 0, 0), (2, 1, 1), (5, 2, 2), (9, 3, 3)]
    assert int(runs.drafted[0]) == 1 + 2 + 3 + 4


def test_a_policy_beyond_gamma_max_is_refused() -> None:
    with pytest.raises(ValueError, match="policy: found gamma 5, allowed: at most gamma_max = 4"):
        simulate(
            iid_acceptance(1.0),
            lengths=[[9]],
            slots=1,
            policy=lambda view: np.full(view.position.shape, 5),
            gamma_max=4,
            cost=UNIT,
            seed=0,
        )


def test_gamma_zero_is_plain_decoding() -> None:
    runs = simulate(iid_acceptance(0.9), lengths=lengths(2, 3, 7), slots=3, policy=0, cost=UNIT, seed=0)
    assert runs.seconds.tolist() == [7.0, 7.0]
    assert runs.drafted.tolist() == [0, 0]
    assert runs.throughput_tokens_per_s().value == 3.0


def test_eos_lengths_are_geometric_under_a_limit() -> None:
    drawn, eos = eos_lengths(0.1, limit=20, shape=(200, 50), seed=3)
    expected = (1 - 0.9**20) / 0.1
    assert abs(drawn.mean() - expected) <= 4 * drawn.std() / 100
    assert drawn.max() == 20
    assert not eos[drawn < 20].size or eos[drawn < 20].all()
    unlimited, ended = eos_lengths(0.0, limit=5, shape=(1, 2), seed=0)
    assert unlimited.tolist() == [[5, 5]]
    assert not ended.any()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (
        simulate(iid_acceptance(0.5), lengths=lengths(4, 2, 30), slots=2, policy=3, cost=UNIT, seed=11)
        for _ in range(2)
    )
    assert first.row_rounds.tolist() == second.row_rounds.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [3, 4]}, r"lengths: found shape \(2,\), allowed: \(replications, requests\)"),
        ({"lengths": [[0]]}, "lengths .*found 0, allowed: a whole number, at least 1"),
        ({"batching": "dynamic"}, "batching: found 'dynamic', allowed: static, continuous"),
        ({"policy": lambda view: 1}, "gamma_max: found none beside a policy function"),
        ({"ended_by_eos": True, "length_limits": 2}, "length_limits: found 2 below a text's length"),
    ],
)
def test_bad_input_is_one_clear_line(changes: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"lengths": [[3]], "slots": 1, "policy": 1, "cost": UNIT, "seed": 0}
    with pytest.raises(ValueError, match=message):
        simulate(iid_acceptance(0.5), **{**values, **changes})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"acceptance: found shape \(2,\)"):
        trajectory_acceptance([0.5, 0.5])
