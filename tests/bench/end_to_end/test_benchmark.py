"""The command: its ratios, their verdicts, the check of texts, and what it prints; how fast it is it tells itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specgauge.bench.end_to_end import benchmark
from specgauge.bench.end_to_end.benchmark import Line, ProcessorClock
from specgauge.bench.end_to_end.side_by_side import Ratio
from specgauge.configs.canonical import strict_loads
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer


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
    assert Line(what="x", ratio=Ratio(value=1.2, low=low, high=high), **limits).verdict == verdict


def test_processor_seconds_pass_only_while_this_process_works() -> None:
    clock = ProcessorClock()
    start = clock.mark()
    sum(range(200_000))
    assert clock.elapsed_s(start, clock.mark()) > 0


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
