"""The command line as a whole: exit codes, streams, tracebacks, the commands around runs, and what users read."""

import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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

    monkeypatch.setitem(sys.modules, "specgauge.sweeps.run.runner", SimpleNamespace(run=run))
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
    assert call["first"] is not None
    sweep.clear()
    assert command("run", "--executor", "ray", "--set", "executor.address=head:6379")[0] == 0
    assert (sweep[0]["config"].executor.kind, sweep[0]["config"].executor.address) == ("ray", "head:6379")
    assert sweep[0]["first"] is None, "nothing is measured by a process of this machine"
    assert "executor.kind: expected local | ray, got 'rya'" in command("run", "--executor", "rya")[2]


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
    assert (code, out.count("speed-up over plain"), out.count("TRUST: "), err) == (0, 2, 1, "")
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


MAGICDEC = Path(__file__).parents[1] / "golden" / "magicdec.csv"
TIMES = "--t-decode 19.05ms --t-draft 1.614ms --t-verify 41.08ms"
PROBS = "--target-probs .2,.4,.4 --draft-probs .1,.1,.8"
PLAN = "--target llama-2-7b --hardware a100-80gb-sxm --alpha .8"
ANSWERS = {
    "predict": [
        f"predict --alpha .8 --gamma 1:8 --wanted-speedup 2 {TIMES}",
        "predict --counts 9:6,5 --gamma 1:3 --t-decode 1 --t-draft .1 --t-verify 1,1,1 --t-overhead .1 --max-itl 1.35",
        "predict --rates .5,.5 --gamma 2 --t-decode 1 --t-draft-total 30 --t-verify 5 --max-itl 1",
        "predict --table magicdec.csv --fit-overhead gpu",
    ],
    "explain": [
        f"explain {PROBS} --names A,B,C --gamma 2",
        f"explain {PROBS} --draft-sampling greedy",
        "explain --logits 2,1,1,0 --temperature .7 --top-k 3 --top-p .9",
        "explain --logits 2,1,0 --temperature .5 --top-p .7",
        "explain --logits 2,1 --top-k 1",
    ],
    "plan": [
        "plan --target llama-3.1-70b --draft llama-3.2-1b --hardware h100-sxm --tensor-parallel 4 --dtype bfloat16 "
        "--alpha .78 --batch-size 1:256 --context 1k,8k,32k --gamma 1:8 --max-itl 40ms",
        "plan --target llama-2-7b --draft tinyllama-1.1b --hardware cpu-2-cores --dtype bfloat16 --alpha .2 --gamma 4",
        "plan --target gpt-oss-120b --draft eagle3 --hardware b200-sxm --rates .8,.6,.4,.3 --gamma 1:4 --kv-cache fp8",
        "plan --target llama-2-7b --draft layers:8 --hardware l40 --alpha .8 --weights int4:128 --context 1k,2k,3k,4k,"
        "5k,6k --batch-size 1:16",
        "plan --target llama-2-7b --hardware a100-80gb-sxm --acceptance-lengths lengths.yaml --batch-size 1,64",
        "plan --calibrate magicdec.csv --forms",
        "plan --calibrate magicdec.csv --hardware l40 --launch-of a100-80gb-sxm --draft-window 512",
    ],
    "check": ["check quickstart"],
}
TABLE = "gpu,gamma,t_decode_s,t_draft_total_s,t_verify_s,tokens_per_round,speedup_measured\n"
ROW = "A,2,1.0,0.5,1.0,2.0,1.25\n"
FILES = {
    "own.yaml": "name: mine\npairs:\n  - {name: embedded, target: embedded, draft: embedded}\ngrid:\n  gama: 4\n",
    "empty.csv": "\n \n",
    "header.csv": TABLE,
    "semicolons.csv": TABLE.replace(",", ";") + ROW,
    "misspelt.csv": TABLE.replace("t_verify_s", "t_verfy_s") + ROW,
    "milliseconds.csv": TABLE.replace("t_draft_total_s", "t_draft_ms") + ROW,
    "twice.csv": TABLE.replace("gpu", "gamma") + ROW,
    "computed.csv": TABLE.replace("gpu", "speedup") + ROW,
    "short.csv": TABLE + ROW + "A,2\n",
    "quote.csv": TABLE + '"A\n',
    "word.csv": TABLE + ROW + ROW.replace("1.0", "fast"),
    "blank.csv": TABLE + ROW.replace("1.0", ""),
    "bound.csv": TABLE + ROW.replace("A,2", "A,0"),
    "half.csv": TABLE + ROW.replace("A,2", "A,1.5"),
    "rate.csv": "gamma,t_decode_s,t_draft_s,t_verify_s,acceptance_rate\n1,1,0.5,1,1.5\n",
    "tree.csv": TABLE + ROW.replace("2.0", "3.5"),
    "neither.csv": TABLE.replace("t_draft_total_s", "cost") + ROW,
    "both.csv": TABLE.replace("gpu", "acceptance_rate") + ROW.replace("A", ".5"),
    "unmeasured.csv": TABLE + ROW.replace("1.25", ""),
    "overhead.csv": TABLE.replace("gpu", "t_overhead_s") + ROW.replace("A", "1"),
    "times.csv": "target,gpu,batch_size,context,gamma,t_decode_s,t_verify_s\nLlama2-7B,8xA100,32,1,2,0.1,0.1\n",
    "zero.csv": "target,gpu,batch_size,context,gamma,t_decode_s,t_verify_s\nLlama2-7B,8xA100,32,1,2,0,0.1\n",
    "lama.csv": "target,gpu,batch_size,context,gamma,t_decode_s,t_verify_s\nLama,8xA100,32,1,2,0.1,0.1\n",
    "lengths.yaml": "deepseek-v3: {thinking_on: {1: 1.93, 2: 2.73, 3: 3.31}}\n",
    "two.yaml": "m: {chat: {1: 1.9}, code: {1: 1.8}}\n",
    "falling.yaml": "m: {1: 1.8, 2: 2.4, 3: 2.3}\n",
    "percent.yaml": "m: {1: 93}\n",
    "broken.yaml": "m: {1: 1.9\n",
    "repeated.csv": "target,gpu,batch_size,context,gamma,t_decode_s,t_verify_s\n"
    + 2 * "Llama2-7B,A100,1,64,2,0.1,0.2\n",
    "bits.json": '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, '
    '"intermediate_size": 8, "vocab_size": 8, "quantization_config": {"quant_method": "gptq", "bits": 3}}',
    "huge.json": '{"model_type": "llama", "num_hidden_layers": 1' + 99 * "0" + "}",
    "own.json": '{"model_type": "llama"}',
    "sizes.json": "[]",
    "z100.csv": "target,gpu,batch_size,context,gamma,t_decode_s,t_verify_s\nLlama2-7B,8xZ100,32,1,2,0.1,0.1\n",
}
COMMANDS = f"""
rnu
report
run --out
run --fersh
configs quick
check quikstart
check quickstart --set grid.gama=4
run quickstart --set seed
run own.yaml
check own.yaml
recommend runs/befor
recommend before
recommend runs/before --sampling gredy
recommend runs/before --max-itl 50mss
compare runs/before
compare runs/before runs/aftr
compare runs/before runs/before/
compare runs/before runs/after --tolerance 2
report runs/before --plot speedup.txt
predict
predict --alpha .5 --rates .5 {TIMES}
predict --alpha 1.5 {TIMES}
predict --rates .5,.6 {TIMES}
predict --rates .5,high {TIMES}
predict --rates .5,,.6 {TIMES}
predict --counts 16,12 {TIMES}
predict --counts 4:5 {TIMES}
predict --tokens-per-round 2 {TIMES}
predict --tokens-per-round 2,3 --gamma 4 {TIMES}
predict --alpha .5 --gamma 8:1 {TIMES}
predict --alpha .5 --gamma 0 {TIMES}
predict --alpha .5 --gamma 1000000000 {TIMES}
predict --alpha .5 --gamma '' {TIMES}
predict --alpha .5 --t-decode 3ms
predict --alpha .5 {TIMES} --t-decode -3ms
predict --alpha .5 {TIMES} --t-decode 0
predict --alpha .5 {TIMES} --t-decode '5 MS'
predict --alpha .5 {TIMES} --t-verify 5e-324
predict --alpha .5 {TIMES} --t-verify 1ms,2ms
predict --alpha .5 {TIMES} --t-draft-total 1ms
predict --alpha .5 --t-decode 1 --t-verify 1 --t-draft-total 1ms
predict --alpha .5 {TIMES} --draft-kind parralel
predict --alpha .5 {TIMES} --batch 0
predict --alpha .5 {TIMES} --wanted-speedup 0
predict --alpha .5 {TIMES} --fit-overhead gpu
predict --alpha .5 --table x.csv
explain
explain {PROBS} --top-k 1
explain {PROBS} --gamma 65
explain {PROBS} --acceptance-rule typical
explain --target-probs .2,.4 --draft-probs .5,.5
explain --target-probs 1,0 --draft-probs 1
explain --logits 1,2 --svg x
explain --logits 1e308,-1e308 --temperature .5
plan
plan {PLAN} --alpha 1.5
plan {PLAN} --target lama-2-7b
plan {PLAN} --tensor-parallel 3
plan {PLAN} --dtype bfloat15
plan {PLAN} --batch-size 0
plan {PLAN} --context 1m
plan {PLAN} --hold-out context
plan {PLAN} --hardware h100
plan {PLAN} --batch-size 8:1
plan {PLAN} --batch-size 1:
plan {PLAN} --max-itl 40
plan {PLAN} --rates .8
plan {PLAN} --acceptance-table a/b
plan {PLAN} --pair small
plan {PLAN} --draft tinylama-1.1b
plan {PLAN} --draft layers:32
plan {PLAN} --draft tinyllama-1.1b --draft-tensor-parallel 2
plan {PLAN} --draft tinyllama-1.1b --draft-window 0
plan {PLAN} --weights int3
plan {PLAN} --weights int4:x
plan {PLAN} --pipeline-parallel 2
plan {PLAN} --target org/absent
plan {PLAN} --target own.json
plan {PLAN} --target sizes.json
plan {PLAN} --target bits.json
plan {PLAN} --target huge.json
plan {PLAN} --draft eagle
plan {PLAN} --draft layers:x
plan {PLAN} --max-itl 0ms
plan {PLAN} --batch-size 1:1000:1 --context 1,2,3,4,5,6,7,8,9,10,11
plan {PLAN} --survival-of runs/before
plan --target llama-2-7b --hardware l40
plan --target llama-2-7b --hardware l40 --survival-of runs/absent
plan --target llama-2-7b --hardware l40 --acceptance-lengths lengths.yaml --gamma 1:5
plan --target llama-2-7b --hardware l40 --rates .8,.6 --gamma 1:4
plan --target llama-2-7b --hardware l40 --acceptance-lengths falling.yaml
plan --target llama-2-7b --hardware l40 --acceptance-lengths two.yaml
plan --target llama-2-7b --hardware l40 --acceptance-lengths two.yaml --acceptance-table m/caht
plan --target llama-2-7b --hardware l40 --acceptance-lengths percent.yaml
plan --target llama-2-7b --hardware l40 --acceptance-lengths broken.yaml
plan --calibrate runs/before
plan --calibrate times.csv --hardware h100-sxm
plan --calibrate times.csv --out mine.yaml
plan --calibrate times.csv --hardware a100-80gb-sxm
plan --calibrate absent.csv
plan --calibrate times.csv
plan --calibrate times.csv --alpha .8
plan --calibrate times.csv --hold-out gamma
plan --calibrate times.csv --alias mine
plan --calibrate zero.csv
plan --calibrate repeated.csv
plan --calibrate times.csv --tensor-parallel 8
plan --calibrate runs/before --hardware cpu-2-cores --dtype float32
plan --calibrate lama.csv
plan --calibrate z100.csv
"""
TABLES = [f"predict --table {name}" for name in FILES if name.endswith(".csv")][:17]
TABLES += ["predict --table unmeasured.csv --fit-overhead gpu", "predict --table overhead.csv --fit-overhead gamma"]
TABLES += ["predict --table unmeasured.csv --fit-overhead card", "predict --table absent.csv"]


@pytest.mark.parametrize("surface", ANSWERS)
def test_answers(
    surface: str, command: Run, snapshot: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    Path("magicdec.csv").write_bytes(MAGICDEC.read_bytes())
    Path("lengths.yaml").write_text(FILES["lengths.yaml"], encoding="utf-8")
    told = []
    for line in ANSWERS[surface]:
        code, out, err = command(*shlex.split(line))
        assert (code, err) == (0, "")
        told.append(f"$ specgauge {line}\n{out}")
    snapshot(surface, "\n".join(told))


def test_bad_input_is_one_line_and_code_2(command: Run, snapshot: Callable[[str, str], None]) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    for run in ("before", "after"):
        build_run(Path("runs") / run)
    told = []
    for line in [*COMMANDS.strip().split("\n"), *TABLES]:
        code, out, err = command(*shlex.split(line))
        assert (code, out, err.count("\n")) == (2, "", 1), line
        told.append(f"$ specgauge {line}\n{err}")
    snapshot("errors", "\n".join(told))
