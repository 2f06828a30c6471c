"""Reading the numbers people write on a command line: durations with units, lists, ranges of gamma.

    >>> parse_duration_s("19.05ms"), parse_gammas("1:7:2"), parse_numbers(".2,.4,.4")
    (0.01905, [1, 3, 5, 7], [0.2, 0.4, 0.4])

Every fault is a ValueError of one line that says what was found, what is allowed, and the nearest unit.
"""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from itertools import pairwise

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
