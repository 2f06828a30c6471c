"""One line of the journal: what one arm of one cell gave in one block.

A cell is a point of the sweep (its axes); an arm is one thing timed there: `decode`, `draft`, `draft_catch_up`,
`verify:<gamma>`, `prefill_target`, `prefill_draft`. A sample is a list of cumulative marks in seconds: one mark for
most arms, the marks C(1), …, C(γ_max) for `draft`. Raw samples and warm-ups are kept; statistics derive from them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from specgauge.configs.canonical import canonical_json, short_hash

SCHEMA = 1
Status = Literal["ok", "oom", "skipped", "failed", "killed"]
STATUSES: tuple[str, ...] = get_args(Status)
AXES = ("pair", "mode", "chain", "batch_size", "context")
SETTLED: frozenset[str] = frozenset({"ok", "oom", "skipped"})
"""Statuses that are results; a block that failed or was killed is measured again by the next run."""
_ARM = re.compile(r"decode|draft|draft_catch_up|verify:[1-9][0-9]*|prefill_target|prefill_draft")
_TEXT_AXES = ("pair", "mode", "chain")
_REQUIRED = ("schema", "config", "cell", "axes", "arm", "block", "status")

Key = tuple[str, str, int]


class ReleaseError(ValueError):
    """Written by a release of specgauge with another file format."""


@dataclass(frozen=True, kw_only=True)
class JournalLine:
    """One (cell, arm, block). Times in seconds; `device_s` is the wall time the line cost, None when unknown."""

    config: str
    cell: str
    axes: Mapping[str, Any]
    arm: str
    block: int
    status: Status
    reason: str | None = None
    samples_s: tuple[tuple[float, ...], ...] = ()
    first_call_s: float | None = None
    warmup_s: tuple[tuple[float, ...], ...] = ()
    device_s: float | None = None
    at: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def key(self) -> Key:
        """What the line is about: (cell, arm, block)."""
        return self.cell, self.arm, self.block

    def to_json(self) -> str:
        """The line's canonical JSON, without the line's end."""
        return canonical_json(
            {
                "schema": self.schema,
                "config": self.config,
                "cell": self.cell,
                "axes": dict(self.axes),
                "arm": self.arm,
                "block": self.block,
                "status": self.status,
                "reason": self.reason,
                "samples_s": [list(sample) for sample in self.samples_s],
                "first_call_s": self.first_call_s,
                "warmup_s": [list(sample) for sample in self.warmup_s],
                "device_s": self.device_s,
                "at": self.at,
                "notes": dict(self.notes),
            }
        )


def parse_line(value: Any) -> JournalLine:
    """The journal line that a decoded JSON value stands for.

    Raises:
        ValueError: not a line of this journal format; the message names the field, without the place.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a JSON object is expected, found {type(value).__name__}")
    missing = [name for name in _REQUIRED if name not in value]
    if missing:
        raise ValueError(f"the field {missing[0]!r} is missing")
    if value["schema"] != SCHEMA:
        raise ReleaseError(
            f"schema {value['schema']!r} was written by another release (this one reads schema {SCHEMA})"
        )
    unknown = sorted(set(value) - set(JournalLine.__dataclass_fields__))
    if unknown:
        raise ValueError(f"the field {unknown[0]!r} is unknown")
    axes = _axes(value["axes"])
    if value["cell"] != short_hash(axes):
        raise ValueError(f"cell {value['cell']!r} is not the hash of its axes ({short_hash(axes)!r})")
    return JournalLine(
        config=_text(value, "config"),
        cell=value["cell"],
        axes=axes,
        arm=_arm(value["arm"]),
        block=_count(value, "block"),
        status=_status(value["status"]),
        reason=_text(value, "reason") if value.get("reason") is not None else None,
        samples_s=_samples(value.get("samples_s", ()), "samples_s"),
        first_call_s=_seconds(value.get("first_call_s"), "first_call_s"),
        warmup_s=_samples(value.get("warmup_s", ()), "warmup_s"),
        device_s=_seconds(value.get("device_s"), "device_s"),
        at=_text(value, "at") if value.get("at") is not None else None,
        notes=_notes(value.get("notes")),
    )


def _axes(axes: Any) -> dict[str, Any]:
    if not isinstance(axes, Mapping) or sorted(axes) != sorted(AXES):
        raise ValueError(f"axes must have exactly the keys {', '.join(AXES)}, found {axes!r}")
    for name in AXES:
        if name in _TEXT_AXES:
            _text(axes, name)
        else:
            _count(axes, name)
    return dict(axes)


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value[name]
    if not isinstance(found, str):
        raise ValueError(f"{name} must be text, found {found!r}")
    return found


def _count(value: Mapping[str, Any], name: str) -> int:
    found = value[name]
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ValueError(f"{name} must be a whole number of at least 0, found {found!r}")
    return found


def _arm(arm: Any) -> str:
    if not isinstance(arm, str) or not _ARM.fullmatch(arm):
        allowed = "decode, draft, draft_catch_up, verify:<gamma>, prefill_target, prefill_draft"
        raise ValueError(f"arm {arm!r} is unknown, allowed: {allowed}")
    return arm


def _status(status: Any) -> Status:
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is unknown, allowed: {', '.join(STATUSES)}")
    known: Status = status
    return known


def _seconds(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be finite seconds of at least 0, found {value!r} (unknown is null)")
    return float(value)


def _samples(samples: Any, name: str) -> tuple[tuple[float, ...], ...]:
    if not isinstance(samples, Sequence) or isinstance(samples, str):
        raise ValueError(f"{name} must be a list of samples, each a list of marks in seconds, found {samples!r}")
    checked = []
    for sample in samples:
        if not isinstance(sample, Sequence) or isinstance(sample, str) or not sample:
            raise ValueError(f"{name} must hold non-empty lists of marks in seconds, found {sample!r}")
        marks = [_seconds(mark, name) for mark in sample]
        if None in marks:
            raise ValueError(f"{name} holds null, a mark must be a number of seconds")
        checked.append(tuple(mark for mark in marks if mark is not None))
    return tuple(checked)


def _notes(notes: Any) -> dict[str, Any]:
    if notes is None:
        return {}
    if not isinstance(notes, Mapping):
        raise ValueError(f"notes must be a mapping, found {notes!r}")
    return dict(notes)
