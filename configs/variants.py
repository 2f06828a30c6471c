"""Lists that make variants of a pair: several dtypes or attentions of its models, several modes or thread counts.

    pairs: [{name: qwen, target: {model: o/m, dtype: [bfloat16, float32]}, draft: o/s}]
    mode: [eager, compile]

stands for the four pairs qwen-bfloat16-eager, qwen-bfloat16-compile, qwen-float32-eager and qwen-float32-compile, each
with the mode written into it. Only what has several values is named; what is the draft's own is marked `draft`. This
happens to the written values, before they become a configuration: whoever reads config.yaml finds plain pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any, Literal, get_args

from specgauge.configs.faults import Fault, Keys, value_fault
from specgauge.configs.names import LONGEST_NAME, NAME, part_of_name
from specgauge.configs.rules import Choice, Rule, Scalar, Text, Whole
from specgauge.configs.section import Section

Mode = Literal["eager", "compile", "cuda_graph"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
MOST_VARIANTS = 1000
"""Of one pair."""


@dataclass(frozen=True, kw_only=True)
class Varying(Rule):
    """One value of ``item``, or a list of them, each of which makes a variant; null means ``null_means``, if anything.

    The lists of a configuration's pairs are gone before a field is checked (`spread`), so a list of several that is met
    here has no pair to make variants of.
    """

    item: Scalar
    null_means: str = ""

    @property
    def allowed(self) -> str:
        """The item's words."""
        null = f", or null ({self.null_means})" if self.null_means else ""
        return f"{self.item.allowed}, or a list of these{null}"

    def values(self, written: object) -> list[Any] | None:
        """The different values of a list without a fault, in its order; None for anything else."""
        if not isinstance(written, (list, tuple)) or not written or self._list_faults(written):
            return None
        return list(dict.fromkeys(written))

    def _list_faults(self, written: list[Any] | tuple[Any, ...]) -> list[Fault]:
        return [fault.under((index,)) for index, one in enumerate(written) for fault in self.item.faults(one)]

    def faults(self, value: object) -> list[Fault]:
        """Those of the value, or of every item of a list."""
        if value is None and self.null_means:
            return []
        if not isinstance(value, (list, tuple)):
            found = self.item.faults(value)
            return [value_fault((), value, self.allowed)] if found else []
        if not value:
            return [value_fault((), value, f"at least one value: {self.allowed}")]
        found = self._list_faults(value)
        if not found and len(set(value)) > 1:
            return [value_fault((), value, "one value, where no pair of a configuration has its variants")]
        return found

    def resolved(self, value: Any) -> object:
        """The value, also where it stands alone in a list."""
        return value[0] if isinstance(value, (list, tuple)) else value

    def json_schema(self) -> dict[str, object]:
        """The item, an array of it, and null where it may be."""
        item = self.item.json_schema()
        null = [{"type": "null"}] if self.null_means else []
        return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1}, *null]}


DTYPE = Varying(item=Choice(words=get_args(Dtype)))
ATTENTION = Varying(
    item=Text(
        pattern=r"^[A-Za-z0-9_./@:|-]+$",
        means="the name of one of transformers' attention implementations, such as sdpa or eager",
    ),
    null_means="the model's default",
)
MODE = Varying(item=Choice(words=get_args(Mode)))
THREADS = Varying(item=Whole(at_least=1, at_most=4096), null_means="torch's own choice")
OF_THE_RUN = "the configuration's"
PAIR_MODE = Varying(item=MODE.item, null_means=OF_THE_RUN)
PAIR_THREADS = Varying(item=THREADS.item, null_means=OF_THE_RUN)

_OF_MODELS = {"dtype": DTYPE, "attention": ATTENTION}
_OF_RUNS = {"mode": MODE, "threads": THREADS}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Written values with a pair for every variant."""

    value: Mapping[str, Any]
    places: tuple[int, ...] = ()
    """Where each pair is written: an index of the written pairs."""
    faults: tuple[Fault, ...] = ()
    """At the places written."""

    def written(self, fault: Fault) -> Fault:
        """A fault of the spread values, at the place where it is written."""
        return replace(fault, keys=self._written(fault.keys), subject=self._written(fault.subject))

    def _written(self, keys: Keys) -> Keys:
        match keys:
            case ("pairs", int(index), *inner) if index < len(self.places):
                return ("pairs", self.places[index], *inner)
        return keys


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """Values of one place of a pair, of which every variant has one."""

    keys: tuple[str, ...]
    values: list[Any]

    def part(self, value: object) -> str:
        """What a value adds to the names of its variants."""
        role = "draft-" if self.keys[0] == "draft" else ""
        kind = "threads-" if self.keys[-1] == "threads" else ""
        return f"{role}{kind}{part_of_name(value)}"


@dataclass(kw_only=True)
class _Variants:
    """All pairs, as they are found."""

    pairs: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    of_name: dict[str, list[str]] = field(default_factory=dict)
    """Names of the variants, by the name written."""
    taken: dict[str, int] = field(default_factory=dict)
    """Where each name of a pair or variant is written; upper and lower case alike."""
    bases: dict[str, int] = field(default_factory=dict)
    """Where each name is written first."""

    def add(self, index: int, pair: object, axes: list[_Axis]) -> None:
        """The variants of the pair written at an index."""
        names: list[str] = []
        own: dict[str, int] = {}
        base = pair.get("name") if isinstance(pair, Mapping) else None
        is_named = NAME.accepts(base)
        for values in self._choices(index, axes):
            variant = _with_values(pair, axes, values)
            if is_named and axes:
                variant["name"] = "-".join([str(base), *(a.part(v) for a, v in zip(axes, values, strict=True))])
            self.pairs.append(variant)
            self.places.append(index)
            if is_named:
                names.append(variant["name"])
        if is_named and (earlier := self.bases.setdefault(str(base).casefold(), index)) != index:
            words = f"a name that pairs[{earlier}] does not have already"
            self.faults.append(value_fault(("pairs", index, "name"), base, words))
            return
        for name in names:
            fault = self._name_fault(index, base, name, own, is_variant=bool(axes))
            if fault is not None:
                self.faults.append(fault)
                break
        self.taken = own | self.taken
        if is_named and axes:
            self.of_name.setdefault(str(base), []).extend(names)

    def _choices(self, index: int, axes: list[_Axis]) -> Iterator[tuple[Any, ...]]:
        """Every combination of values; the first alone where there are too many."""
        count = prod(len(axis.values) for axis in axes)
        if count > MOST_VARIANTS:
            self.faults.append(
                value_fault(("pairs", index), f"{count} variants", f"at most {MOST_VARIANTS} of one pair")
            )
            yield tuple(axis.values[0] for axis in axes)
        else:
            yield from product(*(axis.values for axis in axes))

    def _name_fault(
        self, index: int, base: object, name: str, own: dict[str, int], *, is_variant: bool
    ) -> Fault | None:
        """What is wrong with the name of a pair or variant, which joins ``own``."""
        keys: Keys = ("pairs", index, "name")
        if not NAME.accepts(name):
            words = f"a name whose variants, such as {name}, have at most {LONGEST_NAME} characters"
            return value_fault(keys, base, words)
        folded = name.casefold()
        if folded in own and is_variant:
            return value_fault(keys, base, f"variants with names of their own, two would be {name}")
        if folded in self.taken and (is_variant or self._is_variant(folded)):
            words = f"a name without the variant {name}, which pairs[{self.taken[folded]}] has already"
            return value_fault(keys, base, words)
        own[folded] = index
        return None

    def _is_variant(self, folded: str) -> bool:
        return any(folded == name.casefold() for names in self.of_name.values() for name in names)


def spread(written: Mapping[str, Any]) -> Spread:
    """The written values with a pair for every variant; themselves where no list makes any.

    Lists with a fault in them stay as they are, for the rules of their fields to tell. ``mode`` and ``threads`` of the
    configuration become their first value, which pairs that have their own do not take.
    """
    pairs = written.get("pairs")
    if not isinstance(pairs, (list, tuple)):
        return Spread(value=written)
    common = {axis: values for axis, rule in _OF_RUNS.items() if (values := _several(rule, written.get(axis)))}
    found = _Variants()
    for index, pair in enumerate(pairs):
        plain = pair.model_dump() if isinstance(pair, Section) else pair
        axes = list(_axes(plain, common)) if isinstance(plain, Mapping) else []
        found.add(index, plain if axes else pair, axes)
    value = {**written, **{axis: values[0] for axis, values in common.items()}, "pairs": found.pairs}
    if found.of_name and isinstance(written.get("grid"), Mapping):
        value["grid"] = _with_variants_named(written["grid"], found.of_name)
    return Spread(value=value, places=tuple(found.places), faults=tuple(found.faults))


def _several(rule: Varying, written: object) -> list[Any] | None:
    """The values of a list that makes variants; None where there is one value, or a fault."""
    values = rule.values(written)
    return values if values is not None and len(values) > 1 else None


def _axes(pair: Mapping[str, Any], common: Mapping[str, list[Any]]) -> Iterator[_Axis]:
    for role in ("target", "draft"):
        model = pair.get(role)
        for axis, rule in _OF_MODELS.items():
            values = _several(rule, model.get(axis)) if isinstance(model, Mapping) else None
            if values:
                yield _Axis(keys=(role, axis), values=values)
    for axis, rule in _OF_RUNS.items():
        values = common.get(axis) if pair.get(axis) is None else _several(rule, pair[axis])
        if values:
            yield _Axis(keys=(axis,), values=values)


def _with_values(pair: Any, axes: list[_Axis], values: tuple[Any, ...]) -> Any:
    """A pair with one value at the place of each axis."""
    if not axes:
        return pair
    variant = dict(pair)
    for axis, value in zip(axes, values, strict=True):
        *outer, key = axis.keys
        holder = variant
        for name in outer:
            holder[name] = dict(holder[name])
            holder = holder[name]
        holder[key] = value
    return variant


def _with_variants_named(grid: Mapping[str, Any], of_name: Mapping[str, list[str]]) -> dict[str, Any]:
    """The grid with the names of pairs in its rules replaced by those of their variants."""
    changed = dict(grid)
    for section in ("include", "exclude"):
        rules = grid.get(section)
        if isinstance(rules, (list, tuple)):
            changed[section] = [_rule_with_variants(rule, of_name) for rule in rules]
    return changed


def _rule_with_variants(rule: Any, of_name: Mapping[str, list[str]]) -> Any:
    plain = rule.model_dump() if isinstance(rule, Section) else rule
    if not isinstance(plain, Mapping) or plain.get("pair") is None:
        return rule
    named = plain["pair"]
    wanted = named if isinstance(named, (list, tuple)) else [named]
    if not any(isinstance(one, str) and one in of_name for one in wanted):
        return rule
    pairs = [name for one in wanted for name in (of_name.get(one, [one]) if isinstance(one, str) else [one])]
    return {**plain, "pair": pairs}
