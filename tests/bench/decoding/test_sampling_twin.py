"""The numpy chain against transformers' own processors: the same tokens kept, the same float32 bits on them."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
from transformers.generation.logits_process import LogitsProcessorList

from specgauge.model.sampling import PROCESSORS, SamplingSettings, processed_logits, processed_probs

ROWS, VOCABULARY, HISTORY = 12, 1000, 40
TOP_P = (0.11, 0.37, 0.83)

SETTINGS = [
    SamplingSettings(temperature=0.7),
    SamplingSettings(temperature=1.7),
    SamplingSettings(top_k=1),
    SamplingSettings(top_k=50),
    SamplingSettings(top_k=5000),
    SamplingSettings(top_p=0.1),
    SamplingSettings(top_p=0.9),
    SamplingSettings(min_p=0.05),
    SamplingSettings(min_p=1.0),
    SamplingSettings(repetition_penalty=1.3),
    SamplingSettings(repetition_penalty=0.8),
    SamplingSettings(temperature=0.6, top_k=20, top_p=0.95),
    SamplingSettings(repetition_penalty=1.1, temperature=0.8, top_k=64, top_p=0.9, min_p=0.02),
]


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=4, n_layer=1, n_head=1))


def transformers_chain(model: GPT2LMHeadModel, settings: SamplingSettings) -> LogitsProcessorList:
    """The list that `generate` itself would build for these settings."""
    config: GenerationConfig = cast(Any, GenerationConfig)(
        do_sample=True,
        temperature=float(settings.temperature),
        top_k=settings.top_k or 0,
        top_p=settings.top_p if settings.top_p is not None else 1.0,
        min_p=settings.min_p,
        repetition_penalty=float(settings.repetition_penalty),
    )
    build = cast(Any, model)._get_logits_processor
    return cast(LogitsProcessorList, build(config, input_ids_seq_length=HISTORY))


def transformers_scores(
    processors: LogitsProcessorList, logits: NDArray[np.float32], history: NDArray[np.int64]
) -> torch.Tensor:
    return processors(torch.LongTensor(history), torch.FloatTensor(logits.copy()))


def random_case(seed: int, scale: float = 3.0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((ROWS, VOCABULARY)) * scale).astype(np.float32)
    return logits, generator.integers(0, VOCABULARY, (ROWS, HISTORY))


def test_the_order_is_transformers_order(model: GPT2LMHeadModel) -> None:
    everything = SamplingSettings(repetition_penalty=1.1, temperature=0.8, top_k=64, top_p=0.9, min_p=0.02)
    names = [type(processor).__name__ for processor in transformers_chain(model, everything)]
    assert [name.lower().replace("_", "") for name in PROCESSORS] == [
        name.removesuffix("LogitsProcessor").removesuffix("LogitsWarper").lower() for name in names
    ]


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_transformers_bit_for_bit_in_float32(
    model: GPT2LMHeadModel, settings: SamplingSettings, seed: int
) -> None:
    logits, history = random_case(seed)
    expected = transformers_scores(transformers_chain(model, settings), logits, history)
    found = processed_logits(logits, settings, history, dtype=np.float32)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.numpy())
    np.testing.assert_allclose(
        processed_probs(logits, settings, history, dtype=np.float32), torch.softmax(expected, -1).numpy(), rtol=2e-6
    )


@pytest.mark.parametrize(
    "settings",
    [*(SamplingSettings(top_k=k) for k in (1, 2, 3, 5)), *(SamplingSettings(top_p=p) for p in TOP_P)],
    ids=repr,
)
def test_ties_are_those_of_a_stable_sort(
    settings: SamplingSettings, monkeypatch: pytest.MonkeyPatch, model: GPT2LMHeadModel
) -> None:
    """Which of equal logits transformers keeps under top-p is up to torch's sort; a stable one keeps what we keep."""
    unstable_sort = torch.sort
    monkeypatch.setattr(torch, "sort", lambda scores, **options: unstable_sort(scores, stable=True, **options))
    logits = np.random.default_rng(5).integers(0, 3, (ROWS, 300)).astype(np.float32)
    history = np.zeros((ROWS, 1), dtype=np.int64)
    expected = transformers_scores(transformers_chain(model, settings), logits, history).numpy()
    np.testing.assert_array_equal(processed_logits(logits, settings, dtype=np.float32), expected)
