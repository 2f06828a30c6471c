"""How a model's weights lie in memory once they are loaded: bytes, types, and whether they are quantised there.

A library may read quantised weights and lay them out in plain numbers, where the device has no kernel for them.  Its
times are then those of plain numbers, which `weight_notes` tells.

    how_it_lies(model)      'bitsandbytes, 4 bits, 240 MiB'; None of a model that is not quantised
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

from specgauge.bench.models.quantized import method_of
from specgauge.bench.notes import Note
from specgauge.model.roofline.quantization import quantization_from_config

_PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_SETTINGS = "_specgauge_quantization"


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of all parameters and buffers, shared ones once, with the scales that libraries keep beside a tensor."""
    storages = {(tensor.device, tensor.untyped_storage().data_ptr()): tensor for tensor in _stored(model)}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def was_quantized(model: PreTrainedModel) -> bool:
    """Whether quantisation settings came with it, or were asked for; a GGUF file's do not count."""
    settings = _settings(model)
    return settings is not None and method_of(settings) != "gguf"


def lies_quantized(model: PreTrainedModel) -> bool:
    """Whether any matrix is in other numbers than floating-point ones of 16 bits or more."""
    return _settings(model) is not None and any(one.dim() >= 2 and one.dtype not in _PLAIN for one in _stored(model))


def rounding_dtype(model: PreTrainedModel) -> torch.dtype:
    """The type whose rounding tells how far equal computations may lie apart.

    Of quantised weights bfloat16: their kernels round activations too, or compute in other types than they return.
    """
    return torch.bfloat16 if lies_quantized(model) else model.dtype


def how_it_lies(model: PreTrainedModel) -> str | None:
    """Method, bits and bytes in words; None of a model that was not quantised anywhere."""
    settings = _settings(model)
    if settings is None:
        return None
    numbers = _bits_text(settings)
    if not lies_quantized(model):
        numbers += f", dequantised to {_dtype_text(model)}"
    return f"{numbers}, {weight_bytes(model) / 2**20:.4g} MiB"


def weight_notes(model: PreTrainedModel, name: str) -> Iterator[Note]:
    """Told where weights are quantised in the files and lie in plain numbers."""
    settings = _settings(model)
    if settings is not None and not lies_quantized(model):
        yield Note(
            code="dequantised",
            message=f"{name}: its weights are quantised ({_bits_text(settings)}) and lie in {_dtype_text(model)} here, "
            f"{weight_bytes(model) / 2**20:.4g} MiB: its times are those of {_dtype_text(model)}",
            remedy="measure it on a device that its library has kernels for; acceptance holds as it is",
        )


def keep_settings(model: PreTrainedModel, settings: Any) -> None:
    """Keep with a model the quantisation settings it was read by, which transformers drops where it dequantises."""
    if settings is not None:
        found = settings if isinstance(settings, Mapping) else settings.to_dict()
        setattr(model, _SETTINGS, dict(found))


def _settings(model: PreTrainedModel) -> dict[str, Any] | None:
    """The quantisation settings of a loaded model; None where there are none."""
    found: dict[str, Any] | None = getattr(model, _SETTINGS, None)
    return found


def _bits_text(settings: dict[str, Any]) -> str:
    method = method_of(settings) or "a method without a name"
    if method == "gguf":
        return f"gguf, mostly {settings['stored']}"
    bits = quantization_from_config({**settings, "quant_method": method}).bits
    return f"{method}, {bits:g} bits" if bits else method


def _dtype_text(model: PreTrainedModel) -> str:
    return str(model.dtype).removeprefix("torch.")


def _stored(model: PreTrainedModel) -> Iterator[Tensor]:
    """Every tensor that holds a part of the weights, those inside of others in their place."""
    for module in model.modules():
        state = vars(module).get("state")  # bitsandbytes keeps the scales of 8 bits here
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            yield from _inside(tensor)
            for holder in (tensor, getattr(tensor, "quant_state", None), state):
                yield from (
                    (one for one in vars(holder).values() if isinstance(one, Tensor)) if holder is not None else ()
                )


def _inside(tensor: Tensor) -> Iterator[Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _inside(getattr(tensor, name))
