"""What a reader must know of a block of load before believing its numbers.

for note in notes_of(block): note.code, note.message, note.remedy
"""

from __future__ import annotations

from collections.abc import Iterator

from specgauge.bench.notes import Note
from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.bench.serving.live_steps import LiveRounds

BOTTLENECK = 0.8
"""Of a processor that the client used: beyond it chunks wait for the client."""
MOST_STALLED = 0.01
"""Of the time of a block."""
SAME_OMEGA = 0.03
SAME_TOKENS = 0.01
FEW_TOGETHER = 0.1
MOST_CACHED = 0.05
"""Of the prompts' tokens."""


def notes_of(block: LoadBlock) -> Iterator[Note]:
    """Everything about a block that is not as a clean load has it; none of a block that is void."""
    if block.void is not None:
        return
    where = f"γ = {'unknown' if block.gamma is None else block.gamma} at concurrency {block.batch_size}"
    if (why := block.not_reached) is not None:
        yield Note(
            code="concurrency_not_reached",
            message=f"{where}: the server did not decode {block.batch_size} sequences at once: {why}",
            remedy="raise what limits it (max-num-seqs, memory for its cache, slots), or measure fewer streams",
        )
    if block.client_share > BOTTLENECK:
        yield Note(
            code="client_bound",
            message=f"{where}: the client used {block.client_share:.0%} of a processor: chunks waited for it",
            remedy="measure from a machine or with processors of its own, or fewer streams",
        )
    stalled = sum(until - start for start, until in block.stalls)
    if stalled > MOST_STALLED * (block.ended_s - block.started_s):
        yield Note(
            code="client_stalled",
            message=f"{where}: the client was stopped for {stalled:.1f} of {block.ended_s - block.started_s:.1f} s",
            remedy="look what else ran on its machine then; measure from one that is idle",
        )
    yield from _of_chunks(block, where)
    yield from _of_counters(block, where)


def _of_chunks(block: LoadBlock, where: str) -> Iterator[Note]:
    chunks = sum(len(stream.chunk_s) for stream in block.done)
    together = sum(stream.together for stream in block.done) / max(chunks, 1)
    if not block.is_by_round:
        yield Note(
            code="chunks_not_rounds",
            message=f"{where}: chunks of the streams are no rounds; their times give no T_round and no Ω",
            remedy="ask the server itself, without a proxy that buffers; Ω and tokens a second still hold",
        )
    elif together > FEW_TOGETHER:
        yield Note(
            code="merged_chunks",
            message=f"{where}: {together:.0%} of the chunks arrived together with another",
            remedy="ask the server itself, without a proxy that buffers, from a machine with an idle processor",
        )
    told = sum(stream.tokens or 0 for stream in block.done)
    seen = [stream.seen_tokens for stream in block.done]
    known = [tokens for tokens in seen if tokens is not None]
    if len(known) == len(seen) and abs(sum(known) - told) > SAME_TOKENS * told:
        yield Note(
            code="tokens_disagree",
            message=f"{where}: the usage tells {told} tokens, the chunks hold {sum(known)}",
            remedy="look at one stream: tokens of hidden reasoning or of stops may be in one of them alone",
        )
    cached = sum(stream.cached_tokens or 0 for stream in block.done)
    prompted = sum(stream.prompt_tokens or 0 for stream in block.done)
    if cached > MOST_CACHED * prompted:
        yield Note(
            code="prefixes_cached",
            message=f"{where}: {cached} of {prompted} tokens of the prompts were in the server's prefix cache",
            remedy="give prompts that begin otherwise, or switch its prefix cache off: times to first token are short",
        )


def _of_counters(block: LoadBlock, where: str) -> Iterator[Note]:
    counts = block.counts
    if counts is None:
        yield Note(
            code="no_counters",
            message=f"{where}: the server has no metrics at {block.metrics_url}; acceptance is taken from the chunks",
            remedy="start it with its metrics (SGLang --enable-metrics, llama-server --metrics), or give metrics_url",
        )
        return
    if block.gamma and counts.drafted == 0:
        yield Note(
            code="nothing_drafted",
            message=f"{where}: the server drafted nothing: rounds are plain steps",
            remedy="look whether it was started with a draft, and, where lookups draft, at the texts",
        )
    elif block.gamma and counts.accepted == 0:
        yield Note(
            code="nothing_accepted",
            message=f"{where}: the server accepted none of its drafts",
            remedy="look whether both have the same tokenizer and chat template; try a draft made for this target",
        )
    told = sum(stream.tokens or 0 for stream in block.done) - sum(bool(stream.chunk_s) for stream in block.done)
    if not block.failed and abs(counts.tokens - told) > SAME_TOKENS * told:
        yield Note(
            code="counters_of_others",
            message=f"{where}: the server counted {counts.tokens} tokens after first ones, its streams had {told}",
            remedy="measure a server that nobody else uses",
        )
    own, theirs = block.tokens_per_round, counts.tokens_per_round
    if block.gamma != 0 and own and theirs and abs(own / theirs - 1) > SAME_OMEGA:
        yield Note(
            code="omega_disagrees",
            message=f"{where}: Ω is {theirs:.3f} by the server's counters, {own:.3f} by the chunks of its streams",
            remedy="compare one stream with the counters by hand; S measured needs neither",
        )


def graph_notes(rounds: LiveRounds | None) -> Iterator[Note]:
    """What is told of the CUDA graphs in which a server of every γ ran a round, where one of that γ has others.

    vLLM 0.32 sizes its graphs for the largest γ, or for the batch sizes at which its schedule has a γ; its first model
    runner has no full graphs where there is a schedule.
    """
    if rounds is None:
        return
    modes = sorted({mode for mode, _ in rounds.graphs})
    parts = []
    if rounds.padded:
        own = rounds.batch_size * (rounds.gamma + 1)
        parts.append(f"its rounds of {own} tokens ran in CUDA graphs of {own + rounds.padded}")
    if "PIECEWISE" in modes:
        parts.append("its rounds were in piecewise CUDA graphs, where a server without a schedule may have full ones")
    if parts:
        yield Note(
            code="other_graphs",
            message=f"γ = {rounds.gamma} at concurrency {rounds.batch_size}: {', and '.join(parts)}",
            remedy="see what the check by restart says; where it differs, measure with launch.live: false",
        )
