"""The roofline: bytes, FLOPs and the least time of one forward pass, from a model's shape and a machine's peaks.

One step feeds n tokens to each of B sequences that hold s tokens in the cache (n = 1 decodes, n = gamma + 1 verifies).
Each of the N devices of a tensor-parallel group then does

    weight bytes     (L·A + D·F + M·(E(1 − (1 − k/E)^(nB))·X + S) + head) / N, routers, vectors, nB rows
    KV bytes         B · Σ_layers (min(s, window − 1) + n) · 2 · kv_heads/N · head_dim      read s, write n
    matrix FLOPs     2 · nB · (weights that multiply a token) / N
    attention FLOPs  B · Σ_layers Σ_{i=1..n} min(s + i, window) · 4 · heads/N · head_dim
                     (latent attention: its width for 2·kv_heads/N·head_dim, 2·(2·rank + rotated) for 4·head_dim)
    all-reduce       2 · layers · 2(N − 1)/N · nB · hidden      numbers sent by a ring, two all-reduces a layer

and can't take less than the longest of bytes / bandwidth, FLOPs / peak and bytes sent / link bandwidth: the roofline
bound (Williams et al., "Roofline", CACM 2009).  What a machine really takes is

    t = layers·launch + nB·token + sent/link + weights/(b·bandwidth) + matrix/(f·peak)
        + imbalance·KV/(b·bandwidth) + attention/(f·peak)

with few fractions b, f and costs fitted on measured cells: `specgauge.model.roofline.calibration`.  Everything
broadcasts over batch size, context and tokens.

    >>> round(float(experts_touched(8, 2, 5)), 4)
    6.1016
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.roofline.architecture import Architecture
from specgauge.model.roofline.deployment import DTYPE_BYTES, Deployment


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """What one device does in one step; every array has the broadcast shape of batch size, context and tokens."""

    layers: int
    tokens: FloatArray
    """Tokens of all sequences together, n·B."""
    weight_bytes: FloatArray
    kv_bytes: FloatArray
    matrix_flops: FloatArray
    attention_flops: FloatArray
    sent_bytes: FloatArray
    """What one device sends in the all-reduces."""
    attention_blocks: FloatArray
    """Independent pieces of attention, B · kv_heads of the device."""

    @property
    def memory_bytes(self) -> FloatArray:
        """Weights and KV cache, read and written."""
        return self.weight_bytes + self.kv_bytes

    @property
    def flops(self) -> FloatArray:
        """Matrices and attention."""
        return self.matrix_flops + self.attention_flops


def experts_touched(experts: int, per_token: int, tokens: ArrayLike) -> FloatArray:
    """E(1 − (1 − k/E)^n): expected distinct experts when each of n tokens picks k of E uniformly."""
    if not 1 <= per_token <= experts:
        raise ValueError(f"per_token: expected 1 to the {experts} experts, got {per_token}")
    count = whole_numbers("tokens", tokens, minimum=0)
    if per_token == experts:
        return np.asarray(np.where(count > 0, float(experts), 0.0), dtype=np.float64)
    return np.asarray(experts * -np.expm1(count * math.log1p(-per_token / experts)), dtype=np.float64)


def step_work(deployment: Deployment, *, batch_size: ArrayLike, context: ArrayLike, tokens: ArrayLike = 1) -> StepWork:
    """Bytes and FLOPs of one forward of `tokens` new tokens per sequence, on one device (equations at the top).

    `batch_size` ≥ 1, `context` ≥ 0 and `tokens` ≥ 1 broadcast.  Every new token gets logits.

    Raises:
        ValueError: a count that is not whole or below its least value.
    """
    batch, held, fed = np.broadcast_arrays(
        whole_numbers("batch_size", batch_size, minimum=1),
        whole_numbers("context", context, minimum=0),
        whole_numbers("tokens", tokens, minimum=1),
    )
    shape, devices, precision = deployment.architecture, deployment.tensor_parallel, deployment.precision
    through = np.asarray(batch * fed, dtype=np.float64)
    seen, pairs = _attention_extent(shape, held, fed)
    routers = shape.sparse_layers * shape.router_parameters
    plain, kv_size = DTYPE_BYTES[precision.weights], DTYPE_BYTES[precision.kv_cache]
    held_once = shape.vector_parameters + routers + through * shape.hidden_size * (1 + (shape.position_parameters > 0))
    matrices = shape.layers * shape.attention_parameters + shape.dense_layers * shape.mlp_parameters
    matrices += shape.sparse_layers * shape.shared_parameters + shape.fusion_parameters
    split = np.full(through.shape, matrices * deployment.matrix_weight_bytes + shape.head_parameters * plain)
    if shape.sparse_layers:
        touched = experts_touched(shape.experts, shape.experts_per_token, batch * fed)
        split += shape.sparse_layers * touched * shape.expert_parameters * deployment.expert_weight_bytes
    ring = 2 * (devices - 1) / devices
    return StepWork(
        layers=shape.layers,
        tokens=through,
        weight_bytes=np.asarray(split / devices + held_once * plain, dtype=np.float64),
        kv_bytes=batch * (seen + shape.layers * fed) * float(deployment.kv_width_per_device * kv_size),
        matrix_flops=2.0 * through * ((shape.matrix_parameters_per_token - routers) / devices + routers),
        attention_flops=batch * pairs * (2.0 * shape.heads / devices * shape.pair_width),
        sent_bytes=2 * shape.layers * ring * through * shape.hidden_size * plain,
        attention_blocks=np.asarray(batch * (1 if shape.latent_width else deployment.kv_heads_per_device), dtype=float),
    )


def _attention_extent(shape: Architecture, held: IntArray, fed: IntArray) -> tuple[FloatArray, FloatArray]:
    """Summed over layers: cached tokens that the step reads, and query-key pairs that it multiplies, per sequence."""
    context, new = held.astype(np.float64), fed.astype(np.float64)
    seen, pairs = np.zeros_like(context), np.zeros_like(context)
    for window, layers in shape.window_groups():
        if window is None:
            seen += layers * context
            pairs += layers * (new * context + new * (new + 1) / 2)
        else:
            growing = np.clip(window - context, 0, new)
            seen += layers * np.minimum(context, window - 1)
            pairs += layers * (growing * context + growing * (growing + 1) / 2 + (new - growing) * window)
    return seen, pairs


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """How far a machine and its software stay from the peaks; fitted, and carried to other cells, models and cards."""

    bandwidth_fraction: float = 1.0
    """Share of the memory bandwidth that is reached (over 1: served from a cache)."""
    flops_fraction: float = 1.0
    """Share of the peak FLOP rate that is reached."""
    launch_s: float = 0.0
    """Fixed seconds of one layer: kernel launches, the latency of all-reduces."""
    token_s: float = 0.0
    """Fixed seconds for each token fed: drawing it, host work."""
    overlap_exponent: float = 1.0
    """How memory and arithmetic of one operation combine, (m^p + a^p)^(1/p): 1 one after the other, ∞ hidden."""
    resident_blocks: int | None = 2
    """Attention blocks that one multiprocessor holds at once; None: attention is always balanced."""


PARTS = ("weights", "kv", "flops", "launch", "all_reduce")
"""What the seconds of a step go to."""


def step_parts_s(work: StepWork, deployment: Deployment, efficiency: Efficiency | None = None) -> dict[str, FloatArray]:
    """Seconds of a step by what takes them, one of `PARTS`; the largest bounds the step.

    Without fitted efficiencies each is at its peak, and nothing is known of launches.  All devices of a tensor-parallel
    group reduce what each sends over its link.
    """
    weights, kv, matrix, attention, launch, sent = _seconds(work, deployment, efficiency)
    return dict(zip(PARTS, (weights, kv, matrix + attention, launch, sent), strict=True))


def step_time_s(work: StepWork, deployment: Deployment, efficiency: Efficiency | None = None) -> FloatArray:
    """Seconds of a step with fitted efficiencies (equation at the top); without, its roofline bound.

    The bound is the longest of memory (weights and cache), arithmetic and link.  Weights that fit in a cache can be
    read faster than memory's peak; then it does not hold.
    """
    weights, kv, matrix, attention, launch, sent = _seconds(work, deployment, efficiency)
    if efficiency is None:
        return np.asarray(np.maximum.reduce([weights + kv, matrix + attention, sent]), dtype=np.float64)
    exponent = efficiency.overlap_exponent
    combined = _combine(weights, matrix, exponent) + _combine(kv, attention, exponent)
    return np.asarray(launch + combined + sent, dtype=np.float64)


def _seconds(work: StepWork, deployment: Deployment, efficiency: Efficiency | None) -> list[FloatArray]:
    """Weights, cache, matrices, attention, launches and all-reduces, each by itself."""
    used = efficiency or Efficiency(resident_blocks=None)
    hardware, precision = deployment.hardware, deployment.precision
    bandwidth = used.bandwidth_fraction * hardware.bandwidth()
    imbalance = attention_imbalance(work.attention_blocks, hardware.multiprocessors, used.resident_blocks)
    found = (
        work.weight_bytes / bandwidth,
        imbalance * work.kv_bytes / bandwidth,
        work.matrix_flops / (used.flops_fraction * hardware.peak(precision.compute)),
        work.attention_flops / (used.flops_fraction * hardware.peak(precision.weights)),
        work.layers * used.launch_s + work.tokens * used.token_s,
        work.sent_bytes / hardware.link() if deployment.tensor_parallel > 1 else np.zeros_like(work.tokens),
    )
    return [np.asarray(seconds, dtype=np.float64) for seconds in found]


def _combine(memory_s: FloatArray, arithmetic_s: FloatArray, exponent: float) -> FloatArray:
    if math.isinf(exponent):
        return np.maximum(memory_s, arithmetic_s)
    longest = np.maximum(memory_s, arithmetic_s)
    share = np.minimum(memory_s, arithmetic_s) / np.where(longest > 0, longest, 1.0)
    return np.asarray(longest * (1.0 + share**exponent) ** (1.0 / exponent), dtype=np.float64)


def attention_imbalance(blocks: ArrayLike, multiprocessors: int | None, resident_blocks: int | None) -> FloatArray:
    """How much longer attention takes than its bytes say, because whole blocks are dealt to multiprocessors.

    Decode attention runs one block for each sequence and key-value head; `multiprocessors` times `resident_blocks` of
    them at once, at full bandwidth.  A last wave with fewer blocks than multiprocessors takes as long as one with a
    block on each.  Fewer blocks in total are split along the context (Flash-Decoding), at no loss.
    """
    count = np.asarray(blocks, dtype=np.float64)
    if multiprocessors is None or resident_blocks is None:
        return np.ones_like(count)
    at_once = float(multiprocessors * resident_blocks)
    full = np.floor(count / at_once) * at_once
    rest = count - full
    taken = full + np.where(rest > 0, np.maximum(rest, multiprocessors), 0.0)
    return np.asarray(np.where(count < multiprocessors, 1.0, taken / np.maximum(count, 1.0)), dtype=np.float64)
