"""Import transformers without the parts that measuring never uses: they take a second of every start."""

from __future__ import annotations

import importlib
from typing import Any

UNUSED = ("is_scipy_available", "is_torch_distributed_available")
"""What transformers asks before it imports scipy, for losses of object detection, and torch.distributed's tensors."""


def import_without_unused_parts() -> None:
    """Import what loads models as if scipy and torch.distributed were not installed, as they need not be.

    Where a release of transformers asks otherwise, it imports them. What is imported later finds them again.

    Raises:
        ImportError: torch or transformers is not installed, or does not work.
    """
    homes = [importlib.import_module(f"transformers.utils{name}") for name in ("", ".import_utils")]
    found = [(home, name, getattr(home, name)) for home in homes for name in UNUSED if hasattr(home, name)]
    for home, name, _ in found:
        setattr(home, name, _no)
    try:
        importlib.import_module("transformers.modeling_utils")
    finally:
        for home, name, asked in found:
            setattr(home, name, asked)


def _no(*_: Any, **__: Any) -> bool:
    return False
