"""The command line as a whole: exit codes, streams, tracebacks, and the commands around runs."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import specgauge
from specgauge.cli.errors import debug_wanted, tell
from specgauge.cli.main import main
from specgauge.configs.loader import shipped_text
from specgauge.exits import DEBUG_VARIABLE
from tests.cli.conftest import Document, Run
from tests.reports.synthetic import build_run


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for the part that measures: keeps what it is called with; an entry "raises" or "code" steers it."""
    calls: list[dict[str, Any]] = []

    def run(config: Any, **options: Any) -> int:
        steer = calls.pop() if calls else {}
        calls.append({"config": config, "debug": os.environ.get(DEBUG_VARIABLE), **options})
        if "raises" in steer:
            raise steer["raises"]
        return int(steer.get("code", 0))

    module = types.ModuleType("specgauge.sweeps.run.runner")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specgauge.sweeps.run.runner", module)
    return calls


def test_help_goes_to_stdout_when_asked_for_and_to_stderr_when_not(command: Run) -> None:
    code, asked, err = command("--help")
    assert (code, err) == (0, "")
    assert asked.startswith("Usage: specgauge [OPTIONS] COMMAND [ARGS]...")
    assert command() == (2, "", asked)


def test_configs_lists_and_prints_and_has_a_schema(command: Run) -> None:
    code, out, err = command("configs")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["gpu", "proof", "quickstart", "wide"]
    assert json.loads(command("schema")[1])["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert command("configs", "wide") == (0, shipped_text("wide"), "")


def test_run_measures_the_quickstart_into_runs_or_what_it_is_told(command: Run, sweep: list[dict[str, Any]]) -> None:
    sweep.append({"code": 1})
    assert command("run")[0] == 1, "a cell failed"
    call = sweep.pop()
    assert (call["config"].name, call["out"], call["fresh"]) == ("quickstart", Path("runs/quickstart"), False)
    assert command("run", "wide", "--out", "there", "--set", "grid.gamma=2", "--set", "seed=3", "--fresh")[0] == 0
    (call,) = sweep
    assert (call["config"].name, call["config"].grid.gamma, call["config"].seed) == ("wide", (2,), 3)
    assert (call["out"], call["fresh"]) == (Path("there"), True)


def test_an_interruption_says_what_is_kept_and_how_to_go_on(command: Run, sweep: list[dict[str, Any]]) -> None:
    sweep.append({"raises": KeyboardInterrupt()})
    code, out, err = command("run", "wide", "--out", "my runs", "--fresh", "--set", "seed=3")
    assert (code, out) == (130, "")
    assert " my runs," in err
    assert err.endswith("specgauge run wide --out 'my runs' --set seed=3\n")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("two\n  lines"), 2, "two lines"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), 2, "x: No such file or directory"),
        (OSError(errno.ENOSPC, "No space left on device", "y"), 1, "y: No space left on device"),
        (OSError("the disk is gone"), 1, "the disk is gone"),
        (MemoryError(), 1, "out of memory"),
        (ModuleNotFoundError("No module named 'gguf'", name="gguf"), 1, "pip install gguf"),
        (KeyError("gone"), 1, "KeyError: 'gone' (run again with --debug to see where)"),
        (AssertionError(), 1, "AssertionError (run again with --debug to see where)"),
        (ValueError("a \x1b[31mname"), 2, r"a \x1b[31mname"),
    ],
)
def test_every_error_is_one_line(
    command: Run, sweep: list[dict[str, Any]], error: Exception, code: int, line: str
) -> None:
    sweep.append({"raises": error})
    found, out, err = command("run")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith("specgauge: ")
    assert err.endswith(f"{line}\n")


@pytest.mark.parametrize(
    ("arguments", "before", "debug"),
    [
        (["run"], None, False),
        (["run"], "no", False),
        (["run"], "yes", True),
        (["run", "--debug"], None, True),
        (["--debug", "run"], "0", True),
    ],
)
def test_debug_shows_the_traceback_before_the_line_and_reaches_the_processes_that_measure(
    command: Run,
    sweep: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    before: str | None,
    debug: bool,
) -> None:
    if before is not None:
        monkeypatch.setenv(DEBUG_VARIABLE, before)
    sweep.append({"raises": ValueError("wrong")})
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Traceback (most recent call last):\n") == debug
    assert err.endswith("specgauge: wrong\n")
    assert sweep[0]["debug"] == ("1" if debug else "0")
    assert os.environ.get(DEBUG_VARIABLE) == before


def test_recommend_answers_in_words_and_as_json(command: Run, document: Document) -> None:
    build_run(Path("runs/quickstart"))
    code, out, err = command("recommend", "runs/quickstart")
    assert (code, out.count("batch size 4, context 256: "), err) == (0, 2, "")
    where = ("--pair", "p", "--sampling", "greedy", "--batch-size", "4", "--context", "256")
    found = document("recommend", "runs/quickstart", *where, "--max-itl", "50ms")
    (entry,) = found["recommendations"]
    assert (entry["sampling"], entry["batch_size"], entry["context"]) == ("greedy", 4, 256)
    assert found["max_itl_s"] == 0.05


def test_compare_answers_in_words_and_as_json(command: Run, document: Document) -> None:
    for name in ("before", "after"):
        build_run(Path("runs") / name)
    code, out, err = command("compare", "runs/before", "runs/after")
    assert (code, out.count("speed-up"), err) == (0, 8, "")
    content = document("compare", "runs/before", "runs/after", "--tolerance", "0.2")
    assert content["tolerance"] == 0.2
    assert {ratio["verdict"] for cell in content["cells"] for ratio in cell["ratios"]} == {"same"}


def test_report_prints_where_it_wrote(command: Run) -> None:
    build_run(Path("runs/quickstart"))
    assert command("report", "runs/quickstart") == (0, "runs/quickstart/report.html\n", "")
    assert command("report", "runs/quickstart", "--out", "page.html") == (0, "page.html\n", "")
    code, out, err = command("report", "runs/quickstart", "--out", "other.html", "--plot", "speedup.txt")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not Path("other.html").exists()
    assert Path("page.html").stat().st_size > 1000


def test_debug_after_two_dashes_is_an_argument() -> None:
    assert debug_wanted(["configs", "--", "--debug"]) == (False, ["configs", "--", "--debug"])


def test_an_interruption_elsewhere_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(KeyboardInterrupt(), debug=False) == 130
    assert capsys.readouterr().err == "specgauge: interrupted\n"


def module(*arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specgauge", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def test_the_module_runs_as_the_command_in_a_narrow_encoding_too() -> None:
    assert module("--version").stdout == f"specgauge {specgauge.__version__}\n"
    done = module("check", "é", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.startswith(r"specgauge: \xe9: expected ")


@pytest.mark.parametrize("arguments", [["schema"], ["--help"]])
def test_a_reader_that_leaves_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = module(*arguments, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_closed_from_the_start_is_no_error(command: Run, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(sys, stream, None)
    assert main(["configs"]) == 0
    assert main(["configs", "quick"]) == 2
