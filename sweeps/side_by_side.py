"""The pairs, modes and drafts of one target held against each other: which is best at a point, where that is clear.

    for ranking in side_by_side(answers):
        for one in ranking.alternatives:
            one.name, one.entry["speedup"], one.tokens_per_s, one.standing

Held against each other are tokens a second of the whole batch, S · B / T_decode, since modes, types of weights and
devices differ in plain decoding too; T_decode is the median of those measured of the target as it runs there, so that
what only its noise tells apart is not.
The best is clear where its whole interval lies above all others'; what does not pay stands at plain decoding.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from specgauge.model.settings import Point
from specgauge.sweeps.analysis.answers import Entry, Recommendations
from specgauge.sweeps.plan import target_identity

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig

Standing = Literal["best", "undecided", "slower", "does not pay"]
_USUAL = {"draft_sampling": ("same", "draft"), "acceptance_rule": ("ratio", "rule")}


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One way to draft for the target at a point."""

    entry: Entry
    """Its answer, an entry of recommendation.yaml."""
    name: str
    """The pair, which is of one mode, with how its drafts are drawn and verified where that is not the usual."""
    draft: str
    """What drafts."""
    tokens_per_s: float
    """Of the whole batch, speculating at the γ of the answer."""
    low: float
    """Ends of its interval, those of S; both are the value where that has none."""
    high: float
    standing: Standing
    """`undecided` where its interval overlaps that of the fastest, `slower` where it lies below."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The alternatives at one point under one sampling setting, the fastest first."""

    target: str
    sampling: str
    point: Point
    alternatives: tuple[Alternative, ...]

    @property
    def best(self) -> Alternative | None:
        """The best one, where that is clear."""
        return next((one for one in self.alternatives if one.standing == "best"), None)


def side_by_side(answers: Recommendations) -> list[Ranking]:
    """Every point at which two answers or more are about one target, under one sampling setting."""
    pairs, targets = answers.pairs, [target_identity(pair) for pair in answers.pairs.values()]
    target_of = {name: targets.index(target_identity(pair)) for name, pair in pairs.items()}
    found: dict[tuple[int, str, Point], list[Entry]] = {}
    for entry in answers.known:
        if entry["pair"] in pairs and entry["t_decode_s"]:
            point = Point(batch_size=entry["batch_size"], context=entry["context"])
            found.setdefault((target_of[entry["pair"]], entry["sampling"], point), []).append(entry)
    return [
        Ranking(
            target=str(targets[target]["model"]),
            sampling=sampling,
            point=point,
            alternatives=_alternatives(entries, pairs),
        )
        for (target, sampling, point), entries in found.items()
        if len(entries) > 1
    ]


def _alternatives(entries: list[Entry], pairs: Mapping[str, PairConfig]) -> tuple[Alternative, ...]:
    decode_s: dict[Hashable, list[float]] = {}
    for entry in entries:
        decode_s.setdefault(_runs_as(entry, pairs), []).append(entry["t_decode_s"])
    rated = []
    for entry in entries:
        plain = entry["batch_size"] / median(decode_s[_runs_as(entry, pairs)])
        value, low, high = (entry["speedup"][end] for end in ("value", "low", "high"))
        ends = (value, value if low is None else low, value if high is None else high)
        rated.append((entry, plain, *(plain * end for end in ends)))
    rated.sort(key=lambda one: -one[2])
    paying = [one for one in rated if _may_pay(one[0])]
    made = []
    for entry, _, value, low, high in rated:
        standing: Standing = "does not pay"
        if _may_pay(entry):
            others = [one[4] if _may_pay(one[0]) else one[1] for one in rated if one[0] is not entry]
            is_best = entry is paying[0][0] and entry["decision"] == "speculate" and low > max(others)
            standing = "best" if is_best else "slower" if high < paying[0][3] else "undecided"
        made.append(
            Alternative(
                entry=entry,
                name=_name(entry),
                draft=pairs[entry["pair"]].draft.label,
                tokens_per_s=value,
                low=low,
                high=high,
                standing=standing,
            )
        )
    return tuple(made)


def _runs_as(entry: Entry, pairs: Mapping[str, PairConfig]) -> Hashable:
    """How and where the target of an answer runs: what its plain step depends on, beside the model itself."""
    pair = pairs[entry["pair"]]
    return entry["mode"], pair.threads, pair.accelerator_type, pair.target.model_dump_json()


def _may_pay(entry: Entry) -> bool:
    return bool(entry["decision"] != "do not speculate")


def _name(entry: Entry) -> str:
    words = [f"{entry[name]} {what}" for name, (usual, what) in _USUAL.items() if entry[name] != usual]
    return ", ".join([str(entry["pair"]), *words])
