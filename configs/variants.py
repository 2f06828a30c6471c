"""Pairs and cells that short texts stand for: variants of a pair, and rules that take cells out of the grid.

    pairs: [{name: qwen, target: {model: o/m, dtype: [bfloat16, float32]}, draft: o/s}]
    mode: [eager, compile]
    grid: {batch_size: [1, 8], exclude: [{pair: qwen, mode: compile, batch_size: 8}]}

stands for the four pairs qwen-bfloat16-eager, qwen-bfloat16-compile, qwen-float32-eager and qwen-float32-compile, each
with the mode written into it, of which batch size 8 is not compiled. Only what has several values is named; what is the
draft's own is marked `draft`. This happens to the written values, before they become a configuration: whoever reads
config.yaml finds plain pairs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import ValidationError, model_validator
from pydantic_core import PydanticCustomError

from specgauge.configs.errors import Errors, Keys, refused
from specgauge.configs.fields import (
    LONGEST_NAME,
    UNIQUE,
    BatchSizes,
    Contexts,
    Mode,
    Name,
    Section,
    is_name,
    listed,
    null_means,
    part_of_name,
    several,
)

MOST_VARIANTS = 1000
"""Of one pair."""
_ANY = null_means("any")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Written values with a pair for every variant."""

    value: Mapping[str, Any]
    indices: tuple[int, ...] = ()
    """Where each pair is written: an index of the written pairs."""
    errors: Errors
    """At the places of the values."""

    def place(self, keys: Keys) -> Keys:
        """Where a person wrote what stands at ``keys`` of the value."""
        match keys:
            case ("pairs", int(index), *inner) if index < len(self.indices):
                return ("pairs", self.indices[index], *inner)
        return keys


Choices = dict[tuple[str, ...], tuple[Any, ...]]
"""Values by the place in a pair of which every variant has one."""


def spread(written: Mapping[str, Any]) -> Spread:
    """The written values with a pair for every variant; themselves where no list makes any.

    Lists with an error in them stay as they are, for the types of their fields to tell. ``mode`` and ``threads`` of the
    configuration become their first value, which pairs that have their own do not take.
    """
    pairs = written.get("pairs")
    if not isinstance(pairs, (list, tuple)):
        return Spread(value=written, errors=[])
    common: Choices = {
        (field,): values for field in ("mode", "threads") if (values := _values(field, written.get(field)))
    }
    variants: list[Any] = []
    indices: list[int] = []
    names: dict[str, list[str]] = {}
    errors: Errors = []
    for index, pair in enumerate(pairs):
        plain = pair.model_dump() if isinstance(pair, Section) else pair
        choices = _choices(plain, common) if isinstance(plain, Mapping) else {}
        if (count := prod(map(len, choices.values()))) > MOST_VARIANTS:
            error = refused(None, f"at most {MOST_VARIANTS} variants of one pair", got=str(count))
            errors.append((("pairs", len(variants)), error))
            choices = {keys: values[:1] for keys, values in choices.items()}
        made = list(_variants(plain, choices)) if choices else [pair]
        if choices and is_name(plain.get("name")):
            names.setdefault(plain["name"], []).extend(variant["name"] for variant in made)
        variants += made
        indices += [index] * len(made)
    value = {**written, **{keys[0]: values[0] for keys, values in common.items()}, "pairs": variants}
    if names and isinstance(written.get("grid"), Mapping):
        value["grid"] = _with_variants_named(written["grid"], names)
    return Spread(value=value, indices=tuple(indices), errors=errors + _name_errors(pairs, variants, indices))


def _values(field: str, written: object) -> tuple[Any, ...] | None:
    """The values of a list that makes variants; None where there is one value, or an error."""
    try:
        values = several(field, written)
    except ValidationError:
        return None
    return values if values is not None and len(values) > 1 else None


def _choices(pair: Mapping[str, Any], common: Choices) -> Choices:
    found: Choices = {}
    for role in ("target", "draft"):
        for field in ("dtype", "attention"):
            model = pair.get(role)
            if isinstance(model, Mapping) and (values := _values(field, model.get(field))):
                found[role, field] = values
    for field in ("mode", "threads"):
        values = common.get((field,)) if pair.get(field) is None else _values(field, pair[field])
        if values:
            found[(field,)] = values
    return found


def _variants(pair: Mapping[str, Any], choices: Choices) -> Iterator[dict[str, Any]]:
    """The pair with every combination of values, each under a name of its own."""
    for values in product(*choices.values()):
        variant = dict(pair)
        parts = [str(pair.get("name"))]
        for (*role, field), value in zip(choices, values, strict=True):
            holder = variant
            for key in role:
                holder[key] = dict(holder[key])
                holder = holder[key]
            holder[field] = value
            marks = ["draft"] * (role == ["draft"]) + ["threads"] * (field == "threads")
            parts.append("-".join([*marks, part_of_name(value)]))
        if is_name(pair.get("name")):
            variant["name"] = "-".join(parts)
        yield variant


def _name_errors(pairs: Sequence[Any], variants: Sequence[Any], indices: Sequence[int]) -> Errors:
    """Names of pairs and variants that are not their own, upper and lower case alike; one error a written pair."""
    errors: dict[int, tuple[Keys, PydanticCustomError]] = {}
    first: dict[str, int] = {}
    taken: dict[str, int] = {}
    for at, (variant, index) in enumerate(zip(variants, indices, strict=True)):
        base, name = _name_of(pairs[index]), _name_of(variant)
        if not is_name(base) or name is None or index in errors:
            continue
        earlier, other = first.setdefault(base.casefold(), index), taken.get(name.casefold())
        taken.setdefault(name.casefold(), index)
        if earlier != index:
            expected = f"a name that pairs[{earlier}] does not have already"
        elif not is_name(name):
            expected = f"a name whose variants, such as {name}, have at most {LONGEST_NAME} characters"
        elif other == index:
            expected = f"variants with names of their own, two would be {name}"
        elif other is not None:
            expected = f"a name without the variant {name}, which pairs[{other}] has already"
        else:
            continue
        errors[index] = (("pairs", at, "name"), refused(base, expected))
    return list(errors.values())


def _name_of(pair: object) -> str | None:
    """The name of a pair, if it has any."""
    name = pair.get("name") if isinstance(pair, Mapping) else getattr(pair, "name", None)
    return name if isinstance(name, str) else None


def _with_variants_named(grid: Mapping[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    """The grid with the names of pairs in its rules replaced by those of their variants."""

    def renamed(rule: Any) -> Any:
        plain = rule.model_dump() if isinstance(rule, Section) else rule
        named = plain.get("pair") if isinstance(plain, Mapping) else None
        wanted: list[Any] = list(named) if isinstance(named, (list, tuple)) else [named]
        if not any(isinstance(one, str) and one in names for one in wanted):
            return rule
        return {**plain, "pair": [name for one in wanted for name in names.get(one, [one])]}

    rules = {section: grid.get(section) for section in ("include", "exclude")}
    lists = {section: listed for section, listed in rules.items() if isinstance(listed, (list, tuple))}
    return {**grid, **{section: [renamed(rule) for rule in listed] for section, listed in lists.items()}}


class CellRule(Section):
    """Cells by where they are: those that match every key given; a key without a value matches everything."""

    pair: Annotated[Annotated[tuple[Name, ...], MinLen(1), listed(Name), UNIQUE] | None, _ANY] = None
    """Pairs by name; a pair's name stands for all its variants."""
    mode: Annotated[Annotated[tuple[Mode, ...], MinLen(1), listed(Mode), UNIQUE] | None, _ANY] = None
    """Modes the forwards run in."""
    batch_size: Annotated[BatchSizes | None, _ANY] = None
    """Batch sizes, each one of grid.batch_size."""
    context: Annotated[Contexts | None, _ANY] = None
    """Contexts, each one of grid.context."""

    @model_validator(mode="after")
    def _check_together(self) -> CellRule:
        if all(getattr(self, axis) is None for axis in AXES):
            raise refused(None, f"one for at least one of {', '.join(AXES)}", got="no value")
        return self

    def matches(self, place: GridPoint) -> bool:
        """Whether a cell at a place keeps to the rule."""
        wanted = {axis: getattr(self, axis) for axis in AXES}
        return all(values is None or getattr(place, axis) in values for axis, values in wanted.items())


AXES = tuple(CellRule.model_fields)


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """Where a cell is, its sampling chain aside."""

    pair: str
    mode: str
    batch_size: int
    context: int


def is_measured(place: GridPoint, include: Sequence[CellRule], exclude: Sequence[CellRule]) -> bool:
    """Whether a cell is measured: it matches some rule of ``include``, or there is none, and no rule of ``exclude``."""
    is_included = not include or any(rule.matches(place) for rule in include)
    return is_included and not any(rule.matches(place) for rule in exclude)


def rule_errors(places: Sequence[GridPoint], include: Sequence[CellRule], exclude: Sequence[CellRule]) -> Errors:
    """What is wrong with the rules of a full grid: values it does not have, rules that match or leave no cell."""
    known = {axis: list(dict.fromkeys(getattr(place, axis) for place in places)) for axis in AXES}
    modes = ", ".join(dict.fromkeys(f"{place.pair} runs in mode {place.mode}" for place in places))
    errors: Errors = []
    for section, rules in (("include", include), ("exclude", exclude)):
        for index, rule in enumerate(rules):
            keys: Keys = ("grid", section, index)
            given = {axis: values for axis in AXES if (values := getattr(rule, axis)) is not None}
            outside = {axis: [one for one in values if one not in known[axis]] for axis, values in given.items()}
            unknown: Errors = [
                ((*keys, axis), _not_in_grid(axis, known[axis], values[0]))
                for axis, values in outside.items()
                if values
            ]
            errors += unknown
            if not unknown and not any(rule.matches(place) for place in places):
                got = ", ".join(f"{axis} {' or '.join(map(str, values))}" for axis, values in given.items())
                errors.append((keys, refused(None, "a rule that some cell matches", got=got, hint=modes)))
    if not errors and not any(is_measured(place, include, exclude) for place in places):
        error = refused(None, "rules that leave at least one cell", got="rules that leave none")
        errors.append((("grid", "exclude" if exclude else "include"), error))
    return errors


def _not_in_grid(axis: str, known: list[Any], value: object) -> PydanticCustomError:
    """The error of a value that the grid does not have, with the nearest that it has."""
    if isinstance(value, int):
        near = min(known, key=lambda one: (abs(one - value), one))
        what = f"values of grid.{axis}"
    else:
        near = max(known, key=lambda name: _likeness(name, str(value)))
        what = f"{axis}s of this configuration"
    return refused(value, f"{what}, which are {', '.join(map(str, known))}", hint=f"the nearest is {near}")


def _likeness(name: str, other: str) -> tuple[int, float]:
    """How many characters two names share in order, and of how many: a variant is like the pair it is one of."""
    matcher = difflib.SequenceMatcher(None, name, other, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()), matcher.ratio()
