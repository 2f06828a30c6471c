"""Rules that take cells out of the full grid: what is measured where not every combination is.

    grid:
      batch_size: [1, 8, 64]
      context: [256, 4096]
      include: [{batch_size: [1, 8]}, {pair: small}]      # a cell is measured where it matches one of these …
      exclude: [{batch_size: 64, context: 4096}]          # … and none of these

A rule matches where all its keys do; a key without a value matches everything. The name of a pair stands for all its
variants. A value that the grid does not have, and a rule that matches no cell, are faults.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import model_validator

from specgauge.configs.axes import Axis, OneOrMore
from specgauge.configs.faults import Fault, Keys, value_fault
from specgauge.configs.names import NAME
from specgauge.configs.rules import Choice, Whole, fail
from specgauge.configs.section import Section
from specgauge.configs.variants import Mode

LARGEST_BATCH_SIZE = 65_536
LARGEST_CONTEXT = 1 << 24
LARGEST_REPETITIONS = 100_000
"""Texts a prompt may have, of the target alone or under each arm."""
_ANY = "any"


class CellRule(Section):
    """Cells by their place: those that match every key given."""

    pair: Annotated[tuple[str, ...] | None, OneOrMore(item=NAME, null_means=_ANY)] = None
    """Pairs by name; a pair's name stands for all its variants."""
    mode: Annotated[tuple[Mode, ...] | None, OneOrMore(item=Choice(words=get_args(Mode)), null_means=_ANY)] = None
    """Modes the forwards run in."""
    batch_size: Annotated[
        tuple[int, ...] | None, Axis(Whole(at_least=1, at_most=LARGEST_BATCH_SIZE), null_means=_ANY)
    ] = None
    """Batch sizes, each one of grid.batch_size."""
    context: Annotated[tuple[int, ...] | None, Axis(Whole(at_least=1, at_most=LARGEST_CONTEXT), null_means=_ANY)] = None
    """Contexts, each one of grid.context."""

    @model_validator(mode="after")
    def _check_together(self) -> CellRule:
        if all(getattr(self, axis) is None for axis in AXES):
            fail([_fault((), "no value", f"one for at least one of {', '.join(AXES)}")])
        return self

    def matches(self, place: Place) -> bool:
        """Whether a cell at a place keeps to the rule."""
        return all(
            wanted is None or value in wanted
            for axis in AXES
            for wanted, value in [(getattr(self, axis), getattr(place, axis))]
        )


AXES = tuple(CellRule.model_fields)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a cell is, its sampling chain aside."""

    pair: str
    mode: str
    batch_size: int
    context: int


def is_measured(place: Place, include: Sequence[CellRule], exclude: Sequence[CellRule]) -> bool:
    """Whether a cell is measured: it matches some rule of ``include``, or there is none, and no rule of ``exclude``."""
    is_included = not include or any(rule.matches(place) for rule in include)
    return is_included and not any(rule.matches(place) for rule in exclude)


def rule_faults(places: Sequence[Place], rules: Mapping[str, Sequence[CellRule]]) -> list[Fault]:
    """What is wrong with the rules of a full grid, by section: values it does not have, rules that match no cell."""
    known = {axis: list(dict.fromkeys(getattr(place, axis) for place in places)) for axis in AXES}
    found: list[Fault] = []
    for section, listed in rules.items():
        for index, rule in enumerate(listed):
            keys = ("grid", section, index)
            unknown = [fault.under(keys) for axis in AXES for fault in _value_faults(axis, rule, known[axis])]
            found += unknown
            if not unknown and not any(rule.matches(place) for place in places):
                found.append(_fault(keys, _words(rule), f"a rule that some cell matches; {_modes_of(places)}"))
    if not found and not any(is_measured(place, rules["include"], rules["exclude"]) for place in places):
        section = "exclude" if rules["exclude"] else "include"
        found.append(_fault(("grid", section), "rules that leave no cell", "rules that leave at least one"))
    return found


def _value_faults(axis: str, rule: CellRule, known: list[Any]) -> Iterable[Fault]:
    """The first value of a key that the grid does not have, with the nearest that it has."""
    for value in getattr(rule, axis) or ():
        if value not in known:
            listed = ", ".join(map(str, known))
            if isinstance(value, int):
                near = min(known, key=lambda one: (abs(one - value), one))
                words = f"values of grid.{axis}, which are {listed}; the nearest is {near}"
            else:
                near = max(known, key=lambda name: _likeness(name, value))
                words = f"{axis}s of this configuration, which are {listed}; the nearest is {near}"
            yield value_fault((axis,), value, words)
            return


def _likeness(name: str, other: str) -> tuple[int, float]:
    """How many characters two names share in order, and of how many: a variant is like the pair it is one of."""
    matcher = difflib.SequenceMatcher(None, name, other, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()), matcher.ratio()


def _fault(keys: Keys, found: str, allowed: str) -> Fault:
    """``place: found …, allowed: …``, what was found in words."""
    return Fault(keys=keys, subject=keys, text=f"found {found}, allowed: {allowed}")


def _words(rule: CellRule) -> str:
    given = {axis: getattr(rule, axis) for axis in AXES}
    return ", ".join(f"{axis} {' or '.join(map(str, values))}" for axis, values in given.items() if values is not None)


def _modes_of(places: Sequence[Place]) -> str:
    """Pairs with their modes: all that keeps values of the grid from meeting."""
    pairs = dict.fromkeys((place.pair, place.mode) for place in places)
    return ", ".join(f"{pair} runs in mode {mode}" for pair, mode in pairs)
