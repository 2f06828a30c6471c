from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specgauge
from specgauge.cli.errors import DEBUG_VARIABLE, debug_wanted, tell
from specgauge.cli.main import main
from specgauge.configs.loader import shipped_text
from tests.reports.synthetic import build_run

Run = Callable[..., tuple[int, str, str]]
OWN_CONFIG = """\
name: mine
pairs:
  - {name: embedded, target: embedded, draft: embedded}
grid:
  gama: 4
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command line in an empty folder; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for the part that measures: keeps what it is called with; an entry "raises" or "code" steers it."""
    calls: list[dict[str, Any]] = []

    def run(config: Any, **options: Any) -> int:
        steer = calls.pop() if calls else {}
        calls.append({"config": config, **options})
        if "raises" in steer:
            raise steer["raises"]
        return int(steer.get("code", 0))

    module = types.ModuleType("specgauge.sweeps.run.runner")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specgauge.sweeps.run.runner", module)
    return calls


def test_version(command: Run) -> None:
    assert command("--version") == (0, f"specgauge {specgauge.__version__}\n", "")


def test_help_goes_to_stdout_when_asked_for_and_to_stderr_when_not(command: Run) -> None:
    code, asked, err = command("--help")
    assert (code, err) == (0, "")
    assert asked.startswith("Usage: specgauge [OPTIONS] COMMAND [ARGS]...")
    assert command() == (2, "", asked)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rnu"], "specgauge: No such command 'rnu'. Did you mean 'run'? see specgauge --help\n"),
        (["report"], "specgauge: Missing argument 'RUN'; see specgauge report --help\n"),
        (["run", "--out"], "specgauge: Option '--out' requires an argument\n"),
        (
            ["configs", "quick"],
            "specgauge: no shipped config 'quick'; did you mean 'quickstart'? shipped: gpu, proof, quickstart, wide\n",
        ),
        (
            ["check", "quikstart"],
            "specgauge: quikstart: no such file; did you mean 'quickstart'? expected the path of a YAML file,"
            " or a shipped name: gpu, proof, quickstart, wide\n",
        ),
        (
            ["check", "quickstart", "--set", "grid.gama=4"],
            "specgauge: --set grid.gama=4: unknown key 'gama' in grid; did you mean 'gamma'? expected one of:"
            " batch_size, context, gamma, gamma_search, include, exclude\n",
        ),
        (["run", "quickstart", "--set", "seed"], "specgauge: --set seed: expected KEY=VALUE, such as"
                                                 " grid.gamma=1:6, got 'seed'\n"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_code_2(command: Run, arguments: list[str], line: str) -> None:
    assert command(*arguments) == (2, "", line)


@pytest.mark.parametrize("arguments", [["run"], ["check"]])
def test_a_bad_config_names_file_line_and_field(command: Run, arguments: list[str]) -> None:
    Path("mine.yaml").write_text(OWN_CONFIG, encoding="utf-8")
    known = "batch_size, context, gamma, gamma_search, include, exclude"
    line = f"mine.yaml:5: unknown key 'gama' in grid; did you mean 'gamma'? expected one of: {known}"
    assert command(*arguments, "mine.yaml") == (2, "", f"specgauge: {line}\n")


def test_an_unknown_option_names_the_nearest(command: Run) -> None:
    code, out, err = command("run", "--fersh")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--fersh" in err
    assert "--fresh" in err


def test_configs_lists_and_prints(command: Run) -> None:
    code, out, err = command("configs")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["gpu", "proof", "quickstart", "wide"]
    assert command("configs", "wide") == (0, shipped_text("wide"), "")


def test_schema_is_json(command: Run) -> None:
    code, out, err = command("schema")
    assert (code, err) == (0, "")
    assert json.loads(out)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


class TestRun:
    def test_the_default_is_the_quickstart_in_runs(self, command: Run, sweep: list[dict[str, Any]]) -> None:
        assert command("run")[0] == 0
        (call,) = sweep
        assert call["config"].name == "quickstart"
        assert (call["out"], call["fresh"]) == (Path("runs/quickstart"), False)

    def test_options_reach_the_sweep(self, command: Run, sweep: list[dict[str, Any]]) -> None:
        arguments = ["--out", "there", "--set", "grid.gamma=2", "--set", "seed=3", "--fresh"]
        assert command("run", "wide", *arguments)[0] == 0
        (call,) = sweep
        assert (call["config"].name, call["config"].grid.gamma, call["config"].seed) == ("wide", (2,), 3)
        assert (call["out"], call["fresh"]) == (Path("there"), True)

    def test_a_failed_cell_is_code_1(self, command: Run, sweep: list[dict[str, Any]]) -> None:
        sweep.append({"code": 1})
        assert command("run")[0] == 1

    def test_an_interruption_says_what_is_kept_and_how_to_go_on(
        self, command: Run, sweep: list[dict[str, Any]]
    ) -> None:
        sweep.append({"raises": KeyboardInterrupt()})
        arguments = ["--out", "my runs", "--fresh", "--set", "seed=3"]
        assert command("run", "wide", *arguments) == (
            130,
            "",
            "specgauge: interrupted; every finished block is kept in my runs, go on with:"
            " specgauge run wide --out 'my runs' --set seed=3\n",
        )

    @pytest.mark.parametrize(
        ("error", "code", "line"),
        [
            (ValueError("two\n  lines"), 2, "two lines"),
            (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), 2, "x: No such file or directory"),
            (OSError(errno.ENOSPC, "No space left on device", "y"), 1, "y: No space left on device"),
            (OSError("the disk is gone"), 1, "the disk is gone"),
            (MemoryError(), 1, "out of memory"),
            (
                ModuleNotFoundError("No module named 'gguf'", name="gguf"),
                1,
                "needs the package 'gguf', which is not installed; pip install gguf",
            ),
            (
                KeyError("gone"),
                1,
                "a bug in specgauge, KeyError: 'gone' (run again with --debug to see where)",
            ),
            (AssertionError(), 1, "a bug in specgauge, AssertionError (run again with --debug to see where)"),
            (ValueError("a \x1b[31mname"), 2, r"a \x1b[31mname"),
        ],
    )
    def test_every_error_is_one_line(
        self, command: Run, sweep: list[dict[str, Any]], error: Exception, code: int, line: str
    ) -> None:
        sweep.append({"raises": error})
        assert command("run") == (code, "", f"specgauge: {line}\n")

    @pytest.mark.parametrize("arguments", [["--debug", "run"], ["run", "--debug"], ["run", "quickstart", "--debug"]])
    def test_debug_shows_the_traceback_before_the_line(
        self, command: Run, sweep: list[dict[str, Any]], arguments: list[str]
    ) -> None:
        sweep.append({"raises": ValueError("wrong")})
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("Traceback (most recent call last):\n")
        assert err.endswith("\nValueError: wrong\nspecgauge: wrong\n")

    def test_debug_by_the_environment(
        self, command: Run, sweep: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(DEBUG_VARIABLE, "1")
        sweep.append({"raises": ValueError("wrong")})
        assert command("run")[2].startswith("Traceback")
        monkeypatch.setenv(DEBUG_VARIABLE, "0")
        sweep[:] = [{"raises": ValueError("wrong")}]
        assert command("run")[2] == "specgauge: wrong\n"

    @pytest.mark.parametrize(
        ("arguments", "before", "told"),
        [
            (["run"], None, "0"),
            (["run"], "no", "0"),
            (["run"], "yes", "1"),
            (["run", "--debug"], None, "1"),
            (["--debug", "run"], "0", "1"),
        ],
    )
    def test_the_processes_that_measure_are_told_of_it(
        self, command: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], before: str | None, told: str
    ) -> None:
        seen: list[str | None] = []

        def look(config: Any, **options: Any) -> int:
            seen.append(os.environ.get(DEBUG_VARIABLE))
            return 0

        module = types.ModuleType("specgauge.sweeps.run.runner")
        module.run = look  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "specgauge.sweeps.run.runner", module)
        if before is not None:
            monkeypatch.setenv(DEBUG_VARIABLE, before)
        assert command(*arguments)[0] == 0
        assert seen == [told]
        assert os.environ.get(DEBUG_VARIABLE) == before


class TestRecommend:
    @pytest.fixture(autouse=True)
    def run_directory(self, command: Run) -> None:
        build_run(Path("runs/quickstart"))

    def test_everything_in_words(self, command: Run) -> None:
        code, out, err = command("recommend", "runs/quickstart")
        assert (code, err) == (0, "")
        assert out.count("batch size 4, context 256: ") == 2

    def test_one_place_as_json(self, command: Run) -> None:
        where = ["--pair", "embedded", "--sampling", "greedy", "--batch-size", "4", "--context", "256"]
        code, out, err = command("recommend", "runs/quickstart", *where, "--json")
        assert (code, err) == (0, "")
        (entry,) = json.loads(out)["recommendations"]
        assert (entry["sampling"], entry["batch_size"], entry["context"]) == ("greedy", 4, 256)

    def test_a_latency_limit_with_its_unit(self, command: Run) -> None:
        code, out, err = command("recommend", "runs/quickstart", "--max-itl", "50ms", "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["max_itl_s"] == 0.05
        code, out, err = command("recommend", "runs/quickstart", "--max-itl", "50mss")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("specgauge: --max-itl: found unit 'mss'")

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["runs/quickstrat"], "runs/quickstrat: no such run; did you mean runs/quickstart?"),
            (["quickstart"], "quickstart: no such run; did you mean runs/quickstart?"),
            (["quickstrat"], "quickstrat: no such run; did you mean runs/quickstart?"),
            (["runs/quickstart", "--sampling", "gredy"], "sampling 'gredy' is not in this run, allowed: greedy, t1;"
                                                         " did you mean 'greedy'?"),
        ],
    )  # fmt: skip
    def test_names_that_are_not_there(self, command: Run, arguments: list[str], line: str) -> None:
        assert command("recommend", *arguments) == (2, "", f"specgauge: {line}\n")


class TestCompare:
    @pytest.fixture(autouse=True)
    def run_directories(self, command: Run) -> None:
        for name in ("before", "after"):
            build_run(Path("runs") / name)

    def test_a_table(self, command: Run) -> None:
        code, out, err = command("compare", "runs/before", "runs/after")
        assert (code, err) == (0, "")
        assert out.startswith("first:  runs/before\nsecond: runs/after\n\n")
        assert out.count("speed-up") == 8
        assert "same: within ± 1 %" in out

    def test_json_with_another_tolerance(self, command: Run) -> None:
        code, out, err = command("compare", "runs/before", "runs/after", "--tolerance", "0.2", "--json")
        assert (code, err) == (0, "")
        content = json.loads(out)
        assert content["tolerance"] == 0.2
        assert {ratio["verdict"] for cell in content["cells"] for ratio in cell["ratios"]} == {"same"}

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["runs/before"], "Missing argument 'RUN'; see specgauge compare --help"),
            (["runs/before", "runs/aftr"], "runs/aftr: no such run; did you mean runs/after?"),
            (
                ["runs/before", "runs/before/"],
                "runs/before: found the same run twice, allowed: two runs, such as before and after a change",
            ),
            (
                ["runs/before", "runs/after", "--tolerance", "2"],
                "tolerance: found 2, allowed: above 0 and below 1, such as 0.01",
            ),
        ],
    )
    def test_bad_input_is_one_line(self, command: Run, arguments: list[str], line: str) -> None:
        assert command("compare", *arguments) == (2, "", f"specgauge: {line}\n")


def test_report_prints_where_it_wrote(command: Run) -> None:
    build_run(Path("runs/quickstart"))
    assert command("report", "runs/quickstart") == (0, "runs/quickstart/report.html\n", "")
    assert command("report", "runs/quickstart", "--out", "page.html") == (0, "page.html\n", "")
    code, out, err = command("report", "runs/quickstart", "--out", "other.html", "--plot", "speedup.txt")
    assert (code, out) == (2, "")
    assert err == "specgauge: speedup.txt: expected ending .png, .svg, .pdf, got '.txt'\n"
    assert not Path("other.html").exists()
    assert Path("page.html").stat().st_size > 1000


def test_debug_after_two_dashes_is_an_argument() -> None:
    assert debug_wanted(["configs", "--", "--debug"]) == (False, ["configs", "--", "--debug"])


def test_an_interruption_elsewhere_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(KeyboardInterrupt(), debug=False) == 130
    assert capsys.readouterr().err == "specgauge: interrupted\n"


def test_the_module_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "specgauge", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"specgauge {specgauge.__version__}\n"


@pytest.mark.parametrize("arguments", [["schema"], ["--help"]])
def test_a_reader_that_leaves_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "specgauge", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_closed_from_the_start_is_no_error(command: Run, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(sys, stream, None)
    assert main(["configs"]) == 0
    assert main(["configs", "quick"]) == 2


def test_a_narrow_encoding_is_no_error() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "specgauge", "check", "é"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(r"specgauge: \xe9: no such file")
