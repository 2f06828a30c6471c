"""What `specgauge.api` gives as tables: rows of answers and comparisons, as DataFrames, LaTeX and HTML."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.model.decision import ratio_text
from specgauge.reports.formatting import UNKNOWN
from specgauge.sweeps.analysis.answers import Recommendations
from specgauge.sweeps.compare import Comparison

if TYPE_CHECKING:
    import pandas as pd

_USUAL = {"mode": "eager", "draft_sampling": "same", "acceptance_rule": "ratio"}
_MEASURED = ("speedup_measured", "speedup_measured_low", "speedup_measured_high", "speedup_whole")


def table_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows, which have the same columns: NaN where a number is unknown, None beside whole numbers and text."""
    import pandas as pd

    def column(values: list[Any]) -> Any:
        if not any(isinstance(value, (int, str)) for value in values):
            return np.array(values, dtype=np.float64)
        return pd.Series(values, dtype=object if None in values else None)

    return pd.DataFrame({name: column([row[name] for row in rows]) for name in (rows[0] if rows else ())})


def answer_row(answers: Recommendations, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of recommendation.yaml in one row, with what decoding it end to end at its γ gave."""
    measured = answers.measured(entry)
    spans = ("speedup", "speedup_predicted")
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {
        **{name: value for name, value in entry.items() if name not in (*spans, "reason")},
        **{f"{name}{end}": entry[name][key] for name in spans for end, key in ends.items()},
        **{name: None if measured is None else measured[name] for name in _MEASURED},
        "reason": entry["reason"],
    }


def shown_answers(answers: Recommendations) -> list[list[str]]:
    """The answers in cells of text, headings first; what is the plain case in every setting is left out."""
    extras = [name for name, usual in _USUAL.items() if any(one[name] != usual for one in answers.entries)]
    names = ["pair", "sampling", *extras, "batch_size", "context", "decision", "recommended_gamma"]
    renamed = {"batch_size": "batch", "recommended_gamma": "γ"}
    headings = [renamed.get(name, name).replace("_", " ") for name in names]
    found = [[*headings, "S", f"{100 * answers.confidence:g} % interval", "measured"]]
    for entry in answers.entries:
        row = answer_row(answers, entry)
        low, high = row["speedup_low"], row["speedup_high"]
        interval = UNKNOWN if low is None or high is None else f"{ratio_text(low)} to {ratio_text(high)}"
        cells = [UNKNOWN if row[name] is None else str(row[name]) for name in names]
        found.append([*cells, _two_decimals(row["speedup"]), interval, _two_decimals(row["speedup_measured"])])
    return found


def _two_decimals(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def html_text(cells: Sequence[Sequence[str]]) -> str:
    """A table, headings first; what HTML would obey is escaped."""

    def row(tag: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"

    head, *rows = cells
    body = "".join(row("td", texts) for texts in rows)
    return f"<table><thead>{row('th', head)}</thead><tbody>{body}</tbody></table>"


def comparison_rows(comparison: Comparison, baseline: str, name: str) -> Iterator[dict[str, Any]]:
    """A row for each figure of each cell: the run of a name over the baseline."""
    for cell in comparison.cells:
        point = {field: value for field, value in vars(cell).items() if field != "ratios"}
        for ratio in cell.ratios:
            yield {
                **point,
                "figure": ratio.figure,
                "baseline": baseline,
                "run": name,
                "baseline_value": ratio.first,
                "value": ratio.second,
                "ratio": ratio.ratio,
                "ratio_low": ratio.low,
                "ratio_high": ratio.high,
                "verdict": ratio.verdict,
                "baseline_gamma": ratio.gamma_first,
                "gamma": ratio.gamma_second,
            }
