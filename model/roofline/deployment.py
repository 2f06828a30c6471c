"""A model on a machine: peaks of the device, dtypes, tensor parallelism, and what fits in its memory.

    weights held by a device    (P − copied) / N + copied          routers, vectors and positions are copied
    KV held for a sequence      Σ_layers min(tokens, window) · w,  w = 2 · max(1, kv_heads/N) · head_dim, or the width
                                of the latent vector, which every device holds whole
    largest batch               floor((fraction · memory − weights) / KV of one sequence)

Hardware numbers are plain values (`specgauge.configs.hardware` keeps entries with their sources); unknown is None and
becomes an error only where the number is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.roofline.architecture import Architecture
from specgauge.model.roofline.quantization import BITS, Quantization

DTYPE_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "tfloat32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
}
"""Bytes of one number; tfloat32 is float32 in memory and a faster multiplication."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Peaks of one device; None is unknown, and an error where it is needed."""

    name: str
    memory_bytes: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    peak_flops_per_s: Mapping[str, float | None] = field(default_factory=dict)
    """By dtype, dense (no structured sparsity)."""
    link_bandwidth_bytes_per_s: float | None = None
    """To the other devices of a tensor-parallel group, one direction."""
    multiprocessors: int | None = None
    """Streaming multiprocessors or compute units; None where attention isn't scheduled in blocks (a CPU)."""

    def bandwidth(self) -> float:
        """Memory bandwidth in bytes/s; ValueError where unknown."""
        return self._known("memory_bandwidth_bytes_per_s", self.memory_bandwidth_bytes_per_s)

    def link(self) -> float:
        """Link bandwidth in bytes/s, one direction; ValueError where unknown."""
        return self._known("link_bandwidth_bytes_per_s", self.link_bandwidth_bytes_per_s)

    def memory(self) -> float:
        """Memory in bytes; ValueError where unknown."""
        return self._known("memory_bytes", self.memory_bytes)

    def peak(self, dtype: str) -> float:
        """Peak FLOPs per second in `dtype`; ValueError where unknown."""
        value = self.peak_flops_per_s.get(dtype)
        if value is None:
            known = ", ".join(sorted(name for name, peak in self.peak_flops_per_s.items() if peak is not None))
            raise ValueError(
                f"hardware {self.name!r}: peak_flops_per_s for {dtype} is unknown, known: {known or 'none'}; "
                "name another compute dtype or add the number to the hardware entry"
            )
        return value

    def _known(self, name: str, value: float | None) -> float:
        if value is None:
            raise ValueError(f"hardware {self.name!r}: {name} is unknown (null); add the number to the hardware entry")
        return value


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The dtypes of a deployment, each a key of DTYPE_BYTES."""

    weights: str
    """Of the weights that are not quantised, of activations and of attention's arithmetic."""
    kv_cache: str
    compute: str
    """The dtype whose peak bounds the arithmetic of the matrices."""
    quantization: Quantization | None = None
    """Of the layers' matrices; None: all weights are plain."""

    def __post_init__(self) -> None:
        """Only dtypes whose size is known."""
        for name in ("weights", "kv_cache", "compute"):
            if getattr(self, name) not in DTYPE_BYTES:
                raise ValueError(f"{name}: expected one of {', '.join(DTYPE_BYTES)}, got {getattr(self, name)!r}")

    @property
    def label(self) -> str:
        """What the weights are, such as `bfloat16` or `int4 in groups of 128`."""
        if self.quantization is None:
            return self.weights
        group = f" in groups of {self.quantization.group_size}" if self.quantization.group_size else ""
        return f"{self.quantization.dtype}{group}{', experts only' if self.quantization.only_experts else ''}"


def precision_of(
    architecture: Architecture,
    hardware: Hardware,
    *,
    dtype: str | None = None,
    kv_cache: str | None = None,
    quantization: Quantization | None = None,
) -> Precision:
    """The dtypes asked for, those of the config where None; matrices multiply in the quantised dtype where there is a
    peak for it (int8 and float8), else in the plain one.

    A dtype that is asked for without a quantisation means plain weights, whatever the config says.

    Raises:
        ValueError: the config names no dtype, or a quantisation whose size is unknown, and none is asked for.
    """
    known = ", ".join(DTYPE_BYTES)
    stored = quantization or (architecture.quantization if dtype is None else None)
    if stored is not None and not stored.bits:
        raise ValueError(
            f"{architecture.name}: field 'quantization_config': expected weights of 4 or 8 bits by a known method, got "
            f"{stored.method!r} without; name their dtype (weights: {', '.join(BITS)} or a plain one)"
        )
    plain = dtype or architecture.dtype
    if plain is None or plain not in DTYPE_BYTES:
        found = plain or "nothing"
        raise ValueError(f"{architecture.name}: weight dtype: expected one of {known}, got {found}; name one")
    compute = plain
    if stored is not None and stored.dtype != "int4" and hardware.peak_flops_per_s.get(stored.dtype) is not None:
        compute = stored.dtype
    return Precision(weights=plain, kv_cache=kv_cache or plain, compute=compute, quantization=stored)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A model on a machine: N equal devices that share every layer (tensor parallel)."""

    architecture: Architecture
    hardware: Hardware
    precision: Precision
    tensor_parallel: int = 1
    shares_weights: bool = False
    """Its weights are part of another model's that is there anyway (the first layers of the target)."""

    def __post_init__(self) -> None:
        """Heads must divide over the devices."""
        heads, kv_heads = self.architecture.heads, self.architecture.kv_heads
        if self.architecture.latent_width:
            kv_heads = heads  # every device holds the one latent vector
        if (
            self.tensor_parallel < 1
            or heads % self.tensor_parallel
            or max(kv_heads, self.tensor_parallel) % min(kv_heads, self.tensor_parallel)
        ):
            raise ValueError(
                f"{self.architecture.name}: tensor parallel: expected a divisor of the {heads} attention heads that "
                f"divides the {kv_heads} key-value heads or is a multiple of them, got {self.tensor_parallel}"
            )

    @property
    def kv_heads_per_device(self) -> int:
        """Key-value heads one device holds; more devices than heads hold copies."""
        return max(1, self.architecture.kv_heads // self.tensor_parallel)

    @property
    def kv_width_per_device(self) -> int:
        """Numbers that one device caches for a token in one layer."""
        return self.architecture.latent_width or 2 * self.kv_heads_per_device * self.architecture.head_dim

    @property
    def expert_weight_bytes(self) -> float:
        """Bytes of one weight of an expert."""
        stored = self.precision.quantization
        return DTYPE_BYTES[self.precision.weights] if stored is None else stored.bytes_per_weight

    @property
    def matrix_weight_bytes(self) -> float:
        """Bytes of one weight of the layers' other matrices."""
        stored = self.precision.quantization
        plain = stored is None or stored.only_experts
        return DTYPE_BYTES[self.precision.weights] if plain else self.expert_weight_bytes

    @property
    def weight_bytes_held(self) -> float:
        """Weights in one device's memory: matrices and embeddings split, routers and vectors copied."""
        shape, plain = self.architecture, DTYPE_BYTES[self.precision.weights]
        copied = shape.vector_parameters + shape.position_parameters + shape.sparse_layers * shape.router_parameters
        experts = shape.sparse_layers * shape.experts * shape.expert_parameters
        matrices = shape.parameters - shape.plain_parameters - experts
        split = experts * self.expert_weight_bytes + matrices * self.matrix_weight_bytes
        split += (shape.plain_parameters - copied) * plain
        return split / self.tensor_parallel + copied * plain

    def kv_bytes_held(self, tokens: ArrayLike) -> FloatArray:
        """KV cache of one sequence of `tokens` tokens on one device; a windowed layer keeps its window."""
        held = np.asarray(whole_numbers("tokens", tokens, minimum=0), dtype=np.float64)
        seen = sum(
            layers * (held if window is None else np.minimum(held, window))
            for window, layers in self.architecture.window_groups()
        )
        per_layer = self.kv_width_per_device * DTYPE_BYTES[self.precision.kv_cache]
        return np.asarray(seen * per_layer, dtype=np.float64)


def largest_batch(
    target: Deployment,
    *,
    context: ArrayLike,
    draft: Deployment | None = None,
    gamma: ArrayLike = 0,
    memory_fraction: float = 0.9,
) -> IntArray:
    """The most sequences whose weights and KV cache fit one device's memory, with or without the draft beside it.

    A round from `context` tokens on needs s + γ + 1 of them in the target's cache, s + γ in the draft's.
    `memory_fraction` of the memory is for weights and cache, the rest for activations and workspace.
    """
    if not 0 < memory_fraction <= 1:
        raise ValueError(f"memory_fraction: expected a number above 0 and at most 1, got {memory_fraction:g}")
    held = whole_numbers("context", context, minimum=0)
    drafted = whole_numbers("gamma", gamma, minimum=0)
    weights = target.weight_bytes_held
    per_sequence = target.kv_bytes_held(held + drafted + 1)
    if draft is not None:
        weights += 0.0 if draft.shares_weights else draft.weight_bytes_held
        per_sequence = per_sequence + draft.kv_bytes_held(held + drafted)
    room = target.hardware.memory() * memory_fraction - weights
    return np.asarray(np.floor(np.maximum(room, 0.0) / per_sequence), dtype=np.int64)
