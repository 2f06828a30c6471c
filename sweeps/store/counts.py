"""Counts of rounds that somebody else decoded, such as a serving engine: a line of counts.jsonl each, read and written.

    write_counts(run_path, rows)
    read_counts(run_path)              # () where a run has none

What a source does not tell is None; counts are kept, never rates, but for a source that has nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from pydantic.dataclasses import dataclass

from specgauge.sweeps.store.rows import read_jsonl, write_jsonl
from specgauge.sweeps.store.schema import (
    EXACT,
    SCHEMA,
    BatchSize,
    Context,
    Count,
    Gamma,
    Integer,
    Positive,
    Text,
    Whole,
    expected,
)

COUNTS = "counts.jsonl"
_IMPORT_AGAIN = "import it again into another --out"
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, config=EXACT)
class CountsRow:
    """Rounds of one γ: those of a request, of a run of an engine, or between two of its scrapes."""

    schema: Integer = SCHEMA
    pair: Text
    sampling: Text
    source: Text
    """The file, and the request in it."""
    gamma: Gamma
    batch_size: BatchSize | None = None
    context: Context | None = None
    rounds: Count | None = None
    """Every round, those too that had nothing to verify."""
    tokens: Positive | None = None
    """Tokens committed in them, the bonus or replacement included."""
    drafted: Whole | None = None
    accepted: Whole | None = None
    """Drafts accepted, those too that a length limit cut off."""
    accepted_by_position: tuple[Whole, ...] | None = None
    """Rounds that accepted at least 1, 2, … γ drafts."""
    tokens_per_round: Positive | None = None
    """Ω, of a source that gives no counts."""

    def __post_init__(self) -> None:
        """Refuse counts that no chain of drafts can have."""
        if self.rounds is None and self.tokens_per_round is None:
            raise expected("rounds, or tokens_per_round where there are no counts")
        if self.rounds is not None and self.tokens is None and self.accepted is None:
            raise expected("tokens or accepted beside rounds")
        if not 1 - _ROUNDING <= self.omega <= self.gamma + 1 + _ROUNDING:
            raise expected(
                f"1 to {self.gamma + 1} tokens a round at gamma {self.gamma}, the bonus included (got {self.omega:.4g})"
            )
        own = self.accepted_by_position
        if own is None:
            return
        if len(own) != self.gamma:
            raise expected(f"accepted_by_position of {self.gamma} positions")
        before = self.rounds if self.rounds is not None else own[0]
        if any(after > earlier for earlier, after in pairwise((before, *own))):
            raise expected("accepted_by_position that never rises, from at most rounds: the first i drafts accepted")

    @property
    def omega(self) -> float:
        """Tokens per round: as counted, else as accepted with a bonus each, else as given."""
        if self.rounds is not None and self.tokens is not None:
            return self.tokens / self.rounds
        if self.rounds is not None and self.accepted is not None:
            return 1 + self.accepted / self.rounds
        assert self.tokens_per_round is not None
        return self.tokens_per_round


def write_counts(run: Path, rows: Iterable[CountsRow]) -> None:
    """Write the counts of a run directory; StorageError where the disk refuses."""
    write_jsonl(run / COUNTS, rows)


def read_counts(run: Path) -> tuple[CountsRow, ...]:
    """The counts of a run directory; ValueError where a line is damaged."""
    return read_jsonl(run / COUNTS, CountsRow, _IMPORT_AGAIN)
