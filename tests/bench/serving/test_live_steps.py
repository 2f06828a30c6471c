from dataclasses import replace

import pytest

from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.bench.serving.live_steps import LiveRounds, LiveStep, rounds_in, rounds_of

ROUND = LiveStep(
    step=0,
    serial=1,
    gamma=2,
    scheduled_s=0.0,
    done_s=0.0,
    rows=2,
    tokens=6,
    running=2,
    waiting=0,
    preempted=0,
    prompts=0,
    rounds=((2, 0, 1), (2, 2, 1)),
    cut=0,
    graph=("FULL", 8),
)


def test_only_steps_that_verify_and_propose_the_same_gamma_are_rounds() -> None:
    plain = replace(ROUND, gamma=0, rounds=((0, 0, 2),), graph=None)
    steps = [
        replace(ROUND, prompts=2, rounds=()),
        replace(ROUND, step=1, done_s=1.0),
        replace(ROUND, step=2, done_s=2.5, rounds=((2, 1, 2),), cut=1),
        replace(ROUND, step=3, done_s=4.5, gamma=0),  # verifies 2, proposes 0
        replace(plain, step=4, done_s=5.0),
        replace(plain, step=5, done_s=5.5, rows=3),  # a request in it had ended
        replace(plain, step=6, done_s=6.0, rows=1, rounds=((0, 0, 1),)),
        replace(plain, step=7, done_s=6.25, rows=1, rounds=((0, 0, 1),), preempted=1),
        replace(plain, step=9, done_s=9.0),  # a step is missing
    ]
    assert rounds_of(steps) == [
        LiveRounds(
            batch_size=1, gamma=0, t_round_s=(0.5,), rounds=1, tokens=1, cut=0, drafted=0, first_accepted=(), graphs=()
        ),
        LiveRounds(
            batch_size=2, gamma=0, t_round_s=(0.5,), rounds=2, tokens=2, cut=0, drafted=0, first_accepted=(), graphs=()
        ),
        LiveRounds(
            batch_size=2,
            gamma=2,
            t_round_s=(1.0, 1.5),
            rounds=4,
            tokens=8,
            cut=1,
            drafted=8,
            first_accepted=(3, 1),
            graphs=(("FULL", 8),),
        ),
    ]
    assert rounds_of(steps)[2].tokens_per_round == 2.0
    assert rounds_of(steps[:1]) == []


def test_a_step_in_which_the_machine_stood_still_has_no_time() -> None:
    steps = [replace(ROUND, step=number, done_s=float(number)) for number in range(6)]
    (found,) = rounds_of(steps, stalls=((2.5, 3.5),))
    assert (found.t_round_s, found.rounds) == ((1.0,) * 3, 6)


def test_the_rounds_of_a_block_are_its_gammas_in_its_time_with_all_its_streams() -> None:
    steps = [replace(ROUND, step=number, scheduled_s=number - 0.75, done_s=float(number)) for number in range(10)]
    steps[6] = replace(steps[6], rows=1, rounds=((2, 0, 1),))
    block = LoadBlock(
        batch_size=2, gamma=2, max_new_tokens=8, streams=(), started_s=2.0, stopped_s=8.0, ended_s=8.5,
        client_share=0.1, stalls=((4.5, 4.6),),
    )  # fmt: skip
    found = rounds_in(steps, block)
    assert found is not None
    assert (found.batch_size, found.gamma, found.t_round_s, found.mean_s) == (2, 2, (1.0,) * 3, 1.0)
    assert rounds_in(steps, replace(block, gamma=1)) is None
    assert rounds_in(steps, replace(block, batch_size=4)) is None


@pytest.mark.parametrize(
    ("graphs", "padded"), [((), 0), ((("NONE", 6),), 0), ((("FULL", 6), ("FULL", 10)), 4), ((("PIECEWISE", 8),), 2)]
)
def test_tokens_that_a_graph_has_beyond_those_of_its_rounds(graphs: tuple[tuple[str, int], ...], padded: int) -> None:
    (found,) = rounds_of([ROUND, replace(ROUND, step=1, done_s=1.0)])
    assert replace(found, graphs=graphs).padded == padded
