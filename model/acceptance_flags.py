"""From the acceptance options of a command line to a profile: exactly one of them, each with its own meaning.

--alpha .8                     one rate for every position
--rates .8,.6,.4               marginal, per position: A_1, A_2, … (what vLLM's counters over drafts give)
--conditional-rates .8,.75     per position, given that the drafts before it were accepted
--counts 56:16,12,12,12        ROUNDS:drafts accepted at position 1, 2, …
--counts 208/260/52            ACCEPTED/DRAFTED/ROUNDS, nothing else known
--histogram 10,5,3,2           rounds that accepted 0, 1, 2, … gamma drafts
--tokens-per-round 2.4,3.1     Omega at each gamma
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from specgauge.model.acceptance_profile import AcceptanceProfile
from specgauge.model.profiles import (
    profile_from_alpha,
    profile_from_conditional,
    profile_from_counts,
    profile_from_histogram,
    profile_from_marginal,
    profile_from_tokens_per_round,
    profile_from_totals,
)
from specgauge.model.quantities import parse_counts, parse_gammas, parse_numbers

DEFAULT_GAMMAS = "1:8"
"""What one alpha, which knows no gamma of its own, is shown at."""


@dataclass(frozen=True, kw_only=True)
class AcceptanceFlags:
    """The options as typed; None where not given."""

    alpha: float | None = None
    rates: str | None = None
    conditional_rates: str | None = None
    counts: str | None = None
    histogram: str | None = None
    tokens_per_round: str | None = None

    def given(self) -> tuple[str, Any]:
        """Name and value of the one option given; ValueError for none and for several."""
        found = {name: value for name, value in vars(self).items() if value is not None}
        if len(found) != 1:
            names = ", ".join(_flag(name) for name in found) or "none"
            every = ", ".join(_flag(name) for name in vars(self))
            raise ValueError(f"acceptance: found {names}, allowed: exactly one of {every}")
        return next(iter(found.items()))


@dataclass(frozen=True, kw_only=True)
class GivenAcceptance:
    """A profile, the gammas to predict at, and the input as numbers, to be shown beside every result."""

    profile: AcceptanceProfile
    gammas: list[int]
    inputs: dict[str, Any]


def acceptance_from_flags(flags: AcceptanceFlags, gamma: str | None) -> GivenAcceptance:
    """Parse the one acceptance option; `gamma` defaults to 1 … the gamma the rates were taken at (1:8 for an alpha)."""
    name, text = flags.given()
    where = _flag(name)
    if name == "tokens_per_round":
        if gamma is None:
            raise ValueError("--gamma: found none beside --tokens-per-round, allowed: the gamma of each value")
        drafts, values = parse_gammas(gamma, "--gamma"), parse_numbers(text, where)
        if len(values) != len(drafts):
            raise ValueError(f"{where}: found {len(values)} values for {len(drafts)} gammas, allowed: one for each")
        profile = profile_from_tokens_per_round(drafts, values)
        return GivenAcceptance(profile=profile, gammas=drafts, inputs={})
    if name == "alpha":
        profile, inputs = profile_from_alpha(text), {"alpha": float(text)}
        default = DEFAULT_GAMMAS
    else:
        profile, inputs = _per_position(name, text, where)
        default = f"1:{profile.gamma_drafted}"
    return GivenAcceptance(
        profile=profile, gammas=parse_gammas(default if gamma is None else gamma, "--gamma"), inputs=inputs
    )


def _per_position(name: str, text: str, where: str) -> tuple[AcceptanceProfile, dict[str, Any]]:
    if name == "rates":
        rates = parse_numbers(text, where)
        return profile_from_marginal(rates), {"rates": rates}
    if name == "conditional_rates":
        rates = parse_numbers(text, where)
        return profile_from_conditional(rates), {"conditional_rates": rates}
    if name == "histogram":
        histogram = parse_counts(text, where)
        return profile_from_histogram(histogram), {"histogram": histogram}
    return _counts(text, where)


def _counts(text: str, where: str) -> tuple[AcceptanceProfile, dict[str, Any]]:
    if text.count(":") == 1:
        left, right = text.split(":")
        (rounds,), accepted = parse_counts(left, f"{where}, rounds"), parse_counts(right, f"{where}, accepted")
        return profile_from_counts(accepted, rounds=rounds), {"rounds": rounds, "accepted_per_position": accepted}
    if re.fullmatch(r"\s*\d{1,100}\s*/\s*\d{1,100}\s*/\s*\d{1,100}\s*", text, flags=re.ASCII):
        accepted_sum, drafted, rounds = (int(part) for part in text.split("/"))
        profile = profile_from_totals(accepted=accepted_sum, drafted=drafted, rounds=rounds)
        return profile, {"accepted": accepted_sum, "drafted": drafted, "rounds": rounds}
    raise ValueError(
        f"{where}: found {text!r}, allowed: ROUNDS:A1,A2,… (drafts accepted at each position) or "
        "ACCEPTED/DRAFTED/ROUNDS; rounds by accepted length go to --histogram"
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
