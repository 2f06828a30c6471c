"""What a reader must know before relying on the numbers, each with its remedy, and the same thing said once.

First what is missing from the run, then what the run itself warned of when it predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specgauge.reports.data import Gap


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One warning and what to do about it."""

    message: str
    remedy: str


def findings(gaps: Iterable[Gap], warnings: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """The gaps of a run and its warnings (mappings with `message` and `remedy`), without repetitions."""
    found = [Finding(message=gap.message, remedy=_sentence(gap.remedy)) for gap in gaps]
    found += [
        Finding(message=_sentence(str(one.get("message") or "")), remedy=_sentence(str(one.get("remedy") or "")))
        for one in warnings
    ]
    return list(dict.fromkeys(found))


def _sentence(words: str) -> str:
    """`words` with a capital in front and a full stop behind."""
    if not words:
        return words
    return words[0].upper() + words[1:] + ("" if words[-1] in ".!?" else ".")
