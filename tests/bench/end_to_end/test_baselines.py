"""transformers' own generation: the same greedy texts as ours, timed, the models handed back as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from specgauge.bench.cache.adapter import ATTENTION_NAMES
from specgauge.bench.end_to_end.baselines import (
    Generated,
    as_transformers_has_it,
    generate_with_transformers,
)
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings
from tests.bench import decoded
from tests.bench.conftest import FakeClock, FakeDevice
from tests.bench.decoded import GREEDY, Make, batch_of, next_probs

PENALISED = SamplingSettings(temperature=0.0, repetition_penalty=1.3)
DRAWN = SamplingSettings(temperature=0.8, top_k=6, top_p=0.95, min_p=0.01)
PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 1, 0]]
NUMBERS = [3, 4, 9]


def plain(
    target: LoadedModel, settings: SamplingSettings = GREEDY, prompts: Any = PROMPTS, *, new: int = 12, **options: Any
) -> Generated:
    batch = batch_of(prompts, new, NUMBERS[: len(prompts)])
    return generate_with_transformers(target, batch, settings, **{"seed": 5, **options})


def assisted(
    target: LoadedModel,
    draft: LoadedModel,
    settings: SamplingSettings = GREEDY,
    prompt: Sequence[int] = (1, 2, 3, 4),
    number: int = 3,
    *,
    new: int = 12,
    **options: Any,
) -> Generated:
    given = {"gamma": 3, "seed": 5, **options}
    return generate_with_transformers(target, batch_of([prompt], new, [number]), settings, draft=draft, **given)


@pytest.mark.parametrize("settings", [GREEDY, PENALISED])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_greedy_texts_are_ours(tiny_model: Make, settings: SamplingSettings, dtype: torch.dtype) -> None:
    target, draft = tiny_model(eos=(4,), scale=0.3), tiny_model(seed=1, scale=0.3)
    for loaded in (target, draft):
        loaded.model.to(dtype)  # type: ignore[arg-type]
    ours = decoded.plain(target, settings, PROMPTS, new=12, numbers=NUMBERS)
    assert plain(target, settings).texts == ours
    for prompt, text in zip(PROMPTS, ours, strict=True):
        assert assisted(target, draft, settings, prompt, text.prompt).texts == [text]


def test_models_come_back_as_they_were_and_run_on_transformers_attention_meanwhile(tiny_model: Make) -> None:
    target, draft = tiny_model(), tiny_model(seed=1)
    configs = [(loaded.model, loaded.model.generation_config) for loaded in (target, draft)]
    seen = []
    target.model.register_forward_pre_hook(lambda module, _: seen.append(module.config._attn_implementation))
    draft.model.register_forward_pre_hook(lambda module, _: seen.append(module.config._attn_implementation))
    assisted(target, draft)
    assert set(seen) == {"sdpa"}

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    target.model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        assisted(target, draft)
    for model, generation in configs:
        assert model.config._attn_implementation == ATTENTION_NAMES["sdpa"]
        assert model.generation_config is generation


def test_where_an_architecture_has_no_sdpa_transformers_writes_attention_out() -> None:
    torch.manual_seed(0)
    size: Any = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    model: Any = Gemma2ForCausalLM(Gemma2Config(**size, num_attention_heads=2, num_key_value_heads=1))
    model.set_attn_implementation(ATTENTION_NAMES["sdpa"])
    model._supports_sdpa = False  # so it is in some releases
    with as_transformers_has_it(model, model.generation_config):
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == ATTENTION_NAMES["sdpa"]


def test_settings_that_came_with_the_model_are_put_aside(tiny_model: Make) -> None:
    target = tiny_model()
    settings: Any = target.model.generation_config
    settings.update(do_sample=True, temperature=0.1, repetition_penalty=5.0, no_repeat_ngram_size=1, eos_token_id=[1])
    assert plain(target).texts == decoded.plain(target, GREEDY, PROMPTS, new=12, numbers=NUMBERS)


def test_drawn_texts_follow_the_seed_and_leave_torchs_own_alone(tiny_model: Make) -> None:
    target, draft = tiny_model(scale=0.2), tiny_model(seed=1, scale=0.2)
    before = torch.random.get_rng_state()
    assert plain(target, DRAWN).texts == plain(target, DRAWN).texts
    assert plain(target, DRAWN).texts != plain(target, DRAWN, seed=6).texts
    assert assisted(target, draft, DRAWN).texts == assisted(target, draft, DRAWN).texts
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(top_k=3, min_p=0.2),
        SamplingSettings(top_k=1, top_p=0.1, min_p=0.9, min_tokens_to_keep=3),
        SamplingSettings(temperature=1.3, top_p=0.8, repetition_penalty=1.7),
    ],
    ids=str,
)
def test_drawn_tokens_are_distributed_as_our_chain_says(tiny_model: Make, settings: SamplingSettings) -> None:
    target, count = tiny_model(scale=0.25), 1500
    prompt = [1, 2, 3, 2]
    found = generate_with_transformers(target, batch_of([prompt] * count, 1), settings, seed=0)
    expected = next_probs(target, prompt, settings).numpy()
    counts = torch.bincount(torch.tensor([text.tokens[0] for text in found.texts]), minlength=11).numpy()
    assert ((counts > 0) <= (expected > 0)).all()
    assert (abs(counts - count * expected) <= 4.5 * (count * expected * (1 - expected)) ** 0.5 + 1e-9).all()


def test_seconds_are_from_the_call_to_its_return_and_from_the_first_step_to_the_last(tiny_model: Make) -> None:
    target, draft, device = tiny_model(), tiny_model(seed=1), FakeDevice()
    clock = FakeClock(device, marks_on_host=False)
    target.model.register_forward_hook(lambda *_: device.launch(1.0))
    draft.model.register_forward_hook(lambda *_: device.launch(0.01))
    found = plain(target, clock=clock)
    assert (found.first_step_s, found.decode_s, found.total_s) == pytest.approx((1.0, 11.0, 12.0))
    assert (found.steps, found.decode_tokens) == (12, 33)
    found = assisted(target, tiny_model(), gamma=2, new=7, clock=clock)  # 3 of 7, 3, and the last alone
    assert (found.steps, found.decode_tokens) == (3, 4)
    device.log.clear()
    found = assisted(target, draft, gamma=2, clock=clock)
    assert found.first_step_s == pytest.approx(1.02)
    assert found.total_s == pytest.approx(found.first_step_s + found.decode_s)


def test_tokens_after_the_end_are_not_counted(tiny_model: Make) -> None:
    found = plain(tiny_model(eos=(4, 7), scale=0.3), new=30)
    assert {text.end_reason for text in found.texts} == {"eos", "length"} or found.steps < 30
    assert found.steps == max(len(text.tokens) for text in found.texts)
    assert found.decode_tokens == sum(len(text.tokens) - 1 for text in found.texts)


def test_what_transformers_cannot_do_is_refused(tiny_model: Make) -> None:
    target = tiny_model(max_context=20)
    for prompts, words in (([[1], [2, 3]], "tiny: expected prompts of one length"), ([[], [1]], "prompt 3 has no")):
        with pytest.raises(ValueError, match=words):
            plain(target, GREEDY, prompts, new=4)
    with pytest.raises(ValueError, match="prompt 5 has 17 tokens"):
        assisted(target, target, GREEDY, [1] * 17, 5, new=4)
    with pytest.raises(ValueError, match="gamma: expected 1 or more where generation is assisted, got 0"):
        assisted(target, target, gamma=0)
