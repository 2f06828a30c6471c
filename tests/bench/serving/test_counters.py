"""What engines count, by what real ones wrote: the traps of each, and counters against streams."""

from pathlib import Path
from typing import Any

import pytest

from specgauge.bench.serving.counters import EngineCounts, Gauges, count, read_gauges, read_generated, request_counts
from specgauge.bench.serving.streams import Stream
from tests.bench.serving.blocks import block_of, engine_of

GOLDEN = Path(__file__).parents[2] / "golden" / "engines"


def counted(name: str, **more: Any) -> EngineCounts:
    before, after = (GOLDEN / f"{name}_{end}.txt" for end in ("before", "after"))
    found = count(before.read_text(encoding="utf-8"), after.read_text(encoding="utf-8"), **more)
    assert found is not None
    return found


def test_vllm_counts_accepted_drafts_that_a_limit_cut_off() -> None:
    """513 rounds, 198 drafts accepted and 24 first tokens are 735 tokens, 732 were sent."""
    found = counted("vllm/draft")
    assert (found.engine, found.rounds, found.tokens) == ("vllm", 513, 732 - 24)
    assert (found.drafted, found.accepted, found.accepted_by_position) == (1026, 198, (144, 54))
    assert found.rounds + (found.accepted or 0) - found.tokens == 3
    assert found.tokens_per_round == pytest.approx(708 / 513)
    assert found.t_round_s == pytest.approx(301.1363782819981 / 513)
    assert (found.preemptions, found.cached_tokens, found.steps) == (0, 0, 255)


def test_vllm_counts_no_draft_where_a_lookup_found_nothing() -> None:
    found = counted("vllm/ngram1")
    assert (found.rounds, found.tokens, found.drafted, found.accepted) == (1056, 1104, 132, 51)
    assert found.accepted_by_position == (24, 18, 9)
    assert found.tokens_per_round == pytest.approx(1104 / 1056)


def test_vllm_with_a_gamma_that_was_set_lower_or_to_nothing() -> None:
    plain = counted("vllm/live_g0")
    assert (plain.rounds, plain.tokens, plain.drafted, plain.accepted_by_position) == (552, 552, 0, ())
    two = counted("vllm/live_g2")
    assert (two.rounds, two.drafted, two.accepted_by_position) == (774, 2 * 774, (255, 90))


def test_llama_cpp_decodes_more_rounds_than_it_drafts() -> None:
    """91 decodes, of which 4 gave first tokens; drafts were made in 83."""
    found = counted("llama.cpp/draft2_metrics", first_tokens=4)
    assert (found.engine, found.rounds, found.tokens, found.accepted) == ("llama.cpp", 87, 124, 37)
    assert (found.accepted_by_position, found.steps) == ((28, 9), 91)
    assert found.rounds == (found.steps or 0) - 4


def test_llama_cpp_decodes_several_sequences_at_once() -> None:
    """193 decodes of 2.11399 sequences on average."""
    found = counted("llama.cpp/conc_draft2_metrics", first_tokens=24)
    assert found.rounds + 24 == pytest.approx(193 * 2.11399, abs=0.01)
    assert found.tokens_per_round == pytest.approx((576 - 24) / 384)


def test_llama_cpp_without_drafts() -> None:
    found = counted("llama.cpp/plain_metrics", first_tokens=4)
    assert (found.rounds, found.tokens, found.drafted, found.tokens_per_round) == (124, 124, 0, 1)


SGLANG = """sglang:generation_tokens_total{{model_name="m"}} {0}
sglang:spec_verify_calls_total{{model_name="m"}} {1}
sglang:time_to_first_token_seconds_count{{model_name="m"}} {2}
sglang:inter_token_latency_seconds_count{{model_name="m"}} {3}
"""


def test_sglang_counts_verifications_and_first_tokens_apart() -> None:
    found = count(SGLANG.format(10, 4, 1, 4), SGLANG.format(110, 44, 11, 44))
    assert found is not None
    assert (found.engine, found.rounds, found.tokens, found.accepted) == ("sglang", 40, 90, 50)
    plain = count(SGLANG.format(0, 0, 0, 0), SGLANG.format(110, 0, 10, 100))
    assert plain is not None
    assert (plain.rounds, plain.tokens, plain.accepted) == (100, 100, None)


def test_metrics_of_another_program_count_nothing() -> None:
    assert count("process_cpu_seconds_total 1\n", "process_cpu_seconds_total 2\n") is None


def test_counters_that_fell_are_a_restart() -> None:
    first, last = SGLANG.format(10, 4, 1, 4), SGLANG.format(110, 44, 11, 44)
    with pytest.raises(
        ValueError, match=r"^http://engine/metrics, before to http://engine/metrics, after, sglang:spec"
    ):
        count(last, first, where="http://engine/metrics")
    with pytest.raises(ValueError, match="line 1: expected `name"):
        count("oops", first)


def test_gauges_of_each_engine() -> None:
    text = (GOLDEN / "llama.cpp" / "plain_metrics_after.txt").read_text(encoding="utf-8")
    assert read_gauges(text) == Gauges(running=0, waiting=0)
    assert read_generated(text) == 128
    vllm = "".join(
        f'vllm:num_requests_running{{engine="{one}"}} {one + 2}.0\nvllm:num_requests_waiting{{engine="{one}"}} 1.0\n'
        f'vllm:num_requests_waiting_by_reason{{engine="{one}",reason="capacity"}} 1.0\n'
        f'vllm:kv_cache_usage_perc{{engine="{one}"}} 0.{one + 2}\n'
        for one in (0, 1)
    )
    assert read_gauges(vllm) == Gauges(running=5, waiting=2, cache_share=0.3)
    sglang = "sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n"
    assert read_gauges(sglang) == Gauges(running=3, waiting=1, cache_share=0.5)
    assert read_gauges("up 1\n") == Gauges()
    assert read_generated("up 1\n") is None


STEPS: dict[str, Any] = {"per_step_drafted": [2, 2, 4, 2], "per_step_accepted": [2, 0, 3, 1]}


def stream_of(chunks: int, **speculative: Any) -> Stream:
    return Stream(chunk_s=tuple(map(float, range(chunks))), speculative=speculative)


def test_steps_of_a_request_tell_acceptance_at_each_gamma() -> None:
    """Counters by position over drafts would tell 3, 2 and 1 of 4 rounds, of which one alone had four drafts."""
    found = request_counts(stream_of(7, **STEPS))
    assert {gamma: (one.rounds, one.tokens, one.accepted_by_position) for gamma, one in found.items()} == {
        2: (3, 6, (2, 1)),
        4: (1, 4, (1, 1, 1, 0)),
        0: (2, 2, None),
    }
    assert set(request_counts(stream_of(2, **STEPS), is_by_round=False)) == {2, 4}
    plain = request_counts(stream_of(7, num_spec_steps=0))
    assert {gamma: (one.rounds, one.tokens) for gamma, one in plain.items()} == {0: (6, 6)}
    assert request_counts(stream_of(7, num_spec_steps=0), is_by_round=False) == {}
    assert request_counts(stream_of(7)) == {}


@pytest.mark.parametrize(
    ("chunks", "steps", "error"),
    [
        (7, {"per_step_drafted": [2], "per_step_accepted": [3]}, "expected at most per_step_drafted in each step"),
        (7, {"per_step_drafted": [2], "per_step_accepted": [1, 1]}, "expected at most per_step_drafted in each step"),
        (3, STEPS, "expected at most the 2 rounds of its stream, got 4"),
    ],
)
def test_steps_that_contradict_themselves_or_the_stream(chunks: int, steps: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        request_counts(stream_of(chunks, **steps))


@pytest.mark.parametrize("finds", [1.0, 0.5])
def test_counters_streams_and_steps_tell_the_same(finds: float) -> None:
    block = block_of(engine_of(gamma=3, per_request=True, finds=finds, lag_s=0.2), requests=12, max_new_tokens=48)
    assert block.counts is not None
    by_request = [request_counts(stream) for stream in block.done]
    assert sum(one.rounds for found in by_request for one in found.values()) == block.counts.rounds
    assert sum(one.accepted or 0 for found in by_request for one in found.values()) == block.counts.accepted
    assert sum(len(stream.chunk_s) - 1 for stream in block.done) == block.counts.rounds
    tokens = sum(one.tokens for found in by_request for one in found.values())
    assert block.counts.tokens <= tokens < block.counts.tokens * 1.05  # those cut off by the limit
    assert (0 in by_request[0]) == (finds < 1)
