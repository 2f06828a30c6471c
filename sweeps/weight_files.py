"""How many weights a model's safetensors files hold, and the bytes they take once loaded, read from the headers alone.

    tensors = read_tensors(folder)                        # None where there are no safetensors files
    count_weights(tensors, stored=config.get("quantization_config"))

A quantised matrix stands in its file as packed numbers with their scales beside them; methods differ in the names:

    qweight, qzeros, scales, g_idx        GPTQ, AWQ
    weight_packed, weight_scale, …        compressed-tensors
    weight (int8, float8), weight_scale…  compressed-tensors, fp8
    weight (uint8), weight.absmax, …      bitsandbytes
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgauge.configs.reading import TABLE_BYTES, read_text
from specgauge.model.roofline.quantization import quantization_from_config

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
PLAIN = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Floating-point types as the files name them; of whatever else, weights are quantised."""
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_LAYER = re.compile(r"\.(\d+)\.")
_BESIDE = re.compile(
    r"\.(qzeros|scales|g_idx|SCB|weight_format|input_scale|input_global_scale"
    r"|weight_(scale|scale_inv|zero_point|shape|g_idx|global_scale)"
    r"|weight\.(absmax|quant_map|nested_\w+|quant_state\.\S+))$"
)
"""Names of what stands beside a quantised matrix."""
_BLOCK = 64
"""Weights that share a scale in bitsandbytes' 4 bits; 256 scales share one where they are quantised too."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor of a file, by its header."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As safetensors name it."""

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file; types that are not listed take one a number."""
        return self.count * _BYTES.get(self.dtype, 1)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What the files hold."""

    parameters: int
    """Weights, however they are packed, without their scales."""
    plain: int
    """Of them those that are loaded in the model's own type."""
    quantized_bytes: int
    """Of all others and of the scales."""
    dtype: str | None
    """The first plain type met."""

    def loaded_bytes(self, dtype: str) -> int:
        """Bytes in memory with the plain ones in `dtype`."""
        return self.plain * DTYPE_BYTES[dtype] + self.quantized_bytes


def read_tensors(folder: Path, layers: int | None = None) -> list[StoredTensor] | None:
    """Every tensor of the folder's safetensors files; None where there are none, or not all of an index.

    With `layers` only those of the layers before it, and those of no layer.

    Raises:
        ValueError: a file is damaged.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_json(index).get("weight_map")
        names = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []
    else:
        names = ["model.safetensors"]
    paths = [folder / name for name in names]
    if not paths or not all(path.is_file() for path in paths):
        return None
    from safetensors import SafetensorError, safe_open

    found: list[StoredTensor] = []
    for path in paths:
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118  (it is no mapping)
                    tensor, layer = file.get_slice(name), _LAYER.search(name)
                    if layers is None or layer is None or int(layer[1]) < layers:
                        found.append(
                            StoredTensor(name=name, shape=tuple(tensor.get_shape()), dtype=str(tensor.get_dtype()))
                        )
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{path}: truncated or not a safetensors file: {error}; download the model again"
            ) from error
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is none.
    """
    try:
        content = json.loads(read_text(path, TABLE_BYTES))
        if not isinstance(content, dict):
            raise ValueError(f"got {type(content).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, expected a JSON object: {error}; download the model again") from error
    return content


def count_weights(
    tensors: Sequence[StoredTensor],
    *,
    stored: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
    is_on_cpu: bool = False,
) -> Weights | None:
    """The weights of a model's files as they will lie; None where a method does not tell.

    stored: the quantisation settings of config.json; asked: those by which plain weights are quantised as they load.
    is_on_cpu: where some libraries lay quantised weights out in plain numbers.
    """
    from specgauge.bench.models.quantized import method_of

    dtype = next((PLAIN[one.dtype] for one in tensors if one.dtype in PLAIN), None)
    settings = stored if stored is not None else asked
    if settings is None:
        count = sum(one.count for one in tensors)
        return Weights(parameters=count, plain=count, quantized_bytes=0, dtype=dtype)
    method = method_of(settings)
    if stored is None:
        packed = {one.name: bytes_ for one in tensors if (bytes_ := _bytes_made(one, method, settings)) is not None}
        if not packed:
            return None
        count = sum(one.count for one in tensors)
        plain = sum(one.count for one in tensors if one.name not in packed)
        return Weights(parameters=count, plain=plain, quantized_bytes=sum(packed.values()), dtype=dtype)
    bits = quantization_from_config({**settings, "quant_method": str(method)}).bits
    beside = [one for one in tensors if _BESIDE.search(one.name)]
    weights = [one for one in tensors if not _BESIDE.search(one.name)]
    in_files = [one for one in weights if one.dtype not in PLAIN]
    if not bits or (method not in ("bitsandbytes", "gptq", "awq", "fp8", "compressed-tensors")):
        return None
    matrices = sum(one.count * _numbers_in(one, bits) for one in in_files)
    plain = sum(one.count for one in weights) - sum(one.count for one in in_files)
    if method == "compressed-tensors" or (method == "fp8" and is_on_cpu):
        kept = sum(one.stored_bytes for one in beside) if method == "compressed-tensors" else 0
        return Weights(parameters=plain + matrices, plain=plain + matrices, quantized_bytes=kept, dtype=dtype)
    quantized_bytes = sum(one.stored_bytes for one in (*in_files, *beside))
    return Weights(parameters=plain + matrices, plain=plain, quantized_bytes=quantized_bytes, dtype=dtype)


def _numbers_in(tensor: StoredTensor, bits: float) -> int:
    """Weights in one number of a quantised tensor."""
    width = {"I32": 32, "U32": 32, "U8": 8}.get(tensor.dtype)
    return 1 if width is None else max(1, int(width // bits))


def _bytes_made(tensor: StoredTensor, method: str | None, settings: Mapping[str, Any]) -> int | None:
    """Bytes of a plain tensor once it is quantised, scales included; None where it stays as it is."""
    skipped = settings.get("llm_int8_skip_modules") or settings.get("modules_to_not_convert") or ()
    is_matrix = len(tensor.shape) == 2 and _LAYER.search(tensor.name) is not None and tensor.dtype in PLAIN
    if not is_matrix or any(str(name) in tensor.name for name in skipped):
        return None
    if method == "fp8":
        rows, columns = (-(-length // 128) for length in tensor.shape)
        return tensor.count + 4 * rows * columns
    if method == "bitsandbytes" and settings.get("load_in_4bit") is True:
        blocks = -(-tensor.count // _BLOCK)
        is_double = settings.get("bnb_4bit_use_double_quant") is True
        return -(-tensor.count // 2) + (blocks + 4 * -(-blocks // 256) if is_double else 4 * blocks)
    if method == "bitsandbytes":
        return tensor.count + 4 * tensor.shape[0]
    return None
