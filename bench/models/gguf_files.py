"""What a GGUF file says of its model: architecture, sizes, and how its tensors are stored. No torch.

found = read_gguf(Path("model-q4.gguf"))        # None where the gguf package is not installed
found.number("block_count"), found.parameters, found.quantized
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PLAIN = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NUMBERS = (
    *("block_count", "embedding_length", "feed_forward_length", "context_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
)


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """The header of a file."""

    numbers: Mapping[str, int]
    """Sizes by their names after the architecture's."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of every tensor, by its name."""
    types: Mapping[str, str]
    """How each is stored, as GGUF names it."""

    def number(self, name: str) -> int | None:
        """A size; None where the header has none, or not one for all layers."""
        return self.numbers.get(name)

    @property
    def quantized(self) -> str | None:
        """The type most of the matrices are quantised in; None where none is quantised."""
        counted = Counter(kind for kind in self.types.values() if kind not in _PLAIN)
        return counted.most_common(1)[0][0] if counted else None


def read_gguf(path: Path) -> GgufFile | None:
    """The header of a file; None where the gguf package is not installed.

    Raises:
        ValueError: it is no whole GGUF file.
    """
    if find_spec("gguf") is None:
        return None
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        architecture = _content(reader, "general.architecture")
        found = {name: _content(reader, f"{architecture}.{name}") for name in _NUMBERS}
        return GgufFile(
            numbers={name: value for name, value in found.items() if isinstance(value, int)},
            shapes={tensor.name: tuple(int(length) for length in tensor.shape) for tensor in reader.tensors},
            types={tensor.name: tensor.tensor_type.name for tensor in reader.tensors},
        )
    except Exception as error:  # the reader fails in numpy's own ways on what is cut off
        what = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: truncated or not a GGUF file: {what}; download it again") from error


def gguf_settings(path: Path) -> dict[str, Any] | None:
    """How a file's matrices are quantised, as settings of quantisation name it; None where none is, or none is here."""
    found = read_gguf(path) if path.is_file() else None
    kind = None if found is None else found.quantized
    return None if kind is None else {"quant_method": "gguf", "stored": kind}


def _content(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()
