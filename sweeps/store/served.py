"""served.jsonl: what a client saw of every block of load on a server, one line a block. Unknown is None, times in s.

    log = ServedLog(run.path)
    log.add(ServedRow(pair="a", sampling="greedy", gamma=2, batch_size=4, context=512, block=0, …), counts)
    read_served(run.path)               # () where a run has none

Counts of a block go to counts.jsonl beside it, under the source `ServedRow.source`: whatever is measured again takes
the place of what was there. The times that costs are made of stand in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from pydantic.dataclasses import dataclass

from specgauge.sweeps.store.counts import COUNTS, CountsRow, read_counts
from specgauge.sweeps.store.rows import MEASURE_AGAIN, json_line, read_jsonl, write_lines
from specgauge.sweeps.store.schema import (
    EXACT,
    SCHEMA,
    BatchSize,
    Context,
    Integer,
    NotNegative,
    Positive,
    Text,
    WarningRow,
    Whole,
    expected,
)

SERVED = "served.jsonl"
LIVE = "live"
"""The name of a server that takes every γ in turn."""
Purpose = Literal["timing", "validation", "forced", "restart"]
"""Whether costs and acceptance are made of a block; or it validates what they recommend, or costs alone, as drafts were
accepted at a given rate; or holds a server that was started with its γ alone against the one that takes every γ in
turn."""
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)

RoundSource = Literal["steps", "chunks", "tokens"]
"""Whether T_round is the mean time of the engine's own steps; that between chunks of a stream, the median over streams;
or that of a token by those of a round, where chunks are no rounds."""


@dataclass(frozen=True, kw_only=True, config=EXACT)
class ServedRow:
    """One block: `batch_size` streams kept busy on a server of one γ, or of a policy of its engine."""

    schema: Integer = SCHEMA
    pair: Text
    sampling: Text
    gamma: Whole | None
    """0 is plain decoding; None under a policy, which chooses it."""
    policy: Text | None = None
    """Of the engine's own, by the name of its arm."""
    batch_size: BatchSize
    context: Context
    """Tokens that the prompts were to have."""
    block: Whole
    purpose: Purpose = "timing"
    server: Text | None = None
    """Which one, where there were several."""
    seconds: NotNegative = 0.0
    requests: Whole = 0
    failed: Whole = 0
    tokens: Whole | None = None
    """Of all answers, the first ones included."""
    prompts: Literal["text", "ids", "chat"] | None = None
    """What they were sent as: token ids have exactly `context` tokens, text and chat about as many."""
    prompt_tokens: NotNegative | None = None
    """Of a prompt, on average, as the server counted them."""
    t_round_s: Positive | None = None
    """The time of a round while all streams were decoding."""
    t_round_from: RoundSource | None = None
    t_round_client_s: Positive | None = None
    """What the client's streams say of it, where it is by the engine's steps."""
    tokens_per_s: Positive | None = None
    """Of all streams together, prefills included."""
    ttft_s: NotNegative | None = None
    tpot_s: Positive | None = None
    """After the first token: the median over streams."""
    token_s: Positive | None = None
    """Seconds per token of a stream while all streams were decoding: prefills of others and last rounds that a length
    limit cuts are not in it, so that it is what T_round over Ω predicts."""
    tokens_per_round_chunks: Positive | None = None
    tokens_per_round_counters: Positive | None = None
    tokens_per_round_requests: Positive | None = None
    """Ω as the streams, the server's counters, and its metrics of each request tell it."""
    rounds: Whole | None = None
    drafts_per_round: NotNegative | None = None
    """Both by the server's counters, over all streams."""
    client_share: NotNegative | None = None
    """Processor time of the client over the time of the block."""
    running: NotNegative | None = None
    """Requests that the server ran and let wait: the median over polls."""
    waiting: NotNegative | None = None
    preemptions: Whole | None = None
    reason: Text | None = None
    """Why the block counts for nothing; None where it counts."""
    notes: tuple[WarningRow, ...] = ()
    """What is not as a clean load has it."""

    def __post_init__(self) -> None:
        """Refuse a block of neither a γ nor a policy."""
        if (self.gamma is None) == (self.policy is None):
            raise expected("either a gamma or a policy")

    @property
    def arm(self) -> int | str:
        """Its γ, or its policy."""
        return self.policy or self.gamma or 0

    @property
    def arm_words(self) -> str:
        """The same in words."""
        return f"γ = {self.gamma}" if self.policy is None else f"arm {self.policy}"

    @property
    def key(self) -> tuple[str, str, str, int | str, int, int, int]:
        """What the block is of."""
        return self.purpose, self.pair, self.sampling, self.arm, self.batch_size, self.context, self.block

    @property
    def source(self) -> str:
        """What its counts are found under."""
        arm = f"γ {self.gamma}" if self.policy is None else f"arm {self.policy}"
        return f"{self.purpose}, {arm}, batch size {self.batch_size}, context {self.context}, block {self.block}"


class ServedLog:
    """The blocks of an open run, and their counts; the run's journal lock keeps other writers away."""

    def __init__(self, run: Path) -> None:
        """Read what is there; ValueError where a line is damaged."""
        self._run = run
        self._rows = {row.key: row for row in read_served(run)}
        self._counts = list(read_counts(run))
        self._lines = {key: json_line(row) for key, row in self._rows.items()}
        self._count_lines = list(map(json_line, self._counts))
        self.changes = 0
        """Blocks kept since it was opened."""

    def rows(self, purpose: Purpose, pair: str) -> list[ServedRow]:
        """The blocks of a pair that were begun for a purpose."""
        return [row for row in self._rows.values() if row.purpose == purpose and row.pair == pair]

    def row(self, key: tuple[str, str, str, int | str, int, int, int]) -> ServedRow | None:
        """The block of a key; None where there is none."""
        return self._rows.get(key)

    def counts(self, pair: str, sampling: str) -> list[CountsRow]:
        """What was counted in the blocks of a pair and sampling setting."""
        return [one for one in self._counts if (one.pair, one.sampling) == (pair, sampling)]

    def add(self, row: ServedRow, counts: Iterable[CountsRow] = ()) -> None:
        """Keep a block in the place of an earlier one of the same key; StorageError where the disk refuses."""
        own = [replace(one, source=_source(row, one.source)) for one in counts]
        at, source = (row.pair, row.sampling), row.source
        kept = [
            place
            for place, one in enumerate(self._counts)
            if (one.pair, one.sampling) != at or not (one.source == source or one.source.startswith(f"{source}, "))
        ]
        if own or len(kept) < len(self._counts):
            self._counts = [*(self._counts[place] for place in kept), *own]
            self._count_lines = [*(self._count_lines[place] for place in kept), *map(json_line, own)]
            write_lines(self._run / COUNTS, self._count_lines)
        self._rows[row.key], self._lines[row.key] = row, json_line(row)
        self.changes += 1
        write_lines(self._run / SERVED, self._lines.values())


def _source(row: ServedRow, unit: str) -> str:
    return f"{row.source}, {unit}" if unit else row.source


def read_served(run: Path) -> tuple[ServedRow, ...]:
    """The blocks of a run directory; ValueError where a line is damaged."""
    return read_jsonl(run / SERVED, ServedRow, MEASURE_AGAIN)
