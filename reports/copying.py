"""A table as text to take along: CSV for programs, Markdown for a page, LaTeX for a paper; whole, with its units.

    copies(table)["CSV"]

What stands over a group of rows becomes the first column. A value with its interval, `1.42 (1.38–1.46)`, is three
columns in CSV, where numbers are plain and what is unknown or open is empty; elsewhere cells are as on the page.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specgauge.reports.formatting import UNKNOWN

if TYPE_CHECKING:
    from specgauge.reports.tables import Table

_LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\u00a0": "~", "\u202f": r"\,"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", UNKNOWN: "--", "…": r"\dots{}", "|": r"\textbar{}"}
    | {"−": "$-$", "×": r"$\times$", "±": r"$\pm$", "·": r"$\cdot$", "₂": "$_2$", "µ": r"$\mu$", "π": r"$\pi$"}
    | {"γ": r"$\gamma$", "Ω": r"$\Omega$", "α": r"$\alpha$", "ε": r"$\varepsilon$", "Δ": r"$\Delta$"}
)
_PLAIN = str.maketrans({"−": "-", "\u00a0": " ", "\u202f": " "})
_NUMBER = r"-?\d+(?:\.\d+)?"
_END = rf"(?:({_NUMBER})|>\d+)"
"""An end of an interval; an open one, `>99`, is no number."""
_ENDS = re.compile(rf"(?:({_NUMBER}) )?\(?{_END}–{_END}\)?")
_INTERVAL = "interval"


def copies(table: Table) -> Mapping[str, str]:
    """The table by format."""
    cells = _flat(table)
    return {"CSV": csv_text(cells), "Markdown": markdown_text(cells), "LaTeX": latex_text(cells)}


def _flat(table: Table) -> list[list[str]]:
    """Headings first, each with a name of its own; the group of each row before it, where rows are grouped."""
    is_grouped = any(group.heading for group in table.groups)
    names: list[str] = []
    for title in table.columns:
        is_end = title.endswith(_INTERVAL) and names
        names.append(f"{names[-1]}, {title}" if is_end else title)
    rows = [[group.heading] * is_grouped + list(row.cells) for group in table.groups for row in group.rows]
    return [["of"] * is_grouped + names, *rows]


def csv_text(cells: Sequence[Sequence[str]]) -> str:
    """Headings first; a column of intervals is one of low and one of high ends, after that of values where they are."""
    columns = []
    for head, *texts in zip(*cells, strict=True):
        texts = ["" if text == UNKNOWN else text for text in texts]
        found = [_ENDS.fullmatch(text) for text in texts]
        others = [text for text, match in zip(texts, found, strict=True) if text and match is None]
        if not any(found) or not all(map(_is_number, others)):
            columns.append([head, *texts])
            continue
        name = head.removesuffix(f", {_INTERVAL}")
        if others or any(match[1] for match in found if match):
            values = [match[1] if match else text for match, text in zip(found, texts, strict=True)]
            columns.append([name, *values])
        for end, at in (("low", 2), ("high", 3)):
            columns.append([f"{name}, {end}", *("" if match is None else match[at] or "" for match in found)])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([text.translate(_PLAIN) for text in row] for row in zip(*columns, strict=True))
    return out.getvalue()


def _is_number(text: str) -> bool:
    return re.fullmatch(_NUMBER, text) is not None


def markdown_text(cells: Sequence[Sequence[str]]) -> str:
    """A table of GitHub's Markdown, headings first; what it would obey is escaped."""
    head, *rows = [[re.sub(r"([\\|`*_<\[\]])", r"\\\1", text) for text in row] for row in cells]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex_text(cells: Sequence[Sequence[str]]) -> str:
    """A tabular with the rules of booktabs, headings first; what LaTeX would obey is escaped."""
    head, *rows = [" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in cells]
    lines = [rf"\begin{{tabular}}{{{'l' * len(cells[0])}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])
