"""CUDA takes the same path as the CPU: a whole run on the shipped pair, and the same texts and probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from specgauge.bench.acceptance.teacher_forced import measure_acceptance
from specgauge.bench.models.pair import LoadedPair, load_pair, pair_in_mode
from specgauge.bench.models.static_graphs import no_compilation
from specgauge.bench.prompts import encode_prompts, read_prompts
from specgauge.configs.fields import Mode
from specgauge.configs.loader import load_config
from specgauge.configs.pairs import ModelConfig, PairConfig
from specgauge.configs.schema import WorkloadConfig
from specgauge.model.sampling import SamplingSettings
from specgauge.sweeps.run.runner import run
from specgauge.sweeps.store.rundir import Run
from tests.bench.decoded import GREEDY, batch_of, decoder_of, plain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@pytest.mark.parametrize(
    "settings",
    [
        ["pairs[0].target.device=cuda", "pairs[0].draft={model: embedded, device: cuda}"],
        ["pairs[0].target.device=cuda", "pairs[0].draft={model: embedded, device: cpu}"],
        ["pairs[0].target.device=cuda", "pairs[0].draft=ngram"],
        ["pairs[0].target.device=cuda", "pairs[0].draft={layers: 4}"],
        ["mode=cuda_graph", "grid.context=[64,128]"],
    ],
)
def test_a_whole_run_on_cuda(tmp_path: Path, settings: list[str]) -> None:
    small = ["workload.limit=4", "grid.context=[64]", "grid.gamma=1:3", "precision.max_blocks=3"]
    assert run(load_config("quickstart", [*small, *settings]), out=tmp_path / "run") == 0
    finished = Run.open(tmp_path / "run")
    lines = finished.journal()
    assert {line.status for line in lines} == {"ok"}
    assert finished.environment["device"] == torch.cuda.get_device_name(0)
    assert (finished.predictions()["speedup"] > 0).all()
    crosses = any("device: cpu" in one for one in settings)
    assert (finished.predictions()["t_transfer_s"].notna()).all() == crosses
    assert ("mode=cuda_graph" in settings) == (sum(line.notes.get("graphs_built", 0) for line in lines) > 0)


def embedded(device: str, dtype: Literal["float32", "float64"], limit: int) -> tuple[LoadedPair, list[list[int]]]:
    spec = ModelConfig(model="embedded", device=device, dtype=dtype)
    pair = load_pair(PairConfig(name="embedded", target=spec, draft=spec))
    workload = WorkloadConfig(limit=limit)
    return pair, encode_prompts(read_prompts(workload), pair.target.tokenizer, workload)


@pytest.mark.parametrize("mode", ["compile", "cuda_graph"])
def test_modes_decode_the_same_text_and_are_built_once(mode: Mode) -> None:
    new, found = 24, []
    pair, prompts = embedded("cuda", "float64", 3)
    for one in (pair, pair_in_mode(pair, mode)):
        decoder = decoder_of(one.target, one.draft_model, GREEDY)
        longest = max(len(prompt) for prompt in prompts)
        decoder.compile(batch_size=3, prompt_tokens=longest, gamma=3, max_new_tokens=new)
        with no_compilation("decoding"):
            for _ in range(3):
                decoded = decoder.run(batch_of(prompts, new), gamma=3)
                found.append([text.tokens for text in decoded.texts])
    assert all(tokens == found[0] for tokens in found)


def test_both_devices_see_the_same_probabilities() -> None:
    settings = SamplingSettings(temperature=0.8, top_p=0.95)
    (on_host, prompts), (on_cuda, _) = (embedded(device, "float32", 4) for device in ("cpu", "cuda"))
    texts = plain(on_host.target, settings, prompts, new=32)
    frames = [
        measure_acceptance(pair.target, pair.draft_model, texts, settings, batch_size=4, chunk=16)
        for pair in (on_host, on_cuda)
    ]
    np.testing.assert_allclose(frames[0]["draft_prob"], frames[1]["draft_prob"], atol=1e-3)
    np.testing.assert_allclose(frames[0]["overlap_ratio"], frames[1]["overlap_ratio"], atol=1e-3)
