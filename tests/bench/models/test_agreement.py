"""Every model shows that it computes the same through the cache as by its own means, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from specgauge.bench.cache.adapter import ATTENTION_NAMES
from specgauge.bench.models.agreement import take_over_attention
from tests.bench.models.conftest import NAME, refused_line
from tests.bench.tiny_checkpoints import llama

CPU = torch.device("cpu")
KINDS = [[["global", "local"], 1]]
SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16}
NO_IDS: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
EXPERTS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1}
REMEDY = "; use a decoder-only model of another architecture"
OTHER = "computes other logits on a cache with a length per row than by its own means (they differ by "
NO_CACHE = "does not run on a cache with a length per row (ValueError: "


def random(config: Any) -> Any:
    """A model of any family, with weights that make its positions and masks matter."""
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


def refusal(model: Any) -> str:
    return refused_line(take_over_attention, model, ATTENTION_NAMES["sdpa"], CPU, NAME)


@pytest.mark.parametrize("attention", ATTENTION_NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_model_that_agrees_is_taken(attention: str, dtype: torch.dtype) -> None:
    model = llama(num_hidden_layers=4).to(dtype).eval()
    take_over_attention(model, ATTENTION_NAMES[attention], CPU, NAME)
    assert model.config._attn_implementation == ATTENTION_NAMES[attention]


@pytest.mark.parametrize(
    ("config", "start"),
    [
        (
            transformers.GPTNeoConfig(
                **SMALL, **NO_IDS, num_layers=2, num_heads=4, attention_types=KINDS, window_size=4
            ),
            f"GPTNeoForCausalLM {OTHER}",  # its causal triangle is placed by the longest row
        ),
        (transformers.BertConfig(**SMALL, **LAYERS), f"BertLMHeadModel {OTHER}"),  # sees the tokens after each one
        (transformers.BloomConfig(**SMALL, **NO_IDS, n_layer=2, n_head=4), f"BloomForCausalLM {NO_CACHE}"),
        (
            transformers.GptOssConfig(**SMALL, **NO_IDS, **LAYERS, **EXPERTS),
            f"GptOssForCausalLM {NO_CACHE}GptOssAttention needs s_aux, which attention over per-row caches does not ",
        ),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_families_that_do_not_compute_the_same_are_refused(config: Any, start: str) -> None:
    message = refusal(random(config))
    assert message.startswith(start)
    assert message.endswith(REMEDY)


def test_logits_that_a_model_rules_out_itself() -> None:
    model = llama().eval()
    model.lm_head.register_forward_hook(lambda *call: call[-1].index_fill(-1, torch.arange(3), -torch.inf))
    take_over_attention(model, ATTENTION_NAMES["sdpa"], CPU, NAME)


def spoilt(model: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model, ignoring what it is given, or losing its numbers where it uses a cache."""
    real = model.forward

    def forward(**inputs: Any) -> Any:
        if fault == "positions" and "position_ids" in inputs:
            new = inputs["input_ids"].shape[1]
            inputs["position_ids"] = torch.arange(new)[None].expand(2, -1)
        if fault == "mask":
            mask = inputs.get("attention_mask")
            inputs["attention_mask"] = None if mask is None else torch.ones_like(mask)
        if fault == "cache" and "position_ids" in inputs:
            inputs = {"input_ids": inputs["input_ids"], "use_cache": False}
        output = real(**inputs)
        if fault == "numbers" and inputs["use_cache"]:
            output.logits[0] = torch.nan
        return output

    monkeypatch.setattr(model, "forward", forward)
    return model


@pytest.mark.parametrize("fault", ["positions", "mask", "cache"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_ignores_what_it_is_given(fault: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = spoilt(llama().to(dtype).eval(), fault, monkeypatch)
    assert refusal(model).startswith(f"LlamaForCausalLM {OTHER}")


def test_numbers_that_are_lost_only_on_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    model = spoilt(llama().eval(), "numbers", monkeypatch)
    assert refusal(model) == f"LlamaForCausalLM {OTHER}nan of their spread, rounding explains 0.001){REMEDY}"


def test_logits_that_are_not_numbers() -> None:
    model = llama().half().eval()
    nn.init.constant_(model.lm_head.weight, 60_000.0)
    nn.init.constant_(model.model.norm.weight, torch.nan)
    assert refusal(model).startswith("its logits are not numbers (NaN) in float16; ")
