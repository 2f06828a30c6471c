from dataclasses import replace

from specgauge.bench.serving.live_steps import LiveRounds, LiveStep, rounds_of

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
