"""An engine whose T_round(B, γ) and acceptance are known is advised within 1 % of its best γ at every batch size."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest
import yaml

from specgauge.sweeps.exports.registry import export_settings
from specgauge.sweeps.store.rundir import Run
from tests.sweeps.exports.made_engine import MadeEngine, config, write_run

SIZES = (1, 8, 32, 96)
ENGINES = {
    "usual": MadeEngine(),
    "good draft": MadeEngine(alpha=0.9, draft_s=0.4e-3),
    "pays at few": MadeEngine(token_s=0.6e-3, alpha=0.6),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> MadeEngine:
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def run(engine: MadeEngine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("trip") / "run", engine, config(SIZES))


def vllm_gamma(content: str) -> Callable[[int], int]:
    """As vLLM looks it up: ranges include both ends, gaps and the tail carry on, cut to num_speculative_tokens."""
    found = json.loads(content)

    def gamma(batch_size: int) -> int:
        started = [entry for entry in found["num_speculative_tokens_per_batch_size"] if entry[0] <= batch_size]
        return min(int(started[-1][2]), int(found["num_speculative_tokens"]))

    return gamma


def sglang_gamma(content: str) -> Callable[[int], int]:
    """As SGLang routes: the largest key at or below the batch size."""
    slots = {int(key): slot for key, slot in json.loads(content).items() if key.isdigit()}
    return lambda size: int(slots[max(key for key in slots if key <= size)]["candidate_steps"][0])


def up_to_gamma(content: str) -> Callable[[int], int]:
    """As TensorRT-LLM looks it up from 1.3.0rc8 on: the smallest key at or above the batch size, beyond all 0."""
    schedule: Mapping[int, int] = yaml.safe_load(content)["speculative_config"]["draft_len_schedule"]
    return lambda size: next((gamma for key, gamma in sorted(schedule.items()) if size <= key), 0)


def from_on_gamma(content: str) -> Callable[[int], int]:
    """As it did before: the largest key at or below the batch size."""
    schedule: Mapping[int, int] = yaml.safe_load(content)["speculative_config"]["draft_len_schedule"]
    return lambda size: schedule[max(key for key in schedule if key <= size)]


READERS: dict[tuple[str, str | None, str | None], Callable[[str], Callable[[int], int]]] = {
    ("vllm", None, None): vllm_gamma,
    ("sglang", "adaptive", None): sglang_gamma,
    ("tensorrt-llm", None, None): up_to_gamma,
    ("tensorrt-llm", None, "1.2.1"): from_on_gamma,
}


@pytest.mark.parametrize(("name", "form", "release"), READERS)
def test_every_batch_size_is_advised_within_a_hundredth(
    run: Run, engine: MadeEngine, name: str, form: str | None, release: str | None
) -> None:
    content = export_settings(run, name, form=form, release=release).content
    gamma = READERS[(name, form, release)](content)
    losses = {}
    for size in range(1, SIZES[-1] + 1):
        best = max(engine.speedup(size, one) for one in range(9))
        losses[size] = 1 - engine.speedup(size, gamma(size)) / best
    assert max(losses.values()) <= 0.01 + 1e-9
    assert len({gamma(size) for size in losses}) > 1
    assert gamma(SIZES[-1] + 1) == gamma(10 * SIZES[-1]) == 0


@pytest.mark.parametrize("name", ["sglang", "llama.cpp", "transformers"])
def test_one_gamma_is_that_of_a_single_row(run: Run, engine: MadeEngine, name: str) -> None:
    content = export_settings(run, name).content
    steps = {"sglang": "--speculative-num-steps ", "llama.cpp": "--spec-draft-n-max "}
    after = content.partition(steps.get(name, '"num_assistant_tokens": '))[2]
    gamma = int("".join(after.replace(",", " ").split()[:1]))
    best = max(engine.speedup(1, one) for one in range(9))
    assert engine.speedup(1, gamma) >= 0.99 * best
