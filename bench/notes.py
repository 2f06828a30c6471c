"""What a reader must know of a model or of prompts before believing their numbers: told while they are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Note:
    """A warning in one line, with its remedy; the code is its entry in docs/troubleshooting.md."""

    code: str
    message: str
    remedy: str
