"""How large models are, read without loading them: config.json, headers of safetensors and GGUF files. No torch.

Only local files are read: the shipped pair, a local directory, a hub model already in the cache. What they do not say
is None, never a guess.

    sizes = read_pair_sizes(config.pairs[0])
    sizes.weight_bytes, sizes.kv_bytes(batch_size, tokens)             # None where a size is unknown
    read_model_size(config.pairs[0].target, role="target", layers=8)   # of its first 8 layers, norm and head
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specgauge.configs.pairs import LayersDraft, NgramDraft
from specgauge.configs.reading import expanded
from specgauge.model.context import context_limit
from specgauge.sweeps.plan import measured_points, reach
from specgauge.sweeps.weight_files import DTYPE_BYTES, Weights, count_weights, read_json, read_tensors

if TYPE_CHECKING:
    from specgauge.configs.pairs import ModelConfig, PairConfig
    from specgauge.configs.schema import Config

Role = Literal["target", "draft"]
DRIVERS = ("/proc/driver/nvidia/gpus", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_GGUF_LAYER = "blk."
EMBEDDED = Path(__file__).parent.parent / "bench" / "embedded"


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """What a model's files say about its size; None where they do not."""

    parameters: int | None = None
    dtype: str | None = None
    """The type the weights will have in memory."""
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    width: int | None = None
    """Of the residual stream."""
    inner_width: int | None = None
    """Of the feed-forward part of a token, all experts of a token together."""
    heads: int | None = None
    vocabulary: int | None = None
    max_context: int | None = None
    quantized: Weights | None = None
    """How quantised weights will lie; None of others."""

    @property
    def weight_bytes(self) -> int | None:
        """Parameters times bytes each; of quantised ones what they are packed to, with their scales."""
        if self.quantized is not None and self.dtype is not None:
            return self.quantized.loaded_bytes(self.dtype)
        if self.parameters is None or self.dtype is None:
            return None
        return self.parameters * DTYPE_BYTES[self.dtype]

    def activation_bytes(self, tokens: int) -> int:
        """The most that a forward of so many tokens holds at once, in a layer's feed-forward part or its attention.

        Of a token, by its residual and normed state: gate, up and their product; or queries, keys and values, turned
        and not, with one more of each on the way. 0 where the files do not tell the widths.
        """
        if self.width is None or self.dtype is None:
            return 0
        inner = 3 * self.width + 3 * (self.inner_width or 0)
        head, heads, kv_heads = (one or 0 for one in (self.head_dim, self.heads, self.kv_heads))
        attention = 3 * self.width + head * (4 * heads + 3 * kv_heads)
        return tokens * max(inner, attention) * DTYPE_BYTES[self.dtype]

    def kv_cache_bytes(self, batch_size: int, tokens: int) -> int | None:
        """Keys and values of `tokens` tokens in each row: 2 · layers · heads · width · tokens · rows · bytes."""
        if self.layers is None or self.kv_heads is None or self.head_dim is None or self.dtype is None:
            return None
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * batch_size * DTYPE_BYTES[self.dtype]


NO_MODEL = ModelSize(parameters=0, dtype="float32", layers=0, kv_heads=0, head_dim=0)
"""What lookups need: nothing."""


@dataclass(frozen=True, kw_only=True)
class PairSizes:
    """Both models of a pair; None for one whose files are not here."""

    target: ModelSize | None
    draft: ModelSize | None
    """`NO_MODEL` where lookups draft."""
    shares_weights: bool = False
    """Whether the draft is part of the target, so that only its cache needs memory."""

    @property
    def parameters(self) -> dict[str, int | None]:
        """Of both models; None where their files do not say."""
        both = {"target": self.target, "draft": self.draft}
        return {role: None if size is None else size.parameters for role, size in both.items()}

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of both models' weights, shared ones once; None where a size is unknown."""
        held = (self.target,) if self.shares_weights else (self.target, self.draft)
        return total([None if size is None else size.weight_bytes for size in held])

    def kv_bytes(self, batch_size: int, tokens: int) -> int | None:
        """Bytes of both models' keys and values of `tokens` tokens in each row; None where a size is unknown."""
        sizes = (self.target, self.draft)
        return total([None if size is None else size.kv_cache_bytes(batch_size, tokens) for size in sizes])


def total(bytes_of: Sequence[int | None]) -> int | None:
    """The sum; None where a summand is unknown."""
    known = [one for one in bytes_of if one is not None]
    return sum(known) if len(known) == len(bytes_of) else None


def read_sizes(config: Config) -> dict[str, PairSizes]:
    """What the local files say of every pair's models, by the pair's name; raises as `read_pair_sizes`."""
    return {
        pair.name: read_pair_sizes(pair, reach(config, pair.name) if measured_points(config, pair.name) else None)
        for pair in config.pairs
    }


def read_pair_sizes(pair: PairConfig, longest: int | None = None) -> PairSizes:
    """What the local files say of a pair's models; `longest` is the most tokens in a row of the run.

    Raises:
        ValueError: a model directory is missing or damaged; the pair is named.
    """
    draft = pair.draft
    try:
        target = read_model_size(pair.target, role="target", longest=longest)
        if isinstance(draft, NgramDraft):
            return PairSizes(target=target, draft=NO_MODEL)
        if isinstance(draft, LayersDraft):
            first = read_model_size(pair.target, role="target", layers=draft.layers, longest=longest)
            return PairSizes(target=target, draft=first, shares_weights=True)
        return PairSizes(target=target, draft=read_model_size(draft, role="draft", longest=longest))
    except ValueError as error:
        raise ValueError(f"pair {pair.name!r}: {error}") from error


def model_folder(spec: ModelConfig, role: Role) -> Path | None:
    """The local folder with the model's files; None for a hub model that is not in the cache.

    Raises:
        ValueError: a path at which there is no directory, or a name that is no hub id.
    """
    if spec.model == "embedded":
        return EMBEDDED / role
    path = expanded(spec.model)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"{role} {spec.model!r}: expected a directory or a hub id, got a file; for GGUF set gguf_file")
    if spec.model.startswith(("/", "./", "../", "~")):
        raise ValueError(f"{role} {spec.model!r}: no such directory; check the path, or give a hub id")
    from huggingface_hub import try_to_load_from_cache

    from specgauge.bench.models.files import name_fault

    if (fault := name_fault(spec.model)) is not None:
        raise ValueError(f"{role} {fault}")
    found = try_to_load_from_cache(spec.model, "config.json", revision=spec.revision)
    return Path(found).parent if isinstance(found, str) else None


def read_model_size(
    spec: ModelConfig, *, role: Role, layers: int | None = None, longest: int | None = None
) -> ModelSize | None:
    """The size of a model whose files are local, cut after its first `layers`; None for one that is not.

    `longest` is the most tokens in a row of the run, by which the positions that it takes may differ.

    Raises:
        ValueError: no directory, no config.json in it, that or a safetensors file is damaged, or it has no layer more
            than `layers`.
    """
    folder = model_folder(spec, role)
    if folder is None:
        return None
    if spec.gguf_file is not None:
        return _gguf_size(spec, folder / spec.gguf_file, role, layers)
    from specgauge.bench.models.files import adapter_fault
    from specgauge.bench.models.quantized import fault as quantization_fault

    if (fault := adapter_fault(folder)) is not None:
        raise ValueError(f"{role} {fault}")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{role} {spec.model!r} is not a model directory: it has no config.json")
    config = read_json(folder / "config.json")
    text, settings = config.get("text_config"), config.get("quantization_config")
    inner: Mapping[str, Any] = text if isinstance(text, dict) else config
    stored = settings if isinstance(settings, dict) else None
    is_cpu = is_on_cpu(spec)
    if (fault := quantization_fault(spec.quantization, stored, model=spec.model, is_on_cpu=is_cpu)) is not None:
        raise ValueError(f"{role}: {fault}")
    tensors = read_tensors(folder, layers)
    weights = (
        None if tensors is None else count_weights(tensors, stored=stored, asked=spec.quantization, is_on_cpu=is_cpu)
    )
    every = _number(inner, "num_hidden_layers", "n_layer")
    _check_layers(layers, every)
    heads = _number(inner, "num_attention_heads", "n_head")
    width = _number(inner, "hidden_size", "n_embd", "d_model")
    is_plain = stored is None and spec.quantization is None
    return ModelSize(
        parameters=None if weights is None else weights.parameters,
        dtype=_dtype(spec, inner, config, None if weights is None else weights.dtype, is_plain=is_plain),
        layers=every if layers is None else layers,
        kv_heads=_number(inner, "num_key_value_heads") or heads,
        head_dim=_number(inner, "head_dim") or (width // heads if heads and width else None),
        width=width,
        inner_width=_inner_width(inner),
        heads=heads,
        vocabulary=_number(inner, "vocab_size"),
        max_context=context_limit(inner, longest),
        quantized=None if is_plain else weights,
    )


def _inner_width(config: Mapping[str, Any]) -> int | None:
    """Of the feed-forward part: of its experts those that a token passes through."""
    experts, of_expert = _number(config, "num_experts_per_tok"), _number(config, "moe_intermediate_size")
    dense = _number(config, "intermediate_size", "n_inner", "ffn_dim")
    if experts is not None and (of_expert or dense) is not None:
        return experts * (of_expert or dense or 0)
    return dense


def _check_layers(layers: int | None, every: int | None) -> None:
    """See that a draft of the target's first layers has fewer than all."""
    if layers is not None and every is not None and layers >= every:
        raise ValueError(f"draft layers: expected 1 to {every - 1} of the target's {every}, got {layers}")


def _gguf_size(spec: ModelConfig, path: Path, role: Role, layers: int | None) -> ModelSize | None:
    """The size of a GGUF file's model, whose weights are loaded in plain numbers; None where it is not here."""
    from specgauge.bench.models.gguf_files import read_gguf
    from specgauge.bench.models.quantized import missing

    if not path.is_file():
        return None
    if (fault := missing("gguf", f"{spec.gguf_file!r} is a GGUF file")) is not None:
        raise ValueError(f"{role}: {fault}")
    found = read_gguf(path)
    assert found is not None, "the package is there"
    every, heads = found.number("block_count"), found.number("attention.head_count")
    _check_layers(layers, every)
    left_out = () if layers is None or every is None else [f"{_GGUF_LAYER}{number}." for number in range(layers, every)]
    shapes = [shape for name, shape in found.shapes.items() if not name.startswith(tuple(left_out))]
    width = found.number("embedding_length")
    embedding = found.shapes.get("token_embd.weight")
    plain = "float32" if is_on_cpu(spec) else None
    return ModelSize(
        parameters=sum(math.prod(shape) for shape in shapes),
        dtype=plain if spec.dtype == "auto" else str(spec.dtype),
        layers=every if layers is None else layers,
        kv_heads=found.number("attention.head_count_kv") or heads,
        head_dim=found.number("attention.key_length") or (width // heads if heads and width else None),
        width=width,
        inner_width=found.number("feed_forward_length"),
        heads=heads,
        vocabulary=embedding[-1] if embedding else found.number("vocab_size"),
        max_context=found.number("context_length"),
    )


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def is_on_cpu(spec: ModelConfig) -> bool:
    """Whether a model runs on the CPU, as far as can be told without torch: where no driver shows a GPU."""
    return spec.device == "cpu" or (spec.device == "auto" and spec.device_map is None and not has_gpu())


def has_gpu() -> bool:
    """Whether a driver that torch's CUDA builds use shows a device: NVIDIA's, AMD's, or that of Windows below Linux."""
    return any(Path(name).exists() for name in DRIVERS)


def _dtype(
    spec: ModelConfig, inner: Mapping[str, Any], config: Mapping[str, Any], stored: str | None, *, is_plain: bool
) -> str | None:
    """The type after loading: the one asked for, else what is fast on a CPU, else the one config.json names or stores.

    Where a CPU has instructions for bfloat16 it is measured, once the run begins, whether that is the faster one.
    """
    from specgauge.bench.cpu_type import bfloat16_instructions

    found = _stored_dtype(spec, inner, config, stored)
    is_half = found == "float16" or (found == "bfloat16" and bfloat16_instructions() is None)
    chooses = spec.dtype == "auto" and is_plain and is_on_cpu(spec)
    return "float32" if is_half and chooses else found


def _stored_dtype(
    spec: ModelConfig, inner: Mapping[str, Any], config: Mapping[str, Any], stored: str | None
) -> str | None:
    if spec.dtype != "auto":
        return str(spec.dtype)
    for source in (config, inner):
        for name in ("dtype", "torch_dtype"):
            if source.get(name) in DTYPE_BYTES:
                return str(source[name])
    return stored
