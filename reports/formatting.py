"""Numbers as a reader wants to see them: scaled units, few digits, an en dash for what is not known.

Inside the project everything is in SI units; in the report this module is the one place where seconds become ms or µs.
Nothing here rounds a value that is used again. Output: plain strings, never markup.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specgauge.model.decision import ratio_text
from specgauge.model.settings import Point

UNKNOWN = "–"
"""What is printed for a value that is not known."""
TIMES, PER_CENT = "\u202f×", "\u202f%"
"""Behind a narrow no-break space, as in `1.42 ×` and `12 %`."""
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class TimeUnit:
    """A unit and a number of decimals shared by a column of times."""

    seconds: float
    name: str
    """`s`, `ms` or `µs`."""
    decimals: int

    def text(self, value_s: float | None) -> str:
        """`value_s` (seconds) in this unit, without the unit's name."""
        return UNKNOWN if value_s is None else _with_minus(f"{value_s / self.seconds:.{self.decimals}f}")

    def fitted(self, values_s: Iterable[float | None]) -> TimeUnit:
        """The same unit with the decimals that suit a column of its own."""
        known = sorted(abs(value) for value in values_s if value)
        if not known:
            return self
        return replace(self, decimals=min(3, _decimals(known[len(known) // 2] / self.seconds)))


def time_unit(values_s: Iterable[float | None]) -> TimeUnit:
    """The unit in which a column of times (seconds, None for unknown) reads best, three digits for its median."""
    known = sorted(abs(value) for value in values_s if value)
    if not known:
        return TimeUnit(seconds=1e-3, name="ms", decimals=2)
    middle = known[len(known) // 2]
    length_s, name = next((unit for unit in _TIME_UNITS if middle >= unit[0]), _TIME_UNITS[-1])
    return TimeUnit(seconds=length_s, name=name, decimals=_decimals(middle / length_s))


def duration(value_s: float | None) -> str:
    """One time with its unit: 0.01234 is `12.3 ms`, 190 is `3 min 10 s`."""
    if value_s is None:
        return UNKNOWN
    if value_s >= 60:
        minutes, seconds = divmod(round(value_s), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
    unit = time_unit([value_s])
    return f"{unit.text(value_s)} {unit.name}"


def number(value: float | None, decimals: int = 2) -> str:
    """A plain number with a fixed count of decimals."""
    return UNKNOWN if value is None else _with_minus(f"{value:.{decimals}f}")


def percent(share: float | None, decimals: int = 0) -> str:
    """A share of one as a percentage: 0.123 is `12 %`. A share that is not 0 or 1 is never printed as 0 % or 100 %."""
    if share is None:
        return UNKNOWN
    text = f"{100 * share:.{decimals}f}"
    step = 10.0**-decimals
    if share > 0 and float(text) == 0:
        text = f"<{step:.{decimals}f}"
    elif share < 1 and float(text) == 100:
        text = f">{100 - step:.{decimals}f}"
    return f"{text}{PER_CENT}"


def probability(share: float | None) -> str:
    """A share of drawn replicates as a percentage; however many agree, they prove nothing: never 0 % or 100 %."""
    if share is None:
        return UNKNOWN
    return percent(min(max(share, 1e-6), 1 - 1e-6))


def change(share: float | None, decimals: int = 1) -> str:
    """A signed share as a percentage: 0.034 is `+3.4 %`; the minus is a real one, as long as the plus."""
    return UNKNOWN if share is None else _with_minus(f"{100 * share:+.{decimals}f}{PER_CENT}")


def change_interval(low: float | None, high: float | None, decimals: int = 1) -> str:
    """`−7.2 to +13.4 %`, or the dash for unknown where an end is not known."""
    if low is None or high is None:
        return UNKNOWN
    return f"{change(low, decimals).removesuffix(PER_CENT)} to {change(high, decimals)}"


def speedup(value: float | None) -> str:
    """A speed-up: `1.42 ×`."""
    return UNKNOWN if value is None else f"{value:.{speedup_decimals(value)}f}{TIMES}"


def speedup_span(values: Iterable[float | None]) -> str:
    """`1.42 ×`, or `1.10 to 1.42 ×`; empty where none is known."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    low, high = speedup(known[0]), speedup(known[-1])
    return high if low == high else f"{low.removesuffix(TIMES)} to {high}"


def speedup_decimals(value: float) -> int:
    """Decimals a speed-up is printed with: two under 10, one from there on."""
    return 2 if abs(value) < 10 else 1


def interval(low: float | None, high: float | None, decimals: int = 2) -> str:
    """`1.38–1.46`, or the dash for unknown where an end is not known."""
    if low is None or high is None:
        return UNKNOWN
    ends = (f"{end:.{decimals}f}" if end < 99.5 else ratio_text(end) for end in (low, high))
    return "–".join(ends)


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """`1.42 (1.38–1.46)`, or the value alone."""
    return number(value) if value is None or low is None or high is None else f"{value:.2f} ({interval(low, high)})"


def count(quantity: int, noun: str) -> str:
    """`1 prompt`, `2 prompts`."""
    return f"{quantity} {noun}" if quantity == 1 else f"{quantity} {noun}s"


def listed(words: Sequence[str], joint: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`; `joint` may be another word."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}"


def ranges(values: Iterable[int], grid: Sequence[int]) -> str:
    """Grid values in words: three and more neighbours on `grid` are `64 to 1024`, others are listed, `64 or 256`."""
    order = {value: index for index, value in enumerate(sorted(grid))}
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and order[value] == order[runs[-1][-1]] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    words = []
    for run in runs:
        words.extend([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(value) for value in run])
    return listed(words, "or")


def point_words(point: Point) -> str:
    """`batch 4, 256 tokens of context`."""
    return f"batch {point.batch_size}, {count(point.context, 'token')} of context"


def sentence(words: str) -> str:
    """`words` with a capital in front and a full stop behind."""
    if not words:
        return words
    return words[0].upper() + words[1:] + ("" if words[-1] in ".!?" else ".")


def unbroken(words: str) -> str:
    """`words` with what belongs together on one line: `5 %`, `1.2 ×`, `γ = 3`."""
    return words.replace(" %", PER_CENT).replace(" ×", TIMES).replace("γ = ", "γ\u00a0=\u00a0")


def printable(text: str) -> str:
    """`text` without the characters that neither HTML nor XML has a place for."""
    return _NOT_TEXT.sub("\ufffd", text)


def _with_minus(digits: str) -> str:
    return digits.replace("-", "−")


def _decimals(scaled: float) -> int:
    """Decimals that leave three significant digits in `scaled`."""
    return max(0, min(6, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(scaled))))
