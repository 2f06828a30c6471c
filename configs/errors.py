"""Errors of a configuration, each one line: the place, what is expected, what was got, the nearest valid name.

    grid.batch_size[1]: expected an integer from 1 to 65536, got 0
    unknown key 'gama' in grid; did you mean 'gamma'? expected one of: batch_size, context, gamma, …

`explain` turns pydantic's ValidationError into such faults. What is expected it reads off the annotations: bounds,
words of a Literal, the forms of a shorthand (``json_schema_input_type``), and `Words` where the type does not say it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator, Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticUndefined

Keys = tuple[str | int, ...]
"""A place in a configuration: mapping keys and list indices, outermost first; () is the top level."""

_LONGEST_SHOWN = 60
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


@dataclass(frozen=True, kw_only=True)
class Words:
    """Beside a type in ``Annotated``: what errors call it, what null means, and the unit of a number."""

    text: str = ""
    null: str = ""
    unit: str = ""


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


def explain(
    error: ValidationError, model: type[BaseModel], written: object, place: Callable[[Keys], Keys] = lambda keys: keys
) -> list[Fault]:
    """Everything that pydantic found wrong with ``written`` as a ``model``.

    ``place`` gives the keys under which a person wrote what stands at some keys of ``written``.
    """
    details = error.errors(include_url=False)
    misspelt = {_meant_key(model, detail, written) for detail in details if detail["type"] == "extra_forbidden"}
    # pydantic asks for the key that a misspelt one stands for: one mistake is one fault
    faults: dict[tuple[Keys, str], Fault] = {}  # the members of a union may all refuse the same, variants too
    for detail in details:
        if detail["type"] != "missing" or detail["loc"] not in misspelt:
            for fault in _faults(model, detail, written, place):
                faults.setdefault((fault.keys, fault.words), fault)
    return list(faults.values())


def _faults(
    model: type[BaseModel], detail: ErrorDetails, written: object, place: Callable[[Keys], Keys]
) -> Iterator[Fault]:
    code, keys = detail["type"], detail["loc"]
    if code in ("extra_forbidden", "missing"):
        spot, fields = _section_at(model, keys[:-1], written)
        parent, key = place(spot.keys), str(keys[-1])
        where = f" in {place_name(parent)}" if parent else ""
        if code == "missing":
            field = fields[key]
            expected = words_for(field.annotation, field.metadata)
            yield Fault(code=code, keys=parent, words=f"missing key {key!r}{where}: expected {expected}")
        else:
            guess = nearest(key, fields)
            hint = f"; did you mean {guess!r}?" if guess else ","
            words = f"unknown key {shown(key)}{where}{hint} expected one of: {', '.join(fields)}"
            yield Fault(code=code, keys=(*parent, key), words=words)
    elif code != "too_short" or not detail["input"]:  # pydantic also counts the entries that are wrong as absent
        spot = _walk(model, keys, written)
        told = detail["ctx"] if code == "refused" else {"got": spot.got, "expected": spot.expected}
        yield value_fault(code, place(spot.keys), told["got"], told["expected"])


@dataclass(frozen=True, kw_only=True)
class _Spot:
    """Something written: its place, its type with what stands beside it in Annotated, and what errors expect there."""

    keys: Keys
    kind: Any
    about: tuple[Any, ...]
    written: object
    within: str = ""
    """What is expected instead of the type, where an error is about a part of a value written without parts."""

    @property
    def expected(self) -> str:
        words = self.within or words_for(self.kind, self.about)
        if self.written in ([], ()):
            return f"at least one: {words}"
        return words

    @property
    def got(self) -> str:
        is_text = isinstance(self.written, int | float) and {*_alternatives(self.kind, self.about)} <= {str, NoneType}
        return shown(self.written) + ("; put it in quotes if it is meant as text" if is_text else "")


def _walk(model: type[BaseModel], loc: Keys, written: object) -> _Spot:
    """What is written at the place of an error, or the nearest around it that a person wrote."""
    spot = _Spot(keys=(), kind=model, about=(), written=written)
    for key in loc:
        if (member := _tagged(spot.kind, spot.about, key)) is not None:
            expected = words_for(spot.kind, spot.about)
            spot = _Spot(keys=spot.keys, kind=member[0], about=member[1], written=spot.written, within=expected)
            continue
        inner = _inner(spot, key)
        if inner is None:
            break
        if not isinstance(spot.written, (list, tuple) if isinstance(key, int) else (Mapping, BaseModel)):
            # a shorthand, which has no such part
            within = "" if isinstance(key, int) else _part_words(spot, key, words_for(*inner))
            return _Spot(keys=spot.keys, kind=spot.kind, about=spot.about, written=spot.written, within=within)
        spot = _Spot(keys=(*spot.keys, key), kind=inner[0], about=inner[1], written=_part(spot.written, key))
    return spot


def _part(written: Any, key: str | int) -> object:
    if isinstance(written, Mapping):
        return written.get(key)
    if isinstance(written, BaseModel):
        return getattr(written, str(key), None)
    return written[key] if isinstance(key, int) and key < len(written) else None


def _part_words(spot: _Spot, key: str, words: str) -> str:
    """What is expected of a part of a section that is written as text."""
    section = _section(spot)
    assert section is not None, f"no section at {spot.keys}"
    template: str = getattr(section, "of_part", "{words}")
    return template.format(key=key, words=words)


def _inner(spot: _Spot, key: str | int) -> tuple[Any, tuple[Any, ...]] | None:
    """The type at a key or index of a spot; None within what has no places of its own."""
    if isinstance(key, str):
        section = _section(spot)
        field = None if section is None else fields_by_key(section).get(key)
        return None if field is None else (field.annotation, tuple(field.metadata))
    lists = [kind for kind in _alternatives(spot.kind, spot.about) if get_origin(kind) in (list, tuple)]
    return (get_args(lists[0])[0], ()) if lists else None


def _tagged(kind: Any, about: Sequence[Any], tag: str | int) -> tuple[Any, tuple[Any, ...]] | None:
    """The member of a union that pydantic names by its tag in the place of an error."""
    kind, _ = _unwrapped(kind, about)
    for member in get_args(kind) if _is_union(kind) else ():
        inner, beside = _unwrapped(member, ())
        if any(isinstance(one, Tag) and one.tag == tag for one in beside):
            return inner, beside
        if (found := _tagged(inner, (), tag)) is not None:
            return found
    return None


def _section(spot: _Spot) -> type[BaseModel] | None:
    """The section that is meant at a spot, if any is."""
    kinds = _alternatives(spot.kind, spot.about)
    sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return meant_section(sections, spot.written) if sections else None


def _section_at(model: type[BaseModel], loc: Keys, written: object) -> tuple[_Spot, dict[str, FieldInfo]]:
    spot = _walk(model, loc, written)
    section = _section(spot)
    assert section is not None, f"no section at {loc}"
    return spot, fields_by_key(section)


def meant_section(sections: Sequence[type[BaseModel]], written: object) -> type[BaseModel]:
    """The section whose keys are most like those of a written mapping; the first of several alike."""
    keys = [str(key) for key in written] if isinstance(written, Mapping) else []
    return max(sections, key=lambda section: sum(nearest(key, fields_by_key(section)) is not None for key in keys))


def fields_by_key(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a section by the keys that are written."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _meant_key(model: type[BaseModel], detail: ErrorDetails, written: object) -> Keys | None:
    """The place of the known key that an unknown one most resembles."""
    *outer, key = detail["loc"]
    guess = nearest(str(key), _section_at(model, tuple(outer), written)[1])
    return None if guess is None else (*outer, guess)


def words_for(kind: Any, about: Sequence[Any] = ()) -> str:
    """What a type takes, in words that follow "expected "; ``about`` is what stands beside it in Annotated."""
    kind, beside = _unwrapped(kind, about)
    forms = _forms(kind, beside)
    if NoneType in get_args(kind):
        meaning = _words(beside).null
        forms.append(f"null ({meaning})" if meaning else "null")
    *first, last = forms
    return f"{', '.join(first)}, or {last}" if first else last


def _forms(kind: Any, about: Sequence[Any]) -> list[str]:
    """The ways to write a value of a type, null aside."""
    kind, beside = _unwrapped(kind, about)
    words = _words(beside)
    if words.text:
        return [words.text]
    if (written := _input_type(beside)) is not None:
        return _forms(written, ())
    if _is_union(kind):
        forms: list[str] = []
        for member in get_args(kind):
            is_list = get_origin(_unwrapped(member, ())[0]) in (list, tuple)
            forms += (
                ["a list of these"]
                if forms and is_list and _input_type(_unwrapped(member, ())[1]) is None
                else _forms(member, ())
            )
        return forms
    if get_origin(kind) is Literal:
        return [" | ".join(get_args(kind))]
    if get_origin(kind) in (list, tuple):
        return [f"a list, each {words_for(get_args(kind)[0])}"]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        form: str = getattr(kind, "form", f"a mapping with the keys {', '.join(fields_by_key(kind))}")
        return [form] if form else []
    if kind in (int, float):
        return [_number_form(kind, beside, words.unit)]
    return [{bool: "true or false", str: "text"}[kind]] if kind in (bool, str) else []


def _words(about: Sequence[Any]) -> Words:
    return next((one for one in about if isinstance(one, Words)), Words())


def _input_type(about: Sequence[Any]) -> Any:
    """The type that a shorthand says is written; None without one."""
    types = [one.json_schema_input_type for one in about if isinstance(one, BeforeValidator)]
    return next((one for one in types if one is not PydanticUndefined), None)


def _alternatives(kind: Any, about: Sequence[Any] = ()) -> list[Any]:
    """The types that something may be written as."""
    kind, beside = _unwrapped(kind, about)
    if (written := _input_type(beside)) is not None:
        return _alternatives(written)
    if _is_union(kind):
        return [found for member in get_args(kind) for found in _alternatives(member)]
    return [kind]


def _unwrapped(kind: Any, about: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return _unwrapped(inner, (*more, *about))
    return kind, tuple(part for one in about for part in (one.metadata if isinstance(one, FieldInfo) else [one]))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _number_form(kind: type, about: Sequence[Any], unit: str) -> str:
    least, most = (next((getattr(one, name) for one in about if isinstance(one, of)), None) for name, of in _INCLUSIVE)
    if kind is int and least is not None:
        return f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    above, below = (next((getattr(one, name) for one in about if isinstance(one, of)), None) for name, of in _EXCLUSIVE)
    words = {"of at least": least, "above": above, "at most": most, "below": below}
    ends = " and ".join(f"{word} {end:g}" for word, end in words.items() if end is not None)
    return " ".join(part for part in ("an integer" if kind is int else "a number", ends, unit) if part)


_INCLUSIVE: tuple[tuple[str, type], ...] = (("ge", Ge), ("le", Le))
_EXCLUSIVE: tuple[tuple[str, type], ...] = (("gt", Gt), ("lt", Lt))


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


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or the only one it begins, upper and lower case alike; None without any."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    folded = name.casefold()
    if _SAME.get(folded) in by_folded:
        return by_folded[_SAME[folded]]
    matches = difflib.get_close_matches(folded, by_folded, n=1)
    if not matches and folded:
        begun = [candidate for candidate in by_folded if candidate.startswith(folded)]
        matches = begun if len(begun) == 1 else []
    return by_folded[matches[0]] if matches else None
