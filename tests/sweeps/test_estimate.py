"""What a sweep should take in memory and time, counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import Config
from specgauge.sweeps import estimate
from specgauge.sweeps.estimate import (
    AssumedMachine,
    check_contexts,
    kv_bytes,
    memory_bytes,
    over_memory,
    time_estimate,
)
from specgauge.sweeps.model_sizes import ModelSize, PairSizes, read_model_size, read_sizes
from specgauge.sweeps.plan import plan_cells
from tests.sweeps import made
from tests.sweeps.made import known
from tests.sweeps.test_model_sizes import SHAPE, TENSORS

LAUNCHES = AssumedMachine(name="m", bytes_per_s=1e30, flops_per_s=1e30, launch_s=1.0)
"""Every forward of a model of one layer takes a second."""
ONE = ModelSize(parameters=1, dtype="float32", layers=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.model_folder(tmp_path / "model", SHAPE, TENSORS)


def with_models(folder: Path, draft: object = None, **changes: Any) -> Config:
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    pair = {"name": "p", "target": str(folder), "draft": draft or str(folder)}
    return made.config(**{"pairs": [pair], "workload": {"prompts": str(prompts)}, **changes})


def test_memory_by_part(folder: Path) -> None:
    size = read_model_size(ModelConfig(model=str(folder)), role="target")
    config = with_models(
        folder,
        grid={"batch_size": [1, 4], "context": [16, 64], "gamma": "1:3"},
        acceptance={"batch_size": 2, "chunk": 5},
    )
    assert memory_bytes(config, PairSizes(target=size, draft=size), plan_cells(config)) == {
        "weights": 2 * 4 * 4224,
        "keys and values": 2 * (2 * 2 * 2 * 8 * (64 + 3 + 1) * 4 * 4),
        "logits": max(4 * (3 + 1), 2 * 5) * 100 * 4 * 4,
    }
    assert memory_bytes(config, PairSizes(target=size, draft=None), plan_cells(config)) == {
        "weights": None,
        "keys and values": None,
        "logits": 16 * 100 * 4 * 4,
    }


def test_time_is_counted_in_forwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "assumed_machine", lambda spec, threads: LAUNCHES)
    config = with_models(
        folder,
        precision={"block_samples": 2, "min_blocks": 3, "max_blocks": 10, "max_seconds": None},
        workload={"prompts": "embedded", "max_new_tokens": 10, "repetitions": 3},
        acceptance={"batch_size": 8},
    )
    found = known(time_estimate(config, config.pairs[0], PairSizes(target=ONE, draft=ONE), prompts=20))
    # decode 2, draft 1 + 3 + 1, catch-up 2, three verifies of 2: 15 forwards a sample; prefills 2 a block
    assert found.timing_s[0] == pytest.approx(3 * (2 * 15 + 2), rel=1e-12)
    assert found.timing_s[1] == pytest.approx(10 * 2 * 15 + 5 * 2, rel=1e-12)
    # 3 batches × 3 texts: a prefill, 10 tokens, two passes
    assert found.acceptance_s == pytest.approx(9 * 13, rel=1e-12)
    assert time_estimate(config, config.pairs[0], PairSizes(target=ONE, draft=None), prompts=20) is None


def test_decoding_end_to_end_is_counted_in_forwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block at γ = 2: three baselines of 11 forwards; two prefills, 10 / 2 rounds of 3, and a pass of each model."""
    monkeypatch.setattr(estimate, "assumed_machine", lambda spec, threads: LAUNCHES)

    def found(**verify: Any) -> float:
        config = with_models(
            folder,
            grid={"batch_size": [1, 4], "context": [16, 64], "gamma": "1:3"},
            validate={"gamma": 2, "context": 16, "max_new_tokens": 10, "max_seconds": None, **verify},
        )
        seconds = known(time_estimate(config, config.pairs[0], PairSizes(target=ONE, draft=ONE), prompts=20))
        return seconds.validation_s

    block = 3 * 11 + 2 + 5 * 3 + 2
    assert found(prompts=6) == pytest.approx((6 + 2) * block, rel=1e-12)
    assert found(prompts=None, repetitions=2) == pytest.approx(2 * (20 + 5) * block, rel=1e-12)
    assert found(max_seconds=300) == pytest.approx(300, rel=1e-12)
    assert found(max_seconds=1) == pytest.approx(2 * block, rel=1e-12)
    few = block - 2 * 11  # without generate and the bare loop
    assert found(prompts=6, baseline_blocks=1) == pytest.approx(8 * few + 2 * 22, rel=1e-12)
    assert found(prompts=6, baseline_blocks=4) == pytest.approx(8 * few + 6 * 22, rel=1e-12)
    arm = 2 + 5 * 3 + 2  # a policy drafts about as γ = 2 does
    found_with = found(prompts=6, policies=["svip", "renewal"])
    assert found_with == pytest.approx((6 + 2) * (block + 2 * arm), rel=1e-12)


def test_a_forward_is_bound_by_memory_or_by_arithmetic() -> None:
    machine = AssumedMachine(name="m", bytes_per_s=8.0, flops_per_s=4.0, launch_s=0.5)
    size = ModelSize(parameters=4, dtype="float32", layers=2)
    assert machine.forward_s(size, 1) == 2 * 0.5 + 16 / 8
    assert machine.forward_s(size, 10) == 2 * 0.5 + 2 * 4 * 10 / 4


@pytest.mark.parametrize(("section", "most"), [(None, 124), ({"max_new_tokens": 29}, 99)])
def test_a_context_without_room_is_refused_before_anything_is_measured(folder: Path, section: Any, most: int) -> None:
    """128 positions take a round of γ = 3 after 124, and a text of 29 tokens after 99."""

    def check(context: int, **rules: Any) -> None:
        config = with_models(folder, grid={"context": [64, context], "gamma": "1:3", **rules}, validate=section)
        check_contexts(config, read_sizes(config))

    check(most)
    check(most + 1, exclude=[{"context": most + 1}])
    with pytest.raises(ValueError, match=str(most)):
        check(most + 1)


def test_a_cell_over_the_limit_is_told_with_the_figures(folder: Path) -> None:
    """Weights 2 · 40 bytes; keys and values 2 models · 2 · (s + 4) tokens · B · 4 bytes: 960 at (1, 56)."""
    size = ModelSize(parameters=10, dtype="float32", layers=1, kv_heads=1, head_dim=1, vocabulary=5, max_context=128)
    sizes, grid = PairSizes(target=size, draft=size), {"batch_size": [1, 2], "context": [16, 56], "gamma": "1:3"}
    config = with_models(folder, grid=grid, limits={"memory": 80 + 960})
    *fitting, largest = plan_cells(config)
    assert [over_memory(config, sizes, cell) for cell in fitting] == [None] * 3
    assert str(over_memory(config, sizes, largest)).startswith("needs 0.00191 MiB by estimate (weights 7.63e-05 MiB, ")
    assert over_memory(config, PairSizes(target=size, draft=None), largest) is None
    assert over_memory(with_models(folder, grid=grid), sizes, largest) is None
    assert kv_bytes(config, sizes, fitting[1]) == 960
    ruled = with_models(folder, grid={**grid, "exclude": [{"batch_size": 2, "context": 56}]})
    expected = time_estimate(ruled, ruled.pairs[0], sizes, prompts=2)
    assert time_estimate(config, config.pairs[0], sizes, prompts=2) == expected
    too_large = with_models(folder, limits={"memory": 79})
    assert str(over_memory(too_large, sizes, largest)).endswith("raise it, or load the models in a smaller dtype")


def test_a_search_is_estimated_between_its_fewest_gammas_and_all_of_them() -> None:
    """The seconds of a cell bound the most."""

    def timing_s(gamma: object, **precision: Any) -> tuple[float, float]:
        grid = {"batch_size": 1, "context": 64, "gamma": gamma}
        config = made.config(grid=grid, **({"precision": precision} if precision else {}))
        found = known(time_estimate(config, config.pairs[0], read_sizes(config)["p"], 10))
        return found.timing_s

    searched, every, fewest = timing_s({"max": 12, "search": "adaptive"}), timing_s("1:12"), timing_s("1:4")
    assert searched[1] == every[1]
    assert fewest[0] < searched[0] < every[0]
    bounded = timing_s("1:12", max_seconds=100, max_cell_seconds=1e-9)
    assert bounded == (every[0], every[0])
