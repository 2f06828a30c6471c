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
import re
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
    several,
)

MOST_VARIANTS = 1000
MOST_PAIRS = 1000
"""Variants counted; what is planned and shown of a pair grows with their number."""
"""Of one pair."""
_ANY = null_means("any")


@dataclass(frozen=True, kw_only=True)
class ExpandedPairs:
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


def spread(written: Mapping[str, Any]) -> ExpandedPairs:
    """The written values with a pair for every variant; themselves where no list makes any.

    Lists with an error in them stay as they are, for the types of their fields to tell. ``mode`` and ``threads`` of the
    configuration become their first value, which pairs that have their own do not take, and so does
    ``accelerator_type`` of its executor.
    """
    pairs = written.get("pairs")
    if not isinstance(pairs, (list, tuple)):
        return ExpandedPairs(value=written, errors=[])
    executor = _plain(written.get("executor"))
    holders = {"mode": written, "threads": written, "accelerator_type": executor}
    common = {name: values for name, holder in holders.items() if (values := _values(name, holder.get(name)))}
    variants: list[Any] = []
    indices: list[int] = []
    names: dict[str, list[str]] = {}
    owners: dict[str, int] = {}
    errors: Errors = []
    for index, pair in enumerate(pairs):
        plain = _plain(pair)
        choices = _choices(plain, common)
        if (count := prod(map(len, choices.values()))) > MOST_VARIANTS:
            error = refused(None, f"at most {MOST_VARIANTS} variants of one pair", got=str(count))
            errors.append((("pairs", len(variants)), error))
            choices = {keys: values[:1] for keys, values in choices.items()}
        made = list(_variants(plain, choices)) if choices else [pair]
        if is_name(name := plain.get("name")):
            own = [variant["name"] for variant in made] if choices else [name]
            if name_error := _name_error(name, own, index, owners):
                errors.append((("pairs", len(variants), "name"), name_error))
            if choices:
                names.setdefault(name, []).extend(own)
        variants += made
        indices += [index] * len(made)
        if len(variants) > MOST_PAIRS:
            got = str(max(len(variants), len(pairs)))
            errors.append((("pairs",), refused(None, f"at most {MOST_PAIRS}, variants counted", got=got)))
            del variants[MOST_PAIRS:], indices[MOST_PAIRS:]
            break
    first = {name: values[0] for name, values in common.items()}
    value = {**written, **{name: one for name, one in first.items() if holders[name] is written}, "pairs": variants}
    if "accelerator_type" in first:
        value["executor"] = {**executor, "accelerator_type": first["accelerator_type"]}
    if names and isinstance(written.get("grid"), Mapping):
        value["grid"] = _with_variants_named(written["grid"], names)
    return ExpandedPairs(value=value, indices=tuple(indices), errors=errors)


def _plain(section: object) -> Mapping[str, Any]:
    """The keys of a section, written or made; none of anything else."""
    plain = section.model_dump() if isinstance(section, Section) else section
    return plain if isinstance(plain, Mapping) else {}


def _values(field: str, written: object) -> tuple[Any, ...] | None:
    """The values of a list that makes variants; None where there is one value, or an error."""
    try:
        values = several(field, written)
    except ValidationError:
        return None
    return values if values is not None and len(values) > 1 else None


def _choices(pair: Mapping[str, Any], common: Mapping[str, tuple[Any, ...]]) -> Choices:
    found: Choices = {}
    for role in ("target", "draft"):
        for field in ("dtype", "attention"):
            model = pair.get(role)
            if isinstance(model, Mapping) and (values := _values(field, model.get(field))):
                found[role, field] = values
    for field in ("mode", "threads", "accelerator_type"):
        own = pair.get(field)
        if pair and (values := common.get(field) if own is None else _values(field, own)):
            found[(field,)] = values
    return found


def _variants(pair: Mapping[str, Any], choices: Choices) -> Iterator[dict[str, Any]]:
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


def part_of_name(value: object) -> str:
    """A value as it can stand in a name, ``org/fa3`` as ``org_fa3``; two values may give the same part."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", str(value))
    return re.sub(r"-{2,}", "-", plain).strip(".-") or "_"


def _name_error(name: str, variants: list[str], index: int, owners: dict[str, int]) -> PydanticCustomError | None:
    """What is wrong with the name of the pair at ``index``; ``owners`` are the pairs that have names already."""
    for one in (name, *variants):
        if (owner := owners.setdefault(one.casefold(), index)) != index:
            variant = "" if one == name else f", as its variant {one}"
            return refused(name, f"a name that pairs[{owner}] does not have already", got=f"{name!r}{variant}")
        if not is_name(one):
            return refused(name, f"a name whose variants, such as {one}, have at most {LONGEST_NAME} characters")
    return None


def _with_variants_named(grid: Mapping[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    """The grid with the names of pairs in its rules replaced by those of their variants."""

    def renamed(rule: Any) -> Any:
        plain = _plain(rule)
        named = plain.get("pair")
        wanted = list(named) if isinstance(named, (list, tuple)) else [named]
        made = [name for one in wanted for name in (names.get(one, [one]) if isinstance(one, str) else [one])]
        return rule if made == wanted else {**plain, "pair": made}

    lists = {key: rules for key in ("include", "exclude") if isinstance(rules := grid.get(key), (list, tuple))}
    return {**grid, **{key: list(map(renamed, rules)) for key, rules in lists.items()}}


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
        if all(values is None for _, values in self):
            raise refused(None, f"one for at least one of {', '.join(AXES)}", got="no value")
        return self

    def matches(self, point: GridPoint) -> bool:
        """Whether a point keeps to the rule."""
        return all(values is None or getattr(point, axis) in values for axis, values in self)


AXES = tuple(CellRule.model_fields)


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """Where a cell is, its sampling chain aside."""

    pair: str
    mode: str
    batch_size: int
    context: int


def rule_errors(points: Sequence[GridPoint], include: Sequence[CellRule], exclude: Sequence[CellRule]) -> Errors:
    """What is wrong with the rules of a whole grid: values it does not have, rules that match no cell."""
    known = {axis: list(dict.fromkeys(getattr(point, axis) for point in points)) for axis in AXES}
    modes = ", ".join(dict.fromkeys(f"{point.pair} runs in mode {point.mode}" for point in points))
    errors: Errors = []
    for section, rules in (("include", include), ("exclude", exclude)):
        for index, rule in enumerate(rules):
            keys: Keys = ("grid", section, index)
            given = {axis: values for axis, values in rule if values is not None}
            outside = {axis: [one for one in values if one not in known[axis]] for axis, values in given.items()}
            errors += [
                ((*keys, axis), _not_in_grid(axis, known[axis], some[0])) for axis, some in outside.items() if some
            ]
            if not any(outside.values()) and not any(rule.matches(point) for point in points):
                got = ", ".join(f"{axis} {' or '.join(map(str, values))}" for axis, values in given.items())
                errors.append((keys, refused(None, "a rule that some cell matches", got=got, hint=modes)))
    return errors


def _not_in_grid(axis: str, known: list[Any], value: object) -> PydanticCustomError:
    """The error of a value that the grid does not have, with the nearest that it has."""
    if isinstance(value, int):
        near = min(known, key=lambda one: abs(one - value))
        what = f"values of grid.{axis}"
    else:
        (near,) = difflib.get_close_matches(str(value), known, n=1, cutoff=0)
        what = f"{axis}s of this configuration"
    return refused(value, f"{what}, which are {', '.join(map(str, known))}", hint=f"the nearest is {near}")
