"""A block of load as the run keeps it: the row of served.jsonl, its counts, and T_round for the journal.

    T_round     mean time of the engine's own steps of all streams where it logs them (a live vLLM), else time between
                chunks where these are rounds, else time per token · Ω of the server's counters
    counts      rounds and tokens of each request where the server tells every step, else of the block: by its counters,
                else by the chunks of its streams. Tokens that a length limit cuts off the last round count where the
                server tells them: a long text has hardly any

A block counts for nothing where over 1 % of its requests failed, where the server did not decode that many sequences at
once, or where the client had no time left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from specgauge.bench.serving.block_notes import graph_notes, notes_of
from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.bench.serving.counters import EngineCounts, request_counts
from specgauge.bench.serving.live_steps import LiveRounds
from specgauge.bench.serving.streams import Stream
from specgauge.sweeps.run.session import warning_of
from specgauge.sweeps.store.counts import CountsRow
from specgauge.sweeps.store.rows import readable, row_of
from specgauge.sweeps.store.schema import WarningRow
from specgauge.sweeps.store.served import RoundSource, ServedRow

if TYPE_CHECKING:
    from specgauge.bench.notes import Note

MOST_CLIENT_SHARE = 0.95
"""Of a processor that the client may use, before its chunks wait for it all the time."""
FEWEST_POLLS = 4
MOST_IDLE = 0.1
"""Of the streams that may be between two requests as the server is asked how many it runs."""


@dataclass(frozen=True, kw_only=True)
class ServedBlock:
    """What is kept of a block."""

    row: ServedRow
    counts: tuple[CountsRow, ...]
    status: str
    """`ok`, `skipped` where the server cannot hold that many streams, `failed`."""

    @property
    def sample_s(self) -> float | None:
        """T_round(B, γ), T_decode(B) at γ = 0; under a policy the time of a token, as its rounds differ.

        None where it is not known or does not count.
        """
        seconds = self.row.t_round_s if self.row.policy is None else self.row.token_s or self.row.tpot_s
        return seconds if self.status == "ok" else None


def served_block(block: LoadBlock, place: ServedRow, steps: LiveRounds | None = None) -> ServedBlock:
    """What a block gave; place: a row that says what it is of, and no more; steps: rounds that its engine logged."""
    gamma, counts = place.gamma, block.counts
    told = list(_of_requests(block, gamma or 0))
    by_request = [counts for _, counts in told]
    omega = None if counts is None or gamma == 0 else counts.tokens_per_round
    t_round_s, tpot_s = block.t_round_s, _token_s(block)
    is_by_tokens = t_round_s is None and tpot_s is not None and (omega is not None or gamma == 0)
    if is_by_tokens and tpot_s is not None:
        t_round_s = tpot_s * (omega or 1.0)
    by_client_s = t_round_s
    source: RoundSource = "tokens" if is_by_tokens else "chunks"
    if steps is not None:
        t_round_s, source = steps.mean_s, "steps"
    status, reason = _judged(block, t_round_s if place.policy is None else tpot_s)
    tokens = [stream.tokens for stream in block.done]
    lengths = [stream.prompt_tokens for stream in block.done if stream.prompt_tokens is not None]
    rounds = sum(one.rounds for one in by_request)
    figures, impossible = readable(
        ServedRow,
        vars(place)
        | {
            "seconds": block.ended_s - block.started_s,
            "requests": len(block.streams),
            "failed": len(block.failed),
            "tokens": None if None in tokens else sum(one or 0 for one in tokens),
            "prompts": block.form,
            "prompt_tokens": sum(lengths) / len(lengths) if lengths else None,
            "t_round_s": t_round_s,
            "t_round_from": None if t_round_s is None else source,
            "t_round_client_s": None if steps is None else by_client_s,
            "tokens_per_s": block.tokens_per_s or None,
            "ttft_s": block.ttft_s,
            "tpot_s": tpot_s or None,
            "token_s": block.token_s,
            "tokens_per_round_chunks": block.tokens_per_round if gamma != 0 else None,
            "tokens_per_round_counters": omega,
            "tokens_per_round_requests": sum(_sent(*one) for one in told) / rounds if rounds else None,
            "rounds": None if counts is None else counts.rounds,
            "drafts_per_round": _drafts_per_round(counts) if gamma != 0 else None,
            "client_share": block.client_share,
            "running": block.running,
            "waiting": block.waiting,
            "preemptions": None if counts is None else counts.preemptions,
            "reason": reason,
        },
    )
    notes = (*map(warning_of, (*_notes(block, reason, place.arm_words), *graph_notes(steps))), *_impossible(impossible))
    row = ServedRow(**(figures | {"notes": notes}))
    found: tuple[CountsRow, ...] = ()
    if status == "ok" and row.t_round_s is None and row.policy is None:
        row, status = replace(row, reason="the time of a round came out as none can be"), "failed"
    if gamma and status == "ok":
        try:
            found = tuple(_counts(place, unit) for unit in _units(block, by_request, gamma))
        except ValueError as error:
            row, status = replace(row, reason=str(error)), "failed"
    return ServedBlock(row=row, counts=found, status=status)


def _drafts_per_round(counts: EngineCounts | None) -> float | None:
    if counts is None or counts.drafted is None or not counts.rounds:
        return None
    return counts.drafted / counts.rounds


def _counts(place: ServedRow, unit: Mapping[str, Any]) -> CountsRow:
    """The counts of a request or of a whole block; ValueError where no chain of drafts can have them."""
    keys = {name: getattr(place, name) for name in ("pair", "sampling", "gamma", "batch_size", "context")}
    remedy = "a server that others use, or whose γ is another, counts so"
    return row_of(CountsRow, {**keys, **unit}, f"{place.source}, {unit['source']}", remedy)


def _impossible(names: Sequence[str]) -> Iterator[WarningRow]:
    if names:
        yield WarningRow(
            code="impossible_figure",
            message=f"figures came out as none can be and are left unknown: {', '.join(names)}",
            remedy="report it as a bug with the run directory; the other figures do not follow from it",
        )


def _token_s(block: LoadBlock) -> float | None:
    """Time per token: the median over streams; tokens that came with the first ones, as through a proxy, are none."""
    found = []
    for stream in block.done:
        first_s, last_s = (stream.chunk_s[0], stream.chunk_s[-1]) if stream.chunk_s else (0.0, 0.0)
        after = [
            tokens for at, tokens in zip(stream.chunk_s, stream.chunk_tokens, strict=True) if at > first_s and tokens
        ]
        tokens = stream.later_tokens if stream.seen_tokens is None else sum(after)
        if last_s > first_s and tokens:
            found.append((last_s - first_s) / tokens)
    return median(found) if found else None


def _notes(block: LoadBlock, reason: str | None, arm: str) -> Iterator[Note]:
    """What is told of a block, but for a batch size that `_not_reached` sees reached."""
    for note in notes_of(block):
        if note.code != "concurrency_not_reached" or reason is not None:
            yield replace(note, message=note.message.replace("γ = unknown", arm, 1))


def _judged(block: LoadBlock, t_round_s: float | None) -> tuple[str, str | None]:
    """Whether a block counts, and why not."""
    if block.void is not None:
        return "failed", block.void
    if (why := _not_reached(block)) is not None:
        return "skipped", f"batch size {block.batch_size} was not reached: {why}"
    if block.client_share > MOST_CLIENT_SHARE:
        share = f"{100 * block.client_share:.0f} %"
        return "skipped", f"the client used {share} of a processor: it, not the server, would be measured"
    if t_round_s is None:
        return "failed", "the time of a round is not known: chunks are no rounds, and no counter tells the rounds"
    return "ok", None


def _not_reached(block: LoadBlock) -> str | None:
    """Why the server did not decode that many at once.

    A request waits for the next step, and a stream is between two requests, now and then: only many polls tell more.
    """
    polls, between = block.steady_gauges, max(1.0, MOST_IDLE * block.batch_size)
    is_full = any((found.cache_share or 0) >= 1 for found in polls)
    waiting, running = block.waiting or 0.0, block.running
    is_short = waiting > between or (running is not None and running < block.batch_size - between)
    if block.full and not is_full and (len(polls) < FEWEST_POLLS or not is_short):
        return None
    return block.not_reached


def _sent(stream: Stream, counts: EngineCounts) -> int:
    """Tokens of a request's rounds that its client got: without those past its length, which its steps have."""
    return counts.tokens if stream.later_tokens is None else min(counts.tokens, stream.later_tokens)


def _of_requests(block: LoadBlock, gamma: int) -> Iterator[tuple[Stream, EngineCounts]]:
    """Rounds of this γ and those that found nothing, of each request whose server tells every step."""
    for stream in block.done if gamma else ():
        try:
            found = request_counts(stream, is_by_round=block.is_by_round)
        except ValueError:  # the notes of the block tell what disagrees
            continue
        if found and not set(found) - {0, gamma}:
            extra = found[0].rounds if 0 in found else 0
            own = found.get(gamma) or EngineCounts(
                engine="vllm", rounds=0, tokens=0, drafted=0, accepted=0, accepted_by_position=(0,) * gamma
            )
            yield stream, replace(own, rounds=own.rounds + extra, tokens=own.tokens + extra)


def _units(block: LoadBlock, by_request: list[EngineCounts], gamma: int) -> Iterator[Mapping[str, Any]]:
    if len(by_request) == len(block.done):
        for number, one in enumerate(by_request):
            yield _unit(f"request {number}", one, gamma)
    elif block.counts is not None and block.counts.rounds and not block.failed:
        yield _unit("counters", block.counts, gamma)
    elif block.is_by_round:
        known = [(len(one.chunk_s) - 1, one.later_tokens) for one in block.done if len(one.chunk_s) > 1]
        rounds, tokens = sum(chunks for chunks, _ in known), [later for _, later in known]
        if rounds and None not in tokens:
            yield {"source": "chunks", "rounds": rounds, "tokens": float(sum(one or 0 for one in tokens))}


def _unit(source: str, counts: EngineCounts, gamma: int) -> dict[str, Any]:
    own = counts.accepted_by_position
    is_whole = own is not None and len(own) <= gamma
    committed = counts.tokens
    if counts.engine == "vllm" and counts.accepted is not None:  # with those that a length limit cut off
        committed = counts.rounds + counts.accepted
    return {
        "source": source,
        "rounds": counts.rounds,
        "tokens": float(committed),
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "accepted_by_position": (*own, *[0] * (gamma - len(own))) if own is not None and is_whole else None,
    }
