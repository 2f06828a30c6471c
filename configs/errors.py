"""Errors of a configuration, each one line: the place, what is expected, what was got, the nearest valid name.

    grid.batch_size[1]: expected an integer from 1 to 65536, got 0
    unknown key 'gama' in grid; did you mean 'gamma'? expected one of: batch_size, context, gamma, …

`explain` turns pydantic's ValidationError into such faults. What is expected it reads off the model's JSON Schema,
where ``x-expected`` says it of a pattern or a shorthand, ``x-null`` what null means, and ``x-part`` what is expected of
a key of a mapping that is written as text.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Keys = tuple[str | int, ...]
"""A place in a configuration: mapping keys and list indices, outermost first; () is the top level."""

_LONGEST_SHOWN = 60
_MOST_COMPARED = 100
"""Keys of a mapping that tell which section is meant; every fault asks."""
_SAME = {"verify": "validate"}
"""Keys that one may look for, and the keys that mean it."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one line, that of the first of ``faults``, if it has any."""

    def __init__(self, message: str, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing wrong, in words; its line is looked up by ``keys`` unless it is known already."""

    code: str
    """pydantic's type of the error; ours are ``refused``, ``repeated_key``, ``unreadable`` and ``no_file``."""
    keys: Keys
    words: str
    line: int | None = None


def refused(value: object, expected: str, *, got: str = "", hint: str = "") -> PydanticCustomError:
    """The error that a validator raises for a value; ``got`` says in words what it is, where showing it does not."""
    context = {"expected": expected, "got": f"{got or shown(value)}{'; ' if hint else ''}{hint}"}
    return PydanticCustomError("refused", "expected {expected}, got {got}", context)


Errors = list[tuple[Keys, PydanticCustomError]]
"""Errors of a validator, each with its place relative to the value being validated."""


def fail(errors: Errors) -> None:
    """Raise all errors that a validator found, if there are any."""
    if errors:
        details = [InitErrorDetails(type=error, loc=keys, input=None) for keys, error in errors]
        raise ValidationError.from_exception_data("configuration", details)


def value_fault(code: str, keys: Keys, got: str, expected: str, line: int | None = None) -> Fault:
    """``place: expected …, got …``; ``got`` is in words."""
    place = f"{place_name(keys)}: " if keys else ""
    return Fault(code=code, keys=keys, words=f"{place}expected {expected}, got {got}", line=line)


def error_fault(error: PydanticCustomError, keys: Keys) -> Fault:
    """The fault of an error made by `refused`."""
    context = error.context or {}
    return value_fault(error.type, keys, context["got"], context["expected"])


def explain(
    error: ValidationError, model: type[BaseModel], written: object, place: Callable[[Keys], Keys] = lambda keys: keys
) -> list[Fault]:
    """Everything that pydantic found wrong with ``written`` as a ``model``.

    ``place`` gives the keys under which a person wrote what stands at some keys of ``written``.
    """
    # pydantic also counts the entries of a list that are wrong as absent
    details = [one for one in error.errors(include_url=False) if one["type"] != "too_short" or not one["input"]]
    found = [(detail, _walk(model, detail, written)) for detail in details]
    # pydantic asks for the key that a misspelt one stands for: one mistake is one fault
    meant = {
        (spot.keys, nearest(str(detail["loc"][-1]), spot.fields))
        for detail, spot in found
        if detail["type"] == "extra_forbidden"
    }
    faults = [
        _fault(replace(spot, keys=place(spot.keys)), detail)
        for detail, spot in found
        if detail["type"] != "missing" or (spot.keys, detail["loc"][-1]) not in meant
    ]
    # the members of a union may all refuse the same, and so may the variants of a pair
    return list({(fault.keys, fault.words): fault for fault in faults}.values())


def _fault(spot: _Spot, detail: ErrorDetails) -> Fault:
    code, keys, key = detail["type"], spot.keys, str(detail["loc"][-1] if detail["loc"] else "")
    where = f" in {place_name(keys)}" if keys else ""
    if code == "missing":
        words = f"missing key {key!r}{where}: expected {_words(spot.fields[key])}"
        return Fault(code=code, keys=keys, words=words)
    if code == "extra_forbidden":
        hint = did_you_mean(key, spot.fields) or ","
        words = f"unknown key {shown(key)}{where}{hint} expected one of: {', '.join(spot.fields)}"
        return Fault(code=code, keys=(*keys, key), words=words)
    if code == "refused":
        return value_fault(code, keys, detail["ctx"]["got"], detail["ctx"]["expected"])
    got, expected = shown(spot.written), spot.expected or _words(spot.schema)
    if isinstance(spot.written, int | float) and {form.get("type") for form in _forms(spot.schema)} <= _TEXT_OR_NULL:
        got += "; put it in quotes if it is meant as text"
    return value_fault(code, keys, got, f"at least one: {expected}" if spot.written in ([], ()) else expected)


_TEXT_OR_NULL = {"string", "null"}
_Schema = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Spot:
    """Something written, its place and the JSON Schema of what may stand there."""

    keys: Keys
    schema: _Schema
    written: object
    expected: str = ""
    """What is expected, where it is more or less than the schema."""

    @property
    def fields(self) -> dict[str, _Schema]:
        """The fields of the section that is meant."""
        sections = [form["properties"] for form in _forms(self.schema) if "properties" in form]
        return sections[most_like(sections, self.written)] if sections else {}


def _walk(model: type[BaseModel], detail: ErrorDetails, written: object) -> _Spot:
    """What is written at the place of an error, or the nearest around it that a person wrote."""
    spot = _Spot(keys=(), schema=_schema_of(model), written=written)
    loc = detail["loc"][:-1] if detail["type"] in ("extra_forbidden", "missing") else detail["loc"]
    for key in loc:
        forms = _forms(spot.schema)
        if isinstance(key, int):
            inner = next((form["items"] for form in forms if "items" in form), None)
            is_written = isinstance(spot.written, (list, tuple))
        else:
            inner, is_written = spot.fields.get(key), isinstance(spot.written, Mapping)
        if inner is None:  # pydantic's name for a member of a union, which may be that of a section
            named = next((form for form in forms if form.get("title") == key), spot.schema)
            spot = replace(spot, schema=named, expected=_words(spot.schema))
        elif is_written:
            part: Any = spot.written
            part = part.get(key) if isinstance(part, Mapping) else part[key]
            spot = _Spot(keys=(*spot.keys, key), schema=inner, written=part)
        else:  # a shorthand, which has no such part
            template = next((form["x-part"] for form in forms if "x-part" in form), "{words}")
            words = _words(spot.schema) if isinstance(key, int) else template.format(key=key, words=_words(inner))
            return replace(spot, expected=words)
    return spot


def most_like(sections: Sequence[Iterable[str]], written: object) -> int:
    """Of several sections' keys, the index of those most like the keys of a written mapping; the first of several."""
    if len(sections) == 1:
        return 0
    keys = [str(key) for key in islice(written, _MOST_COMPARED)] if isinstance(written, Mapping) else []
    known = [list(section) for section in sections]
    return max(range(len(known)), key=lambda n: sum(nearest(key, known[n]) is not None for key in keys))


@cache
def _schema_of(model: type[BaseModel]) -> _Schema:
    """The JSON Schema of what may be written, its definitions put where they are named."""
    whole = model.model_json_schema(mode="validation")

    def inlined(schema: Any) -> Any:
        if isinstance(schema, list):
            return [inlined(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        own = {key: inlined(value) for key, value in schema.items() if key not in ("$ref", "$defs", "default")}
        return inlined(whole["$defs"][name]) | own if name else own

    found: _Schema = inlined(whole)
    return found


def _forms(schema: _Schema) -> list[_Schema]:
    """The schemas of the forms that something may be written in."""
    members = schema.get("anyOf") or schema.get("oneOf") or []
    return [form for member in members for form in _forms(member)] or [schema]


def words_for(model: type[BaseModel]) -> str:
    """What a section is, in words that follow "expected "."""
    return _words(_schema_of(model))


def field_words(model: type[BaseModel]) -> dict[str, str]:
    """What each field of a section takes, by its key, in words that follow "expected "."""
    return {key: _words(field) for key, field in _schema_of(model)["properties"].items()}


def _words(schema: _Schema) -> str:
    """What a schema takes, in words that follow "expected "."""
    words = [word for word in _form_words(schema) if word]
    if any(form.get("type") == "null" for form in _forms(schema)):
        words.append(f"null ({schema['x-null']})" if "x-null" in schema else "null")
    *first, last = words
    return f"{', '.join(first)}, or {last}" if first else last


def _form_words(schema: _Schema) -> list[str]:
    """The forms that something may be written in, in words, null aside."""
    if "x-expected" in schema:
        return [schema["x-expected"]]
    if members := schema.get("anyOf") or schema.get("oneOf"):
        words: list[str] = []
        for member in members:
            words += ["a list of these"] if words and member.get("type") == "array" else _form_words(member)
        return words
    if "enum" in schema or "const" in schema:
        return [" | ".join(schema.get("enum") or [schema["const"]])]
    match schema["type"]:
        case "null":
            return []
        case "object":
            return [f"a mapping with the keys {', '.join(schema['properties'])}"]
        case "array":
            return [f"a list, each {_words(schema['items'])}"]
        case "integer" if "minimum" in schema and "maximum" in schema:
            return [f"an integer from {schema['minimum']} to {schema['maximum']}"]
        case "integer" | "number" as kind:
            bounds = " and ".join(f"{word} {schema[end]:g}" for end, word in _BOUNDS.items() if end in schema)
            return [f"{'an integer' if kind == 'integer' else 'a number'} {bounds}"]
        case kind:
            return [{"boolean": "true or false", "string": "text"}[kind]]


_BOUNDS = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def place_name(keys: Keys) -> str:
    """``pairs[0].target`` for ("pairs", 0, "target"); the top level has the empty name."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if text else key
    return text


def shown(value: object) -> str:
    """A value as a person wrote it: 'text' in quotes, true, null, 0.5; collections by their kind; long text cut."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "…")
        case float() if not math.isfinite(value):
            return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
        case int() | float():
            return str(value)
        case Mapping():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return f"a value of type {type(value).__name__}"


def short(value: object) -> str:
    """The same of a value that no person wrote: collections with what is in them; long text cut."""
    try:
        text = _brief(value)
    except ValueError:  # a whole number that Python does not turn into text
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}…"


def _brief(value: object, depth: int = 4) -> str:
    """Like `repr`, but done in no time with what YAML's aliases make of a few lines."""
    if not isinstance(value, (dict, list, tuple)):
        return repr(value)
    if not depth:
        return "…"
    entries = islice(value.items() if isinstance(value, dict) else value, 40)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_brief(inner, depth - 1)}' for key, inner in entries)}}}"
    inside = ", ".join(_brief(inner, depth - 1) for inner in entries)
    return f"[{inside}]" if isinstance(value, list) else f"({inside})"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or the only one it begins, upper and lower case alike; None without any."""
    return _nearest(name, tuple(known))


@lru_cache(maxsize=4096)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    by_folded = {candidate.casefold(): candidate for candidate in known}
    folded = name.casefold()
    if _SAME.get(folded) in by_folded:
        return by_folded[_SAME[folded]]
    matches = difflib.get_close_matches(folded, by_folded, n=1)
    if not matches and folded:
        begun = [candidate for candidate in by_folded if candidate.startswith(folded)]
        matches = begun if len(begun) == 1 else []
    return by_folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean …?`` where a known name is like ``name``, else nothing."""
    guess = nearest(name, known)
    return f"; did you mean {guess!r}?" if guess else ""
