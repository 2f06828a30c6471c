"""The rule for an axis whose values need not all be measured: ``{max: 16, search: adaptive}`` beside the plain forms.

    grid: {gamma: {max: 16, search: adaptive}}        # gamma 1 to 16, and gamma_search: adaptive

What the axis holds is the tuple 1 … max, like a range; how it is gone through is a field of its own, so that whoever
asks for the values need not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, get_args

from specgauge.configs.axes import Axis
from specgauge.configs.faults import Fault, missing_key, nearest, unknown_key, value_fault
from specgauge.configs.rules import Choice, Scalar, fail

GammaSearch = Literal["all", "adaptive"]
ADAPTIVE: GammaSearch = "adaptive"
GAMMA_SEARCH = Choice(words=get_args(GammaSearch))
_MAX, _SEARCH = "max", "search"
_HOW = Choice(words=(ADAPTIVE,), remark="a list or a range has every value measured")


@dataclass(frozen=True)
class SearchedAxis(Axis):
    """As an `Axis`; a mapping with ``max`` and ``search`` stands for the values from 1 on."""

    @property
    def allowed(self) -> str:
        """All ways to write it."""
        return f"{super().allowed}, or {{{_MAX}: 16, {_SEARCH}: {ADAPTIVE}}}"

    def faults(self, value: object) -> list[Fault]:
        """Those of the items, of the range, or of the search."""
        if not is_search(value):
            return super().faults(value)
        known: dict[str, Scalar] = {_MAX: self.item, _SEARCH: _HOW}
        unknown = [key for key in value if key not in known]
        meant = {nearest(key, known) for key in unknown}
        found = [unknown_key((), key, known) for key in unknown]
        found += [missing_key((), key, rule.allowed) for key, rule in known.items() if key not in {*value, *meant}]
        for key in known.keys() & value.keys():
            found += [fault.under((key,)) for fault in known[key].faults(value[key])]
        return found

    def resolved(self, value: Any) -> object:
        """A sorted tuple of unique integers, as any axis has it."""
        return tuple(range(1, value[_MAX] + 1)) if is_search(value) else super().resolved(value)

    def json_schema(self) -> dict[str, object]:
        """What an axis takes, and an object with max and search."""
        search = {
            "type": "object",
            "properties": {_MAX: self.item.json_schema(), _SEARCH: _HOW.json_schema()},
            "required": [_MAX, _SEARCH],
            "additionalProperties": False,
        }
        forms = super().json_schema()["anyOf"]
        assert isinstance(forms, list)
        return {"anyOf": [*forms, search]}


def is_search(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether an axis is written as a search, however misspelt."""
    return isinstance(value, Mapping) and bool({_MAX, _SEARCH} & {nearest(str(key), _KEYS) for key in value})


_KEYS = ("from", "to", "step", _MAX, _SEARCH)


def with_gamma_search(grid: object) -> object:
    """A written grid section whose gamma is a search, with that in the field `gamma_search`; others as they are."""
    gamma = grid.get("gamma") if isinstance(grid, Mapping) else None
    if not isinstance(grid, Mapping) or not is_search(gamma):
        return grid
    how = gamma.get(_SEARCH)
    written = grid.get("gamma_search", ADAPTIVE)
    if how == ADAPTIVE and written != ADAPTIVE:
        fail([value_fault(("gamma_search",), written, f"{ADAPTIVE}, since gamma is written as a search")])
    return {**grid, "gamma_search": written}
