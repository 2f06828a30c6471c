"""What one value of a configuration may be, said once: the check, the words "allowed: …" and the JSON Schema.

Rules stand in annotations, ``seed: Annotated[int, Whole(at_least=0)]``, and pydantic runs them.  They
are strict: true is not 1, '4' is not 4, and only finite numbers are numbers.  A rule that fails says everything that is
wrong with its value.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from specgauge.configs.faults import Fault, value_fault

FAULTS = "faults"
"""Both pydantic's type of the errors raised here and the key of their faults in the error's context."""
FILLED = r"\S"
"""The pattern of a `Text` that is more than blanks."""


def fail(faults: Iterable[Fault]) -> NoReturn:
    """Raise the pydantic error that carries ``faults``, their places relative to the value being checked."""
    found = tuple(faults)
    words = "; ".join(fault.words for fault in found)
    raise PydanticCustomError(FAULTS, "{words}", {"words": words, FAULTS: found})


class Rule(ABC):
    """A check of one value, usable in ``Annotated``."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """What the rule lets through, in words that follow "allowed: "."""

    @abstractmethod
    def faults(self, value: object) -> list[Fault]:
        """Everything wrong with ``value``, places relative to it; empty where it is fine."""

    @abstractmethod
    def json_schema(self) -> dict[str, object]:
        """The JSON Schema of what may be written."""

    def resolved(self, value: Any) -> object:
        """The value that the configuration keeps for a ``value`` without faults."""
        return value

    def check(self, value: object) -> object:
        """``resolved(value)``, or pydantic's error with every fault."""
        found = self.faults(value)
        if found:
            fail(found)
        return self.resolved(value)

    def __get_pydantic_core_schema__(self, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic runs ``check`` and nothing else on the value."""
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """What ``specgauge schema`` prints for the value."""
        return self.json_schema()


@dataclass(frozen=True, kw_only=True)
class Scalar(Rule, ABC):
    """A rule for one plain value; ``or_null`` lets null through, and ``null_means`` says what it stands for."""

    or_null: bool = False
    null_means: str = ""

    @abstractmethod
    def accepts(self, value: object) -> bool:
        """Whether ``value``, which is not a permitted null, may stand."""

    @property
    @abstractmethod
    def noun(self) -> str:
        """The allowed values in words, null aside."""

    @property
    def allowed(self) -> str:
        """``noun``, with null where it is permitted."""
        meaning = f" ({self.null_means})" if self.null_means else ""
        return f"{self.noun}, or null{meaning}" if self.or_null else self.noun

    def faults(self, value: object) -> list[Fault]:
        """One fault, or none."""
        if (value is None and self.or_null) or self.accepts(value):
            return []
        return [value_fault((), value, self.allowed)]

    def nullable(self, schema: dict[str, object]) -> dict[str, object]:
        """``schema``, with null beside it where null is permitted."""
        return {"anyOf": [schema, {"type": "null"}]} if self.or_null else schema


@dataclass(frozen=True, kw_only=True)
class Flag(Scalar):
    """true or false."""

    @property
    def noun(self) -> str:
        """The two values."""
        return "true or false"

    def accepts(self, value: object) -> bool:
        """Only a boolean."""
        return isinstance(value, bool)

    def json_schema(self) -> dict[str, object]:
        """A boolean."""
        return self.nullable({"type": "boolean"})


@dataclass(frozen=True, kw_only=True)
class Whole(Scalar):
    """An integer between bounds that are themselves allowed."""

    at_least: int
    at_most: int | None = None

    @property
    def noun(self) -> str:
        """The interval."""
        if self.at_most is None:
            return f"an integer of at least {self.at_least}"
        return f"an integer from {self.at_least} to {self.at_most}"

    def accepts(self, value: object) -> bool:
        """An int that is no bool, within bounds."""
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.at_least <= value and (self.at_most is None or value <= self.at_most)

    def json_schema(self) -> dict[str, object]:
        """A bounded integer."""
        bounds: dict[str, object] = {"type": "integer", "minimum": self.at_least}
        return self.nullable(bounds if self.at_most is None else bounds | {"maximum": self.at_most})


@dataclass(frozen=True, kw_only=True)
class Real(Scalar):
    """A finite number; each end of its interval is included (at_) or not (above, below)."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    unit: str = ""

    @property
    def noun(self) -> str:
        """The interval, with its unit."""
        words = {"of at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        ends = " and ".join(f"{word} {end:g}" for word, end in words.items() if end is not None)
        return f"a number {ends}{' ' + self.unit if self.unit else ''}"

    def accepts(self, value: object) -> bool:
        """A finite int or float that is no bool, within bounds."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def resolved(self, value: Any) -> object:
        """Always a float, and never a negative zero, so that 1 and 1.0 make the same configuration."""
        return None if value is None else float(value) + 0.0

    def json_schema(self) -> dict[str, object]:
        """A bounded number."""
        bounds = {
            "minimum": self.at_least,
            "exclusiveMinimum": self.above,
            "maximum": self.at_most,
            "exclusiveMaximum": self.below,
        }
        return self.nullable({"type": "number"} | {key: end for key, end in bounds.items() if end is not None})


@dataclass(frozen=True, kw_only=True)
class Choice(Scalar):
    """One of a few words."""

    words: tuple[str, ...]
    remark: str = ""

    @property
    def noun(self) -> str:
        """The words, and a remark on them."""
        return " | ".join(self.words) + (f" ({self.remark})" if self.remark else "")

    def accepts(self, value: object) -> bool:
        """One of the words exactly."""
        return isinstance(value, str) and value in self.words

    def json_schema(self) -> dict[str, object]:
        """An enumeration."""
        return self.nullable({"type": "string", "enum": list(self.words)})


@dataclass(frozen=True, kw_only=True)
class Text(Scalar):
    """Printable text without line breaks that fits ``pattern`` (written to mean the same in Python and JavaScript)."""

    pattern: str
    means: str

    @property
    def noun(self) -> str:
        """What the pattern stands for."""
        return self.means

    def accepts(self, value: object) -> bool:
        """Text that matches as a whole."""
        return isinstance(value, str) and value.isprintable() and re.search(self.pattern, value) is not None

    def faults(self, value: object) -> list[Fault]:
        """As any scalar's; a number where text belongs is told apart by its quotes."""
        found = super().faults(value)
        if found and isinstance(value, (int, float)):
            return [value_fault((), value, f"{self.allowed}; put it in quotes if it is meant as text")]
        return found

    def json_schema(self) -> dict[str, object]:
        """A string with a pattern."""
        return self.nullable({"type": "string", "pattern": self.pattern})


@dataclass(frozen=True, kw_only=True)
class Free(Scalar):
    """A mapping handed on as it stands, its keys text; or text, where ``text`` says what text means."""

    text: str = ""
    means: str

    @property
    def noun(self) -> str:
        """What the mapping is for."""
        return f"{self.text}, or {self.means}" if self.text else self.means

    def accepts(self, value: object) -> bool:
        """A mapping of plain finite values, or text."""
        if isinstance(value, str):
            return bool(self.text) and bool(value) and value.isprintable()
        return isinstance(value, dict) and bool(value) and _is_plain(value)

    def json_schema(self) -> dict[str, object]:
        """An object of any form."""
        mapping: dict[str, object] = {"type": "object", "minProperties": 1}
        forms = [{"type": "string", "minLength": 1}, mapping] if self.text else [mapping]
        null = [{"type": "null"}] if self.or_null else []
        return {"anyOf": [*forms, *null]}


def _is_plain(value: object) -> bool:
    """Whether strict JSON can hold ``value``."""
    match value:
        case None | bool() | int() | str():
            return True
        case float():
            return math.isfinite(value)
        case list() | tuple():
            return all(_is_plain(item) for item in value)
        case dict():
            return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
        case _:
            return False
