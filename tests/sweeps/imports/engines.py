"""A made engine whose rounds and acceptance are known, and the files that real engines would write of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ALPHA = 0.7
GAMMAS = (0, 1, 2, 3, 4, 5, 6)
BATCH_SIZES = (1, 8, 32, 128)
PROMPT_TOKENS, OUTPUT_TOKENS, REQUESTS = 500, 200, 64
NOISE = (0.997, 1.0, 1.004)
"""What each repetition of a run takes, over its true time."""


def t_round_s(batch_size: int, gamma: int) -> float:
    """Weights, then cache and arithmetic that grow with tokens; drafts, and what every round costs beside."""
    if gamma == 0:
        return 0.010 + 0.00018 * batch_size
    return 0.010 + 0.00018 * batch_size * (gamma + 1) + gamma * (0.0009 + 0.000004 * batch_size) + 0.0005


def omega(gamma: int) -> float:
    """Tokens per round, the bonus included."""
    return 1 + sum(ALPHA**i for i in range(1, gamma + 1))


def speedup(batch_size: int, gamma: int) -> float:
    """The true S."""
    return omega(gamma) * t_round_s(batch_size, 0) / t_round_s(batch_size, gamma)


def best(batch_size: int) -> float:
    """The largest true S of any γ, plain decoding included."""
    return max(speedup(batch_size, gamma) for gamma in GAMMAS)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Whole rounds of a run, as near to what is expected as counts can be."""

    rounds: int
    accepted_by_position: tuple[int, ...]

    @property
    def accepted(self) -> int:
        return sum(self.accepted_by_position)

    @property
    def tokens(self) -> int:
        """After the first of each request."""
        return self.rounds + self.accepted

    @property
    def histogram(self) -> list[int]:
        """Rounds that accepted exactly 0, 1, … drafts."""
        ends = (self.rounds, *self.accepted_by_position, 0)
        return [now - after for now, after in pairwise(ends)]


def counts(gamma: int) -> Counts:
    """Of about 12,800 tokens, in rounds that every batch size divides."""
    rounds = 128 * round(OUTPUT_TOKENS * REQUESTS / omega(gamma) / 128)
    return Counts(rounds=rounds, accepted_by_position=tuple(round(rounds * ALPHA**i) for i in range(1, gamma + 1)))


def bench_result(batch_size: int, gamma: int, noise: float = 1.0, **changes: Any) -> dict[str, Any]:
    """What `vllm bench serve --save-result` writes."""
    own, requests = counts(gamma), REQUESTS
    decode_s = own.rounds * t_round_s(batch_size, gamma) * noise
    latency_s = decode_s + requests * 0.05
    result = {
        "model_id": "big",
        "backend": "vllm",
        "num_prompts": requests * batch_size,
        "request_rate": "inf",
        "max_concurrency": batch_size,
        "duration": latency_s / batch_size,
        "completed": requests,
        "failed": 0,
        "total_input_tokens": requests * PROMPT_TOKENS,
        "total_output_tokens": own.tokens + requests,
        "mean_ttft_ms": 50.0,
        "mean_itl_ms": 1e3 * decode_s / own.rounds,
        "mean_tpot_ms": 1e3 * decode_s / own.tokens,
        "mean_e2el_ms": 1e3 * latency_s / requests,
    }
    if gamma:
        result |= {
            "spec_decode_acceptance_rate": 100 * own.accepted / (gamma * own.rounds),
            "spec_decode_acceptance_length": own.tokens / own.rounds,
            "spec_decode_num_drafts": own.rounds,
            "spec_decode_draft_tokens": gamma * own.rounds,
            "spec_decode_accepted_tokens": own.accepted,
            "spec_decode_per_position_acceptance_rates": [one / own.rounds for one in own.accepted_by_position],
        }
    return result | changes


def scrape(batch_size: int, gamma: int, times: float, noise: float = 1.0) -> str:
    """/metrics of a vLLM server after `times` times the run."""
    own, requests = counts(gamma), REQUESTS
    seconds = own.rounds * t_round_s(batch_size, gamma) * noise
    values = {
        "vllm:generation_tokens_total": own.tokens + requests,
        "vllm:generation_tokens_created": 1.7e9 / max(times, 1e-9) * times if times else 1.7e9,
        "vllm:time_to_first_token_seconds_count": requests,
        "vllm:request_prompt_tokens_count": requests,
        "vllm:request_prompt_tokens_sum": requests * PROMPT_TOKENS,
        "vllm:inter_token_latency_seconds_count": own.rounds,
        "vllm:inter_token_latency_seconds_sum": seconds,
        "vllm:iteration_tokens_total_count": own.rounds // batch_size,
    }
    if gamma:
        values |= {
            "vllm:spec_decode_num_drafts_total": own.rounds,
            "vllm:spec_decode_num_draft_tokens_total": gamma * own.rounds,
            "vllm:spec_decode_num_accepted_tokens_total": own.accepted,
        }
    lines = [
        f'{name}{{engine="0",model_name="big"}} {value if name.endswith("_created") else value * times}'
        for name, value in values.items()
    ]
    for position, accepted in enumerate(own.accepted_by_position):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines.append(f'{name}{{engine="0",model_name="big",position="{position}"}} {accepted * times}')
    return "# TYPE vllm:generation_tokens counter\n" + "\n".join(lines) + "\n"


def llama_scrape(batch_size: int, gamma: int, times: float, noise: float = 1.0) -> str:
    """/metrics of a llama-server after `times` times the run, of requests so long that first tokens hardly count."""
    own = counts(gamma)
    values = {
        "tokens_predicted_total": own.tokens,
        "tokens_predicted_seconds_total": own.rounds * t_round_s(batch_size, gamma) * noise,
        "n_decode_total": own.rounds // batch_size,
    }
    if gamma:
        values |= {
            "spec_decode_num_drafts_total": own.rounds,
            "spec_decode_num_draft_tokens_total": gamma * own.rounds,
            "spec_decode_num_accepted_tokens_total": own.accepted,
        }
    lines = [f"llamacpp:{name} {value * times}" for name, value in values.items()]
    for position, accepted in enumerate(own.accepted_by_position):
        name = f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}'
        lines.append(f"{name} {accepted * times}")
    return "# TYPE llamacpp:tokens_predicted_total counter\n" + "\n".join(lines) + "\n"


def written(path: Path, content: Any) -> Path:
    """A file with some text, or with JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def bench_files(folder: Path) -> list[Path]:
    return [
        written(folder / f"b{batch_size}-g{gamma}-{number}.json", bench_result(batch_size, gamma, noise))
        for batch_size in BATCH_SIZES
        for gamma in GAMMAS
        for number, noise in enumerate(NOISE)
    ]


def scrape_files(folder: Path, text: Callable[[int, int, float, float], str] = scrape) -> list[Path]:
    """Pairs of scrapes of one server a run."""
    return [
        written(folder / f"b{batch_size}-g{gamma}-{number}-{when}.txt", text(batch_size, gamma, times, noise))
        for batch_size in BATCH_SIZES
        for gamma in GAMMAS
        for number, noise in enumerate(NOISE)
        for when, times in (("before", 1), ("after", 2))
    ]


def sweep_folder(folder: Path) -> list[Path]:
    """A folder of `vllm bench sweep serve`."""
    for batch_size in BATCH_SIZES:
        for gamma in GAMMAS:
            for number, noise in enumerate(NOISE):
                config = {"method": "draft_model", "model": "small", "num_speculative_tokens": gamma}
                more = {"speculative_config": config} if gamma else {}
                result = bench_result(batch_size, gamma, noise, **more)
                name = f"SERVE--gamma{gamma}-BENCH--max_concurrency={batch_size}"
                written(folder / name / f"run={number}.json", result)
    return [folder]


def table_file(folder: Path) -> list[Path]:
    header = "batch_size,context,gamma,t_round_s,rounds,tokens,accepted_by_position\n"
    lines = []
    for batch_size in BATCH_SIZES:
        for gamma in GAMMAS:
            own = counts(gamma)
            for noise in NOISE:
                counted = f"{own.rounds},{own.tokens},{';'.join(map(str, own.accepted_by_position))}" if gamma else ",,"
                lines.append(f"{batch_size},600,{gamma},{t_round_s(batch_size, gamma) * noise},{counted}\n")
    return [written(folder / "runs.csv", header + "".join(lines))]


def shares(gamma: int) -> list[Counts]:
    """The counts of a run by request: 128 of them, whose sums are the run's."""
    own = counts(gamma)

    def share(total: int, request: int) -> int:
        return total * (request + 1) // 128 - total * request // 128

    return [
        Counts(
            rounds=own.rounds // 128,
            accepted_by_position=tuple(share(accepted, request) for accepted in own.accepted_by_position),
        )
        for request in range(128)
    ]


def acceptance(gamma: int, own: Counts) -> dict[str, Any]:
    """What AIPerf and vLLM tell of a request's rounds."""
    return {
        "mean_acceptance_length": own.tokens / own.rounds,
        "draft_acceptance_rate": own.accepted / (gamma * own.rounds),
        "acceptance_histogram": own.histogram,
        "num_accepted_draft_tokens": own.accepted,
        "num_draft_tokens": gamma * own.rounds,
        "num_spec_steps": own.rounds,
        "num_spec_tokens": gamma,
    }


def aiperf_records(batch_size: int, gamma: int, noise: float) -> str:
    """Requests in as many lanes as the batch is wide, one after the other."""
    lines, lanes = [], [0.0] * batch_size
    for request, own in enumerate(shares(gamma)):
        latency_s = 0.05 + own.rounds * t_round_s(batch_size, gamma) * noise
        lane = request % batch_size
        start_s, lanes[lane] = lanes[lane], lanes[lane] + latency_s
        record: dict[str, Any] = {
            "metadata": {
                "x_request_id": str(request),
                "request_start_ns": round(start_s * 1e9),
                "request_end_ns": round((start_s + latency_s) * 1e9),
                "benchmark_phase": "profiling",
                "was_cancelled": False,
            },
            "metrics": {
                "request_latency": {"value": 1e3 * latency_s, "unit": "ms"},
                "time_to_first_token": {"value": 50.0, "unit": "ms"},
                "output_sequence_length": {"value": own.tokens + 1, "unit": "tokens"},
                "input_sequence_length": {"value": PROMPT_TOKENS, "unit": "tokens"},
            },
            "error": None,
        }
        if gamma:
            mapping = acceptance(gamma, own)
            mapping["acceptance_histogram"] = {str(key): one for key, one in enumerate(own.histogram)}
            record["spec_decode_acceptance"] = {"engine": "vllm", **mapping}
        lines.append(json.dumps(record))
    return "\n".join(lines) + "\n"


def aiperf_sums(batch_size: int, gamma: int, noise: float) -> dict[str, Any]:
    """What AIPerf sums up over the same requests."""
    own, requests = counts(gamma), len(shares(gamma))
    latency_s = 0.05 + own.rounds / requests * t_round_s(batch_size, gamma) * noise
    found: dict[str, Any] = {
        "schema_version": "1.3",
        "aiperf_version": "0.13.0",
        "request_latency": {"unit": "ms", "avg": 1e3 * latency_s, "count": requests, "sum": 1e3 * requests * latency_s},
        "request_count": {"unit": "requests", "avg": float(requests)},
        "time_to_first_token": {"unit": "ms", "avg": 50.0, "count": requests},
        "output_sequence_length": {"unit": "tokens", "avg": own.tokens / requests + 1},
        "input_sequence_length": {"unit": "tokens", "avg": float(PROMPT_TOKENS)},
        "benchmark_duration": {"unit": "sec", "avg": requests * latency_s / batch_size},
        "is_complete": True,
    }
    if gamma:
        found |= {
            "spec_decode_steps": {"unit": "count", "avg": own.rounds / requests, "count": requests},
            "total_spec_decode_steps": {"unit": "count", "avg": float(own.rounds)},
            "total_accepted_draft_tokens": {"unit": "tokens", "avg": float(own.accepted)},
            "total_draft_tokens": {"unit": "tokens", "avg": float(gamma * own.rounds)},
            "spec_decode_token_weighted_acceptance_length": {"unit": "ratio", "avg": own.tokens / own.rounds},
            "pooled_spec_decode_acceptance_histogram": {str(key): one for key, one in enumerate(own.histogram) if one},
        }
    return found


def vllm_answers(batch_size: int, gamma: int, noise: float) -> list[dict[str, Any]]:
    return [
        {
            "object": "text_completion",
            "model": "big",
            "choices": [],
            "system_fingerprint": "vllm-0.32.0-9cce4504",
            "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": own.tokens + 1},
            "metrics": {
                "generation_time_ms": 1e3 * own.rounds * t_round_s(batch_size, gamma) * noise,
                "speculative_decoding": acceptance(gamma, own) if gamma else None,
            },
        }
        for own in shares(gamma)
    ]


def sglang_line(batch_size: int, gamma: int, noise: float) -> str:
    own, step_s = counts(gamma), t_round_s(batch_size, gamma) * noise
    length = own.tokens / own.rounds
    return json.dumps(
        {
            "batch_size": batch_size,
            "steps": gamma,
            "topk": min(gamma, 1),
            "num_draft_tokens": gamma + 1 if gamma else 0,
            "acc_length": length,
            "step_time": step_s,
            "speed": length / step_s,
            "completion_tokens": own.tokens,
        }
    )


def sglang_answers(gamma: int) -> list[dict[str, Any]]:
    return [
        {
            "text": "",
            "meta_info": {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": own.tokens,
                "e2e_latency": 1.0,
                "spec_verify_ct": own.rounds,
                "spec_accept_length": own.tokens / own.rounds,
                "spec_num_correct_drafts": own.accepted,
                "spec_num_proposed_drafts": gamma * own.rounds,
                "spec_correct_drafts_histogram": own.histogram,
            },
        }
        for own in shares(gamma)
    ]


def llama_answers(batch_size: int, gamma: int, noise: float) -> list[dict[str, Any]]:
    found = []
    for own in shares(gamma):
        seconds = own.rounds * t_round_s(batch_size, gamma) * noise
        drafts = {"draft_n": gamma * own.rounds, "draft_n_accepted": own.accepted} if gamma else {}
        timings = {"prompt_n": PROMPT_TOKENS, "predicted_n": own.tokens + 1, "predicted_ms": 1e3 * seconds}
        found.append({"model": "big.gguf", "choices": [], "timings": timings | drafts})
    return found


def by_run(folder: Path, ending: str, write: Callable[[int, int, float], Any]) -> list[Path]:
    """A file for each batch size, γ and repetition, of what `write` makes."""
    return [
        written(folder / f"b{batch_size:03}-g{gamma}-{number}.{ending}", write(batch_size, gamma, noise))
        for batch_size in BATCH_SIZES
        for gamma in GAMMAS
        for number, noise in enumerate(NOISE)
    ]


def sglang_file(folder: Path) -> list[Path]:
    lines = [sglang_line(size, gamma, noise) for size in BATCH_SIZES for gamma in GAMMAS for noise in NOISE]
    return [written(folder / "bench.jsonl", "\n".join(lines) + "\n")]


MADE: dict[str, Callable[[Path], list[Path]]] = {
    "table": table_file,
    "aiperf": lambda folder: by_run(folder, "jsonl", aiperf_records),
    "vllm-metrics": scrape_files,
    "vllm-bench": bench_files,
    "vllm-requests": lambda folder: by_run(folder, "json", vllm_answers),
    "sglang-bench": sglang_file,
    "llama-server": lambda folder: by_run(folder, "json", llama_answers),
    "llama-metrics": lambda folder: scrape_files(folder, llama_scrape),
}
"""Files of the made engine at every batch size and γ, three runs each, by format."""
WRITERS: dict[str, tuple[str, Callable[[Path], list[Path]]]] = {
    **{name: (name, write) for name, write in MADE.items()},
    "sweep": ("vllm-bench", sweep_folder),
    "aiperf-sums": ("aiperf", lambda folder: by_run(folder, "json", aiperf_sums)),
}
"""Those, and other files of the same formats: the name of the format and what writes them."""
BATCHES_TO_SAY = tuple(size for size in BATCH_SIZES for _ in GAMMAS for _ in NOISE)
"""The batch size of every run, for formats that do not tell it."""
SAID = {"vllm-requests": BATCHES_TO_SAY, "llama-server": BATCHES_TO_SAY}
