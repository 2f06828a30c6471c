"""Small files of every format that is read, a run or two each, and what spoils them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sweeps.imports.engines import (
    aiperf_records,
    bench_result,
    llama_answers,
    llama_scrape,
    scrape,
    sglang_answers,
    sglang_line,
    table_file,
    vllm_answers,
    written,
)


def sglang_scrape(times: int) -> str:
    """/metrics of an SGLang server after `times` times a run of 40 requests."""
    values = {
        "generation_tokens_total": 1000, "spec_verify_calls_total": 400, "time_to_first_token_seconds_count": 40,
        "inter_token_latency_seconds_sum": 8.0, "inter_token_latency_seconds_count": 960,
    }  # fmt: skip
    return "".join(f'sglang:{name}{{model_name="big"}} {value * times}\n' for name, value in values.items())


def llama_bench(model: str, params: float, prompt: int, generated: int, *samples_ns: int, depth: int = 512) -> Any:
    return {
        "build_commit": "abc1234", "model_filename": model, "model_n_params": params, "n_prompt": prompt,
        "n_gen": generated, "n_depth": depth, "avg_ns": samples_ns[0], "samples_ns": list(samples_ns),
    }  # fmt: skip


def speed_bench(**changes: Any) -> dict[str, Any]:
    """Two requests: their prefills, and four rounds that emitted 4, 3, 2 and 1 tokens."""
    return {
        "Request_AL": {"0": 2.0, "1": 1.8},
        "Average_AL": "2.0",
        "Acceptance_Length_Histogram": {"1": 3, "2": "1", "3": 1, "4": 1},
    } | changes


def spec_bench(lengths: list[int], tokens: int, **changes: Any) -> dict[str, Any]:
    choice = {"new_tokens": [tokens], "wall_time": [0.5], "decoding_steps": [len(lengths)], "accept_lengths": lengths}
    return {"question_id": 1, "category": "writing", "choices": [choice | changes]}


def _pair(folder: Path, text: Callable[[int], str]) -> list[Path]:
    return [written(folder / f"{times}.txt", text(times)) for times in (1, 2)]


def _lines(*records: object) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


SAMPLES: dict[str, Callable[[Path], list[Path]]] = {
    "table": table_file,
    "aiperf": lambda folder: [written(folder / "records.jsonl", aiperf_records(8, 2, 1.0))],
    "vllm-metrics": lambda folder: _pair(folder, lambda times: scrape(8, 2, times)),
    "vllm-bench": lambda folder: [written(folder / "result.json", bench_result(8, 2))],
    "vllm-requests": lambda folder: [written(folder / "answers.json", vllm_answers(8, 2, 1.0))],
    "sglang-bench": lambda folder: [
        written(folder / "bench.jsonl", sglang_line(8, 2, 1.0) + "\n" + sglang_line(8, 0, 1.0))
    ],
    "sglang-requests": lambda folder: [written(folder / "answers.json", sglang_answers(2))],
    "sglang-metrics": lambda folder: _pair(folder, sglang_scrape),
    "llama-bench": lambda folder: [
        written(folder / "b.json", [llama_bench("m", 8e9, 0, 64, 64), llama_bench("m", 8e9, 3, 0, 9)])
    ],
    "llama-batched-bench": lambda folder: [
        written(folder / "b.jsonl", _lines(*({"pp": 128, "tg": 64, "pl": pl, "n_kv": 0, "t_tg": 1.0} for pl in (1, 8))))
    ],
    "llama-server": lambda folder: [written(folder / "answers.json", llama_answers(8, 2, 1.0))],
    "llama-metrics": lambda folder: _pair(folder, lambda times: llama_scrape(8, 2, times)),
    "speed-bench": lambda folder: [written(folder / "acceptance_rate.json", [speed_bench()])],
    "spec-bench": lambda folder: [
        written(folder / "answers.jsonl", _lines(spec_bench([4, 3, 2, 1], 10), spec_bench([3, 3, 1], 7)))
    ],
    "golden": lambda folder: [written(folder / "golden.yaml", "m:\n  thinking_on: {1: 1.9, 2: 2.5}\n")],
}
"""By format; of scrapes BEFORE and AFTER."""
OPTIONS = {"sglang-metrics": ["--gamma", "2"]}
"""What the files of a format do not tell."""


def with_nan(text: str) -> str:
    """The text of a file with NaN in the place of a number that its reader takes."""
    if text.startswith(("{", "[")):
        return re.sub(r": \d[\d.e-]*", ": NaN", text, count=1)
    if "thinking_on" in text:
        return text.replace("2.5", ".nan")
    if text.startswith("batch_size"):
        return re.sub(r"0\.\d+", "nan", text, count=1)
    return re.sub(r"(generation_tokens_total|tokens_predicted_total)(\S*) \S+", r"\1\2 NaN", text)
