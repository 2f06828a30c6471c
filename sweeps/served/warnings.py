"""What a reader must know of a run that measured servers, beside what every timing warns of. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from specgauge.sweeps.store.schema import WarningRow
from specgauge.sweeps.store.served import ServedRow
from specgauge.sweeps.text_table import count

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

MOST_APART = 0.03
"""Between what streams and counters say of Ω."""
BUSY_CLIENT = 0.5
"""Of a block's time."""
MOST_OFF = 0.05
"""Of the tokens a prompt was to have."""


def served_warnings(config: Config, pair: str, rows: Iterable[ServedRow]) -> Iterator[WarningRow]:
    """Warnings about the blocks of one pair."""
    own = [row for row in rows if row.pair == pair]
    counted = [row for row in own if row.reason is None]
    yield from _not_reached(pair, own)
    yield from _omegas(pair, counted)
    busy = [row for row in counted if (row.client_share or 0) > BUSY_CLIENT]
    if busy:
        worst = max(busy, key=lambda row: row.client_share or 0)
        yield WarningRow(
            code="client_busy",
            message=f"pair {pair}: the client computed {100 * (worst.client_share or 0):.0f} % of the time in "
            f"{_worst(busy, counted, worst)}: chunks may have waited for it",
            remedy="run specgauge on another machine than the server, or measure smaller batch sizes",
        )
    failed = [row for row in own if row.failed]
    if failed:
        worst = max(failed, key=lambda row: row.failed / max(row.requests, 1))
        yield WarningRow(
            code="requests_failed",
            message=f"pair {pair}: {sum(row.failed for row in failed)} of {sum(row.requests for row in own)} requests "
            f"failed, most in {_at(worst)}" + (f" ({worst.reason})" if worst.reason else ""),
            remedy="see the server's log; a block with over 1 % counts for nothing, and the next run repeats it",
        )
    preempted = [row for row in counted if row.preemptions]
    if preempted:
        worst = max(preempted, key=lambda row: row.preemptions or 0)
        yield WarningRow(
            code="preempted",
            message=f"pair {pair}: the server put {sum(row.preemptions or 0 for row in preempted)} requests back, most "
            f"in {_at(worst)}: its cache is too small for this batch size",
            remedy="give the server more memory for its cache, or lower grid.batch_size or grid.context",
        )
    yield from _lengths(config, pair, counted)


def _not_reached(pair: str, rows: Sequence[ServedRow]) -> Iterator[WarningRow]:
    hit = [row for row in rows if row.reason is not None and "not reached" in row.reason]
    if hit:
        cells = {(row.gamma, row.batch_size, row.context) for row in hit}
        yield WarningRow(
            code="batch_not_reached",
            message=f"pair {pair}: {count(len(cells), 'arm')} left out, first {_at(hit[0])}: {hit[0].reason}",
            remedy="raise what the server decodes at once (vLLM: --max-num-seqs), or lower grid.batch_size",
        )


def _omegas(pair: str, rows: Sequence[ServedRow]) -> Iterator[WarningRow]:
    apart = []
    for row in rows:
        told = (row.tokens_per_round_chunks, row.tokens_per_round_counters, row.tokens_per_round_requests)
        known = [omega for omega in told if omega is not None]
        if known and max(known) > (1 + MOST_APART) * min(known):
            apart.append((max(known) / min(known), row))
    if apart:
        _, row = max(apart, key=lambda one: one[0])
        words = ", ".join(
            f"{omega:.3g} by {what}"
            for omega, what in (
                (row.tokens_per_round_chunks, "chunks"),
                (row.tokens_per_round_counters, "counters"),
                (row.tokens_per_round_requests, "its requests"),
            )
            if omega is not None
        )
        yield WarningRow(
            code="omega_disagrees",
            message=f"pair {pair}: tokens a round differ by where they are counted in "
            f"{_worst([one for _, one in apart], rows, row)}: {words}",
            remedy="see that nothing else uses the server, and that no proxy joins chunks",
        )


def _lengths(config: Config, pair: str, rows: Sequence[ServedRow]) -> Iterator[WarningRow]:
    off = [row for row in rows if row.prompt_tokens and abs(row.prompt_tokens / row.context - 1) > MOST_OFF]
    if off:
        worst = max(off, key=lambda row: abs((row.prompt_tokens or 0) / row.context - 1))
        yield WarningRow(
            code="prompt_length",
            message=f"pair {pair}: prompts had {worst.prompt_tokens:.0f} tokens on average in "
            f"{_worst(off, rows, worst)}",
            remedy="give prompts of the server's own language and form (workload.prompts), or a longer grid.context"
            if min(config.grid.context) < max(row.prompt_tokens or 0 for row in off)
            else "give longer prompts (workload.prompts)",
        )


def _at(row: ServedRow) -> str:
    return f"γ = {row.gamma}, batch size {row.batch_size}, context {row.context}"


def _worst(hit: Sequence[ServedRow], rows: Sequence[ServedRow], worst: ServedRow) -> str:
    return f"{len(hit)} of {count(len(rows), 'block')}, most {_at(worst)}"
