"""A held concurrency against the simulated engine: what is known of it is found again, and faults are told."""

import asyncio
import time
from dataclasses import replace
from itertools import count, pairwise

import pytest

from specgauge.bench.serving.block_notes import notes_of
from specgauge.bench.serving.closed_loop import LoadBlock, run_block, weighted_median
from specgauge.bench.serving.streams import OpenAIClient, Stream
from tests.bench.serving.blocks import PROMPTS, block_of, engine_of, with_client
from tests.engine_server.server import running
from tests.engine_server.simulated import EngineTransport


def codes(block: LoadBlock) -> list[str]:
    return [note.code for note in notes_of(block)]


@pytest.mark.parametrize(("gamma", "batch_size"), [(0, 1), (2, 1), (0, 6), (4, 6)])
def test_times_and_acceptance_are_those_of_the_engine(gamma: int, batch_size: int) -> None:
    engine = engine_of(gamma=gamma, alpha=0.7)
    block = block_of(engine, batch_size=batch_size, requests=batch_size * 8, max_new_tokens=40)
    assert (block.void, block.not_reached, codes(block)) == (None, None, [])
    assert block.t_round_s == pytest.approx(engine.t_round_s(batch_size, gamma), rel=1e-9)
    assert block.counts is not None
    assert block.tokens_per_round == block.counts.tokens_per_round
    assert block.tokens_per_round == pytest.approx(engine.omega(gamma), rel=0.08)
    assert block.counts.preemptions == 0
    assert block.context == 5 + 20


def test_plain_decoding_of_equal_lengths_is_known_exactly() -> None:
    """Four streams at once: a prefill of four prompts of five words, then 31 steps."""
    engine = engine_of(step_s=0.01, prefill_token_s=0.001)
    block = block_of(engine, batch_size=4, requests=4, max_new_tokens=32)
    assert block.t_round_s == pytest.approx(0.01)
    assert block.tpot_s == pytest.approx(0.01)
    assert block.ttft_s == pytest.approx(4 * 5 * 0.001)
    assert block.tokens_per_s == pytest.approx(4 * 32 / 0.33)
    longer = block_of(engine_of(step_s=0.01, prefill_token_s=0.001), batch_size=4, requests=12, max_new_tokens=32)
    assert longer.tokens_per_s == pytest.approx(4 * 32 / 0.33)
    (span,) = block.full
    assert span == pytest.approx((block.started_s + 0.02, block.started_s + 0.33))
    assert [stream.prompt for stream in block.streams] == [0, 1, 2, 3]


def test_gaps_in_which_a_request_was_prefilled_are_no_rounds() -> None:
    engine = engine_of(gamma=1, alpha=0.5, step_s=0.01, draft_s=0.001, prefill_token_s=0.05)
    block = block_of(engine, batch_size=3, requests=12, max_new_tokens=20)
    assert block.t_round_s == pytest.approx(0.011)
    gaps = [later - earlier for stream in block.done for earlier, later in pairwise(stream.chunk_s)]
    assert sum(gaps) / len(gaps) > 0.015


def test_no_request_begins_after_the_time_given() -> None:
    block = block_of(engine_of(), batch_size=2, requests=100, max_new_tokens=10, seconds=0.3)
    assert 4 < len(block.streams) < 12
    assert all(stream.sent_s - block.started_s < 0.3 for stream in block.streams)
    assert block.void is None


def test_every_prompt_is_sent_once_and_each_end_is_told() -> None:
    ended: list[Stream] = []
    block = block_of(engine_of(), batch_size=3, requests=7, max_new_tokens=4, told=ended.append)
    assert sorted(stream.prompt for stream in ended) == [*range(7)]
    assert tuple(ended) == block.streams
    with pytest.raises(ValueError, match="expected at least 8 prompts, one a stream, got 7"):
        block_of(engine_of(), batch_size=8, requests=7)


@pytest.mark.parametrize(
    ("values", "found"),
    [([(1, 1)], 1), ([(3, 1), (1, 1)], 2), ([(1, 1), (2, 5), (9, 1)], 2), ([(1, 3), (2, 1), (3, 2)], 1.5)],
)
def test_the_weighted_median(values: list[tuple[float, int]], found: float) -> None:
    assert weighted_median(values) == found


def test_a_concurrency_that_is_not_reached_is_told() -> None:
    block = block_of(engine_of(most_running=3), batch_size=4, requests=12)
    assert block.not_reached == "1 requests were waiting"
    assert (block.running, block.waiting, block.t_round_s) == (3, 1, None)
    assert codes(block) == ["concurrency_not_reached"]
    blind = block_of(engine_of(most_running=3, has_metrics=False), batch_size=4, requests=12)
    assert blind.not_reached == "there was no time at which all of them were decoding"


def test_preemptions_are_told() -> None:
    block = block_of(engine_of(gamma=1, preempts_every=100))
    assert block.not_reached == "it put 1 requests back for want of cache"
    assert codes(block) == ["concurrency_not_reached"]


def test_prefixes_in_the_cache_are_told() -> None:
    engine = engine_of(prefix_cache=True)
    assert codes(block_of(engine)) == []
    assert codes(block_of(engine)) == ["prefixes_cached"]


def test_without_metrics_acceptance_is_that_of_the_chunks() -> None:
    engine = engine_of(gamma=2, has_metrics=False)
    block = block_of(engine)
    assert (block.before, block.after, block.counts) == (None, None, None)
    assert block.tokens_per_round == pytest.approx(engine.omega(2), rel=0.15)
    assert codes(block) == ["no_counters"]


@pytest.mark.parametrize("tells", ["usage", "nothing"])
def test_tokens_of_chunks_are_known_by_usage_or_by_their_sum(tells: str) -> None:
    block = block_of(engine_of(gamma=2, tells=tells))
    assert block.counts is not None
    assert block.tokens_per_round == block.counts.tokens_per_round
    known = {tokens is None for stream in block.done for tokens in stream.chunk_tokens}
    assert known == {tells == "nothing"}
    assert block.t_round_s is not None
    assert block.tokens_per_s is not None


def test_tokens_one_by_one_are_rounds_where_timings_tell() -> None:
    engine = engine_of(gamma=2, tells="singly")
    block = block_of(engine)
    assert block.t_round_s == pytest.approx(engine.t_round_s(4, 2))
    assert block.tokens_per_round == pytest.approx(engine.omega(2), rel=0.15)
    assert codes(block) == []


def test_tokens_one_by_one_without_timings_are_no_rounds() -> None:
    engine = engine_of(gamma=2, tells="singly", strict=("timings_per_token",))
    block = block_of(engine)
    assert (block.t_round_s, block.tokens_per_round) == (None, None)
    assert block.tokens_per_s is not None
    assert codes(block) == ["chunks_not_rounds"]
    plain = block_of(engine_of(tells="singly", strict=("timings_per_token",)))
    assert plain.t_round_s == pytest.approx(0.01)


def test_a_proxy_that_merges_chunks_in_pairs_is_told_and_does_not_shift_the_round() -> None:
    engine = engine_of(gamma=2, merges=2)
    block = block_of(engine, requests=16, max_new_tokens=64)
    assert block.counts is not None
    assert block.t_round_s == pytest.approx(engine.t_round_s(4, 2), rel=0.02)
    assert block.tokens_per_round == block.counts.tokens_per_round
    assert codes(block) == ["merged_chunks"]


def test_a_proxy_that_merges_many_chunks_leaves_no_times() -> None:
    block = block_of(engine_of(gamma=2, merges=1000))
    assert (block.t_round_s, block.tokens_per_round) == (None, None)
    assert "chunks_not_rounds" in codes(block)


def test_chunks_with_more_tokens_than_a_round_has_are_no_rounds() -> None:
    block = block_of(engine_of(gamma=2, alpha=0.9, joins=2))
    assert (block.t_round_s, block.tokens_per_round) == (None, None)
    assert codes(block) == ["chunks_not_rounds"]


def test_a_server_without_speculation_voids_a_block_of_drafts() -> None:
    block = block_of(engine_of(gamma=0), gamma=2)
    assert block.void == "http://engine/v1: expected a server that speculates with γ = 2, it has no such counters"
    assert codes(block) == []


@pytest.mark.parametrize(("setting", "code"), [("finds", "nothing_drafted"), ("alpha", "nothing_accepted")])
def test_drafts_that_are_not_made_or_not_accepted_are_told(setting: str, code: str) -> None:
    block = block_of(engine_of(gamma=2, **{setting: 0.0}))
    assert codes(block) == [code]
    assert block.tokens_per_round == 1


@pytest.mark.parametrize("status", [429, 500])
def test_one_failure_in_a_hundred_is_counted_and_two_void_the_block(status: int) -> None:
    kept = block_of(engine_of(fails_every=60, fail_status=status), requests=100, max_new_tokens=3)
    assert (kept.void, len(kept.failed), len(kept.done), kept.failed[0].status) == (None, 1, 99, status)
    void = block_of(engine_of(fails_every=30, fail_status=status), requests=100, max_new_tokens=3)
    assert void.void is not None
    assert void.void.startswith("2 of ")
    assert void.void.endswith(f"expected status 200, got {status}: a simulated fault")
    assert len(void.streams) < 70


def test_requests_that_hang_end_with_their_timeout() -> None:
    block = block_of(engine_of(hangs_every=5), client={"timeout_s": 2.0})
    assert block.void is not None
    assert block.void.endswith("expected an answer or its next chunk within 2 s, got none")


def test_a_crash_in_the_middle_voids_the_block() -> None:
    block = block_of(engine_of(gamma=2, crash_after=6), requests=40)
    assert block.void is not None
    assert "expected a server that answers, got none" in block.void
    assert block.after is None


def test_a_restart_in_the_middle_voids_the_block() -> None:
    """Its counters begin again."""
    engine = engine_of(gamma=2)
    block_of(engine, requests=20)

    async def measure(client: OpenAIClient) -> LoadBlock:
        def restart(_: Stream) -> None:
            engine.counters.update(dict.fromkeys(engine.counters, 0.0))

        return await run_block(client, PROMPTS[:8], batch_size=4, max_new_tokens=16, gamma=2, told=restart, poll_s=0.05)

    block = with_client(engine, measure)
    assert block.void is not None
    assert "expected a counter that grows" in block.void
    assert block.after is None


def test_tokens_that_server_and_client_count_otherwise_are_told() -> None:
    assert codes(block_of(engine_of(usage_off_by=3))) == ["tokens_disagree", "counters_of_others"]


def test_counters_that_others_move_too_are_told() -> None:
    engine = engine_of(gamma=2)

    async def measure(client: OpenAIClient) -> LoadBlock:
        def other(_: Stream) -> None:
            engine.counters["generation_tokens"] += 20
            engine.counters["inter_token_latency_seconds_count"] += 20

        return await run_block(client, PROMPTS[:8], batch_size=4, max_new_tokens=32, gamma=2, told=other, poll_s=0.05)

    assert codes(with_client(engine, measure)) == ["counters_of_others", "omega_disagrees"]


def test_a_busy_client_is_told() -> None:
    block = block_of(engine_of())
    assert codes(replace(block, client_share=0.85)) == ["client_bound"]
    assert block.client_share > 0


def test_rounds_in_which_the_client_was_stopped_are_left_out() -> None:
    """One of two streams has a gap of 10 s; without it, rounds take a second."""
    at = (0.0, 1.0, 2.0, 12.0, 13.0)
    streams = tuple(Stream(prompt=one, chunk_s=at, chunk_tokens=(1,) * 5, tokens=5, ended_s=13) for one in (0, 1))
    block = LoadBlock(
        batch_size=2, max_new_tokens=5, streams=streams, started_s=0, stopped_s=13, ended_s=13, client_share=0
    )
    assert block.t_round_s == 13 / 4
    stopped = replace(block, stalls=((2.5, 11.5),))
    assert stopped.t_round_s == 1
    assert codes(stopped) == ["client_stalled", "no_counters"]
    assert codes(block) == ["no_counters"]


def test_chunks_that_a_client_reads_in_bursts_after_stalls_tell_no_time_of_a_round() -> None:
    """Rounds of 20 ms; of the later ones, five at a time are read within 8 ms, a stall before each five."""
    bursts = [start + one * 2e-3 for start in (0.4, 0.6, 0.8) for one in range(5)]
    at = (0.0, 0.02, 0.04, 0.06, *bursts)
    stream = Stream(chunk_s=at, chunk_tokens=(1,) * len(at), tokens=len(at), ended_s=at[-1])
    block = LoadBlock(
        batch_size=1, gamma=0, max_new_tokens=len(at), streams=(stream,), client_share=0,
        stalls=((0.07, 0.4), (0.41, 0.6), (0.61, 0.8)), started_s=0, stopped_s=at[-1], ended_s=at[-1],
    )  # fmt: skip
    assert block.t_round_s == pytest.approx(0.02)
    assert block.token_s == pytest.approx(0.02)
    assert replace(block, stalls=()).token_s != pytest.approx(0.02, rel=0.5)


def test_a_client_that_stops_is_seen() -> None:
    """Over a real port: the client does something else for 0.3 s after its first stream."""

    async def measure(base_url: str) -> LoadBlock:
        ended: list[Stream] = []

        def busy(stream: Stream) -> None:
            ended.append(stream)
            if len(ended) == 1:
                time.sleep(0.3)

        async with OpenAIClient(base_url, "target") as client:
            return await run_block(client, PROMPTS[:8], batch_size=2, max_new_tokens=20, gamma=0, told=busy)

    with running(engine_of(step_s=0.005)) as base_url:
        block = asyncio.run(measure(base_url))
    assert any(until - start > 0.2 for start, until in block.stalls)
    assert "client_stalled" in codes(block)


def test_steps_of_the_wall_clock_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = block_of(engine_of(gamma=1))
    hours = count(0, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(hours)))
    assert block_of(engine_of(gamma=1)).t_round_s == calm.t_round_s


def test_nothing_is_sent_elsewhere() -> None:
    transport = EngineTransport(engine_of())
    block_of(transport.engine, client={"transport": transport, "metrics_url": "http://metrics:9000/metrics"})
    found = {(request.url.host, request.url.path) for request in transport.sent}
    assert found == {("engine", "/v1/completions"), ("metrics", "/metrics")}


def test_tokens_a_second_are_those_between_two_ends_of_the_same_kind() -> None:
    """Two slots: 0 is followed by 2 at 3 s, 2 by none at 6 s; in between 2 gives 3 tokens and 1 and 3 four."""

    def stream(prompt: int, sent_s: float, *at: float, tokens: tuple[int | None, ...] = ()) -> Stream:
        told = tokens or (1,) * len(at)
        return Stream(
            prompt=prompt, sent_s=sent_s, chunk_s=at, chunk_tokens=told, tokens=sum(one or 1 for one in told),
            ended_s=at[-1],
        )  # fmt: skip

    streams = (
        stream(0, 0, 1, 2, 3),
        stream(1, 0, 1, 3, 5, tokens=(1, 2, 3)),
        stream(2, 3, 1, 2, 3),
        stream(3, 5, 1, 2),
    )
    block = LoadBlock(
        batch_size=2, max_new_tokens=3, streams=streams, started_s=0, stopped_s=6, ended_s=7, client_share=0
    )
    assert block.tokens_per_s == (3 + 3 + 1) / 3
    first = replace(block, streams=streams[:2], stopped_s=3)
    assert first.tokens_per_s == 2 * (3 + 6) / (3 + 5)
    short = replace(block, streams=streams[:3], stopped_s=3.5)  # no token came between 3 and 3.5 s
    assert short.tokens_per_s == 2 * (3 + 6 + 3) / (3 + 5 + 3)
    untold = stream(1, 0, 1, 3, 5, 6, tokens=(None,) * 4)
    assert replace(block, streams=(streams[0], untold, *streams[2:])).tokens_per_s == (3 + 2 + 1) / 3
    assert replace(block, streams=(streams[0], replace(untold, tokens=None))).tokens_per_s is None


def test_a_stream_between_two_requests_is_no_sign_of_a_limit() -> None:
    block = block_of(engine_of(prefill_token_s=0.01), batch_size=2, requests=40, max_new_tokens=6)
    assert any(found.running == 1 for found in block.steady_gauges) or block.running == 2
    fewer = tuple((at, replace(found, running=1.0)) for at, found in block.gauges)
    assert (block.not_reached, len(block.gauges) >= 4) == (None, True)
    assert replace(block, gauges=fewer).not_reached == "at most 1 requests were running"
    assert replace(block, gauges=fewer[-2:]).not_reached is None
