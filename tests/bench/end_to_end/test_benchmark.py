"""The benchmark: who ran when, ratios and their verdicts, that every loop writes the same text, and what it prints."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specgauge.bench.decoding.records import Decoded, RoundTimes
from specgauge.bench.end_to_end import benchmark
from specgauge.bench.end_to_end.benchmark import (
    LoopRun,
    Ratio,
    Runs,
    loops_to_compare,
    overhead_and_round_s,
    pooled,
    run_side_by_side,
    seconds_per_token,
)
from specgauge.bench.models.pair import LoadedModel
from specgauge.configs.canonical import strict_loads
from specgauge.model.stats.bootstrap import draw_prompts
from tests.bench.conftest import FakeClock, FakeDevice
from tests.bench.decoded import GREEDY
from tests.bench.scripted import written
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
WEIGHTS = draw_prompts(2, 200, 0)


def run(total_s: float, tokens: int = 2, decoded: Decoded | None = None) -> LoopRun:
    return LoopRun(text=written([1] * tokens), total_s=total_s, decoded=decoded)


def decoded(*rounds: tuple[float, float, float]) -> Decoded:
    times = [RoundTimes(t_round_s=a, t_accept_s=b, t_rest_s=c, active_rows=1) for a, b, c in rounds]
    return Decoded(texts=[], rows=[], times=times, prefill_target_s=9.0)


def test_every_loop_meets_every_prompt_in_every_repeat_and_warms_up_once() -> None:
    calls: list[tuple[str, int]] = []

    def loop(name: str) -> Callable[[int], LoopRun]:
        def go(number: int) -> LoopRun:
            calls.append((name, number))
            return run(float(len(calls)))

        return go

    told: list[tuple[int, int]] = []
    loops = {name: loop(name) for name in "abc"}
    runs = run_side_by_side(loops, prompts=4, repeats=2, seed=3, progress=lambda *done: told.append(done))
    assert calls[:3] == [("a", 0), ("b", 0), ("c", 0)]
    counted = calls[3:]
    assert Counter(counted) == {(name, number): 2 for name in "abc" for number in range(4)}
    for block in range(8):
        trio = counted[3 * block : 3 * block + 3]
        assert len({number for _, number in trio}) == 1, "all loops of a prompt stand beside each other"
        assert {name for name, _ in trio} == {"a", "b", "c"}
    assert len({tuple(name for name, _ in counted[3 * block : 3 * block + 3]) for block in range(8)}) > 1
    assert told == [(done, 8) for done in range(1, 9)]
    assert [[len(repeats) for repeats in runs[name]] for name in "abc"] == [[2] * 4] * 3


def test_a_rate_ratio_pairs_prompts_and_takes_medians_of_repeats() -> None:
    ours: Runs = [[run(1.0), run(9.0), run(2.0)], [run(4.0, 4)]]
    theirs: Runs = [[run(6.0)], [run(6.0, 4)]]
    assert seconds_per_token(ours).tolist() == [1.0, 1.0]
    ratio = pooled("x", seconds_per_token(theirs), seconds_per_token(ours), WEIGHTS)
    assert ratio.value == pytest.approx((3.0 + 1.5) / 2)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < ratio.value < ratio.high
    same = pooled("x", seconds_per_token(ours), seconds_per_token(ours), WEIGHTS)
    assert same.low == same.high == 1.0
    alone = pooled("x", np.array([3.0]), np.array([2.0]), draw_prompts(1, 50, 0))
    assert (alone.value, alone.low, alone.high) == (1.5, None, None), "one prompt has no interval"


def test_overhead_is_read_off_the_rounds() -> None:
    first, second = decoded((6.75, 0.25, 0.5), (5.25, 0.25, 0.0)), decoded((8.0, 0.0, 0.0))
    runs: Runs = [[run(1.0, decoded=first), run(1.0, decoded=second)], [run(1.0, decoded=decoded())]]
    overhead, rounds = overhead_and_round_s(runs)
    assert overhead.tolist() == [1.0, 0.0]
    assert rounds.tolist() == [20.0, 0.0]


def test_all_loops_write_the_same_greedy_text(tiny_model: Callable[..., LoadedModel]) -> None:
    target, draft = tiny_model(scale=0.3), tiny_model(seed=1, scale=0.3)
    device = FakeDevice()
    forwards = Counter[str]()

    def work(*_: object) -> None:
        device.launch(1.0)
        forwards.update(["any"])

    for loaded in (target, draft):
        loaded.model.register_forward_hook(work)
    clock = FakeClock(device)
    loops = loops_to_compare(target, draft, PROMPTS, GREEDY, gamma=2, max_new_tokens=6, seed=0, clock=clock)
    for number in range(2):
        texts = []
        for loop in loops.values():
            forwards.clear()
            found = loop(number)
            texts.append(found.text.tokens)
            assert found.total_s == forwards.total(), "a second a forward, and nothing else takes any"
        assert texts == [texts[0]] * 5


@pytest.mark.parametrize(
    ("low", "high", "limits", "verdict"),
    [
        (1.1, 1.3, {"at_least": 1.1}, "met"),
        (1.0, 1.3, {"at_least": 1.1}, "undecided"),
        (0.9, 1.09, {"at_least": 1.1}, "missed"),
        (0.01, 0.05, {"at_most": 0.05}, "met"),
        (0.04, 0.06, {"at_most": 0.05}, "undecided"),
        (0.051, 0.06, {"at_most": 0.05}, "missed"),
        (0.5, 0.6, {}, ""),
        (None, None, {"at_least": 1.1}, "met"),
        (None, None, {"at_most": 1.1}, "missed"),
    ],
)
def test_a_verdict_asks_the_whole_interval(low: float | None, high: float | None, limits: Any, verdict: str) -> None:
    assert Ratio(what="x", value=1.2, low=low, high=high, **limits).verdict == verdict


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Options of a tiny pair on disk, and its prompts."""
    for role, seed in (("target", 0), ("draft", 1)):
        save(tmp_path / role, llama(seed=seed), word_tokenizer())
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"w1 w{n} w3"}) + "\n" for n in range(4)), encoding="utf-8")
    given = {"--target": tmp_path / "target", "--draft": tmp_path / "draft", "--prompts": prompts}
    return [str(part) for option in given.items() for part in option]


def test_the_command_prints_ratios_rates_and_text_checks(
    folders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--gamma", "2", "--tokens", "6", "--repeats", "1", "--limit", "3", "--device", "cpu"]
    code = benchmark.main([*folders, *sizes, "--json"])
    out = strict_loads(capsys.readouterr().out)
    assert code in (0, 1)
    assert code == any(row["verdict"] == "missed" for row in out["ratios"])
    assert [row["target"] for row in out["ratios"]] == [">= 1.1", ">= 1", "", "", "", "<= 0.05"]
    assert out["texts"] == {
        name: {"same": 3, "ties": 0, "failures": []} for name in ("speculative", "assisted", "plain", "gamma_0")
    }
    assert [len(runs) for runs in out["runs"].values()] == [3] * 5

    benchmark.main([*folders, *sizes, "--processor-seconds", "--temperature", "1"])
    printed = capsys.readouterr().out
    assert "tokens/s, speculative over assisted" in printed
    assert "tokens/s" in printed
    assert "texts are drawn" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gamma", "0"], "--gamma: expected from 1 to 64, got 0"),
        (["--gamma", "99999999"], "--gamma: expected from 1 to 64, got 99999999"),
        (["--tokens", "1"], "--tokens: expected from 2 to 16777216, got 1"),
        (["--target", "/nowhere/at/all"], "'/nowhere/at/all' is neither a directory nor a hub id"),
    ],
)
def test_bad_input_is_one_line_and_two(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(options) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert message in found.err
    assert found.err.count("\n") == 1
