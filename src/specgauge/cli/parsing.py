"""What people type on the command line: durations, numbers, ranges, and acceptance in its many spellings.

    >>> parse_duration_s("19.05ms"), parse_gammas("1:7:2"), parse_numbers(".2,.4,.4")
    (0.01905, [1, 3, 5, 7], [0.2, 0.4, 0.4])

Every fault is a ValueError of one line that says what was found, what is allowed, and the nearest unit.

From the acceptance options of a command line to a profile: exactly one of them, each with its own meaning.

--alpha .8                     one rate for every position
--rates .8,.6,.4               marginal, per position: A_1, A_2, … (what vLLM's counters over drafts give)
--conditional-rates .8,.75     per position, given that the drafts before it were accepted
--counts 56:16,12,12,12        ROUNDS:drafts accepted at position 1, 2, …
--counts 208/260/52            ACCEPTED/DRAFTED/ROUNDS, nothing else known
--histogram 10,5,3,2           rounds that accepted 0, 1, 2, … gamma drafts
--tokens-per-round 2.4,3.1     Omega at each gamma
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from specgauge.model.acceptance.profiles import (
    AcceptanceProfile,
    profile_from_alpha,
    profile_from_conditional,
    profile_from_counts,
    profile_from_histogram,
    profile_from_marginal,
    profile_from_tokens_per_round,
    profile_from_totals,
)
from specgauge.model.checks import LARGEST_GAMMA

UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_MICRO_SIGNS = str.maketrans({"µ": "u", "μ": "u"})
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_DURATION = re.compile(rf"\s*({_NUMBER})\s*([^\W\d_]*)\s*")


def parse_duration_s(text: str, name: str = "duration") -> float:
    """Seconds from "19.05ms", "0.5 s", "120us", "80 ns", or a plain number of seconds; negative ones are refused."""
    match = _DURATION.fullmatch(text.translate(_MICRO_SIGNS))
    if match is None:
        raise ValueError(
            f"{name}: found {text!r}, allowed: a number and a unit ({', '.join(UNITS_PER_S)}), such as 19.05ms"
        )
    number, unit = match.groups()
    if unit and unit not in UNITS_PER_S:
        near = get_close_matches(unit.lower(), UNITS_PER_S, n=1, cutoff=0.4)
        hint = f" (nearest: {near[0]})" if near else ""
        raise ValueError(f"{name}: found unit {unit!r} in {text!r}, allowed: {', '.join(UNITS_PER_S)}{hint}")
    value = float(number) / UNITS_PER_S[unit or "s"]
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: found {text!r}, allowed: a time of at least 0")
    return value


def parse_number(text: str) -> float | None:
    """A finite decimal number, or None for any other text (words, underscores, nan, inf, what overflows)."""
    if not re.fullmatch(rf"\s*{_NUMBER}\s*", text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def parse_durations_s(text: str, name: str = "duration") -> list[float]:
    """A comma-separated list of durations."""
    return [parse_duration_s(part, name) for part in _parts(text, name)]


def parse_numbers(text: str, name: str = "numbers") -> list[float]:
    """A comma-separated list of finite numbers."""
    numbers = []
    for place, part in enumerate(_parts(text, name), start=1):
        value = parse_number(part)
        if value is None:
            raise ValueError(f"{name} (item {place}): found {part.strip()!r}, allowed: a finite number")
        numbers.append(value)
    return numbers


def parse_counts(text: str, name: str = "counts", *, allowed: str = "a whole number, at least 0") -> list[int]:
    """A comma-separated list of whole numbers, none negative; `allowed` says so to who wrote something else."""
    counts = []
    for place, part in enumerate(_parts(text, name), start=1):
        if not re.fullmatch(r"\s*\d{1,100}\s*", part, flags=re.ASCII):
            raise ValueError(f"{name} (item {place}): found {part.strip()!r}, allowed: {allowed}")
        counts.append(int(part))
    return counts


def parse_gammas(text: str, name: str = "gamma") -> list[int]:
    """Rising gammas from "4", "1,2,4", "1:8" or "1:8:2" (both ends included), each from 1 to `LARGEST_GAMMA`."""
    whole = f"a whole number, from 1 to {LARGEST_GAMMA}"
    if ":" in text:
        ends = [parse_counts(part, name, allowed=whole)[0] if part.strip() else -1 for part in text.split(":")]
        first, last, step = (*ends, 1)[:3]
        if len(ends) > 3 or -1 in ends or step < 1 or first > last:
            raise ValueError(f"{name}: found {text!r}, allowed: FIRST:LAST or FIRST:LAST:STEP, such as 1:8")
        gammas = [*range(first, min(last, LARGEST_GAMMA) + 1, step), *([last] if last > LARGEST_GAMMA else [])]
    else:
        gammas = parse_counts(text, name, allowed=whole)
    if max(gammas) > LARGEST_GAMMA:
        raise ValueError(f"{name}: found {max(gammas)}, allowed: at most {LARGEST_GAMMA} drafts a round")
    if gammas[0] < 1:
        raise ValueError(f"{name}: found {gammas[0]}, allowed: at least 1 (gamma 0 is plain decoding, speed-up 1)")
    if any(b <= a for a, b in pairwise(gammas)):
        raise ValueError(f"{name}: found {text!r}, allowed: values that rise, each once")
    return gammas


def _parts(text: str, name: str) -> list[str]:
    parts = text.split(",")
    if any(not part.strip() for part in parts):
        what = "nothing" if not text.strip() else f"an empty entry in {text!r}"
        raise ValueError(f"{name}: found {what}, allowed: values separated by single commas")
    return parts


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
