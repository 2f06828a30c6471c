"""What people write, read: durations, numbers, ranges and acceptance on the command line, rows of CSV files.

    >>> parse_duration_s("19.05ms"), parse_gammas("1:7:2"), parse_counts("1,8k")
    (0.01905, [1, 3, 5, 7], [1, 8192])

Every mistake is a ValueError of one line: the place, what is expected, what was got, the nearest valid name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from specgauge.configs.errors import did_you_mean
from specgauge.configs.fields import LARGEST_BATCH_SIZE, MOST_VALUES
from specgauge.configs.reading import TABLE_BYTES, read_text
from specgauge.model.acceptance import profiles
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import LARGEST_GAMMA, FloatArray

UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DEFAULT_GAMMAS = "1:8"
"""What one alpha, which knows no gamma of its own, is shown at."""
_MICRO_SIGNS = str.maketrans({"µ": "u", "μ": "u"})
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_DURATION = re.compile(rf"\s*({_NUMBER})\s*([^\W\d_]*)\s*")


def parse_duration_s(text: str, name: str = "duration", *, signed: bool = False, needs_unit: bool = False) -> float:
    """Seconds from "19.05ms", "0.5 s", "120us", "80 ns"; below 0 only where `signed`.

    A plain number is seconds, unless it `needs_unit`: `--max-itl 50` of a run may be meant in either.
    """
    match = _DURATION.fullmatch(text.translate(_MICRO_SIGNS))
    units = ", ".join(UNITS_PER_S)
    if match is None or (needs_unit and not match[2]):
        raise ValueError(f"{name}: expected a number and a unit ({units}), such as 19.05ms, got {text!r}")
    number, unit = match.groups()
    if unit and unit not in UNITS_PER_S:
        raise ValueError(f"{name}: expected one of {units} as unit, got {text!r}{did_you_mean(unit, UNITS_PER_S)}")
    value = float(number) / UNITS_PER_S[unit or "s"]
    if not (math.isfinite(value) and (signed or value >= 0)):
        raise ValueError(f"{name}: expected a {'finite time' if signed else 'time of at least 0'}, got {text!r}")
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
    for position, part in enumerate(_parts(text, name), start=1):
        value = parse_number(part)
        if value is None:
            raise ValueError(f"{name} (item {position}): expected a finite number, got {part.strip()!r}")
        numbers.append(value)
    return numbers


def parse_counts(text: str, name: str = "counts", *, minimum: int = 0, maximum: int | None = None) -> list[int]:
    """A comma-separated list of integers within the bounds; a k after one multiplies it by 1024."""
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    counts = []
    for position, part in enumerate(_parts(text, name), start=1):
        match = re.fullmatch(r"\s*(\d{1,100})(k?)\s*", part, flags=re.ASCII)
        count = -1 if match is None else int(match[1]) * (1024 if match[2] else 1)
        if count < minimum or (maximum is not None and count > maximum):
            raise ValueError(f"{name} (item {position}): expected an integer {bounds}, got {part.strip()!r}")
        counts.append(count)
    return counts


def parse_gammas(text: str, name: str = "gamma") -> list[int]:
    """Rising gammas from "4", "1,2,4", "1:8" or "1:8:2" (both ends included), each from 1 to `LARGEST_GAMMA`."""
    if ":" not in text:
        gammas = parse_counts(text, name, minimum=1, maximum=LARGEST_GAMMA)
    else:
        first, last, *rest = _range_ends(text, name, example="1:8", maximum=LARGEST_GAMMA)
        gammas = list(range(first, last + 1, *rest))
    if not gammas or any(b <= a for a, b in pairwise(gammas)):
        raise ValueError(f"{name}: expected values that rise, each once, got {text!r}")
    return gammas


def parse_batch_sizes(text: str, name: str = "batch size") -> list[int]:
    """Rising batch sizes, each once, from a list whose items may be ranges.

    FIRST:LAST is both ends and the powers of two between them, FIRST:LAST:STEP every STEP from FIRST to LAST:

    >>> parse_batch_sizes("1:6"), parse_batch_sizes("8:24:8"), parse_batch_sizes("1,3:9")
    ([1, 2, 4, 6], [8, 16, 24], [1, 3, 4, 8, 9])
    """
    sizes: list[int] = []
    for part in _parts(text, name):
        first, *rest = _range_ends(part, name, example="1:256", maximum=LARGEST_BATCH_SIZE)
        last, step = (rest[0] if rest else first), (rest[1] if len(rest) > 1 else None)
        if last < first:
            raise ValueError(f"{name}: expected a range that rises, got {part!r}")
        powers = [1 << k for k in range(first.bit_length(), last.bit_length())]
        sizes += range(first, last + 1, step) if step else [first, *(power for power in powers if power < last), last]
    unique = sorted(set(sizes))
    if len(unique) > MOST_VALUES:
        raise ValueError(f"{name}: expected at most {MOST_VALUES} values, got {len(unique)}")
    return unique


def _range_ends(text: str, name: str, *, example: str, maximum: int) -> list[int]:
    ends = text.split(":")
    if len(ends) > 3 or "" in map(str.strip, ends):
        raise ValueError(f"{name}: expected FIRST:LAST or FIRST:LAST:STEP, such as {example}, got {text!r}")
    return parse_counts(",".join(ends), name, minimum=1, maximum=maximum)


def parse_pairs(texts: Sequence[str], name: str) -> dict[str, str]:
    """NAME=VALUE, any number of them, by name."""
    pairs = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not (key and value):
            raise ValueError(f"{name}: expected NAME=VALUE, got {text!r}")
        pairs[key] = value
    return pairs


def _parts(text: str, name: str) -> list[str]:
    parts = text.split(",")
    if any(not part.strip() for part in parts):
        got = f"an empty entry in {text!r}" if text.strip() else "nothing"
        raise ValueError(f"{name}: expected values separated by single commas, got {got}")
    return parts


@dataclass(frozen=True, kw_only=True)
class RecordedProfile:
    """Acceptance that a run recorded, in the place of a profile that was typed."""

    recorded: Acceptance
    """(1 + R, G)."""
    gamma_drafted: int
    source: str = "run"
    fit: None = None

    def at(self, gammas: Sequence[int]) -> Acceptance:
        """Its estimate at some of its gammas, (G,)."""
        own = self.recorded.only(gammas)
        shares = own.draft_count_distribution
        return replace(
            own,
            tokens_per_round=own.tokens_per_round[0],
            full_acceptance=own.full_acceptance[0],
            draft_count_distribution=None if shares is None else shares[0],
        )


@dataclass(frozen=True, kw_only=True)
class GivenAcceptance:
    """A profile, the gammas to predict at, and the input as numbers, to be shown beside every result."""

    profile: profiles.AcceptanceProfile | RecordedProfile
    gammas: list[int]
    inputs: dict[str, Any]


def parse_acceptance(options: Mapping[str, Any], gamma: str | None) -> GivenAcceptance:
    """Acceptance from the one option that is given, each with its own meaning (None: not given).

    alpha .8                     one rate for every position
    rates .8,.6,.4               marginal, per position: A_1, A_2, … (what vLLM's counters over drafts give)
    conditional_rates .8,.75     per position, given that the drafts before it were accepted
    counts 56:16,12,12,12        ROUNDS:drafts accepted at position 1, 2, …
    counts 208/260/52            ACCEPTED/DRAFTED/ROUNDS, nothing else known
    histogram 10,5,3,2           rounds that accepted 0, 1, 2, … gamma drafts
    tokens_per_round 2.4,3.1     Omega at each gamma

    `gamma` defaults to 1 … the gamma the rates were taken at, and to 1:8 for an alpha.

    Raises:
        ValueError: none or several are given, or the one cannot be read.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) != 1:
        found = ", ".join(option_name(name) for name in given) or "none"
        every = ", ".join(option_name(name) for name in options)
        raise ValueError(f"acceptance: expected exactly one of {every}, got {found}")
    ((name, text),) = given.items()
    where = option_name(name)
    inputs: dict[str, Any]
    if name == "alpha":
        profile, inputs = profiles.profile_from_alpha(text), {"alpha": float(text)}
    elif name == "tokens_per_round":
        if gamma is None:
            raise ValueError(f"--gamma: expected the gamma of each value of {where}, got none")
        drafts, values = parse_gammas(gamma, "--gamma"), parse_numbers(text, where)
        if len(values) != len(drafts):
            raise ValueError(f"{where}: expected one value for each of the {len(drafts)} gammas, got {len(values)}")
        profile, inputs = profiles.profile_from_tokens_per_round(drafts, values), {}
    elif name == "counts":
        profile, inputs = _counts(text, where)
    else:
        parse, make = _PER_POSITION[name]
        values = parse(text, where)
        profile, inputs = make(values), {name: values}
    default = DEFAULT_GAMMAS if name == "alpha" else f"1:{profile.gamma_drafted}"
    return GivenAcceptance(
        profile=profile, gammas=parse_gammas(default if gamma is None else gamma, "--gamma"), inputs=inputs
    )


_PER_POSITION: dict[str, tuple[Callable[[str, str], list[Any]], Callable[[list[Any]], profiles.AcceptanceProfile]]] = {
    "rates": (parse_numbers, profiles.profile_from_marginal),
    "conditional_rates": (parse_numbers, profiles.profile_from_conditional),
    "histogram": (parse_counts, profiles.profile_from_histogram),
}


def _counts(text: str, where: str) -> tuple[profiles.AcceptanceProfile, dict[str, Any]]:
    if text.count(":") == 1:
        left, right = text.split(":")
        (rounds,), accepted = parse_counts(left, f"{where}, rounds"), parse_counts(right, f"{where}, accepted")
        profile = profiles.profile_from_counts(accepted, rounds=rounds)
        return profile, {"rounds": rounds, "accepted_per_position": accepted}
    if text.count("/") == 2:
        total, drafted, rounds = parse_counts(text.replace("/", ","), where)
        profile = profiles.profile_from_totals(accepted=total, drafted=drafted, rounds=rounds)
        return profile, {"accepted": total, "drafted": drafted, "rounds": rounds}
    raise ValueError(
        f"{where}: expected ROUNDS:A1,A2,… (accepted at each position) or ACCEPTED/DRAFTED/ROUNDS, got {text!r}; "
        "rounds by accepted length go to --histogram"
    )


def option_name(name: str) -> str:
    """``--t-decode`` for t_decode."""
    return "--" + name.replace("_", "-")


Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Table(Generic[Row]):
    """The rows of a CSV file, checked, beside their text."""

    path: str
    header: Sequence[str]
    rows: Sequence[Row]
    texts: Sequence[Sequence[str]]
    """The cells of each row as they stand in the file."""

    def column(self, name: str) -> FloatArray:
        """A numeric column, (N,); NaN where a cell is empty or there is no such column."""
        return np.array([getattr(row, name) for row in self.rows], dtype=np.float64)

    def plain(self, name: str) -> list[float | int | str | None]:
        """A column as it should stand in JSON: numbers where every filled cell is one, else text; None if empty."""
        at = self.header.index(name)
        cells = [row[at].strip() for row in self.texts]
        values = [parse_number(cell) if cell else None for cell in cells]
        if any(value is None and cell for value, cell in zip(values, cells, strict=True)):
            return [cell or None for cell in cells]
        if all(cell.lstrip("+-").isdigit() for cell in cells if cell):
            return [int(cell) if cell else None for cell in cells]
        return list(values)


_TABLE = "correct the table (columns have commas between them)"


def read_table(path: str | Path, row_type: type[Row]) -> Table[Row]:
    """Read a comma-separated file with a header, each row checked as a `row_type`.

    Columns that the type does not have are kept as text, unless they look like one that is missing (`t_decode_ms`).

    Raises:
        ValueError: the file is no text or has no row, lacks a needed column or has one twice, or a row or cell is
            wrong; the message names file, line and column.
        OSError: it cannot be read.
    """
    from specgauge.sweeps.store.rows import columns, csv_lines, csv_rows  # late: options alone read no row

    name = str(path)
    try:
        text = read_text(Path(path), TABLE_BYTES)
    except ValueError as error:
        raise ValueError(f"{error}; {_TABLE}") from error
    header, *lines = csv_lines(Path(path), text, _TABLE)
    known = columns(row_type)
    for column in header.cells:
        meant = get_close_matches(column, sorted(set(known) - set(header.cells)), n=1, cutoff=0.85)
        if column not in known and meant:
            raise ValueError(f"{name}: expected the column {meant[0]!r}, got {column!r}; rename it")
    rows = csv_rows(header, lines, row_type, _TABLE)
    if not rows:
        raise ValueError(f"{name}: expected at least one row under the header, got none; {_TABLE}")
    return Table(path=name, header=header.cells, rows=rows, texts=[line.cells for line in lines])
