"""The report's own records: predictions and answers as typed values, and the keys that group them.

A `Strategy` is one way to speculate with one pair (pair, mode, sampling, draft sampling, acceptance rule); a `Place`
is where it was asked (batch size, context). Records are made from the rows of `predictions.csv`, `recommendation.yaml`
and `validation.csv`; unknown is None, and None stays None until it is printed as a dash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from specgauge.reports.entries import flag_of, number_of, text_of, value_of, whole_of, whole_or_none_of

SPECULATE = "speculate"
DO_NOT = "do not speculate"
UNDECIDED = "undecided"
DECISIONS = (SPECULATE, DO_NOT, UNDECIDED)


class Strategy(NamedTuple):
    """One way to speculate: everything that keys a prediction but the place and gamma."""

    pair: str
    mode: str
    sampling: str
    draft_sampling: str
    acceptance_rule: str


class Place(NamedTuple):
    """Where a strategy was asked: sequences decoded together and tokens in the KV cache."""

    batch_size: int
    context: int


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One row of predictions.csv; times in seconds, rates and speed-ups as plain numbers, unknown None."""

    strategy: Strategy
    place: Place
    gamma: int
    t_decode_s: float | None
    t_draft_total_s: float | None
    t_draft_catch_up_s: float | None
    t_verify_s: float | None
    """T_verify(γ), of γ drafts."""
    t_verify_mean_s: float | None = None
    """Mean verification of the rounds, which may find fewer drafts."""
    t_overhead_s: float | None
    t_round_s: float | None
    tokens_per_round: float | None
    tokens_per_round_low: float | None
    tokens_per_round_high: float | None
    accepted_draft_tokens: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    p_best: float | None
    is_best: bool
    is_recommended: bool
    full_acceptance: float | None
    cost_known: str
    acceptance_known: str
    label: str
    status: str
    """`ok`, or what kept the number from being known: `oom`, `skipped`, `failed`, `killed`, `unmeasured`."""
    reason: str

    @property
    def round_verify_s(self) -> float | None:
        """What a round spends on verification: the mean over its drafts where that is known, else T_verify(γ)."""
        return self.t_verify_s if self.t_verify_mean_s is None else self.t_verify_mean_s


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One entry of recommendation.yaml: what to do with one strategy at one place, and how sure that is."""

    strategy: Strategy
    place: Place
    decision: str
    gamma: int | None
    best_gamma: int | None
    recommended_gamma: int | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    p_gamma_best: float | None
    expected_loss: float | None
    p_speculation_pays: float | None
    reason: str

    @property
    def is_known(self) -> bool:
        """Whether there was a number to decide on; without one the entry only gives the reason."""
        return self.speedup is not None


@dataclass(frozen=True, kw_only=True)
class Verified:
    """One row of validation.csv: what decoding one place at one gamma end to end found, beside the prediction."""

    strategy: Strategy
    place: Place
    gamma: int
    lossless: bool
    """Whether the texts follow the target's distribution; not so where acceptance was forced."""
    why_not_lossless: str
    t_overhead_s: float | None
    overhead_from: str
    """Where ε was fitted: `other contexts`, `same context`, or empty where it is unknown."""
    tokens_per_round_predicted: float | None
    tokens_per_round_counted: float | None
    acceptance_error: float | None
    """Ω predicted / Ω counted − 1, with its 95 % interval."""
    acceptance_error_low: float | None
    acceptance_error_high: float | None
    speedup_predicted: float | None
    speedup_from_counts: float | None
    speedup_measured: float | None
    speedup_measured_low: float | None
    speedup_measured_high: float | None
    cost_error: float | None
    """S from counts / S measured − 1."""
    error: float | None
    """S predicted / S measured − 1."""
    speedup_whole: float | None
    """Tokens a second over plain decoding for whole requests, prefills and ragged ends included."""
    plain_over_generate: float | None
    plain_over_loop: float | None
    rounds_counted: int
    rounds_expected: float | None
    rounds_standard_errors: float | None
    rounds_agree: bool | None

    @property
    def key(self) -> tuple[Strategy, Place, int]:
        """What was decoded."""
        return self.strategy, self.place, self.gamma


@dataclass(frozen=True, kw_only=True)
class VerifiedPolicy:
    """One row of validation.csv of an adaptive policy: whole texts decoded under it, beside its replay."""

    strategy: Strategy
    place: Place
    policy: str
    best_fixed_gamma: int | None
    """The γ decoded that was fastest over whole texts; None where none was decoded beside it."""
    speedup_measured: float | None
    """Over plain decoding, after the first tokens, with its interval."""
    speedup_measured_low: float | None
    speedup_measured_high: float | None
    over_best_fixed: float | None
    """The same over the fastest γ."""
    over_best_fixed_low: float | None
    over_best_fixed_high: float | None
    speedup_predicted: float | None
    """That of its replay."""
    error: float | None
    """S replayed / S measured − 1, with its interval."""
    error_low: float | None
    error_high: float | None
    speedup_from_counts: float | None
    cost_error: float | None
    mean_gamma: float | None
    """Drafts of a row and round."""
    rounds: int
    gamma_switches: int
    """Rounds whose γ differs from the one before."""


_NUMBERS, _VERIFIED_NUMBERS, _POLICY_NUMBERS = (
    tuple(field.name for field in fields(made) if field.type == "float | None")
    for made in (Prediction, Verified, VerifiedPolicy)
)


def prediction(row: Mapping[str, Any]) -> Prediction:
    """The prediction of one row of predictions.csv (values as text, as numbers or missing).

    Raises:
        ValueError: a column is missing or holds something else than it should; the message names the column.
    """
    return Prediction(
        strategy=_strategy(row),
        place=_place(row),
        gamma=whole_of(row, "gamma"),
        is_best=flag_of(row, "is_best"),
        is_recommended=flag_of(row, "is_recommended"),
        cost_known=text_of(row, "cost_known"),
        acceptance_known=text_of(row, "acceptance_known"),
        label=text_of(row, "label"),
        status=text_of(row, "status") or "ok",
        reason=text_of(row, "reason"),
        **{name: number_of(row, name) for name in _NUMBERS},
    )


def answer(entry: Mapping[str, Any]) -> Answer:
    """The answer of one entry of recommendation.yaml.

    Raises:
        ValueError: a key is missing or holds something else than it should; the message names the key.
    """
    speedup = value_of(entry, "speedup")
    speedup = dict.fromkeys(("value", "low", "high")) if speedup is None else speedup
    if not isinstance(speedup, Mapping):
        raise ValueError(f"speedup: found {speedup!r}, allowed: a mapping of value, low and high")
    decision = text_of(entry, "decision")
    if decision not in DECISIONS:
        raise ValueError(f"decision: found {decision!r}, allowed: {', '.join(DECISIONS)}")
    return Answer(
        strategy=_strategy(entry),
        place=_place(entry),
        decision=decision,
        gamma=whole_or_none_of(entry, "gamma"),
        best_gamma=whole_or_none_of(entry, "best_gamma"),
        recommended_gamma=whole_or_none_of(entry, "recommended_gamma"),
        speedup=number_of(speedup, "value"),
        speedup_low=number_of(speedup, "low"),
        speedup_high=number_of(speedup, "high"),
        p_gamma_best=number_of(entry, "p_gamma_best"),
        expected_loss=number_of(entry, "expected_loss"),
        p_speculation_pays=number_of(entry, "p_speculation_pays"),
        reason=text_of(entry, "reason"),
    )


def verified(row: Mapping[str, Any]) -> Verified:
    """The record of one row of validation.csv; ValueError as for `prediction`."""
    return Verified(
        strategy=_strategy(row),
        place=_place(row),
        gamma=whole_of(row, "gamma"),
        lossless=flag_of(row, "lossless"),
        why_not_lossless=text_of(row, "why_not_lossless"),
        overhead_from=text_of(row, "overhead_from"),
        rounds_counted=whole_of(row, "rounds_counted"),
        rounds_agree=None if value_of(row, "rounds_agree") is None else flag_of(row, "rounds_agree"),
        **{name: number_of(row, name) for name in _VERIFIED_NUMBERS},
    )


def verified_policy(row: Mapping[str, Any]) -> VerifiedPolicy:
    """The record of one row of validation.csv of an adaptive policy; ValueError as for `prediction`."""
    return VerifiedPolicy(
        strategy=_strategy(row),
        place=_place(row),
        policy=text_of(row, "policy"),
        best_fixed_gamma=whole_or_none_of(row, "best_fixed_gamma"),
        rounds=whole_of(row, "rounds"),
        gamma_switches=whole_of(row, "gamma_switches"),
        **{name: number_of(row, name) for name in _POLICY_NUMBERS},
    )


Measured = Mapping[tuple[Strategy, Place, int], Verified]
"""What was measured end to end as the models decide, by strategy, place and gamma."""
NOTHING_MEASURED: Measured = MappingProxyType({})


def measured(rows: Iterable[Verified]) -> dict[tuple[Strategy, Place, int], Verified]:
    """The rows that tell what the pair gains: lossless (forced acceptance says nothing of it) with a known speed-up."""
    return {one.key: one for one in rows if one.lossless and one.speedup_measured is not None}


Curves = Mapping[Strategy, Mapping[Place, Sequence[Prediction]]]
"""Predictions by strategy and place, each curve in rising gamma."""


def curves(predictions: Iterable[Prediction]) -> dict[Strategy, dict[Place, list[Prediction]]]:
    """Predictions by strategy and place, each curve in rising gamma; order of first appearance is kept."""
    grouped: dict[Strategy, dict[Place, list[Prediction]]] = {}
    for one in predictions:
        grouped.setdefault(one.strategy, {}).setdefault(one.place, []).append(one)
    return {
        strategy: {place: sorted(curve, key=lambda one: one.gamma) for place, curve in sorted(places.items())}
        for strategy, places in grouped.items()
    }


def best_of(curve: Sequence[Prediction]) -> Prediction | None:
    """The prediction with the largest known speed-up, the smallest gamma among equals."""
    known = [one for one in curve if one.speedup is not None]
    return max(known, key=lambda one: (one.speedup or 0.0, -one.gamma)) if known else None


def _strategy(row: Mapping[str, Any]) -> Strategy:
    return Strategy(*(text_of(row, name) for name in Strategy._fields))


def _place(row: Mapping[str, Any]) -> Place:
    return Place(whole_of(row, "batch_size"), whole_of(row, "context"))
