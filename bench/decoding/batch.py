"""A batch while it is decoded: each row's text, the target's cache, the uniforms, and the record of every round.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import Tensor

from specgauge.bench.cache.cache import RowCache
from specgauge.bench.decoding.decoded import Decoded, RoundTimes, RowRound
from specgauge.bench.decoding.draws import Draws, History
from specgauge.bench.decoding.plain import EndReason, Text
from specgauge.bench.timing.clock import Clock


@dataclass(kw_only=True)
class Row:
    """One prompt and the text that is written after it."""

    prompt: int
    committed: list[int]
    prompt_tokens: int
    ended: EndReason | None = None

    @property
    def emitted(self) -> int:
        """Tokens of its text so far."""
        return len(self.committed) - self.prompt_tokens


@dataclass(kw_only=True)
class Batch:
    """The rows of a static batch, what they are decoded with, and what has been recorded."""

    rows: list[Row]
    cache: RowCache
    draws: Draws
    history: History | None
    asks: bool
    """Whether the policy is asked after every draft."""
    max_new_tokens: int
    repetition: int
    edge: Any = None
    """The mark where the next round starts."""
    records: list[RowRound] = field(default_factory=list)
    rounds: list[tuple[int, list[Any]]] = field(default_factory=list)
    """(active rows, the round's five marks) of every finished round."""

    @property
    def committed(self) -> list[list[int]]:
        """Prompt and text of each row."""
        return [row.committed for row in self.rows]

    @property
    def active(self) -> list[bool]:
        """Whether each row goes on."""
        return [row.ended is None for row in self.rows]

    @property
    def mean_emitted(self) -> float:
        """Tokens of the text so far, averaged over the rows that go on, one at least."""
        lengths = [row.emitted for row in self.rows if row.ended is None]
        return sum(lengths) / len(lengths)

    def seen(self) -> Tensor | None:
        """(B, V) history, where the chain needs one."""
        return None if self.history is None else self.history.update(self.committed)

    def decoded(self, clock: Clock, marks: list[Any], *, forced: bool) -> Decoded:
        """What there is: the texts that ended, every finished round, and the seconds of each phase.

        marks: before the prefill, after the target's and after the drafter's, as far as they were reached.
        """
        clock.synchronize()
        marks = marks + [clock.mark()] * (3 - len(marks))
        times = []
        for number, (active, stamps) in enumerate(self.rounds):
            draft, verify, accept, rest = (clock.elapsed_s(a, b) for a, b in pairwise(stamps))
            times.append(
                RoundTimes(
                    round=number,
                    t_draft_s=draft,
                    t_verify_s=verify,
                    t_accept_s=accept,
                    t_rest_s=rest,
                    active_rows=active,
                )
            )
        return Decoded(
            texts=[
                Text(
                    prompt=row.prompt,
                    repetition=self.repetition,
                    prompt_tokens=tuple(row.committed[: row.prompt_tokens]),
                    tokens=tuple(row.committed[row.prompt_tokens :]),
                    end_reason=row.ended,
                )
                for row in self.rows
                if row.ended is not None
            ],
            rows=self.records,
            times=times,
            prefill_target_s=clock.elapsed_s(marks[0], marks[1]),
            prefill_draft_s=clock.elapsed_s(marks[1], marks[2]),
            decode_s=sum(one.t_round_s for one in times),
            lossless=not forced,
            why_not_lossless="acceptance is forced by coin at given rates" if forced else None,
        )
