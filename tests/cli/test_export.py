"""The command `export`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specgauge.sweeps.store.rundir import Run as RunDirectory
from tests.cli.conftest import Run
from tests.sweeps.exports.made_engine import MadeEngine, config, write_run

ENGINES = (
    ("vllm",),
    ("vllm", "--batch-size", "8"),
    ("sglang",),
    ("sglang", "--form", "adaptive"),
    ("sglang", "--form", "dspark"),
    ("tensorrt-llm",),
    ("tensorrt-llm", "--release", "1.2.1"),
    ("llama.cpp",),
    ("transformers",),
)
REFUSED = (
    ("--engine", "sglan"),
    ("--engine", "sglang", "--form", "flag"),
    ("--engine", "vllm", "--release", "new"),
    ("--engine", "llama.cpp", "--release", "1.2"),
    ("--engine", "sglang", "--release", "main"),
    ("--engine", "transformers", "--release", "5.x"),
    ("--engine", "vllm", "--sampling", "t2"),
    ("--engine", "vllm", "--context", "65"),
    ("--engine", "sglang", "--batch-size", "3"),
    ("--engine", "llama.cpp", "--batch-size", "96"),
    ("--engine", "tensorrt-llm", "--batch-size", "8"),
    ("--engine", "sglang", "--form", "adaptive", "--batch-size", "8"),
    ("--engine", "sglang", "--form", "dspark", "--batch-size", "8"),
    ("--engine", "vllm", "--undecided", "on"),
    ("--engine", "vllm", "--draft-sampling", "drawn"),
    ("--engine", "transformers", "--batch-size", "8"),
    ("--engine", "vllm", "--out", "nowhere/vllm.json"),
    ("--engine", "vllm", "--out", "."),
    ("--engine", "vllm", "--out", "run/predictions.csv"),
    (),
)


@pytest.fixture
def run(command: Run) -> RunDirectory:
    """A run in the folder of the test: drawn text, three batch sizes, drafts of which nine in ten are the argmax."""
    made = config((1, 8, 96), sampling=[{"name": "t1"}])
    return write_run(Path("run"), MadeEngine(token_s=0.6e-3), made, greedy_share=0.9)


def test_every_engine(command: Run, run: RunDirectory, snapshot: Callable[[str, str], None]) -> None:
    shown = []
    for options in ENGINES:
        code, out, err = command("export", "run", "--engine", *options)
        assert code == 0, err
        shown += [f"$ specgauge export run --engine {' '.join(options)}\n{out}--- stderr ---\n{err}"]
    snapshot("export", "\n".join(shown))


def test_bad_input_is_one_line(command: Run, run: RunDirectory, snapshot: Callable[[str, str], None]) -> None:
    lines = []
    for options in REFUSED:
        code, out, err = command("export", "run", *options)
        assert (code, out, err.count("\n")) == (2, "", 1), options
        lines.append(f"{' '.join(options)}\n  {err}")
    snapshot("export_errors", "".join(lines))


def test_files_are_written_whole_with_a_text_file_beside_json(command: Run, run: RunDirectory) -> None:
    code, out, err = command("export", "run", "--engine", "vllm", "--out", "vllm.json")
    assert (code, out) == (0, "vllm.json\nvllm.json.txt\n")
    assert err.startswith("warning: the default of vLLM is greedy drafts")
    printed, header = command("export", "run", "--engine", "vllm")[1:]
    assert (Path("vllm.json").read_text(encoding="utf-8"), Path("vllm.json.txt").read_text(encoding="utf-8")) == (
        printed,
        header,
    )
    assert json.loads(printed)["num_speculative_tokens"] > 0
    assert command("export", "run", "--engine", "tensorrt-llm", "--out", "trt.yaml")[1] == "trt.yaml\n"
    assert Path("trt.yaml").read_text(encoding="utf-8").startswith("# for TensorRT-LLM, ")


def test_a_run_with_a_single_batch_size_is_off_beyond_it(command: Run) -> None:
    write_run(Path("run"), MadeEngine(), config((1,)))
    code, out, err = command("export", "run", "--engine", "vllm")
    gamma = json.loads(out)["num_speculative_tokens"]
    assert (code, json.loads(out)["num_speculative_tokens_per_batch_size"]) == (0, [[1, 1, gamma], [2, 1024, 0]])
    (told,) = [line for line in err.splitlines() if line.startswith("only batch size 1 was measured")]
    assert told.endswith("γ is 0 beyond it; `specgauge run … --set grid.batch_size=[1,4,16,64]` measures more")


def test_an_altered_run_is_told(command: Run, run: RunDirectory) -> None:
    journal = run.path / "cells.jsonl"
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    journal.write_text("".join([lines[0].replace("0.0", "0.1", 1), *lines[1:]]), encoding="utf-8")
    code, _, err = command("export", "run", "--engine", "vllm")
    assert (code, err.splitlines()[0].startswith("run: cells.jsonl, line 1: not as written")) == (0, True)
