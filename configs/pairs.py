"""The pairs: a target and what speculates for it, each a model in short or in full; a draft may be no model.

    pairs:
      - {name: small, target: org/model, draft: org/small-model}
      - {name: first, target: {model: org/model, dtype: bfloat16}, draft: {layers: 8}}

A model by its name alone is one with the defaults. What may draft without a model is in `specgauge.configs.drafts`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, JsonValue, WrapValidator, model_validator

from specgauge.configs import variants
from specgauge.configs.drafts import NGRAM, LayersDraft, NgramDraft, draft_without_model
from specgauge.configs.faults import Fault, value_fault
from specgauge.configs.names import EMBEDDED, NAME
from specgauge.configs.rules import FILLED, Flag, Free, Text, fail
from specgauge.configs.section import Section

_MODEL_NAME = Text(pattern=FILLED, means=f"{EMBEDDED}, a hub id or a local directory")
MODEL_FORMS = f"{EMBEDDED}, a hub id, a local directory, or a mapping with the key model"
DRAFT_FORMS = f"{EMBEDDED}, a hub id, a local directory, {NGRAM}, or a mapping with the key model, {NGRAM} or layers"


class ModelConfig(Section):
    """One model: where its weights are and how they are loaded."""

    model: Annotated[str, _MODEL_NAME]
    """`embedded` (the pair that ships with specgauge), a hub id, or a local directory."""
    revision: Annotated[str | None, Text(pattern=FILLED, means="a branch, tag or commit", or_null=True)] = None
    """Branch, tag or commit on the hub; null is the default branch."""
    gguf_file: Annotated[str | None, Text(pattern=FILLED, means="a file name in the model's folder", or_null=True)] = (
        None
    )
    """A GGUF file in the model's repository or directory; its weights are dequantised when loaded."""
    dtype: Annotated[variants.Dtype, variants.DTYPE] = "auto"
    """Type of the weights; auto is the type they are stored in. Several make a variant of the pair each."""
    device: Annotated[str, Text(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$", means="auto | cpu | cuda | cuda:0")] = (
        "auto"
    )
    """Where the model runs; auto is cuda where there is one, else cpu."""
    device_map: Annotated[
        str | dict[str, int | str] | None,
        Free(text="auto or another of transformers' names", means="a mapping of modules to devices", or_null=True),
    ] = None
    """Spreads one model over several devices, as transformers takes it; null keeps it on `device`."""
    quantization: Annotated[
        dict[str, JsonValue] | None,
        Free(means="a mapping as transformers' quantization_config takes it", or_null=True),
    ] = None
    """Quantization settings, as transformers takes them; null loads the weights as they are stored."""
    attention: Annotated[str | None, variants.ATTENTION] = None
    """Attention implementation: eager, sdpa, flash_attention_2, …; null is the model's default. Several make a variant
    of the pair each."""
    trust_remote_code: Annotated[bool, Flag()] = False
    """Whether code from the model's repository may run on this machine."""

    @property
    def label(self) -> str:
        """What the model is called."""
        return self.model

    @model_validator(mode="after")
    def _check_together(self) -> ModelConfig:
        found: list[Fault] = []
        if self.model == EMBEDDED:
            for field in ("revision", "gguf_file", "quantization"):
                if getattr(self, field) is not None:
                    found.append(value_fault((field,), getattr(self, field), f"null, since the model is {EMBEDDED}"))
        if self.device_map is not None and self.device != "auto":
            found.append(value_fault(("device",), self.device, "auto, since device_map places the model"))
        if found:
            fail(found)
        return self


def _model_by_name(value: object) -> object:
    return {"model": value} if isinstance(value, str) else value


_Model = Annotated[
    ModelConfig,
    BeforeValidator(_model_by_name, json_schema_input_type=Annotated[str, _MODEL_NAME] | ModelConfig),
]


def _draft_in_full(value: object, _handler: object) -> ModelConfig | NgramDraft | LayersDraft:
    other = draft_without_model(value, ModelConfig.model_fields)
    return other if other is not None else ModelConfig.model_validate(_model_by_name(value))


_Draft = Annotated[
    ModelConfig | NgramDraft | LayersDraft,
    WrapValidator(
        _draft_in_full,
        json_schema_input_type=Annotated[str, _MODEL_NAME] | ModelConfig | NgramDraft | LayersDraft,
    ),
]


class PairConfig(Section):
    """A target and the draft that speculates for it."""

    name: Annotated[str, NAME]
    """Names the pair in files, tables and options."""
    target: _Model
    """The model whose text is wanted: `embedded`, a hub id, a local directory, or a mapping."""
    draft: _Draft
    """What proposes tokens: a small model (`embedded`, a hub id, a local directory, or a mapping), `ngram` (lookups in
    the text itself), or {layers: N} (the target's own first layers)."""
    mode: Annotated[variants.Mode | None, variants.PAIR_MODE] = None
    """How this pair's forwards run; null is as the configuration says. Several make a variant of the pair each."""
    threads: Annotated[int | None, variants.PAIR_THREADS] = None
    """Torch's threads for this pair; null is as the configuration says. Several make a variant of the pair each."""
