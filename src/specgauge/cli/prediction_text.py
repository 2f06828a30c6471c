"""The documents of `specgauge predict` as text: a table, then what it means in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specgauge.cli.prediction_rows import ASSUMED_FLAT
from specgauge.model.text_table import cell_text, milliseconds, text_table

LEAST_VERIFY_SHARE, MOST_STEPS = 0.5, 10
"""Less than this share of a decode step to verify, or over so many decode steps for each token of a round in any part,
looks like a time without its unit."""
_HIDDEN = ("accepted_draft_tokens", "relative_error", "label", "t_overhead_s", "t_draft_catch_up_s")
"""Columns of a table document that its text leaves out or shows in another form."""


def rows_text(document: Mapping[str, Any]) -> str:
    """The text of `prediction_rows.predict_rows`'s document."""
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    headings = ["gamma", "tokens/round", "C (ms)", "T_verify (ms)", "T_round (ms)", "speed-up", "break-even alpha", ""]
    cells = [
        [
            row["gamma"],
            row["tokens_per_round"],
            milliseconds(row["t_draft_total_s"]),
            milliseconds(row["t_verify_s"]),
            milliseconds(row["t_round_s"]),
            row["speedup"],
            row["break_even_alpha"],
            _marks(row, document["acceptance"]["source"]),
        ]
        for row in rows
    ]
    lines = [text_table(headings, cells), ""]
    lines += [_acceptance(document), *_choice(document), *_at_recommended(document)]
    if any(row["t_verify_known"] == ASSUMED_FLAT for row in rows):
        lines.append("T_verify was given once and is assumed flat over gamma; give a list with one time for each.")
    lines += _implausible(rows)
    if document["label"]:
        lines.append(f"S is {document['label']} (give --t-overhead once a decoder has).")
    return "\n".join(lines)


def _implausible(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each part of a round that is nowhere near what as many decode steps take."""
    lines = []
    for name, column, least in (
        ("T_verify", "t_verify_s", LEAST_VERIFY_SHARE),
        ("C", "t_draft_total_s", 0.0),
        ("the catch-up", "t_draft_catch_up_s", 0.0),
        ("overhead", "t_overhead_s", 0.0),
    ):
        odd = next((row for row in rows if not _is_plausible(row, row[column], least)), None)
        if odd is not None:
            lines.append(
                f"{name} is {1e3 * odd[column]:.6g} ms at gamma {odd['gamma']}, a decode step "
                f"{1e3 * odd['t_decode_s']:.6g} ms: check the units (19 is 19 s, 19ms is 19 ms)."
            )
    return lines


def _is_plausible(row: Mapping[str, Any], value_s: float | None, least_share: float) -> bool:
    """Whether a part of a row's round takes about as long as decode steps do; one that is unknown does."""
    decode_s, tokens = row["t_decode_s"], row["gamma"] + 1
    return value_s is None or least_share * decode_s <= value_s <= MOST_STEPS * tokens * decode_s


def table_text(document: Mapping[str, Any]) -> str:
    """The text of `prediction_table.predict_table`'s document."""
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    measured = [name for name in ("speedup_measured",) if name in rows[0]]
    computed = ["t_round_s", "speedup", *measured, *(["relative_error"] if measured else [])]
    inputs = [n for n in rows[0] if n not in (*computed, *_HIDDEN) and not (n.startswith("t_") and n.endswith("_s"))]
    headings = [*inputs, "T_round (ms)", "speed-up", *(["measured", "error (%)"] if measured else [])]
    cells = []
    for row in rows:
        line = [row[name] for name in inputs] + [milliseconds(row["t_round_s"]), row["speedup"]]
        if measured:
            error = row["relative_error"]
            line += [row["speedup_measured"], None if error is None else round(100 * error, 2)]
        cells.append(line)
    lines = [text_table(headings, cells), ""]
    errors, fit = document["errors"], document["fit"]
    if errors is not None:
        lines.append(
            f"error of S over {errors['rows']} measured rows: mean {_percent(errors['mean_abs_error'])}, "
            f"worst {_percent(errors['worst_abs_error'])}"
        )
    if fit is not None:
        lines += ["", f"overhead fitted for each {cell_text(fit['column'])}, errors of S in sample and leave-one-out:"]
        lines.append(_fit_table(fit))
    optimistic = sum(row["label"] is not None for row in rows)
    if optimistic:
        lines.append(f"S is optimistic in {optimistic} rows: their overhead was not measured (column t_overhead_s).")
    return "\n".join(lines)


def _fit_table(fit: Mapping[str, Any]) -> str:
    headings = [
        cell_text(fit["column"]),
        "rows",
        "overhead (ms)",
        "mean (%)",
        "worst (%)",
        "LOO mean (%)",
        "LOO worst (%)",
    ]
    names = ("mean_abs_error", "worst_abs_error", "loo_mean_abs_error", "loo_worst_abs_error")
    cells: list[list[object]] = [
        [group, values["rows"], milliseconds(values["t_overhead_s"]), *(_hundred(values[name]) for name in names)]
        for group, values in fit["groups"].items()
    ]
    total = sum(values["rows"] for values in fit["groups"].values())
    cells.append(["all", total, None, *(_hundred(fit[name]) for name in names)])
    return text_table(headings, cells)


def _marks(row: Mapping[str, Any], source: str) -> str:
    marks = [
        word
        for word, at in (("best", row["best_gamma"]), ("recommended", row["recommended_gamma"]))
        if at == row["gamma"]
    ]
    if not row["within_limits"]:
        marks.append("over --max-itl")
    if source != "alpha" and row["acceptance_known"] in ("assumed", "extrapolated"):
        marks.append(f"acceptance {row['acceptance_known']}")
    return ", ".join(marks)


def _acceptance(document: Mapping[str, Any]) -> str:
    row, source = document["rows"][0], document["acceptance"]["source"]
    if source == "alpha":
        return f"acceptance: alpha {row['alpha']:g}, assumed the same at every position"
    text = f"acceptance: {source.replace('_', ' ')}, taken at gamma {document['acceptance']['gamma_drafted']}"
    fit = document["one_alpha"]
    if fit is not None:
        interval = "" if fit["low"] is None else f" ({fit['low']:.3f} to {fit['high']:.3f})"
        text += f"; maximum-likelihood alpha {fit['alpha_judged']:.3f}{interval}: {fit['verdict']}"
    return text


def _choice(document: Mapping[str, Any]) -> list[str]:
    rows = document["rows"]
    if not any(row["within_limits"] for row in rows):
        return ["no gamma is within --max-itl: decode plainly"]
    if not document["speculation_pays"]:
        limited = " within the limit" if document["max_itl_s"] is not None else ""
        return [f"speculation does not pay: S is at most 1 at every gamma{limited}"]
    if document["best_gamma"] is None:
        return [f"speculation pays: S = {rows[0]['speedup']:.3f}"]
    by_gamma = {row["gamma"]: row["speedup"] for row in rows}
    best, recommended = document["best_gamma"], document["recommended_gamma"]
    text = f"best gamma {best} (S = {by_gamma[best]:.3f})"
    if recommended != best:
        text += f"; recommended {recommended} (S = {by_gamma[recommended]:.3f}), the smallest within 1 %"
    return [text]


def _at_recommended(document: Mapping[str, Any]) -> list[str]:
    at = document["at_recommended"]
    if at is None:
        return []
    limits, slopes = at["limits"], at["sensitivities"]
    lines = [
        f"at gamma {at['gamma']}: S would be {limits['free_draft']:.3f} with a free draft, "
        f"{limits['perfect_draft']:.3f} with a perfect one, {limits['free_verification']:.3f} if T_verify = T_decode",
        f"at gamma {at['gamma']}: +0.01 alpha gives {0.01 * slopes['per_alpha']:+.4f} S; +1 ms gives "
        f"{1e-3 * slopes['per_t_draft_s']:+.4f} (T_draft), {1e-3 * slopes['per_t_verify_s']:+.4f} (T_verify)",
    ]
    if document["wanted_speedup"] is not None:
        needed = at["required_alpha"]
        found = "no alpha reaches it" if needed is None else f"alpha {needed:.3f} is needed"
        lines.append(f"for S = {document['wanted_speedup']:g} at gamma {at['gamma']}: {found}")
    return lines


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def _hundred(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction
