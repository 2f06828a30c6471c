"""The pairs: a target and what speculates for it, each a model in short or in full; a draft may be no model.

    pairs:
      - {name: small, target: org/model, draft: org/small-model}
      - {name: lookup, target: org/model, draft: ngram}     # prompt lookup; in full {ngram: {longest: 3, shortest: 1}}
      - {name: first, target: {model: org/model, dtype: bfloat16}, draft: {layers: 8}}      # the target's first layers

A model by its name alone is one with the defaults. A directory called ngram is written ./ngram or {model: ngram}. A
pair with an `engine` is decoded by servers (`specgauge.configs.engines`); its models are names, and never loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    model_validator,
)

from specgauge.configs.engines import NGRAM, EngineConfig, with_models
from specgauge.configs.errors import Errors, fail, nearest, refused
from specgauge.configs.fields import (
    EMBEDDED,
    ONE_LINE,
    Attention,
    Dtype,
    Mode,
    Name,
    Section,
    Text,
    Threads,
    expects,
    null_means,
    one_of,
)

LARGEST_NGRAM = 64
LARGEST_LAYERS, LARGEST_RANKS = 4096, 64
_OF_THE_RUN = "the configuration's"
_ModelName = Annotated[Text, expects(f"{EMBEDDED}, a hub id or a local directory")]


class ParallelConfig(Section):
    """How one model is split over processes of this machine."""

    tensor: Annotated[int, Field(ge=2, le=LARGEST_RANKS)]
    """Ranks that hold a shard of every tensor each: a CUDA device each, or on a CPU all its processor; must divide the
    attention heads, and the key/value heads."""

    def heads_fault(self, heads: int | None, kv_heads: int | None) -> str | None:
        """Why a model with these heads cannot be split so; None where it can, or they are not known."""
        for kind, count in (("attention heads", heads), ("key/value heads", kv_heads)):
            if count is not None and count % self.tensor:
                divisors = [str(one) for one in range(2, min(count, LARGEST_RANKS) + 1) if count % one == 0]
                return f"expected a divisor of its {count} {kind}, got {self.tensor}; use {' or '.join(divisors)}"
        return None


class ModelConfig(Section):
    """One model: where its weights are and how they are loaded."""

    model: _ModelName
    """`embedded` (the pair that ships with specgauge), a hub id, or a local directory."""
    revision: Annotated[Text, expects("a branch, tag or commit")] | None = None
    """Branch, tag or commit on the hub; null is the default branch."""
    gguf_file: Annotated[Text, expects("a file name in the model's folder")] | None = None
    """A GGUF file in the model's repository or directory (needs specgauge[gguf]); its weights are dequantised when
    loaded, unless transformers finds kernels for them on the device."""
    dtype: Annotated[Dtype, one_of("dtype")] = "auto"
    """Type of the weights; auto is the type they are stored in, on a CPU float32 unless bfloat16 is natively fast
    there. Several make a variant of the pair each."""
    device: Annotated[
        str,
        StringConstraints(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"),
        ONE_LINE,
        expects("auto | cpu | cuda | cuda:0"),
    ] = "auto"
    """Where the model runs; auto is cuda where there is one, else cpu."""
    device_map: Annotated[
        Text | Annotated[dict[str, int | str], MinLen(1)] | None,
        expects("auto or another of transformers' names, or a mapping of modules to devices"),
    ] = None
    """Spreads one model over several devices, as transformers takes it; null keeps it on `device`."""
    parallel: ParallelConfig | None = None
    """Splits the target by tensors over several ranks, which torchrun's launcher starts; null keeps it in one
    process."""
    quantization: Annotated[
        Annotated[dict[str, JsonValue], MinLen(1)] | None,
        expects("a mapping as transformers' quantization_config takes it"),
    ] = None
    """Quantisation as the model is loaded, as transformers takes it ({quant_method: bitsandbytes, load_in_4bit: true});
    null loads the weights as they are stored, quantised ones by the library that config.json names
    (docs/memory.md)."""
    attention: Annotated[Annotated[Attention, one_of("attention")] | None, null_means("sdpa")] = None
    """Attention implementation: torch's own (sdpa) or written out (eager), which take a mask for rows of their own
    lengths; flash attention does not. Null is sdpa. Several make a variant of the pair each."""
    trust_remote_code: bool = False
    """Whether code from the model's repository may run on this machine."""

    @property
    def label(self) -> str:
        """What the model is called."""
        return self.model

    @model_validator(mode="after")
    def _check_together(self) -> ModelConfig:
        errors: Errors = []
        if self.model == EMBEDDED:
            for field in ("revision", "gguf_file", "quantization"):
                if (value := getattr(self, field)) is not None:
                    errors.append(((field,), refused(value, f"null, since the model is {EMBEDDED}")))
        if self.parallel is not None:
            for field in ("device_map", "gguf_file"):
                if (value := getattr(self, field)) is not None:
                    errors.append(((field,), refused(value, "null, since parallel splits the model over ranks")))
        if self.device_map is not None and self.device != "auto":
            errors.append((("device",), refused(self.device, "auto, since device_map places the model")))
        fail(errors)
        return self


class NgramConfig(Section):
    """How prompt lookup matches the end of the text."""

    longest: Annotated[int, Field(ge=1, le=LARGEST_NGRAM)] = 3
    """Tokens at the end of the text that are looked for first."""
    shortest: Annotated[int, Field(ge=1, le=LARGEST_NGRAM)] = 1
    """Tokens that are looked for last; without a match of at least these nothing is drafted."""

    @model_validator(mode="after")
    def _check_together(self) -> NgramConfig:
        if self.shortest > self.longest:
            fail([(("shortest",), refused(self.shortest, f"at most longest, which is {self.longest}"))])
        return self


class NgramDraft(Section):
    """Prompt lookup: drafts go on as the text did after an earlier occurrence of its last tokens."""

    ngram: NgramConfig = NgramConfig()
    """How the end of the text is matched."""

    @property
    def label(self) -> str:
        """What drafts, in words."""
        return f"lookups of {self.ngram.longest} down to {self.ngram.shortest} tokens"


class LayersDraft(Section):
    """Early exit: the target's own first layers draft, with its final norm and head; every weight is shared."""

    layers: Annotated[int, Field(ge=1, le=LARGEST_LAYERS)]
    """How many of the target's layers; at most all but one."""

    @property
    def label(self) -> str:
        """What drafts, in words."""
        return f"the target's first {self.layers} layer{'' if self.layers == 1 else 's'}"


_KINDS: dict[str, type[Section]] = {"model": ModelConfig, NGRAM: NgramDraft, "layers": LayersDraft}
_DRAFT_KEYS = (*ModelConfig.model_fields, NGRAM, "layers")


def _model(written: object) -> object:
    return {"model": written} if isinstance(written, str) else written


def _draft(written: object) -> object:
    if written == NGRAM:
        return {NGRAM: {}}
    if isinstance(written, Mapping) and (kind := _kind(written)) in written and kind != "model":
        beside = [key for key in written if key != kind and key in _DRAFT_KEYS]
        if beside:
            raise refused(written, f"{kind} alone, without {', '.join(beside)}")
    return _model(written)


def _kind(written: object) -> str:
    """``ngram`` or ``layers`` where a draft's mapping has that key or one that is meant to be it, else ``model``."""
    for kind, section in _KINDS.items():
        if isinstance(written, section):
            return kind
    if not isinstance(written, Mapping):
        return "model"
    meant = [nearest(str(key), _DRAFT_KEYS) for key in written if key not in _DRAFT_KEYS]
    named = [key for key in (NGRAM, "layers", "model") if key in written]
    return next((key for key in (*named, *meant) if key in _KINDS), "model")


def _either(schema: dict[str, Any]) -> None:
    schema["required"] = ["name"]
    schema |= {"if": {"properties": {"engine": {"type": "null"}}}, "then": {"required": ["target", "draft"]}}


class PairConfig(Section):
    """A target and the draft that speculates for it."""

    model_config = ConfigDict(json_schema_extra=_either)

    name: Name
    """Names the pair in files, tables and options."""
    target: Annotated[
        ModelConfig,
        BeforeValidator(_model, json_schema_input_type=_ModelName | ModelConfig),
        expects(f"{EMBEDDED}, a hub id, a local directory, or a mapping with the key model"),
    ]
    """The model whose text is wanted: `embedded`, a hub id, a local directory, or a mapping."""
    draft: Annotated[
        Annotated[ModelConfig, Tag("ModelConfig")]
        | Annotated[NgramDraft, Tag("NgramDraft")]
        | Annotated[LayersDraft, Tag("LayersDraft")],
        Discriminator(lambda written: _KINDS[_kind(written)].__name__),
        BeforeValidator(_draft, json_schema_input_type=_ModelName | ModelConfig | NgramDraft | LayersDraft),
        expects(
            f"{EMBEDDED}, a hub id, a local directory, {NGRAM}, or a mapping with the key model, {NGRAM} or layers"
        ),
    ]
    """What proposes tokens: a small model (`embedded`, a hub id, a local directory, or a mapping), `ngram` (lookups in
    the text itself), or {layers: N} (the target's own first layers)."""
    engine: Annotated[
        Annotated[
            Annotated[EngineConfig, Tag("EngineConfig")]
            | Annotated[tuple[EngineConfig, ...], Field(strict=False, min_length=1), Tag("several")],
            Discriminator(lambda written: "several" if isinstance(written, (list, tuple)) else "EngineConfig"),
        ]
        | None,
        null_means("loaded here"),
    ] = None
    """The server that decodes in their place, or one for each γ; target and draft are then names, those of the engine
    where left out."""
    mode: Annotated[Annotated[Mode, one_of("mode")] | None, null_means(_OF_THE_RUN)] = None
    """How this pair's forwards run; null is as the configuration says. Several make a variant of the pair each."""
    threads: Annotated[Annotated[Threads, one_of("threads")] | None, null_means(_OF_THE_RUN)] = None
    """Torch's threads for this pair; null is as the configuration says. Several make a variant of the pair each."""
    accelerator_type: Annotated[
        Annotated[Text, one_of("accelerator_type")] | None, null_means("as the executor says")
    ] = None
    """The GPU that this pair is measured on, by Ray's name for it, such as H100; null is as the executor says. Several
    make a variant of the pair each."""

    @model_validator(mode="after")
    def _check_ranks(self) -> PairConfig:
        """Only a target is split, and what drafts for it needs no weight of it."""
        if isinstance(self.draft, ModelConfig) and self.draft.parallel is not None:
            fail([(("draft", "parallel"), refused(self.draft.parallel.tensor, "null, since only a target is split"))])
        if isinstance(self.draft, LayersDraft) and self.target.parallel is not None:
            fail([(("draft",), refused(None, f"a model or {NGRAM}, since the target is split", got="its own layers"))])
        return self

    @property
    def has_ranks(self) -> bool:
        """Whether its target is loaded here, split over ranks."""
        return self.engine is None and self.target.parallel is not None

    @property
    def engines(self) -> tuple[EngineConfig, ...]:
        """Its servers; () where its models are loaded."""
        match self.engine:
            case None:
                return ()
            case EngineConfig() as one:
                return (one,)
            case several:
                return several

    _names = model_validator(mode="before")(with_models)

    @property
    def drafts_with_model(self) -> bool:
        """Whether a model drafts: one of its own, or the target's first layers; lookups need none."""
        return not isinstance(self.draft, NgramDraft)


def rank_errors(pairs: Sequence[PairConfig], mode: Mode, executor: str) -> Errors:
    """What split targets do not go with: modes other than eager (that of the run where a pair has none), clusters."""
    return [
        (("pairs", index, "target", "parallel"), refused(None, f"null, since {why}", got="ranks"))
        for index, pair in enumerate(pairs)
        if pair.has_ranks
        for why in (
            *([f"mode is {pair.mode or mode}"] if (pair.mode or mode) != "eager" else []),
            *([f"executor.kind is {executor}"] if executor != "local" else []),
        )
    ]
