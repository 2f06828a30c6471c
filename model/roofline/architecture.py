"""The shape of a decoder as a transformers config.json states it: parameters, KV bytes, experts, windows.

    weights held     P = L·A + D·F + M·(E·X + S + R) + embeddings + head + vectors
    matrices a token passes through    L·A + D·F + M·(k·X + S + R) + head

with L layers of attention matrices A, D dense layers of feed-forward F, M sparse layers of E experts X (k of them for a
token), shared experts S and a router R.  Keys and values are cached for each key-value head, or compressed into one
latent vector for all heads (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434, section 2.1).

    >>> config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2,
    ...           "intermediate_size": 16, "vocab_size": 10}
    >>> architecture_from_config(config, name="tiny").parameters
    1480
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specgauge.model.roofline.families import FAMILIES, REFUSED, Experts, Family, Switch
from specgauge.model.roofline.quantization import Quantization, quantization_from_config

_ABSENT = object()
_LARGEST_COUNT, _MOST_LAYERS = 2**40, 10_000
"""Beyond what any model has; products of counts keep to what a float holds, and a tuple has room for every layer."""
_LONGEST_SHOWN = 60
_EXPERT_COUNTS = ("experts", "experts_per_token", "expert_parameters", "shared_parameters", "router_parameters")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer as counts.  Every `…_parameters` is a number of weights, not of bytes."""

    name: str
    model_type: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_limit: int | None
    """Positions the model was made for; None where the config does not say."""
    dtype: str | None
    """The dtype the config names for the weights; None where it does not say."""
    quantization: Quantization | None
    """How the config says the weights are stored; None for plain weights."""
    output_rows: int
    """Rows of the output head: the vocabulary, or the part of it that a draft head knows."""
    shares_embedding: bool
    """The embedding is another model's, which holds it (draft heads)."""
    tied_embeddings: bool
    """The output head is the embedding matrix (held once, still read at every step)."""
    windows: tuple[int | None, ...]
    """Per layer: the tokens it can see, itself included, or None for all."""
    attention_parameters: int
    """Query, key, value and output matrices of one layer."""
    latent_width: int
    """Numbers that latent attention caches for a token in one layer, for all heads together; 0: keys and values."""
    pair_width: int
    """Numbers multiplied for one query-key pair of one head: 2 · head_dim, or in the latent space."""
    fusion_parameters: int
    """What brings the target's hidden states into a draft head."""
    dense_layers: int
    mlp_parameters: int
    """Feed-forward matrices of one dense layer."""
    sparse_layers: int
    experts: int
    experts_per_token: int
    expert_parameters: int
    """Matrices of one expert."""
    shared_parameters: int
    """Matrices of the shared expert and its gate in one sparse layer."""
    router_parameters: int
    position_parameters: int
    """Learned position embeddings of the whole model."""
    vector_parameters: int
    """Norms, biases and attention sinks of the whole model."""

    def __post_init__(self) -> None:
        """The counts must agree with one another."""
        assert self.dense_layers + self.sparse_layers == self.layers == len(self.windows)
        assert self.heads % self.kv_heads == 0

    @property
    def embedding_parameters(self) -> int:
        """The token embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """The output head."""
        return self.output_rows * self.hidden_size

    @property
    def plain_parameters(self) -> int:
        """Weights that quantisation leaves as they are: embedding, head, positions, vectors and routers."""
        embedding = 0 if self.shares_embedding or self.tied_embeddings else self.embedding_parameters
        routers = self.sparse_layers * self.router_parameters
        return embedding + self.head_parameters + self.position_parameters + self.vector_parameters + routers

    @property
    def parameters(self) -> int:
        """All weights held in memory."""
        routers = self.sparse_layers * self.router_parameters
        return self._layer_matrices(self.experts) - routers + self.plain_parameters

    @property
    def matrix_parameters_per_token(self) -> int:
        """Weights that multiply one token, output head included: half of its matrix FLOPs."""
        return self._layer_matrices(self.experts_per_token) + self.head_parameters

    def _layer_matrices(self, experts: int) -> int:
        """Matrices of all layers, with so many of the experts."""
        sparse = experts * self.expert_parameters + self.shared_parameters + self.router_parameters
        dense = self.dense_layers * self.mlp_parameters
        return self.layers * self.attention_parameters + dense + self.sparse_layers * sparse + self.fusion_parameters

    def window_groups(self) -> list[tuple[int | None, int]]:
        """Distinct windows with the number of layers that have each, in order of appearance."""
        return [(window, self.windows.count(window)) for window in dict.fromkeys(self.windows)]


def architecture_from_config(config: Mapping[str, Any], *, name: str) -> Architecture:
    """Read a config.json (as a mapping) into counts; `name` is what messages call it.

    A config with a `text_config` (image and text models) is read through it.

    Raises:
        ValueError: an unknown `model_type` (with the nearest known one), a missing or wrong field (named), heads that
            do not divide, or an architecture whose bytes are not counted here (recurrent state, linear attention).
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"{name}: expected the mapping of a transformers config.json, got {type(config).__name__}")
    config = text_config(config)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        close = difflib.get_close_matches(str(model_type).lower(), list(FAMILIES), n=1, cutoff=0.5)
        raise ValueError(
            f"{name}: field 'model_type': expected one of {', '.join(sorted(FAMILIES))}, got "
            f"{'nothing' if model_type is None else repr(model_type)}{f' (nearest: {close[0]!r})' if close else ''}"
        )
    family = FAMILIES[model_type]
    for key, reason in REFUSED.items():
        if config.get(key) is not None and not (family.latent and key == "kv_lora_rank"):
            raise ValueError(f"{name}: field {key!r} means {reason}, which the roofline does not count")
    for key, value in family.must_be.items():
        if config.get(key, value) != value:
            raise ValueError(f"{name}: field {key!r}: expected {value!r} for {model_type}, got {config[key]!r}")
    return _Reader(config, family, name, model_type).architecture()


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part about text of a config that has one (image and text models), with what stands beside it."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(config)
    carried = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
    return {**{key: config[key] for key in carried if key in config}, **inner}


@dataclass(frozen=True, kw_only=True)
class _Latent:
    """The numbers of one layer of latent attention, by what they are in `Architecture`."""

    parameters: int
    vectors: int
    width: int
    pair_width: int


@dataclass(frozen=True)
class _Reader:
    """Reads one config with the rules of one family; every failure names the field."""

    config: Mapping[str, Any]
    family: Family
    name: str
    model_type: str

    def architecture(self) -> Architecture:
        family = self.family
        layers = self.count("num_hidden_layers", maximum=_MOST_LAYERS)
        hidden, heads = self.count("hidden_size"), self.count("num_attention_heads")
        kv_heads = self.count("num_key_value_heads", heads if family.kv_heads_optional else None)
        head_dim = self.head_dim(hidden, heads)
        if heads % kv_heads:
            raise self.refused("num_key_value_heads", f"a divisor of the {heads} attention heads", kv_heads)
        projected = self.config.get("word_embed_proj_dim", hidden)
        if projected not in (None, hidden):
            raise self.refused("word_embed_proj_dim", f"the hidden size {hidden}", projected)
        query_width, kv_width = heads * head_dim, kv_heads * head_dim
        latent = self.latent(hidden, heads) if family.latent else None
        sparse = self.sparse_layers(layers)
        factor = family.mlp_width_factor
        width = self.count("intermediate_size", factor and factor * hidden) if sparse < layers else 0
        expert_vectors, experts = self.experts(hidden) if sparse else (0, dict.fromkeys(_EXPERT_COUNTS, 0))
        dtype = self.config.get("dtype") or self.config.get("torch_dtype")
        quantized = self.config.get("quantization_config")
        if quantized and not isinstance(quantized, Mapping):
            raise self.refused("quantization_config", "a mapping", quantized)
        vocab_size, is_head = self.count("vocab_size"), self.config.get("draft_vocab_size") is not None
        fused = 3 if is_head else 0
        context_limit = self.count("max_position_embeddings", 0) or None
        if family.position_rows is not None and context_limit is None:
            raise self.missing("max_position_embeddings")
        return Architecture(
            name=self.name,
            model_type=self.model_type,
            layers=layers,
            hidden_size=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab_size,
            context_limit=context_limit,
            dtype=None if dtype is None else str(dtype).removeprefix("torch."),
            quantization=quantization_from_config(quantized) if quantized else None,
            output_rows=self.count("draft_vocab_size", vocab_size),
            shares_embedding=is_head,
            tied_embeddings=not is_head
            and self.switch(Switch(key="tie_word_embeddings", default=family.tied_by_default)),
            windows=self.windows(layers),
            attention_parameters=latent.parameters
            if latent
            else 2 * hidden * (query_width + kv_width) + (hidden * (query_width + 2 * kv_width) if is_head else 0),
            latent_width=latent.width if latent else 0,
            pair_width=latent.pair_width if latent else 2 * head_dim,
            fusion_parameters=fused * hidden * hidden,
            dense_layers=layers - sparse,
            mlp_parameters=self.matrices() * hidden * width,
            sparse_layers=sparse,
            **experts,
            position_parameters=((context_limit or 0) + family.position_rows) * hidden
            if family.position_rows is not None
            else 0,
            vector_parameters=hidden * (2 if family.layer_norm else 1)
            + (hidden if is_head else 0)
            + layers * (latent.vectors if latent else 0)
            + layers * self.attention_vectors(hidden, heads, query_width, kv_width, head_dim)
            + (layers - sparse) * ((self.matrices() - 1) * width + hidden) * self.switch(family.mlp_bias)
            + sparse * expert_vectors,
        )

    def matrices(self) -> int:
        return 3 if self.family.gated_mlp else 2

    def attention_vectors(self, hidden: int, heads: int, query_width: int, kv_width: int, head_dim: int) -> int:
        family = self.family
        norms = family.norms_per_layer * hidden * (2 if family.layer_norm else 1)
        qk = {"none": 0, "head": 2 * head_dim, "width": query_width + kv_width}[family.qk_norm]
        biases = (query_width + 2 * kv_width) * self.switch(family.qkv_bias) + hidden * self.switch(family.output_bias)
        return norms + qk + biases + heads * family.sinks

    def latent(self, hidden: int, heads: int) -> _Latent:
        """Multi-head latent attention, its up-projections absorbed into queries and outputs while decoding."""
        rank, rotated = self.count("kv_lora_rank"), self.count("qk_rope_head_dim")
        plain, values = self.count("qk_nope_head_dim"), self.count("v_head_dim")
        query_rank = self.count("q_lora_rank", 0)
        query_width = heads * (plain + rotated)
        queries = query_rank * (hidden + query_width) if query_rank else hidden * query_width
        cached = rank + rotated
        return _Latent(
            parameters=queries + hidden * cached + rank * heads * (plain + values) + heads * values * hidden,
            vectors=query_rank + rank,
            width=cached,
            pair_width=cached + rank,
        )

    def head_dim(self, hidden: int, heads: int) -> int:
        if not self.family.head_dim_optional:
            return self.count("head_dim")
        given = self.count("head_dim", 0)
        if not given and hidden % heads:
            expected = f"a divisor of the hidden size {hidden} where there is no 'head_dim'"
            raise self.refused("num_attention_heads", expected, heads)
        return given or hidden // heads

    def sparse_layers(self, layers: int) -> int:
        rule = self.family.experts
        if rule is None:
            return 0
        if rule.first_dense_key is not None:
            return max(0, layers - self.count(rule.first_dense_key, 0, minimum=0))
        if not rule.sparse_step:
            return layers
        step = self.count("decoder_sparse_step", 1)
        dense = self.config.get("mlp_only_layers") or []
        if not isinstance(dense, (list, tuple)):
            raise self.refused("mlp_only_layers", "a list of layers", dense)
        return sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)

    def experts(self, hidden: int) -> tuple[int, dict[str, int]]:
        """Vectors of a sparse layer, and its counts by field of `Architecture`."""
        rule = self.family.experts
        assert isinstance(rule, Experts)
        key = next((key for key in rule.count_keys if key in self.config), rule.count_keys[0])
        count, width = self.count(key), self.count(rule.width_key)
        per_token = self.count("num_experts_per_tok")
        if per_token > count:
            raise self.refused("num_experts_per_tok", f"at most the {count} experts", per_token)
        shared = self.count(rule.shared_width_key) if rule.shared_width_key else 0
        always = self.count(rule.shared_count_key, 0, minimum=0) if rule.shared_count_key else 0
        vectors = count * (1 + (self.matrices() - 1) * width + hidden) if rule.biases else 0
        shared_parameters = self.matrices() * hidden * (shared + always * width) + (hidden if shared else 0)
        counts = (count, per_token, self.matrices() * hidden * width, shared_parameters, hidden * count)
        return vectors, dict(zip(_EXPERT_COUNTS, counts, strict=True))

    def windows(self, layers: int) -> tuple[int | None, ...]:
        config, rule = self.config, self.family.windows
        kinds = config.get("layer_types")
        if kinds is not None:
            return self.windows_by_type(kinds, layers)
        used = self.switch(Switch(key="use_sliding_window", default=not rule.endswith("_when_used")))
        if rule == "none" or not used or config.get("sliding_window") is None:
            return (None,) * layers
        window = self.count("sliding_window")
        if rule in ("all", "all_when_used"):
            return (window,) * layers
        if rule == "even":
            return tuple(window if layer % 2 == 0 else None for layer in range(layers))
        if rule == "pattern":
            pattern = self.count("sliding_window_pattern", 6)
            return tuple(window if (layer + 1) % pattern else None for layer in range(layers))
        bound = self.count("max_window_layers", minimum=0)
        if rule == "from_layer_when_used":
            return tuple(window if layer >= bound else None for layer in range(layers))
        return tuple(window if layer % 2 == 0 and layer < bound else None for layer in range(layers))

    def windows_by_type(self, kinds: object, layers: int) -> tuple[int | None, ...]:
        known = ("full_attention", "sliding_attention")
        if not isinstance(kinds, (list, tuple)) or len(kinds) != layers:
            raise self.refused("layer_types", f"a list of {layers} names, one a layer", kinds)
        for layer, kind in enumerate(kinds):
            if kind not in known:
                raise self.refused("layer_types", " or ".join(known), kind, place=f", layer {layer}")
        window = self.count("sliding_window") if "sliding_attention" in kinds else None
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

    def count(self, field: str, default: int | None = None, *, minimum: int = 1, maximum: int = _LARGEST_COUNT) -> int:
        """A whole number under `field` (or the family's key for it); `default` where absent or null."""
        key = self.family.keys.get(field, field)
        value = self.config.get(key, _ABSENT)
        if value is _ABSENT or value is None:
            if default is None:
                raise self.missing(field)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.refused(key, f"an integer of at least {minimum}", value)
        if value > maximum:
            raise self.refused(key, f"an integer of at most {maximum}", value)
        return value

    def switch(self, switch: Switch) -> bool:
        value = switch.default if switch.key is None else self.config.get(switch.key)
        if value is None:
            return switch.default
        if not isinstance(value, bool):
            raise self.refused(switch.key, "true or false", value)
        return value

    def refused(self, key: str | None, expected: str, found: object, *, place: str = "") -> ValueError:
        text = repr(found)
        short = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
        return ValueError(f"{self.name}: field {key!r}{place}: expected {expected}, got {short}")

    def missing(self, field: str) -> ValueError:
        key = self.family.keys.get(field, field)
        return ValueError(f"{self.name}: field {key!r} is missing; a config of model_type {self.model_type!r} needs it")
