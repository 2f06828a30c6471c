"""Quantised weights: which library reads which method, what it needs, and what shows of that before loading. No torch.

method_of({"load_in_4bit": True})       # bitsandbytes
fault(None, {"quant_method": "gptq", "bits": 4}, model="org/name", is_on_cpu=False)     # None where it can be read
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

LOAD_FLAGS = ("load_in_4bit", "load_in_8bit")
"""What bitsandbytes' settings may say in the place of a method."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """What reads a method's weights."""

    extra: str
    """Of specgauge, which installs it."""
    modules: tuple[str, ...]
    """Packages as they are imported."""
    quantizes: bool = False
    """Whether transformers quantises plain weights by it while it loads them."""
    quantizes_on_cpu: bool = True
    """Whether it does so without a GPU."""


LIBRARIES = {
    "bitsandbytes": Library(extra="bitsandbytes", modules=("bitsandbytes", "accelerate"), quantizes=True),
    "fp8": Library(extra="fp8", modules=("accelerate",), quantizes=True, quantizes_on_cpu=False),
    "torchao": Library(extra="torchao", modules=("torchao",), quantizes=True),
    "gptq": Library(extra="gptq", modules=("gptqmodel", "optimum")),
    "awq": Library(extra="awq", modules=("gptqmodel", "accelerate")),
    "compressed-tensors": Library(extra="compressed-tensors", modules=("compressed_tensors",)),
    "gguf": Library(extra="gguf", modules=("gguf", "accelerate")),
}
"""By quant_method; of others transformers says itself what they need."""


def method_of(settings: Mapping[str, Any]) -> str | None:
    """The method that quantisation settings name, in a config.json or in YAML; None where they name none."""
    if any(settings.get(flag) is True for flag in LOAD_FLAGS):
        return "bitsandbytes"
    method = settings.get("quant_method")
    method = getattr(method, "value", method)  # transformers' own settings hold an enumeration
    return method.removesuffix("_4bit").removesuffix("_8bit") if isinstance(method, str) else None


def fault(
    asked: Mapping[str, Any] | None, stored: Mapping[str, Any] | None, *, model: str, is_on_cpu: bool
) -> str | None:
    """Why a model's quantised weights cannot be read or made here, in a line; None where nothing shows.

    asked: the settings of `quantization`; stored: those of the model's config.json.
    """
    settings = stored if stored is not None else asked
    method = None if settings is None else method_of(settings)
    library = None if method is None else LIBRARIES.get(method)
    if library is None or method is None:
        return None
    where = f"'{model}' is quantised by {method}" if stored is not None else f"quantization: {method}"
    if stored is None and not library.quantizes:
        makers = ", ".join(name for name, one in LIBRARIES.items() if one.quantizes)
        return (
            f"{where} reads weights that were quantised before, and those of '{model}' were not; name a model that "
            f"is, or quantise it as it is loaded ({makers})"
        )
    if stored is None and is_on_cpu and not library.quantizes_on_cpu:
        return f"{where} quantises on a CUDA device, and the model is on the CPU; use device: cuda, or bitsandbytes"
    return missing(method, where)


def missing(method: str, where: str) -> str | None:
    """What is not installed of a method's library, and the command that installs it; None where all is there."""
    library = LIBRARIES[method]
    absent = [name for name in library.modules if find_spec(name) is None]
    if not absent:
        return None
    verb = "is" if len(absent) == 1 else "are"
    return f'{where}, and {" and ".join(absent)} {verb} not installed: pip install "specgauge[{library.extra}]"'
