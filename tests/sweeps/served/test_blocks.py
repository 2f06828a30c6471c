"""What is kept of a block: of a real vLLM's streams and counters, and of one that logs its steps."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.bench.serving.live_steps import LiveRounds
from specgauge.bench.serving.streams import Stream
from specgauge.sweeps.served.blocks import served_block
from specgauge.sweeps.store.served import ServedRow

REAL = Path(__file__).parents[2] / "golden" / "engines" / "vllm"
PLACE = ServedRow(pair="a", sampling="greedy", gamma=2, batch_size=1, context=64, block=0)


def real_block(name: str, gamma: int, *, batch_size: int = 1) -> LoadBlock:
    """The requests between two scrapes of a real server, one after the other, a round a second."""
    streams, at = [], 0.0
    for line in (REAL / f"{name}_streams.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        chunks = one["chunk_tokens"]
        streams.append(
            Stream(
                tokens=one["tokens"],
                sent_s=at,
                chunk_s=tuple(float(number) for number in range(1, len(chunks) + 1)),
                chunk_tokens=tuple(chunks),
                speculative=one["speculative"],
            )
        )
        at += len(chunks)
    before, after = ((REAL / f"{name}_{end}.txt").read_text(encoding="utf-8") for end in ("before", "after"))
    return LoadBlock(
        batch_size=batch_size, gamma=gamma, max_new_tokens=24, streams=tuple(streams), before=before, after=after,
        started_s=0.0, stopped_s=at, ended_s=at, client_share=0.1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "gamma", "rounds", "tokens", "by_steps"),
    [
        ("draft", 2, 513, 708, 711),  # 3 accepted drafts were past the end of their request
        ("live_g2", 2, 774, 1104, 1119),  # 15 were; the server was set up for 4 drafts, and took 2
        ("ngram1", 4, 1056, 1104, 1107),  # 33 rounds had drafts; 18 of 48 requests had none at all
    ],
)
def test_a_real_vllm_tells_tokens_a_round_three_ways(
    name: str, gamma: int, rounds: int, tokens: int, by_steps: int
) -> None:
    kept = served_block(real_block(name, gamma), replace(PLACE, gamma=gamma))
    assert kept.status == "ok"
    row = kept.row
    ways = (row.tokens_per_round_counters, row.tokens_per_round_chunks, row.tokens_per_round_requests)
    assert ways == pytest.approx((tokens / rounds,) * 3)
    assert not row.notes
    assert sum(one.rounds or 0 for one in kept.counts) == rounds
    assert sum(one.tokens or 0 for one in kept.counts) == by_steps


def logged(**changes: Any) -> LiveRounds:
    given: dict[str, Any] = {"batch_size": 1, "gamma": 2, "t_round_s": (0.5, 1.0), "rounds": 2, "tokens": 4, "cut": 0}
    given |= {"drafted": 4, "first_accepted": (2, 0), "graphs": (("FULL", 3),)}
    return LiveRounds(**(given | changes))


def test_the_time_of_a_round_is_that_of_the_steps_an_engine_logs() -> None:
    block = real_block("live_g2", 2)
    row = served_block(block, PLACE, logged()).row
    assert (row.t_round_s, row.t_round_from, row.t_round_client_s, row.notes) == (0.75, "steps", 1.0, ())
    without = served_block(block, PLACE).row
    assert (without.t_round_s, without.t_round_from, without.t_round_client_s) == (1.0, "chunks", None)


@pytest.mark.parametrize(
    ("graphs", "told"),
    [
        ((), None),
        ((("NONE", 3),), None),
        ((("FULL", 3),), None),
        ((("FULL", 5),), "γ = 2 at concurrency 1: its rounds of 3 tokens ran in CUDA graphs of 5"),
        (
            (("PIECEWISE", 8),),
            "γ = 2 at concurrency 1: its rounds of 3 tokens ran in CUDA graphs of 8, and its rounds were in piecewise "
            "CUDA graphs, where a server without a schedule may have full ones",
        ),
    ],
)
def test_the_graphs_of_a_smaller_gamma_are_told(graphs: tuple[tuple[str, int], ...], told: str | None) -> None:
    notes = served_block(real_block("live_g2", 2), PLACE, logged(graphs=graphs)).row.notes
    assert [(note.code, note.message) for note in notes] == ([] if told is None else [("other_graphs", told)])


def test_a_figure_that_cannot_be_is_unknown_and_told_and_the_others_stay() -> None:
    kept = served_block(replace(real_block("live_g2", 2), client_share=-0.5), PLACE)
    assert (kept.status, kept.row.client_share, kept.sample_s) == ("ok", None, 1.0)
    (note,) = kept.row.notes
    assert (note.code, note.message.rpartition(": ")[2]) == ("impossible_figure", "client_share")


def test_a_time_that_cannot_be_costs_its_block() -> None:
    kept = served_block(real_block("live_g2", 2), PLACE, logged(t_round_s=(-1.0,)))
    assert (kept.status, kept.sample_s, kept.counts) == ("failed", None, ())
    assert kept.row.reason == "the time of a round came out as none can be"


def test_counts_that_no_drafts_can_have_cost_their_block_in_one_line() -> None:
    block = real_block("live_g2", 2)
    assert block.after is not None
    found = re.sub(r"(?m)^(vllm:spec_decode_num_accepted_tokens_total\{.*\}) .*$", r"\1 99999.0", block.after)
    streams = tuple(replace(stream, speculative=None) for stream in block.streams)
    kept = served_block(replace(block, after=found, streams=streams), PLACE)
    assert (kept.status, kept.counts) == ("failed", ())
    assert kept.row.reason is not None
    assert re.fullmatch(r"timing, γ 2, .*, counters: expected 1 to 3 tokens a round at gamma 2, .*", kept.row.reason)
