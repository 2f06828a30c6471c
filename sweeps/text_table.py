"""Plain text tables: columns aligned, numbers to the right, nothing cut off and nothing that is markup.

>>> print(text_table(["gamma", "S"], [[1, 1.5], [10, None]]))
gamma    S
    1  1.5
   10    -
"""

from __future__ import annotations

from collections.abc import Sequence


def text_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The table as lines; numbers with four significant digits, None as a dash, control characters escaped."""
    cells = [[cell_text(value) for value in row] for row in rows]
    right = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(headings))]
    widths = [max(len(line[i]) for line in [list(headings), *cells]) for i in range(len(headings))]
    lines = []
    for line in [list(headings), *cells]:
        padded = [text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def cell_text(value: object) -> str:
    """One value as it stands in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(str(value))


def printable(text: str) -> str:
    """The text with every character that a terminal or a page would obey shown as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def count(quantity: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{quantity} {noun}" if quantity == 1 else f"{quantity} {noun}s"


def span_text(values: Sequence[float], shown: str) -> str:
    """The least and the largest as `shown`, `1.03 to 1.50`; one of them where they are shown alike.

    >>> span_text([1.5, 1.03], "{:.2f}"), span_text([0.981, 0.984], "{:.2f}")
    ('1.03 to 1.50', '0.98')
    """
    low, high = shown.format(min(values)), shown.format(max(values))
    return low if low == high else f"{low} to {high}"


def rounded(value: float, places: int = 3) -> float:
    """To so many decimals; what rounds to 0 has no sign."""
    return round(value, places) + 0.0


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as printed: in milliseconds, None kept."""
    return None if seconds is None else seconds * 1e3
