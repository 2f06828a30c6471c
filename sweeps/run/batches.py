"""The batches of prompts that a cell is decoded in end to end, block by block.

batches(numbers, rows, [0] * len(rows), batch_size=4, repetitions=1)       # [Batch(prompts=[0, 1, 2, 3], …), …]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from specgauge.configs.fields import LARGEST_REPETITIONS

if TYPE_CHECKING:
    from specgauge.bench.end_to_end.arm_runs import Request, Round


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One block's prompts; lists by row."""

    repetition: int
    rows: list[list[int]]
    """Token ids."""
    prompts: list[int]
    repetitions: list[int]
    """A prompt met again in the block is another repetition of it."""
    drawn_as: list[int]
    """Numbers that the random numbers follow from: a prompt met again has another one."""
    half: int = 0
    """Which half all its prompts belong to."""

    def record(self, found: Request | Round) -> dict[str, Any]:
        """As it is kept: under the prompt's own number."""
        return asdict(found) | {"prompt": self.prompts[found.row], "repetition": self.repetitions[found.row]}


def batches(
    numbers: Sequence[int], rows: Sequence[list[int]], half_of_row: Sequence[int], *, batch_size: int, repetitions: int
) -> list[Batch]:
    """The batches in which prompts are decoded, block by block.

    Every prompt is in one batch of each repetition; more repetitions add batches and leave the earlier ones as they
    are. The last batch of a repetition goes round to the first prompts, which are then repetitions of their own, with
    other random numbers. Prompts of two halves never share a batch; the batches of the halves are interleaved.

    numbers, rows: every prompt's number and token ids; the first are decoded, as many as `half_of_row` (0 or 1) names.
    """
    limit, beyond = len(half_of_row), max(numbers) + 1
    halves = [[i for i in range(limit) if half_of_row[i] == half] for half in (0, 1)]

    def batch(repetition: int, half: int, first: int) -> Batch:
        own = halves[half]
        taken = [(own[i % len(own)], i // len(own), i) for i in range(first, first + batch_size)]
        again_as = beyond + half * (limit + batch_size)
        return Batch(
            repetition=repetition,
            rows=[rows[index] for index, _, _ in taken],
            prompts=[numbers[index] for index, _, _ in taken],
            repetitions=[repetition + times * LARGEST_REPETITIONS for _, times, _ in taken],
            drawn_as=[again_as + i if times else numbers[index] for index, times, i in taken],
            half=half,
        )

    firsts = [[(half, first) for first in range(0, len(own), batch_size)] for half, own in enumerate(halves)]
    interleaved = [one for beside in zip_longest(*firsts) for one in beside if one is not None]
    return [batch(repetition, half, first) for repetition in range(repetitions) for half, first in interleaved]
