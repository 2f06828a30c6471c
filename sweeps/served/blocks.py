"""A block of load as the run keeps it: the row of served.jsonl, its counts, and T_round for the journal.

    T_round     time between chunks where these are rounds, else time per token · Ω of the server's counters
    counts      rounds and tokens of each request where the server tells them, else of the block: by its counters, else
                by the chunks of its streams

A block counts for nothing where over 1 % of its requests failed, where the server did not decode that many sequences at
once, or where the client had no time left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.sweeps.store.counts import CountsRow
from specgauge.sweeps.store.rows import row_of
from specgauge.sweeps.store.served import ServedRow

MOST_CLIENT_SHARE = 0.9
"""Of a block's time that the client may compute, before its chunks wait for it."""


@dataclass(frozen=True, kw_only=True)
class ServedBlock:
    """What is kept of a block."""

    row: ServedRow
    counts: tuple[CountsRow, ...]
    status: str
    """`ok`, `skipped` where the server cannot hold that many streams, `failed`."""

    @property
    def t_round_s(self) -> float | None:
        """T_round(B, γ), T_decode(B) at γ = 0; None where it is not known or does not count."""
        return self.row.t_round_s if self.status == "ok" else None


def served_block(block: LoadBlock, place: ServedRow) -> ServedBlock:
    """What a block gave; place: a row that says what it is of, and no more."""
    gamma = place.gamma
    counted = _counts_of_block(block, gamma)
    by_request = _requests(block.streams, gamma)
    omega_counters, omega_requests = None, _omega(by_request)
    t_round_s, omega = block.t_round_s, omega_counters or omega_requests
    is_by_tokens = t_round_s is None and block.tpot_s is not None and (omega is not None or gamma == 0)
    if is_by_tokens and block.tpot_s is not None:
        t_round_s = block.tpot_s * (omega or 1.0)
    status, reason = _judged(block, t_round_s)
    tokens = [stream.tokens for stream in block.done]
    lengths = [stream.prompt_tokens for stream in block.done if stream.prompt_tokens is not None]
    row = replace(
        place,
        seconds=block.ended_s - block.started_s,
        requests=len(block.streams),
        failed=len(block.failed),
        tokens=None if None in tokens else sum(one or 0 for one in tokens),
        prompt_tokens=sum(lengths) / len(lengths) if lengths else None,
        t_round_s=t_round_s,
        t_round_from=None if t_round_s is None else ("tokens" if is_by_tokens else "chunks"),
        tokens_per_s=block.tokens_per_s,
        ttft_s=block.ttft_s,
        tpot_s=block.tpot_s,
        tokens_per_round_chunks=block.tokens_per_round if gamma else None,
        tokens_per_round_counters=omega_counters,
        tokens_per_round_requests=omega_requests,
        client_share=block.client_share,
        running=block.running,
        waiting=block.waiting,
        reason=reason,
    )
    keys = {name: getattr(place, name) for name in ("pair", "sampling", "gamma", "batch_size", "context")}
    units: Sequence[Mapping[str, Any]] = by_request or ([counted] if counted else [])
    counts = tuple(
        row_of(CountsRow, {**keys, **unit}, f"{row.source}, {unit['source']}", "it is not kept")
        for unit in units
        if gamma and status == "ok"
    )
    return ServedBlock(row=row, counts=counts, status=status)


def _judged(block: LoadBlock, t_round_s: float | None) -> tuple[str, str | None]:
    """Whether a block counts, and why not."""
    if block.void is not None:
        return "failed", block.void
    if (why := block.not_reached) is not None:
        return "skipped", f"batch size {block.batch_size} was not reached: {why}"
    if block.client_share > MOST_CLIENT_SHARE:
        share = f"{100 * block.client_share:.0f} %"
        return "skipped", f"the client computed {share} of the time: it, not the server, would be measured"
    if t_round_s is None:
        return "failed", "the time of a round is not known: chunks are no rounds, and no counter tells the rounds"
    return "ok", None


def _counts_of_block(block: LoadBlock, gamma: int) -> dict[str, Any] | None:
    """Rounds and tokens of all streams, by their chunks."""
    if not gamma or not block.is_by_round:
        return None
    known = [(len(one.chunk_s) - 1, one.later_tokens) for one in block.done if len(one.chunk_s) > 1]
    rounds, tokens = sum(chunks for chunks, _ in known), [later for _, later in known]
    if not rounds or None in tokens:
        return None
    return {"source": "chunks", "rounds": rounds, "tokens": float(sum(one or 0 for one in tokens))}


def _requests(streams: Sequence[Any], gamma: int) -> list[dict[str, Any]]:
    """Rounds and tokens of each request whose server told them (vLLM's per-request metrics), at this γ."""
    found = []
    for stream in streams if gamma else ():
        told, later = stream.speculative, stream.later_tokens
        drafted, accepted = (() if told is None else told.get(name) or () for name in _BY_STEP)
        rounds = len(stream.chunk_s) - 1
        if stream.error is not None or not drafted or len(drafted) != len(accepted) or not later or rounds < 1:
            continue
        if any(passed > drafts or drafts > gamma for drafts, passed in zip(drafted, accepted, strict=True)):
            continue
        plain = max(0, rounds - len(drafted))
        found.append(
            {
                "source": f"request {stream.prompt}",
                "rounds": len(drafted) + plain,
                "tokens": float(later),
                "drafted": sum(drafted),
                "accepted": sum(accepted),
                "accepted_by_position": tuple(
                    sum(passed >= position for passed in accepted) for position in range(1, gamma + 1)
                ),
            }
        )
    return found


_BY_STEP = ("per_step_drafted", "per_step_accepted")


def _omega(requests: Sequence[Mapping[str, Any]]) -> float | None:
    rounds = sum(one["rounds"] for one in requests)
    return sum(one["tokens"] for one in requests) / rounds if rounds else None
