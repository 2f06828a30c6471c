from __future__ import annotations

import pytest

from specgauge.configs.fields import LARGEST_REPETITIONS as AGAIN
from specgauge.sweeps.run.end_to_end import batches

ROWS = [[number] for number in range(5)]


def test_prompts_of_two_halves_never_share_a_batch_and_the_halves_take_turns() -> None:
    """Five prompts, even ones in half 0: each half goes round to its own first prompt, under numbers of its own."""
    found = batches([10, 11, 12, 13, 14], ROWS, [0, 1, 0, 1, 0], batch_size=2, repetitions=1)
    assert [(one.half, one.prompts, one.repetitions) for one in found] == [
        (0, [10, 12], [0, 0]), (1, [11, 13], [0, 0]), (0, [14, 10], [0, AGAIN]),
    ]  # fmt: skip
    assert [one.rows for one in found] == [[[0], [2]], [[1], [3]], [[4], [0]]]
    assert found[2].drawn_as == [14, 15 + 3]


def test_halves_that_go_round_draw_other_numbers() -> None:
    found = batches([0, 1], ROWS, [0, 1], batch_size=3, repetitions=2)
    assert [(one.half, one.prompts, one.repetitions) for one in found] == [
        (half, [half] * 3, [repetition, repetition + AGAIN, repetition + 2 * AGAIN])
        for repetition in (0, 1)
        for half in (0, 1)
    ]
    first, second = found[:2]
    assert len({*first.drawn_as, *second.drawn_as}) == 6


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_more_repetitions_leave_earlier_batches_as_they_are(batch_size: int) -> None:
    few, more = (
        batches([10, 11, 12, 13, 14], ROWS, [0, 1, 0, 1, 0], batch_size=batch_size, repetitions=repetitions)
        for repetitions in (1, 3)
    )
    assert len(more) == 3 * len(few)
    assert more[: len(few)] == few
    texts = [text for one in more for text in zip(one.prompts, one.repetitions, strict=True)]
    assert len(set(texts)) == len(texts)


def test_one_half_alone_is_taken_in_order() -> None:
    found = batches([10, 11, 12], ROWS, [0, 0], batch_size=1, repetitions=1)
    assert [(one.half, one.prompts) for one in found] == [(0, [10]), (0, [11])]
