"""What terminal users read, one snapshot a surface: answers of the commands that need no run, and error lines."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.reports.synthetic import build_run

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
        "plan --target llama-3.1-70b --draft llama-3.2-1b --hardware h100-sxm --tensor-parallel 4 --alpha .78 "
        "--batch-size 1,8,64 --context 1k,8k",
        "plan --target llama-2-7b --draft tinyllama-1.1b --hardware cpu-2-cores --dtype bfloat16 --alpha .2 --gamma 4",
        "plan --calibrate magicdec.csv --forms",
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
    "z100.csv": "target,gpu,batch_size,context,gamma,t_decode_s,t_verify_s\nLlama2-7B,8xZ100,32,1,2,0.1,0.1\n",
}
COMMANDS = """
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
"""
MODEL = f"""
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
plan {PLAN} --dtype bf16
plan {PLAN} --batch-size 0
plan {PLAN} --context 1m
plan {PLAN} --hold-out context
plan --calibrate absent.csv
plan --calibrate times.csv
plan --calibrate times.csv --alpha .8
plan --calibrate times.csv --hold-out gamma
plan --calibrate times.csv --alias mine
plan --calibrate zero.csv
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
    for line in [*COMMANDS.split("\n"), *MODEL.split("\n"), *TABLES]:
        if line:
            code, out, err = command(*shlex.split(line))
            assert (code, out, err.count("\n")) == (2, "", 1), line
            told.append(f"$ specgauge {line}\n{err}")
    snapshot("errors", "\n".join(told))
