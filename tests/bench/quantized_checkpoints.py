"""Tiny Llamas whose layers' matrices are quantised by hand, in the files of each method."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.bench.tiny_checkpoints import WORDS, llama, write_gguf

SHAPE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "initializer_range": 0.1}
GROUP = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Packed = dict[str, Tensor]


def quantize(folder: Path, out: Path, settings: dict[str, Any], pack: Callable[[Tensor], Packed]) -> Path:
    """A copy of a model in which `pack` gives each matrix of the layers as its files' tensors, by their suffixes."""
    shutil.copytree(folder, out)
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        is_packed = tensor.dim() == 2 and ".layers." in name
        own = {name.removesuffix("weight") + suffix: one for suffix, one in pack(tensor).items()} if is_packed else {}
        tensors |= own or {name: tensor}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return out


def gptq(folder: Path, out: Path) -> Path:
    """Four bits in groups, packed along the inputs."""

    def pack(weight: Tensor) -> Packed:
        numbers, scales = _four_bits(weight)
        zeros = torch.full(scales.shape, 7)
        return {
            "qweight": _packed(numbers.T, range(8)).T.contiguous(),
            "qzeros": _packed(zeros, range(8)),
            "scales": scales.half(),
            "g_idx": torch.arange(len(numbers), dtype=torch.int32) // GROUP,
        }

    settings = {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "checkpoint_format": "gptq"}
    return quantize(folder, out, {"quant_method": "gptq", **settings}, pack)


def awq(folder: Path, out: Path) -> Path:
    """Four bits in groups, packed along the outputs in AWQ's order."""

    def pack(weight: Tensor) -> Packed:
        numbers, scales = _four_bits(weight)
        zeros = torch.full(scales.shape, 8)
        return {
            "qweight": _packed(numbers, _AWQ_ORDER),
            "qzeros": _packed(zeros, _AWQ_ORDER),
            "scales": scales.half(),
        }

    settings = {"bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    return quantize(folder, out, {"quant_method": "awq", **settings}, pack)


def compressed_int8(folder: Path, out: Path) -> Path:
    """compressed-tensors' eight bits, a scale for each row."""

    def pack(weight: Tensor) -> Packed:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    return quantize(folder, out, _compressed("int-quantized", weights), pack)


def compressed_int4(folder: Path, out: Path) -> Path:
    """compressed-tensors' four bits in groups, packed."""

    def pack(weight: Tensor) -> Packed:
        numbers, scales = _four_bits(weight)
        return {
            "weight_packed": _packed(numbers.T, range(8)),
            "weight_scale": scales.T.contiguous(),
            "weight_shape": torch.tensor(weight.shape),
        }

    own = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP, "dynamic": False}
    return quantize(folder, out, _compressed("pack-quantized", own), pack)


def fp8(folder: Path, out: Path) -> Path:
    """Eight-bit floats in blocks of 128 by 128."""

    def pack(weight: Tensor) -> Packed:
        rows, columns = (-(-length // 128) for length in weight.shape)
        scale = weight.abs().amax() / 448
        return {
            "weight": (weight / scale).to(torch.float8_e4m3fn),
            "weight_scale_inv": scale.expand(rows, columns).contiguous(),
        }

    settings = {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
    return quantize(folder, out, {"quant_method": "fp8", **settings}, pack)


def gguf_q8(out: Path) -> Path:
    """A GGUF file with the matrices of the layers in Q8_0."""
    import gguf

    add, kind = gguf.GGUFWriter.add_tensor, gguf.GGMLQuantizationType.Q8_0

    def quantized(writer: Any, name: str, values: Any) -> None:
        if values.ndim == 2 and name.startswith("blk."):
            add(writer, name, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
        else:
            add(writer, name, values)

    with patch.object(gguf.GGUFWriter, "add_tensor", quantized):
        write_gguf(out, llama(seed=3, **SHAPE), WORDS)
    return out


def _compressed(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "format": form, "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def _four_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(inputs, outputs) numbers of 0 to 15 around 8, and (groups, outputs) scales, of an (outputs, inputs) matrix."""
    outputs, inputs = weight.shape
    groups = weight.T.reshape(inputs // GROUP, GROUP, outputs)
    scales = groups.abs().amax(1) / 7
    return ((groups / scales[:, None]).round() + 8).reshape(inputs, outputs).long(), scales


def _packed(numbers: Tensor, order: Iterable[int]) -> Tensor:
    """Eight numbers of four bits along the last axis to an int32, the first of `order` in the lowest bits."""
    columns = sum(numbers[:, place::8] << (4 * index) for index, place in enumerate(order))
    assert isinstance(columns, Tensor)
    return torch.where(columns < 1 << 31, columns, columns - (1 << 32)).to(torch.int32).contiguous()
