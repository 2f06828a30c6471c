"""Measure the figures of the model card: losses, acceptance, repeats, and what a target and a draft step cost here.

    python -m specgauge.bench.embedded.measure_card

prints one JSON object.  Costs are those of two interleaved one-token forwards at batch 1 and a context of 64 tokens, as
medians; run it on an idle machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from specgauge.bench.acceptance.teacher_forced import measure_acceptance
from specgauge.bench.decoding.plain import generate_plain, pad_right
from specgauge.bench.decoding.records import Text
from specgauge.bench.embedded.train import corpus_files, encode, held_out_loss, read_texts
from specgauge.bench.models.pair import EMBEDDED, LoadedPair, load_pair
from specgauge.bench.prompts import encode_prompts, read_prompts
from specgauge.bench.timing.arm_runner import ArmRunner
from specgauge.bench.timing.clock import HostClock
from specgauge.configs.pairs import ModelConfig, PairConfig
from specgauge.configs.schema import WorkloadConfig
from specgauge.model.acceptance.recorded import repeated_ngram_share
from specgauge.model.sampling import SamplingSettings

NEW_TOKENS = 64
SAMPLES = 60


def step_costs_s(pair: LoadedPair, prompts: list[list[int]]) -> dict[str, float]:
    """Median seconds of one target step and one draft step, interleaved."""
    bench = ArmRunner(pair, prompts, batch_size=1, max_context=64, gamma_max=1, seed=0)
    clock = HostClock()
    settings = SamplingSettings()
    samples: dict[str, list[float]] = {"decode": [], "draft": []}
    for _ in range(SAMPLES + 5):
        for arm, found in samples.items():
            found.append(bench.sample(arm, 64, settings, clock)[-1])
    return {arm: float(np.median(found[5:])) for arm, found in samples.items()}


def acceptance_and_repeats(
    pair: LoadedPair, prompts: list[list[int]], settings: SamplingSettings, *, new_tokens: int = NEW_TOKENS
) -> tuple[pd.DataFrame, float]:
    """Of the target's own texts: `measure_acceptance`, and the share of 4-grams that occurred before."""
    texts: list[Text] = []
    for first in range(0, len(prompts), 8):
        batch = prompts[first : first + 8]
        numbers = range(first, first + len(batch))
        texts += generate_plain(pair.target, batch, settings, max_new_tokens=new_tokens, seed=0, prompt_numbers=numbers)
    tokens, valid = pad_right([text.tokens for text in texts], 0, torch.device("cpu"))
    repeats = repeated_ngram_share(tokens.numpy(), valid.sum(dim=1).numpy(), n=4)
    frame = measure_acceptance(pair.target, pair.draft_model, texts, settings, batch_size=8, chunk=64)
    return frame, float(np.nanmean(repeats))


def measure() -> dict[str, Any]:
    """Every figure of the card."""
    spec = ModelConfig(model="embedded", device="cpu")
    pair = load_pair(PairConfig(name="embedded", target=spec, draft=spec))
    workload = WorkloadConfig()
    prompts = encode_prompts(read_prompts(workload), pair.target.tokenizer, workload)
    card: dict[str, Any] = {
        "bytes": sum((EMBEDDED / role / "model.safetensors").stat().st_size for role in ("target", "draft")),
        "prompts": len(prompts),
        "threads": torch.get_num_threads(),
    }
    costs = step_costs_s(pair, prompts)
    card |= {
        "t_decode_s": round(costs["decode"], 6),
        "t_draft_s": round(costs["draft"], 6),
        "t_decode_over_t_draft": round(costs["decode"] / costs["draft"], 3),
    }
    for name, settings in (("greedy", SamplingSettings(temperature=0.0)), ("t1", SamplingSettings())):
        frame, repeats = acceptance_and_repeats(pair, prompts, settings)
        known = frame.dropna(subset=["target_prob"])
        accepted = np.minimum(1.0, known["draft_prob"] / known["target_prob"])
        card[f"mean_acceptance_{name}"] = round(float(np.mean(accepted)), 4)
        card[f"repeated_4gram_share_{name}"] = round(repeats, 4)
    _, held_out = corpus_files()
    tokenizer: Any = pair.target.tokenizer
    stream = encode(tokenizer, read_texts(held_out))
    card["held_out_tokens"] = int(stream.numel())
    for role, loaded in (("target", pair.target), ("draft", pair.draft_model)):
        network: Any = loaded.model
        card[f"held_out_nats_{role}"] = round(held_out_loss(network, stream), 4)
    return card


def main() -> None:
    """Print the card's figures."""
    if not Path(EMBEDDED / "target" / "config.json").exists():
        sys.exit("the embedded weights are not there; train them with python -m specgauge.bench.embedded.train")
    print(json.dumps(measure(), indent=2, allow_nan=False))


if __name__ == "__main__":
    main()
