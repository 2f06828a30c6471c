"""The timing loop on a fake device: what is kept, what is kept apart, when it stops, and what one failure costs."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from specgauge.bench.models import static_graphs
from specgauge.bench.models.pair import LoadedPair
from specgauge.bench.timing import cell_timer
from specgauge.bench.timing.arm_runner import ArmRunner
from specgauge.bench.timing.blocks import BlockRecord, StoppingRule, TimingCell
from specgauge.bench.timing.cell_timer import check_contexts
from specgauge.configs.pairs import NgramConfig
from specgauge.configs.schema import PrecisionConfig
from specgauge.model.arms import PREFILL_BLOCKS, arm_names, is_prefill
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import Make
from tests.bench.timing.conftest import Run, cell, measured

GAMMAS = [1, 2]
ARMS = arm_names(GAMMAS)


@pytest.fixture
def run(timed: Run) -> Run:
    """Measure cells whose arms take 10 ms, half a second more the first time that a shape runs."""

    def measure(
        cells: Sequence[TimingCell],
        before: Callable[[str, int, int], object] = lambda arm, batch_size, context: None,
        **precision: Any,
    ) -> list[BlockRecord]:
        shapes: set[tuple[str, int, int]] = set()

        def seconds_of(*shape: Any) -> float:
            before(*shape)
            extra = 0.0 if shape in shapes else 0.5
            shapes.add(shape)
            return 0.01 + extra

        return timed(cells, seconds_of, gammas=GAMMAS, **{"max_blocks": 6, **precision})

    return measure


def keys(lines: Sequence[BlockRecord]) -> list[tuple[str, str, int]]:
    return sorted((line.cell_id, line.arm, line.block) for line in lines)


def test_first_calls_are_kept_apart_and_samples_exact(run: Any, memory_journal: Any) -> None:
    run([cell(1, 32)])
    decode = memory_journal.blocks("1-32", "decode")
    assert sorted(decode) == [0, 1, 2]
    assert decode[0].first_call_s == pytest.approx(0.51, abs=1e-9)
    assert decode[1].first_call_s is None
    assert decode[0].warmup_s == [[pytest.approx(0.01, abs=1e-9)]]
    for block in decode.values():
        assert block.samples_s == [[pytest.approx(0.01, abs=1e-9)]] * 2
    chain = memory_journal.blocks("1-32", "draft")[1].samples_s[0]
    assert chain == pytest.approx([0.01, 0.02], abs=1e-9), "every mark"


def test_arms_are_interleaved_sample_by_sample(run: Any, memory_journal: Any) -> None:
    """From the second block on, when everything is warm, each pass has a sample of every arm; prefills have one."""
    calls: list[str] = []

    run([cell(1, 32)], lambda arm, *_: calls.append(arm), block_samples=3)
    recorded = [line.arm for line in memory_journal.lines if line.block == 1]
    prefills = [arm for arm in recorded if is_prefill(arm)]
    assert sorted(recorded) == sorted(ARMS)
    first = next(i for i in range(len(calls)) if sorted(calls[i : i + len(ARMS)]) == sorted(ARMS))
    block = calls[first : first + 3 * len(ARMS) - 2 * len(prefills)]
    again = [arm for arm in block[: len(ARMS)] if not is_prefill(arm)]
    assert block[len(ARMS) :] == again * 2
    assert recorded == block[: len(ARMS)]


def test_arms_and_cells_are_interleaved(run: Any, memory_journal: Any) -> None:
    cells = [cell(1, 32), cell(1, 64)]
    run(cells)
    assert keys(memory_journal.lines) == sorted(itertools.product(["1-32", "1-64"], ARMS, range(3)))
    blocks = [line.block for line in memory_journal.lines]
    assert blocks == sorted(blocks)
    orders = {tuple(line.arm for line in memory_journal.lines if line.block == b) for b in range(3)}
    assert len(orders) == 3
    assert run(cells) == [], "known well enough after three blocks"


def test_a_run_that_was_killed_measures_only_what_is_missing(run: Any, memory_journal: Any) -> None:
    run([cell(1, 32), cell(2, 32)])
    whole = list(memory_journal.lines)
    for kept in (1, 7, len(whole) - 3):
        memory_journal.lines = whole[:kept]
        run([cell(1, 32), cell(2, 32)])
        assert memory_journal.lines[:kept] == whole[:kept]
        assert keys(memory_journal.lines) == keys(whole)


NOISY = {"relative_ci": 0.5, "confidence": 0.99, "bootstrap_replicates": 2000, "block_samples": 1}
MOST = PREFILL_BLOCKS + 2  # more than a prefill has


@pytest.mark.parametrize(
    ("taken", "killed", "limits", "expected"),
    [
        ([0, 0], False, NOISY, [6, 6]),
        ([2, 2], False, {"max_blocks": 8, "max_seconds": 10.0}, [3, 3]),
        ([0, 0], False, {"max_blocks": 8, "max_cell_seconds": 1e-9}, [3, 3]),
        ([MOST, MOST], False, {"min_blocks": MOST, "max_blocks": MOST + 5, "max_seconds": 10.0}, [MOST, MOST]),
        ([3, 3], False, {"max_blocks": 5, "max_cell_seconds": 10.0}, [3, 5]),
        ([1, 0], True, {**NOISY, "max_seconds": 10.0}, [1, 3]),
    ],
    ids=["noise", "seconds of all", "its own seconds", "few prefills", "its own, not another's", "one given up"],
)
def test_a_cell_ends_after_its_least_blocks_once_seconds_are_spent_or_after_its_most(
    run: Any, memory_journal: Any, taken: list[int], killed: bool, limits: dict[str, Any], expected: list[int]
) -> None:
    """Blocks put in say little, and those of the first cell took long; by itself the fake device is exact."""
    for context, blocks, device_s in zip((32, 64), taken, (100.0, 0.0), strict=True):
        for arm in ARMS:
            for block in range(min(blocks, PREFILL_BLOCKS) if is_prefill(arm) else blocks):
                given: Any = {"status": "ok", "samples_s": [[1.0], [9.0]], "device_s": device_s}
                memory_journal.record(BlockRecord(cell_id=f"1-{context}", arm=arm, block=block, **given))
    if killed:
        memory_journal.record(BlockRecord(cell_id="1-32", arm="decode", block=1, status="killed"))
    run([cell(1, 32), cell(1, 64)], **limits)
    for context, count in zip((32, 64), expected, strict=True):
        for arm in ("draft", "prefill_target"):
            most = PREFILL_BLOCKS if is_prefill(arm) else count
            assert sorted(memory_journal.blocks(f"1-{context}", arm)) == list(range(min(count, most)))


def test_out_of_memory_is_a_result_and_larger_cells_are_skipped(run: Any, memory_journal: Any) -> None:
    def fail(arm: str, batch_size: int, context: int) -> None:
        if batch_size * context >= 128:
            raise torch.OutOfMemoryError("no memory left")

    cells = [cell(b, s) for b in (1, 2, 4) for s in (32, 64, 128, 200)]
    run(cells, fail)
    status = {c.cell_id: {memory_journal.blocks(c.cell_id, arm)[0].status for arm in ARMS} for c in cells}
    assert status["1-32"] == status["1-64"] == status["2-32"] == {"ok"}
    assert status["1-128"] == status["2-64"] == status["4-32"] == {"oom"}
    assert status["1-200"] == status["2-128"] == status["4-64"] == status["4-128"] == {"skipped"}
    skipped = memory_journal.blocks("4-128", "decode")[0]
    assert skipped.reason == "out of memory already at batch size 1, context 128"
    assert run(cells, fail) == []


def test_an_arm_that_compiles_while_it_is_timed_fails_with_the_reason(run: Any, memory_journal: Any) -> None:
    """A first call and a warm-up may compile; what they took is no part of the block's time."""
    calls = Counter[tuple[str, int]]()

    def compiling(arm: str, batch_size: int, context: int) -> None:
        calls[arm, context] += 1
        if calls[arm, context] == 1 or (arm, context, calls[arm, context]) == ("verify:1", 64, 4):
            static_graphs._OURS.count += 1
            static_graphs._OURS.seconds += 100.0

    run([cell(1, 32), cell(1, 64)], compiling)
    for arm in ARMS:
        blocks = memory_journal.blocks("1-32", arm)
        assert {block.status for block in blocks.values()} == {"ok"}
        assert blocks[0].device_s == pytest.approx(-100.0, abs=10.0)
        assert blocks[1].device_s == pytest.approx(0.0, abs=10.0)
    failed = memory_journal.blocks("1-64", "verify:1")[0]
    assert failed.status == "failed"
    assert "compile-inside: 1 graph compiled or captured in 100 s while verify:1 at batch size 1, con" in failed.reason


def test_what_a_stop_took_is_no_part_of_the_seconds_spent(
    run: Any, memory_journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call takes a second; stops of 100 fall into the first call of one arm, and into the warm-up and the first
    sample of another, which are taken again."""
    now, calls = [0.0], Counter[str]()
    monkeypatch.setattr(cell_timer, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def stopping(arm: str, batch_size: int, context: int) -> None:
        calls[arm] += 1
        now[0] += 1.0
        if (arm, calls[arm]) in (("decode", 2), ("decode", 4), ("verify:1", 1)):
            now[0] += 100.0
            os.kill(os.getpid(), signal.SIGCONT)

    run([cell(1, 32)], stopping)
    for arm in ("decode", "verify:2"):
        assert [block.device_s for block in memory_journal.blocks("1-32", arm).values()] == [4.0, 2.0, 2.0]
    assert (calls["decode"], calls["verify:2"]) == (10, 8)
    blocks = memory_journal.blocks("1-32", "verify:1")
    assert [block.device_s for block in blocks.values()] == [3.0, 2.0, 2.0]
    assert (blocks[0].first_call_s, calls["verify:1"]) == (None, 8)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (MemoryError(), "oom", "MemoryError"),
        (RuntimeError("kernel exploded\nlong trace"), "failed", "RuntimeError: kernel exploded"),
    ],
)
def test_what_fails_in_one_arm_costs_no_other_what_it_has(
    run: Any, memory_journal: Any, error: Exception, status: str, reason: str
) -> None:
    """Arms that had their turn keep a block of what was sampled; those that had none say why."""

    def fail(arm: str, batch_size: int, context: int) -> None:
        if (arm, context) == ("verify:2", 64):
            raise error

    run([cell(1, 32), cell(1, 64)], fail)
    found = {line.arm: line for line in memory_journal.lines if line.cell_id == "1-64"}
    assert set(found) == set(ARMS)
    assert {line.status for line in found.values()} == {"ok", status}
    assert (found["verify:2"].status, found["verify:2"].reason) == (status, reason)
    assert all(bool(line.samples_s) == (line.status == "ok") for line in found.values())
    assert {memory_journal.blocks("1-32", arm)[0].status for arm in ARMS} == {"ok"}


def tiny_pair(tiny_model: Any, **drafting: Any) -> LoadedPair:
    return LoadedPair(name="tiny", target=tiny_model(), **(drafting or {"draft": tiny_model(layers=1)}))


def test_a_batch_size_that_cannot_start_never_loses_the_others(
    tiny_model: Make, memory_journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefilling the caches fails at batch size 2, and runs out of memory at batch size 3 beyond 20 tokens."""
    real = ArmRunner.__init__

    def start(self: ArmRunner, *args: Any, batch_size: int, max_context: int, **kwargs: Any) -> None:
        if batch_size == 2:
            raise RuntimeError("no kernel")
        if batch_size == 3 and max_context > 20:
            raise torch.OutOfMemoryError("no room")
        real(self, *args, batch_size=batch_size, max_context=max_context, **kwargs)

    monkeypatch.setattr(ArmRunner, "__init__", start)
    cells = [cell(b, s) for b in (1, 2, 3) for s in (20, 40)]
    measured(tiny_pair(tiny_model), cells, memory_journal, [1])
    found = {c.cell_id: memory_journal.blocks(c.cell_id, "decode")[0].status for c in cells}
    assert list(found.values()) == ["ok", "ok", "failed", "failed", "ok", "oom"]


def test_whose_memory_is_taken_is_told_before(
    tiny_model: Make, memory_journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the process die while caches are filled, it is the largest context's doing; a cell given up takes none."""
    begin = Mock()
    monkeypatch.setattr(ArmRunner, "__init__", Mock(side_effect=torch.OutOfMemoryError("no room")))
    monkeypatch.setattr(memory_journal, "begin", begin)
    memory_journal.record(BlockRecord(cell_id="1-60", arm="decode", block=0, status="killed"))
    memory_journal.record(BlockRecord(cell_id="1-40", arm="decode", block=0, status="ok", samples_s=[[1.0]]))
    measured(tiny_pair(tiny_model), [cell(1, context) for context in (20, 40, 60)], memory_journal, [1])
    assert begin.call_args_list == [call("1-40", "decode", 1), call("1-20", "decode", 0)]


def test_a_full_disk_stops_the_run(run: Any, memory_journal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_journal, "record", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        run([cell(1, 32)])


def test_interrupting_keeps_what_was_recorded(run: Any, memory_journal: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run([cell(1, 32)], Mock(side_effect=[*[None] * 19, KeyboardInterrupt]))
    assert {line.block for line in memory_journal.lines} == {0}
    assert len(memory_journal.lines) == len(ARMS) - 1  # all but the one that was interrupted
    assert all(line.status == "ok" for line in memory_journal.lines)


def test_a_context_beyond_the_model_names_the_largest_allowed(tiny_model: Make) -> None:
    pair = LoadedPair(name="p", target=tiny_model(), draft=tiny_model(max_context=100, name="pair 'p' draft"))
    check_contexts(pair, [cell(1, 93)], 6)
    with pytest.raises(ValueError, match=r"at most 93, since 7 tokens follow and pair 'p' draft takes 100"):
        check_contexts(pair, [cell(1, 94)], 6)


@pytest.mark.parametrize("drafting", [{}, {"draft": None, "ngram": NgramConfig()}], ids=["a draft model", "lookups"])
def test_a_real_tiny_pair_is_measured_whole(tiny_model: Make, memory_journal: Any, drafting: dict[str, Any]) -> None:
    """No fake: the real arms run on a tiny pair, in every chain, with ragged prompts put together into rows."""
    chains = {
        "argmax": SamplingSettings(temperature=0.0),
        "draw": SamplingSettings(temperature=0.9, top_p=0.8, repetition_penalty=1.2),
    }
    cells = [
        TimingCell(cell_id=f"{name}{b}{s}", chain=name, settings=settings, batch_size=b, context=s)
        for name, settings in chains.items()
        for b in (1, 3)
        for s in (1, 20)
    ]
    measured(tiny_pair(tiny_model, **drafting), cells, memory_journal, [1, 3])
    notes = memory_journal.lines[0].notes
    assert set(notes) == {"peak_memory_bytes", "capacity_target", "capacity_draft"}
    assert (notes["capacity_draft"] is None) == bool(drafting), "no model, no cache"
    for one in cells:
        assert not memory_journal.blocks(one.cell_id, "draft_catch_up") or not drafting
        for arm in arm_names([1, 3], catches_up=not drafting):
            blocks = memory_journal.blocks(one.cell_id, arm)
            assert sorted(blocks) == [0, 1], (one, arm, blocks)
            for block in blocks.values():
                assert block.status == "ok", block.reason
                marks = block.samples_s[0]
                assert len(marks) == (3 if arm == "draft" else 1)
                assert drafting or marks == sorted(marks), "lookups are timed each alone"
                assert marks[0] > 0


def test_drafts_on_another_device_have_an_arm_of_their_own(tiny_model: Make, memory_journal: Any) -> None:
    """`cpu:1` holds tensors apart from those of `cpu`."""
    draft = replace(tiny_model(seed=1), device=torch.device("cpu", 1))
    measured(tiny_pair(tiny_model, draft=draft), [cell(2, 8)], memory_journal, [1, 3])
    assert {line.arm for line in memory_journal.lines} == set(arm_names([1, 3], transfers=True))
    assert {line.status for line in memory_journal.lines} == {"ok"}
    blocks = memory_journal.blocks(cell(2, 8).cell_id, "transfer")
    assert [(number, len(block.samples_s[0])) for number, block in blocks.items()] == [(0, 3), (1, 3)]
    assert all(mark > 0 for block in blocks.values() for sample in block.samples_s for mark in sample)


def test_lookups_are_known_well_enough_when_the_round_is(memory_journal: Any) -> None:
    """Lookups of 1 to 3 µs, known to ±50 %, in rounds of a second."""

    def record(arm: str, *samples: float) -> None:
        for block in (0, 1):
            marks = [[one] for one in samples]
            memory_journal.record(BlockRecord(cell_id="1-8", arm=arm, block=block, status="ok", samples_s=marks))

    record("decode", *[1.0] * 5)
    record("verify:1", *[1.5] * 5)
    record("draft", 1e-6, 1e-6, 2e-6, 3e-6, 3e-6)

    def stopping(*, drafts_by_lookup: bool) -> StoppingRule:
        precision = PrecisionConfig(min_blocks=2, relative_ci=0.01)
        arms = arm_names([1], catches_up=not drafts_by_lookup)
        return StoppingRule(arms=arms, precision=precision, journal=memory_journal, drafts_by_lookup=drafts_by_lookup)

    assert stopping(drafts_by_lookup=True).converged(cell(1, 8))
    record("draft_catch_up", *[1e-6] * 5)
    assert not stopping(drafts_by_lookup=False).converged(cell(1, 8))
