"""There is one copy of the equation: what every command prints follows functions put into `specgauge.model.speedup`.

Put there are a speed-up three times as large, or rounds that take twice as long; the numbers of every command must move
by exactly that factor, so that none of them computes S or T_round by itself.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from specgauge.cli.main import main
from specgauge.model import speedup
from specgauge.model.search.candidates import SearchSettings, bound_candidates
from specgauge.model.search.levels import exact_levels
from specgauge.reports.formatting import speedup as speedup_text
from specgauge.sweeps.analysis.predictions import predict, predict_run
from specgauge.sweeps.exports.registry import ENGINES, export_settings
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.store.rundir import Run
from tests.model.made import question
from tests.sweeps import made
from tests.sweeps.decoded import Batch, key, write_blocks
from tests.sweeps.imports.engines import table_file
from tests.sweeps.made import acceptance_frame, write_run

FLAGS = ("--alpha", "0.8", "--gamma", "1:3", "--t-decode", "1s", "--t-draft", "125ms", "--t-verify", "1.25s")
PLAN = ("--target", "llama-2-7b", "--hardware", "a100-80gb-sxm", "--alpha", ".8", "--batch-size", "8")
FACTORS = {"_speedup": (3.0, 3.0), "_round_time_s": (2.0, 0.5)}
"""By what each function of the equation is multiplied, and what S is multiplied by then."""


def install(monkeypatch: pytest.MonkeyPatch, name: str) -> float:
    """Replace a function of the equation; returns what S is multiplied by."""
    real: Callable[..., Any] = getattr(speedup, name)
    times, speedup_factor = FACTORS[name]
    monkeypatch.setattr(speedup, name, lambda *arguments: times * real(*arguments))
    return speedup_factor


def run_at(path: Path) -> Run:
    """One cell, timed and with acceptance 3/4; a draft that has nothing to catch up."""
    return write_run(path, made.config(), {"greedy": acceptance_frame(10, 16, 0.75)}, scale={"draft_catch_up": 0.5})


class Commands:
    """What the commands print of a run that is predicted anew before each."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.first, self.second = run_at(folder / "first"), run_at(folder / "second")
        self._capsys = capsys

    def json(self, *arguments: str) -> Any:
        predict_run(self.first)
        predict_run(self.second)
        self._capsys.readouterr()
        assert main([*arguments, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def predict(self) -> list[float]:
        document = self.json("predict", *FLAGS)
        return [*(row["speedup"] for row in document["rows"]), document["at_recommended"]["limits"]["perfect_draft"]]

    def plan(self) -> list[float]:
        (row,) = self.json("plan", *PLAN)["points"]
        return [entry["speedup"] for entry in (row, *row["by_gamma"])]

    def recommend(self, *options: str) -> list[float]:
        (entry,) = self.json("recommend", str(self.first.path), *options)["recommendations"]
        return [entry["speedup"]["value"], entry["speedup"]["low"]]

    def export(self) -> list[float]:
        """S of every γ and batch size that settings are written from."""
        predict_run(self.first)
        answers = run_answers(self.first, ENGINES["vllm"].rules, undecided="gamma")
        return [one.speedup for point in answers.points for one in point.by_gamma.values()]

    def limited(self) -> list[float]:
        return self.recommend("--max-itl", "3600s")

    def compare(self) -> list[float]:
        (cell,) = self.json("compare", str(self.first.path), str(self.second.path))["cells"]
        return [found["first"] for found in cell["ratios"] if found["figure"] != "plain"]

    def report(self) -> list[float]:
        """S of the recommended γ, which the page must show."""
        (value, _) = self.recommend()
        page = self.first.path / "page.html"
        assert main(["report", str(self.first.path), "--out", str(page)]) == 0
        assert speedup_text(value) in page.read_text(encoding="utf-8")
        return [value]


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("command", ["predict", "plan", "export", "recommend", "limited", "compare", "report"])
def test_every_command_asks_the_one_equation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    commands = Commands(tmp_path, capsys)
    before = getattr(commands, command)()
    factor = install(monkeypatch, name)
    after = getattr(commands, command)()
    assert after == pytest.approx([factor * value for value in before], rel=1e-12)


def test_rounds_timed_whole_go_through_the_one_equation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = table_file(tmp_path / "files")
    assert main(["import", "table", *map(str, files), "--out", str(tmp_path / "run")]) == 0

    def figures() -> list[list[float]]:
        predict_run(Run.open(tmp_path / "run"))
        capsys.readouterr()
        assert main(["recommend", str(tmp_path / "run"), "--json"]) == 0
        entries = json.loads(capsys.readouterr().out)["recommendations"]
        return [[entry["speedup"]["value"], entry["t_round_s"]] for entry in entries]

    before = figures()
    factor = install(monkeypatch, "_round_time_s")
    for (speedup_before, seconds_before), (speedup_after, seconds_after) in zip(before, figures(), strict=True):
        assert speedup_after == pytest.approx(factor * speedup_before, rel=1e-12)
        assert seconds_after == pytest.approx(seconds_before / factor, rel=1e-12)


def test_exported_thresholds_go_through_the_one_equation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT-LLM is told below which acceptance S is under 1: Omega / S - 1 accepted drafts, of γ."""
    commands = Commands(tmp_path, capsys)

    def exported() -> tuple[float, float]:
        predict_run(commands.first)
        (point,) = run_answers(commands.first, ENGINES["tensorrt-llm"].rules, undecided="gamma").points
        text = export_settings(commands.first, "tensorrt-llm", undecided="gamma").content
        written = yaml.safe_load(text)["speculative_config"]["acceptance_rate_threshold"]
        return written, (point.by_gamma[point.gamma].break_even_accepted) / point.gamma

    written, expected = exported()
    assert written == pytest.approx(max(0.0, expected), abs=5e-4)
    install(monkeypatch, "_speedup")
    again, less = exported()
    assert again == pytest.approx(max(0.0, less), abs=5e-4)
    assert less < expected


def test_replayed_rounds_take_what_the_equation_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(tmp_path, capsys)
    arguments = ("replay", str(commands.first.path), "--replicates", "2")
    before = commands.json(*arguments)["replays"][0]
    install(monkeypatch, "_round_time_s")
    after = commands.json(*arguments)["replays"][0]
    assert (before["loop_speedup"], after["loop_speedup"]) == (1.0, 0.5)
    assert before["best_fixed_speedup"] > 1.0 == after["best_fixed_speedup"]


def test_counted_rounds_are_held_against_the_one_equation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(max_new_tokens=12, overhead_s=1 / 16)
    run = run_at(tmp_path / "run")
    write_blocks(run.path, {key(): [batch]}, (2,))
    (before,) = predict(run).validation
    install(monkeypatch, "_speedup")
    (after,) = predict(run).validation
    for name in ("speedup_predicted", "speedup_from_counts"):
        assert after[name] == pytest.approx(3 * before[name], rel=1e-12)


def test_the_search_bounds_its_candidates_by_the_one_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = exact_levels({"decode": [1.0], "draft": [0.1, 0.2], "verify:1": [1.2], "verify:2": [1.3]})
    settings = SearchSettings(gammas=(1, 2), batch_size=1, catches_up=False)
    before = bound_candidates(settings, question(0.8, 2), levels, is_rising=True)
    install(monkeypatch, "_speedup")
    after = bound_candidates(settings, question(0.8, 2), levels, is_rising=True)
    np.testing.assert_allclose(after.log_speedup[1:], before.log_speedup[1:] + math.log(3.0), rtol=1e-12)
