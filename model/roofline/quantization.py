"""Quantised weights: bytes of one weight with its share of the group's scale, and what a config.json says of them.

    bytes of a weight    bits / 8 + scale bytes / group

Matrices of the layers are quantised; embedding, output head, norms, biases and routers keep the plain dtype, as the
common checkpoints have them (and attention does where only experts are quantised, as in MXFP4).

    >>> Quantization(method="gptq", dtype="int4", bits=4, group_size=128, scale_bytes=2.0).bytes_per_weight
    0.515625
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BITS = {"int4": 4, "int8": 8, "float8": 8}
"""What `--weights` may ask for, beside the plain dtypes."""


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """How the matrices of the layers are stored."""

    method: str
    """As the config calls it, or `given`."""
    dtype: str
    """Of the multiplication where the machine has a peak for it: int4, int8 or float8."""
    bits: float
    """Of one weight; 0 where the method does not say, which is an error as soon as it is needed."""
    group_size: int | None = None
    """Weights that share a scale; None: a scale for each row or matrix, which weighs nothing."""
    scale_bytes: float = 2.0
    """Bytes of one scale, its zero point included."""
    only_experts: bool = False
    """Attention, dense and shared feed-forward matrices keep the plain dtype."""

    @property
    def bytes_per_weight(self) -> float:
        """Bits over 8, and the share of a scale."""
        return self.bits / 8 + (self.scale_bytes / self.group_size if self.group_size else 0.0)


def quantized(dtype: str, group_size: int | None = None) -> Quantization:
    """Weights in one of `BITS`, with 2-byte scales for groups of `group_size`.

    Raises:
        ValueError: another dtype, or a group of no weight.
    """
    if dtype not in BITS:
        raise ValueError(f"weights: expected one of {', '.join(BITS)} beside the plain dtypes, got {dtype!r}")
    if group_size is not None and group_size < 1:
        raise ValueError(f"weights: expected groups of at least 1 weight, got {group_size}")
    return Quantization(method="given", dtype=dtype, bits=BITS[dtype], group_size=group_size)


def quantization_from_config(config: Mapping[str, Any]) -> Quantization:
    """What a config.json's `quantization_config` means; bits 0 where this table does not know the method."""
    method = str(config.get("quant_method", "unnamed"))
    if method == "mxfp4":  # OCP Microscaling: 32 four-bit numbers to one scale of a byte; gpt-oss quantises experts
        return Quantization(method=method, dtype="int4", bits=4, group_size=32, scale_bytes=1.0, only_experts=True)
    if method == "fp8":
        block = config.get("weight_block_size")
        sizes = [size for size in block if _is_count(size)] if isinstance(block, (list, tuple)) else []
        group = math.prod(sizes) if len(sizes) == 2 else None
        return Quantization(method=method, dtype="float8", bits=8, group_size=group, scale_bytes=4.0)
    if method == "compressed-tensors":
        groups = config.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        found = first.get("weights") if isinstance(first, Mapping) else None
        weights: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        return _by_bits(method, weights.get("num_bits"), weights.get("group_size"), weights.get("type") == "float")
    if method == "bitsandbytes":
        bits = 4 if config.get("load_in_4bit") is True else 8
        return _by_bits(method, bits, 64 if bits == 4 else None, False)
    return _by_bits(method, config.get("bits", config.get("w_bit")), config.get("group_size"), False)


def _by_bits(method: str, bits: object, group_size: object, is_float: bool) -> Quantization:
    known = bits if isinstance(bits, int) and bits in (4, 8) else 0
    return Quantization(
        method=method,
        dtype="int4" if known == 4 else "float8" if is_float else "int8",
        bits=known,
        group_size=int(group_size) if isinstance(group_size, int) and _is_count(group_size) else None,
        scale_bytes=2.0 + known / 8,
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
