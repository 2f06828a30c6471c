"""Rules for fields that take several values: a few words, names, numbers, or the integers along one axis of the grid.

``gamma: Annotated[tuple[int, ...], Axis(Whole(at_least=1))]`` takes 4, [1, 2, 4], 1:8, 1:8:2 and {from: 1, to: 8}; the
configuration keeps the sorted tuple.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from specgauge.configs.faults import Fault, missing_key, nearest, unknown_key, value_fault
from specgauge.configs.rules import Choice, Real, Rule, Scalar, Whole

MOST_VALUES = 1000


@dataclass(frozen=True)
class Several(Rule):
    """One value or a non-empty list of them; the configuration keeps a tuple without repeats, in ``item``'s order.

    Null is kept as it is where ``null_means`` says what it stands for.
    """

    item: Choice
    null_means: str = ""

    @property
    def allowed(self) -> str:
        """The item's words."""
        if self.null_means:
            return f"{self.item.allowed}, a list of these, or null ({self.null_means})"
        return f"{self.item.allowed}, or a list of these"

    def _stands(self, value: object) -> bool:
        """Whether a value is null where that is allowed."""
        return value is None and bool(self.null_means)

    def faults(self, value: object) -> list[Fault]:
        """Those of every item."""
        return [] if self._stands(value) else _list_faults(value, self.item, self.allowed)

    def resolved(self, value: Any) -> object:
        """The words in the rule's own order, or None."""
        if self._stands(value):
            return None
        chosen = value if isinstance(value, (list, tuple)) else [value]
        return tuple(word for word in self.item.words if word in chosen)

    def json_schema(self) -> dict[str, object]:
        """The item, or an array of it; null where it may be."""
        null: list[dict[str, object]] = [{"type": "null"}] if self.null_means else []
        return {"anyOf": [self.item.json_schema(), _array(self.item), *null]}


@dataclass(frozen=True, kw_only=True)
class OneOrMore(Rule):
    """One value or a non-empty list of them, kept as a tuple without repeats; or null, which means ``null_means``."""

    item: Scalar
    null_means: str

    @property
    def allowed(self) -> str:
        """The item's words."""
        return f"{self.item.allowed}, a list of these, or null ({self.null_means})"

    def faults(self, value: object) -> list[Fault]:
        """Those of every item."""
        return [] if value is None else _list_faults(value, self.item, self.allowed)

    def resolved(self, value: Any) -> object:
        """The different values in their order, or None."""
        if value is None:
            return None
        return tuple(dict.fromkeys(value if isinstance(value, (list, tuple)) else [value]))

    def json_schema(self) -> dict[str, object]:
        """The item, an array of it, or null."""
        return {"anyOf": [self.item.json_schema(), _array(self.item), {"type": "null"}]}


@dataclass(frozen=True)
class Axis(Rule):
    """Values of one grid axis: one, a list, or a range; the configuration keeps them sorted and without repeats.

    A range is text, ``"1:8"`` or ``"1:8:2"``, or a mapping, ``{from: 1, to: 8, step: 2}``.  Both its ends belong to it
    where the step reaches them.  ``word`` may stand instead and is kept as it is; so is null where ``null_means`` says
    what it stands for.
    """

    item: Whole
    word: str = ""
    null_means: str = ""

    @property
    def allowed(self) -> str:
        """All ways to write it."""
        first = f"{self.word}, " if self.word else ""
        last = f", or null ({self.null_means})" if self.null_means else ""
        return f"{first}{self.item.allowed}, a list of these, or a range such as 1:8 or 1:8:2{last}"

    def _stands(self, value: object) -> bool:
        """Whether a value is the word, or null where that is allowed."""
        return (value is None and bool(self.null_means)) or (bool(self.word) and value == self.word)

    def faults(self, value: object) -> list[Fault]:
        """Those of the items, or of the range."""
        if self._stands(value):
            return []
        if isinstance(value, dict):
            return self._mapping_faults(value)
        if not isinstance(value, str):
            return _list_faults(value, self.item, self.allowed)
        ends = _range_ends(value)
        if ends is None:
            return [value_fault((), value, self.allowed)]
        return self._ends_faults(ends, written=value)

    def resolved(self, value: Any) -> object:
        """A sorted tuple of unique integers, the word, or None."""
        if self._stands(value):
            return value
        if isinstance(value, dict):
            ends = (value["from"], value["to"], value.get("step", 1))
        elif isinstance(value, str):
            ends = cast(tuple[int, int, int], _range_ends(value))
        else:
            return tuple(sorted(set(value if isinstance(value, (list, tuple)) else [value])))
        first, last, step = ends
        return tuple(range(first, last + 1, step))

    def _mapping_faults(self, value: Mapping[str, object]) -> list[Fault]:
        known = {"from": self.item, "to": self.item, "step": Whole(at_least=1)}
        unknown = [key for key in value if key not in known]
        meant = {nearest(key, known) for key in unknown}
        absent = [key for key in ("from", "to") if key not in value and key not in meant]
        found = [unknown_key((), key, known) for key in unknown]
        found += [missing_key((), key, known[key].allowed) for key in absent]
        for key in known.keys() & value.keys():
            found += [fault.under((key,)) for fault in known[key].faults(value[key])]
        if found:
            return found
        ends = cast(tuple[int, int, int], (value["from"], value["to"], value.get("step", 1)))
        return self._ends_faults(ends, written=":".join(str(end) for end in ends))

    def _ends_faults(self, ends: tuple[int, int, int], *, written: str) -> list[Fault]:
        first, last, step = ends
        if step < 1:
            return [value_fault((), written, "a range whose step is at least 1")]
        if last < first:
            return [value_fault((), written, "a range that ends where it starts or later, such as 1:8")]
        if not (self.item.accepts(first) and self.item.accepts(last)):
            return [value_fault((), written, f"a range of which every value is {self.item.allowed}")]
        if (last - first) // step + 1 > MOST_VALUES:
            return [value_fault((), written, f"a range of at most {MOST_VALUES} values")]
        return []

    def json_schema(self) -> dict[str, object]:
        """An integer, an array, text with colons, an object with from and to; the word and null where they may be."""
        item = self.item.json_schema()
        text = {"type": "string", "pattern": r"^[0-9]+:[0-9]+(:[0-9]+)?$"}
        properties = {"from": item, "to": item, "step": {"type": "integer", "minimum": 1, "default": 1}}
        mapping = {
            "type": "object",
            "properties": properties,
            "required": ["from", "to"],
            "additionalProperties": False,
        }
        word = [{"const": self.word}] if self.word else []
        null = [{"type": "null"}] if self.null_means else []
        return {"anyOf": [*word, item, _array(self.item), text, mapping, *null]}


@dataclass(frozen=True)
class Numbers(Rule):
    """One number, or a non-empty list of them, kept as a tuple; or null, which means ``null_means``."""

    item: Real
    null_means: str

    @property
    def allowed(self) -> str:
        """The item's interval."""
        return f"{self.item.allowed}, a list of these, or null ({self.null_means})"

    def faults(self, value: object) -> list[Fault]:
        """Those of every item."""
        return [] if value is None else _list_faults(value, self.item, self.allowed)

    def resolved(self, value: Any) -> object:
        """A float, a tuple of floats, or None."""
        if isinstance(value, (list, tuple)):
            return tuple(self.item.resolved(one) for one in value)
        return self.item.resolved(value)

    def json_schema(self) -> dict[str, object]:
        """A number, an array of numbers, or null."""
        return {"anyOf": [self.item.json_schema(), _array(self.item), {"type": "null"}]}


def _list_faults(value: object, item: Scalar, allowed: str) -> list[Fault]:
    """Faults of one value or of a non-empty list of values that each keep to ``item``."""
    if not isinstance(value, (list, tuple)):
        return [] if item.accepts(value) else [value_fault((), value, allowed)]
    if not value:
        return [value_fault((), value, f"at least one value: {allowed}")]
    return [fault.under((index,)) for index, one in enumerate(value) for fault in item.faults(one)]


def _array(item: Rule) -> dict[str, object]:
    return {"type": "array", "items": item.json_schema(), "minItems": 1}


def _range_ends(text: str) -> tuple[int, int, int] | None:
    """(first, last, step) of ``first:last`` or ``first:last:step``; None where it is not written so."""
    match = re.fullmatch(r"(-?[0-9]{1,18}):(-?[0-9]{1,18})(?::(-?[0-9]{1,18}))?", text.strip(), re.ASCII)
    if match is None:
        return None
    first, last, step = match.groups(default="1")
    return int(first), int(last), int(step)
