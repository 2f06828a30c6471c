"""A load of exactly B streams: each that ends is followed by the next prompt, and times are taken while all B decode.

    block = await run_block(client, prompts, batch_size=8, max_new_tokens=128, gamma=2)
    block.t_round_s, block.tokens_per_s, block.tokens_per_round

    T_round       mean time between chunks of a stream, over the gaps in whose middle all B streams were decoding; the
                  median over streams, each weighing as many gaps as it has (gamma 0: T_decode)
    s/token       over the same gaps: their seconds over their tokens, of all streams together
    tokens/s      tokens that came after one stream first followed another, until one first did not, over that time
    Omega         tokens after first chunks, over chunks after the first

A chunk is a round where the server sends a round's tokens at once. What is not identified is None.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from operator import itemgetter
from statistics import median
from typing import Any

from specgauge.bench.serving.counters import EngineCounts, Gauges, count, read_gauges, read_generated
from specgauge.bench.serving.streams import OpenAIClient, Prompt, PromptForm, Stream, form_of

MOST_FAILED = 0.01
"""Of the requests of a block, or it is void."""
MOST_TOGETHER = 0.5
"""Of a block's chunks that came at once after another, or the time between them is not known."""
MOST_JOINED = 0.01
"""Of a block's chunks with more tokens than a round has, or chunks are no rounds."""
SHORT = "Say hello."
POLL_S = 0.5
FEWEST_POLLS = 4
"""From which the most that was running is known."""
WATCH_S, STALL_S = 0.05, 0.1
"""How often the client looks whether it runs, and the delay that is a stall."""
BURST_S, BURST_SHARE = 0.01, 0.1
"""After a stall, and of its length, in which the client reads what came meanwhile: the gaps there are its own."""
SETTLING_S = 0.05
SCRAPES = 40
"""At most, until counters stand still and have every token that was sent."""

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LoadBlock:
    """What one block of load gave; seconds are those of the event loop's clock."""

    batch_size: int
    gamma: int | None = None
    """Of the server, where known."""
    max_new_tokens: int
    form: PromptForm = "text"
    """What its prompts were sent as."""
    streams: tuple[Stream, ...]
    """In the order of their ends, those too that failed."""
    gauges: tuple[tuple[float, Gauges], ...] = ()
    """When polled, and what was running and waiting."""
    metrics_url: str = "metrics"
    before: str | None = None
    """The server's metrics before the first request; None where it has none."""
    after: str | None = None
    started_s: float
    stopped_s: float
    """When a slot first found no next prompt."""
    ended_s: float
    client_share: float
    """Processor time of the client's thread over the time of the block: at 1 the client is the bottleneck."""
    stalls: tuple[Span, ...] = ()
    """When the client was stopped, by the system or by itself: no time between chunks is known there."""
    void: str | None = None
    """Why the block counts for nothing."""

    @property
    def done(self) -> tuple[Stream, ...]:
        """The streams that did not fail."""
        return tuple(stream for stream in self.streams if stream.error is None)

    @property
    def failed(self) -> tuple[Stream, ...]:
        """The streams that failed."""
        return tuple(stream for stream in self.streams if stream.error is not None)

    @cached_property
    def counts(self) -> EngineCounts | None:
        """What the server counted; None where it has no metrics, or those of no engine that is known."""
        if self.before is None or self.after is None:
            return None
        first = sum(bool(stream.chunk_s) for stream in self.streams)
        return count(self.before, self.after, where=self.metrics_url, first_tokens=first)

    @cached_property
    def full(self) -> tuple[Span, ...]:
        """When all B streams were decoding: past their first chunk, before their last one."""
        edges = sorted(
            edge
            for stream in self.done
            if len(stream.chunk_s) > 1
            for edge in ((stream.sent_s + stream.chunk_s[0], 1), (stream.sent_s + stream.chunk_s[-1], -1))
        )
        spans, decoding = [], 0
        for (at, change), (until, _) in pairwise(edges):
            decoding += change
            if decoding == self.batch_size and until > at:
                spans.append((at, until))
        return tuple(spans)

    @cached_property
    def is_by_round(self) -> bool:
        """Whether a chunk is a round: no chunk holds more than a round's tokens, nor the tokens of one are apart."""
        known = [tokens for stream in self.done for tokens in stream.chunk_tokens[1:] if tokens is not None]
        if self.gamma is not None and sum(tokens > self.gamma + 1 for tokens in known) > MOST_JOINED * len(known):
            return False
        chunks = sum(len(stream.chunk_s) for stream in self.done)
        together = sum(stream.together for stream in self.done)
        if chunks and together > MOST_TOGETHER * chunks:
            return False
        if self.gamma == 0 or self._tokens_per_chunk != 1:
            return True
        # a token a chunk at γ > 0: rounds of which no draft was accepted, or rounds whose tokens came one by one
        counts = self.counts
        return self.gamma is None and not together if counts is None else counts.accepted == 0

    @property
    def _tokens_per_chunk(self) -> float | None:
        counted = [(stream.later_tokens, len(stream.chunk_s) - 1) for stream in self.done if len(stream.chunk_s) > 1]
        tokens = [later for later, _ in counted if later is not None]
        chunks = sum(later for _, later in counted)
        return sum(tokens) / chunks if chunks and len(tokens) == len(counted) else None

    @property
    def tokens_per_round(self) -> float | None:
        """Ω as the chunks tell it."""
        return self._tokens_per_chunk if self.is_by_round else None

    @cached_property
    def t_round_s(self) -> float | None:
        """T_round(B, γ), or T_decode(B) at γ = 0."""
        spans = self.full
        if not spans or not self.is_by_round:
            return None
        means = [found for stream in self.done if (found := _mean_gap(stream, spans, self.stalls))]
        return weighted_median(means) if means else None

    @cached_property
    def token_s(self) -> float | None:
        """Seconds per token of a stream while all streams were decoding, pooled over them.

        A gap that began with less than a round's tokens to go is left out: the length limit cuts what comes after it.
        None where γ or the tokens of a chunk are not told.
        """
        if self.gamma is None or any(stream.seen_tokens is None for stream in self.done):
            return None
        seconds, tokens = 0.0, 0
        for stream in self.done:
            got = [0, *accumulate(own or 0 for own in stream.chunk_tokens)]
            for gap in _gaps(stream, self.full, self.stalls):
                before, after = got[gap.first], got[gap.first + gap.chunks]
                if self.max_new_tokens - before >= (self.gamma + 1) * gap.chunks:
                    seconds, tokens = seconds + gap.seconds, tokens + after - before
        return seconds / tokens if tokens else None

    @cached_property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of all B streams together, prefills included.

        The time begins as the first stream is followed by another and ends as the first one is not: at both ends one
        stream ended early, so its luck cancels. The first wave is left out, whose prefills are one. Four requests a
        stream keep the error under 1 %, two under 3 %. With less than a second wave, as where the time was up, that
        time is too short: B times tokens over the time of the streams.
        """
        own = self.done
        if not own or any(stream.tokens is None for stream in own):
            return None
        later = [stream.sent_s for stream in self.streams if stream.prompt >= self.batch_size]
        if len(later) < self.batch_size:
            spent = sum(stream.ended_s for stream in own)
            return self.batch_size * sum(stream.tokens or 0 for stream in own) / spent if spent else None
        start, end = min(later), self.stopped_s
        return sum(_tokens_in(stream, start, end) for stream in own) / (end - start) if end > start else None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token: the median over streams."""
        return _median([stream.ttft_s for stream in self.done])

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first chunk: the median over streams."""
        return _median([stream.tpot_s for stream in self.done])

    @property
    def context(self) -> int | None:
        """Tokens in the cache of a sequence in the middle of its output, on average over streams."""
        sizes = [
            stream.prompt_tokens + stream.tokens / 2
            for stream in self.done
            if stream.prompt_tokens is not None and stream.tokens is not None
        ]
        return round(sum(sizes) / len(sizes)) if sizes else None

    @property
    def steady_gauges(self) -> tuple[Gauges, ...]:
        """What was polled while the load was held."""
        spans = self.full
        start = spans[0][0] if spans else self.started_s
        return tuple(found for at, found in self.gauges if start <= at <= self.stopped_s)

    @property
    def running(self) -> float | None:
        """Requests running: the median over polls."""
        return _median([found.running for found in self.steady_gauges])

    @property
    def waiting(self) -> float | None:
        """Requests waiting: the median over polls."""
        return _median([found.waiting for found in self.steady_gauges])

    @property
    def not_reached(self) -> str | None:
        """Why the server did not decode B sequences at once; None where it did."""
        if (waiting := self.waiting) is not None and waiting > 0:
            return f"{waiting:g} requests were waiting"
        running = [found.running for found in self.steady_gauges if found.running is not None]
        if len(running) >= FEWEST_POLLS and max(running) < self.batch_size:  # between two requests there are fewer
            return f"at most {max(running):g} requests were running"
        if any((found.cache_share or 0) >= 1 for found in self.steady_gauges):
            return "its cache was full"
        if self.counts is not None and self.counts.preemptions:
            return f"it put {self.counts.preemptions} requests back for want of cache"
        return None if self.full else "there was no time at which all of them were decoding"


def _tokens_in(stream: Stream, start: float, end: float) -> float:
    """Tokens that came after `start`, up to `end`; equal parts of the stream where its chunks do not tell."""
    inside = [start < stream.sent_s + at <= end for at in stream.chunk_s]
    if stream.seen_tokens is None:
        return (stream.tokens or 0) * sum(inside) / len(inside)
    return sum(own or 0 for own, is_in in zip(stream.chunk_tokens, inside, strict=True) if is_in)


@dataclass(frozen=True, kw_only=True)
class _Gap:
    """The time between two arrivals of a stream."""

    seconds: float
    first: int
    """Chunks that had come before it."""
    chunks: int
    """Those that ended it: more than one where they came at once."""


def _gaps(stream: Stream, spans: Sequence[Span], stalls: Sequence[Span]) -> Iterator[_Gap]:
    """Those whose middle lies in a span, and that have nothing of a stall and the burst after it."""
    first, put_off = 0, [(start, until + max(BURST_S, BURST_SHARE * (until - start))) for start, until in stalls]
    for (earlier, before), (later, came) in pairwise(stream.arrivals):
        first += before
        begin, end = stream.sent_s + earlier, stream.sent_s + later
        index = bisect_right(spans, (begin + end) / 2, key=itemgetter(0)) - 1
        is_full = index >= 0 and (begin + end) / 2 <= spans[index][1]
        if is_full and not any(start < end and begin < until for start, until in put_off):
            yield _Gap(seconds=end - begin, first=first, chunks=came)


def _mean_gap(stream: Stream, spans: Sequence[Span], stalls: Sequence[Span]) -> tuple[float, int] | None:
    """Seconds a chunk over those gaps, and how many chunks; those that came at once share one."""
    gaps = [*_gaps(stream, spans, stalls)]
    chunks = sum(gap.chunks for gap in gaps)
    return (sum(gap.seconds for gap in gaps) / chunks, chunks) if chunks else None


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """The median of values, each counting as often as its weight; between two where the weights are even there."""
    ordered = sorted(values)
    half, passed = sum(weight for _, weight in ordered) / 2, 0.0
    for index, (value, weight) in enumerate(ordered):
        passed += weight
        if passed > half or index == len(ordered) - 1:
            return value
        if passed == half:
            return (value + ordered[index + 1][0]) / 2
    raise ValueError("expected at least one value, got none")


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


async def run_block(
    client: OpenAIClient,
    prompts: Sequence[Prompt],
    *,
    batch_size: int,
    max_new_tokens: int,
    gamma: int | None = None,
    temperature: float = 0.0,
    extra: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    poll_s: float = POLL_S,
    told: Callable[[Stream], None] | None = None,
) -> LoadBlock:
    """Send every prompt once, `batch_size` at a time; after `seconds` no further one is begun.

    `told` is called with each stream that ends. Cancelling it closes every connection.

    Raises:
        ValueError: fewer prompts than streams, a server that refuses the first short request, or unreadable metrics.
    """
    if len(prompts) < batch_size:
        raise ValueError(f"a block: expected at least {batch_size} prompts, one a stream, got {len(prompts)}")
    sent, first = 0, await client.metrics()
    if client.options is None:
        sent = (await client.probe(_short(prompts[0]))).tokens or 0
    before = await _settled(client, first, sent)
    clock = asyncio.get_running_loop().time
    load = _Load(
        client=client,
        prompts=prompts,
        request={"max_new_tokens": max_new_tokens, "temperature": temperature, "extra": extra},
        until_s=None if seconds is None else clock() + seconds,
        told=told,
    )
    started, thread_s = clock(), time.thread_time()
    await load.run(batch_size, None if before is None else poll_s)
    ended, thread_s = clock(), time.thread_time() - thread_s
    void, after = load.void, None
    if before is not None:
        try:
            after = await _settled(client, before, sum(stream.tokens or 0 for stream in load.streams))
        except ValueError as error:  # the server is gone: what was seen of it is kept
            void = void or str(error)
    block = LoadBlock(
        batch_size=batch_size,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        form=form_of(prompts[0]),
        streams=tuple(load.streams),
        gauges=tuple(load.gauges),
        stalls=tuple(load.stalls),
        metrics_url=client.metrics_url,
        before=before,
        after=after,
        started_s=started,
        stopped_s=load.stopped_s or ended,
        ended_s=ended,
        client_share=thread_s / (ended - started) if ended > started else 0.0,
        void=void,
    )
    try:
        counts = block.counts
    except ValueError as error:  # it restarted meanwhile: half of the block is another server's
        return replace(block, after=None, void=void or str(error))
    if gamma and counts is not None and not counts.speculates:
        void = void or f"{client.base_url}: expected a server that speculates with γ = {gamma}, it has no such counters"
        return replace(block, void=void)
    return block


def _short(prompt: Prompt) -> Prompt:
    """A short prompt of the same form, so that none of the block's is in the prefix cache."""
    if isinstance(prompt, str):
        return SHORT
    return [{"role": "user", "content": SHORT}] if form_of(prompt) == "chat" else [*prompt[:1]]


async def _settled(client: OpenAIClient, earlier: str | None, sent: int) -> str | None:
    """The server's metrics once they stand still with the tokens sent since an earlier scrape, which they follow."""
    if earlier is None or (least := read_generated(earlier)) is None:
        return await client.metrics()
    generated, text = -1.0, await client.metrics()
    for _ in range(SCRAPES):
        now = read_generated(text or "")
        if now is None or least + sent <= now == generated:
            break
        await asyncio.sleep(SETTLING_S)
        generated, text = now, await client.metrics()
    return text


class _Load:
    """The slots of a block while it runs."""

    def __init__(
        self,
        *,
        client: OpenAIClient,
        prompts: Sequence[Prompt],
        request: Mapping[str, Any],
        until_s: float | None,
        told: Callable[[Stream], None] | None,
    ) -> None:
        self.streams: list[Stream] = []
        self.gauges: list[tuple[float, Gauges]] = []
        self.stalls: list[Span] = []
        self.stopped_s: float | None = None
        self.void: str | None = None
        self._client, self._prompts, self._request, self._until_s, self._told = client, prompts, request, until_s, told
        self._next = 0
        self._failed = 0
        self._slots: list[asyncio.Task[None]] = []
        self._clock = asyncio.get_running_loop().time

    async def run(self, batch_size: int, poll_s: float | None) -> None:
        watching = [asyncio.create_task(self._watch())]
        if poll_s is not None:
            watching.append(asyncio.create_task(self._poll(poll_s)))
        try:
            async with asyncio.TaskGroup() as slots:
                self._slots = [slots.create_task(self._slot()) for _ in range(batch_size)]
        finally:
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _slot(self) -> None:
        while self._may_begin():
            number = self._next
            self._next += 1
            stream = await self._client.stream(self._prompts[number], number=number, **self._request)
            self.streams.append(stream)
            if stream.error is not None:
                self._failed += 1
                if self._failed > MOST_FAILED * len(self._prompts) and self.void is None:
                    self.void = f"{self._failed} of {len(self.streams)} requests failed; the last: {stream.error}"
                    self._end_others()
            if self._told is not None:
                self._told(stream)
        self.stopped_s = self._clock() if self.stopped_s is None else self.stopped_s

    def _end_others(self) -> None:
        for slot in self._slots:
            if slot is not asyncio.current_task():
                slot.cancel()

    def _may_begin(self) -> bool:
        is_late = self._until_s is not None and self._clock() >= self._until_s
        return self.void is None and self._next < len(self._prompts) and not is_late

    async def _watch(self) -> None:
        """See when nothing ran here."""
        while True:
            began = self._clock()
            await asyncio.sleep(WATCH_S)
            if (now := self._clock()) - began > WATCH_S + STALL_S:
                self.stalls.append((began + WATCH_S, now))

    async def _poll(self, poll_s: float) -> None:
        while True:
            await asyncio.sleep(poll_s)
            try:
                text = await self._client.metrics()
            except ValueError:
                continue  # a server too busy to answer: the scrape after the block tells whether it is gone
            if text is not None:
                self.gauges.append((self._clock(), read_gauges(text)))
