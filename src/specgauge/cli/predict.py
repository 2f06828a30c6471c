"""`specgauge predict`: S by gamma from options, or for every row of a CSV file; as a document for --json and as text.

From options come `rows` (inputs, Omega, T_round, S, break-even points) beside `best_gamma`, `recommended_gamma`,
`one_alpha` (the fit of one alpha, where rates were given) and `at_recommended` (limits and sensitivities there).

A table has the columns of `TableRow`; others are carried along.  From it come `rows`, `errors` of S against
`speedup_measured`, and with --fit-overhead COLUMN `fit`.  Unknown is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from specgauge.cli.costs import GivenCosts, given_costs
from specgauge.cli.parsing import GivenAcceptance, Table, option_name, parse_duration_s, parse_durations_s, read_table
from specgauge.model import sensitivity
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import (
    LARGEST_GAMMA,
    LONGEST_S,
    SHORTEST_S,
    FloatArray,
    finite_or_none,
)
from specgauge.model.decision import OPTIMISTIC, estimate_speedup
from specgauge.model.overhead import fit_overhead, relative_errors
from specgauge.model.settings import Provenance
from specgauge.model.speedup import (
    round_time_s,
    round_times_s,
    speedup,
    throughput_tokens_per_s,
    time_per_token_s,
    tokens_per_round_iid,
    with_overhead_s,
    within_limits,
)
from specgauge.sweeps.store.schema import OPEN, Count, expected
from specgauge.sweeps.text_table import cell_text, milliseconds, text_table

ASSUMED_FLAT = "assumed flat"
GIVEN = "given"
LEAST_VERIFY_SHARE, MOST_STEPS = 0.5, 10
"""Less than this share of a decode step to verify, or over so many decode steps for each token of a round in any part,
looks like a time without its unit."""
FIT_ERRORS = ("mean_abs_error", "worst_abs_error", "loo_mean_abs_error", "loo_worst_abs_error")
_HIDDEN = ("accepted_draft_tokens", "relative_error", "label", "t_overhead_s", "t_draft_catch_up_s")
"""Columns of a table document that its text leaves out or shows in another form."""


def costs_from_options(
    gammas: Sequence[int], options: Mapping[str, str | None], draft_kind_name: str = "autoregressive"
) -> GivenCosts:
    """The costs typed, by option (None: not given); lists hold one value or one for each gamma, `t_draft` one a step.

    Raises:
        ValueError: times that no machine has, lists that do not fit the gammas, or not exactly one of the draft costs.
    """

    def several_s(name: str) -> list[float] | None:
        text = options[name]
        return None if text is None else parse_durations_s(text, option_name(name))

    def one_s(name: str, *, signed: bool = False) -> float | None:
        text = options[name]
        return None if text is None else parse_duration_s(text, option_name(name), signed=signed)

    t_decode_s, t_verify_s, t_draft_s = one_s("t_decode"), several_s("t_verify"), several_s("t_draft")
    for flag, value in (("--t-decode", t_decode_s), ("--t-verify", t_verify_s)):
        if value is None:
            raise ValueError(f"{flag}: expected a time such as 19.05ms (or --table FILE for many cases), got none")
    return given_costs(
        gammas,
        t_decode_s=t_decode_s or 0.0,
        t_verify_s=t_verify_s or [],
        t_draft_s=t_draft_s[0] if t_draft_s is not None and len(t_draft_s) == 1 else t_draft_s,
        t_draft_total_s=several_s("t_draft_total"),
        t_draft_catch_up_s=one_s("t_draft_catch_up") or 0.0,
        t_overhead_s=one_s("t_overhead", signed=True),
        draft_kind_name=draft_kind_name,
        called=lambda name: option_name(name.removesuffix("_s")),
    )


def predict_rows(
    acceptance: GivenAcceptance,
    given: GivenCosts,
    *,
    batch_size: int = 1,
    max_itl_s: float | None = None,
    wanted_speedup: float | None = None,
) -> dict[str, Any]:
    """The document of one prediction by gamma.

    Raises:
        ValueError: a batch size below 1, or a limit or wanted speed-up that is not above 0.
    """
    costs, accepted = given.costs, acceptance.profile.at(acceptance.gammas)
    estimate = estimate_speedup(costs, accepted, batch_size=batch_size, max_itl_s=max_itl_s)
    t_round = round_times_s(costs, accepted, batch_size=batch_size)
    allowed = within_limits(t_round_s=t_round, max_itl_s=max_itl_s)
    choices = ("best_gamma", "recommended_gamma")
    choice = {name: getattr(estimate, name) if len(acceptance.gammas) > 1 else None for name in choices}
    recommended = estimate.recommended_gamma
    columns = {
        "t_round_s": t_round,
        "speedup": estimate.speedup,
        "time_per_token_s": time_per_token_s(accepted.tokens_per_round, t_round_s=t_round),
        "throughput_tokens_per_s": throughput_tokens_per_s(
            accepted.tokens_per_round, t_round_s=t_round, batch_size=batch_size
        ),
        "break_even_alpha": sensitivity.break_even_alpha(costs, batch_size=batch_size),
        "break_even_draft_total_s": sensitivity.break_even_draft_total_s(costs, accepted, batch_size=batch_size),
    }
    source, fit = acceptance.profile.source, acceptance.profile.fit
    return {
        "rows": [
            {
                **_inputs(i, acceptance, accepted, given, batch_size),
                **{name: finite_or_none(values[i]) for name, values in columns.items()},
                "within_limits": bool(allowed[i]),
                **choice,
            }
            for i in range(costs.gammas.size)
        ],
        **choice,
        "speculation_pays": bool(np.any(estimate.speedup[allowed] > 1)),
        "acceptance": {
            "source": source,
            "gamma_drafted": None if source == "alpha" else acceptance.profile.gamma_drafted,
        },
        "one_alpha": fit and {**vars(fit), "misleads": fit.misleads, "verdict": fit.verdict},
        "label": OPTIMISTIC if costs.is_optimistic else None,
        "max_itl_s": max_itl_s,
        "wanted_speedup": wanted_speedup,
        "at_recommended": _at(recommended, accepted, given, batch_size, wanted_speedup) if recommended else None,
        "warnings": _at_the_edge(acceptance, estimate.best_gamma),
    }


def _at_the_edge(acceptance: GivenAcceptance, best_gamma: int) -> list[str]:
    """What to know of a best γ that is the largest recorded; of one that was typed, rates say what is beyond."""
    is_edge = len(acceptance.gammas) > 1 and best_gamma == acceptance.profile.gamma_drafted
    if acceptance.profile.source != "run" or not is_edge:
        return []
    return [
        f"γ = {best_gamma} is best and the largest that {acceptance.inputs['run']} recorded: a larger one may be "
        "better still; extend grid.gamma in a new run"
    ]


def _inputs(
    i: int, acceptance: GivenAcceptance, accepted: Acceptance, given: GivenCosts, batch_size: int
) -> dict[str, Any]:
    costs, omega = given.costs, float(accepted.tokens_per_round[i])
    assert costs.t_draft_catch_up_s is not None
    return {
        "gamma": int(costs.gammas[i]),
        "batch_size": batch_size,
        **acceptance.inputs,
        "t_decode_s": float(costs.t_decode_s),
        "t_draft_total_s": float(costs.t_draft_total_s[i]),
        "t_draft_catch_up_s": float(costs.t_draft_catch_up_s),
        "t_verify_s": float(costs.t_verify_s[i]),
        "t_verify_provenance": ASSUMED_FLAT if given.verify_is_flat else GIVEN,
        "t_overhead_s": None if costs.t_overhead_s is None else float(costs.t_overhead_s[i]),
        "acceptance_provenance": Provenance(int(accepted.provenance[i])).label,
        "tokens_per_round": omega,
        "accepted_draft_tokens": omega - 1,
        "full_acceptance": finite_or_none(accepted.full_acceptance[i]),
    }


def _at(gamma: int, accepted: Acceptance, given: GivenCosts, batch_size: int, wanted: float | None) -> dict[str, Any]:
    costs = given.costs.only([gamma])
    omega = accepted.only([gamma]).tokens_per_round
    alpha = sensitivity.alpha_from_tokens_per_round(omega, gamma)
    steps = given.draft_steps[given.costs.gammas == gamma]
    slopes = sensitivity.sensitivities(alpha, costs, batch_size=batch_size, draft_steps=steps)
    limits = sensitivity.speedup_limits(alpha, costs, batch_size=batch_size)
    needed = np.nan if wanted is None else sensitivity.required_alpha(wanted, costs, batch_size=batch_size).item()
    return {
        "gamma": gamma,
        "alpha_omega": alpha.item(),
        "required_alpha": finite_or_none(needed),
        "limits": {name: value.item() for name, value in vars(limits).items()},
        "sensitivities": {name: value.item() for name, value in vars(slopes).items()},
    }


_Time = Annotated[float, Field(strict=True, ge=0, le=LONGEST_S)]
_TimeAbove0 = Annotated[float, Field(strict=True, ge=SHORTEST_S, le=LONGEST_S)]


@pydantic_dataclass(frozen=True, kw_only=True, config=OPEN)
class TableRow:
    """A case of a table: one draft cost and one form of acceptance, and what is known besides."""

    gamma: Annotated[int, Field(strict=True, ge=1, le=LARGEST_GAMMA)]
    t_decode_s: _TimeAbove0
    t_verify_s: _TimeAbove0
    t_draft_total_s: _Time | None = None
    """C(gamma), or else `t_draft_s`, one step of it."""
    t_draft_s: Annotated[float, Field(strict=True, ge=0, le=LONGEST_S / LARGEST_GAMMA)] | None = None
    tokens_per_round: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] | None = None
    acceptance_rate: Annotated[float, Field(strict=True, ge=0, le=1)] | None = None
    """One alpha at every position, where tokens_per_round is not given."""
    t_overhead_s: Annotated[float, Field(strict=True, ge=-LONGEST_S, le=LONGEST_S)] | None = None
    """epsilon; below 0, as a fit may find it, a round still takes its verification at least."""
    t_draft_catch_up_s: _Time | None = None
    batch_size: Count | None = None
    speedup_measured: Annotated[float, Field(strict=True, ge=1e-6, le=1e6)] | None = None

    def __post_init__(self) -> None:
        """Refuse a row without a cost or acceptance, with two, or with more tokens than a chain of drafts commits."""
        for pair in (("t_draft_total_s", "t_draft_s"), ("tokens_per_round", "acceptance_rate")):
            given = [name for name in pair if getattr(self, name) is not None]
            if len(given) != 1:
                raise expected(f"one of {' and '.join(pair)}, got {'both' if given else 'neither'}")
        omega, most = self.tokens_per_round, self.gamma + 1
        if omega is not None and omega > most + 1e-9:
            raise expected(
                f"tokens_per_round of at most {most}, gamma + 1 (all a chain of drafts can commit; draft trees are not "
                f"covered), got {omega:g}"
            )


COMPUTED = ("speedup", "t_round_s", "accepted_draft_tokens", "relative_error", "label")


def predict_table(path: str | Path, *, fit_overhead_by: str | None = None) -> dict[str, Any]:
    """The document of a whole table.

    Raises:
        ValueError: a table that cannot be read (file, line, column), a column that predict computes, or a fit without
            its column or measurements.
    """
    table = read_table(path, TableRow)
    taken = next((name for name in COMPUTED if name in table.header), None)
    if taken is not None:
        raise ValueError(
            f"{table.path}: expected no column that predict computes ({', '.join(COMPUTED)}), got {taken!r}; a "
            "measured speed-up is called speedup_measured"
        )
    gamma = table.column("gamma").astype(np.int64)
    rate = table.column("acceptance_rate")
    omega = np.where(np.isnan(rate), table.column("tokens_per_round"), tokens_per_round_iid(np.nan_to_num(rate), gamma))
    alpha = sensitivity.alpha_from_tokens_per_round(omega, gamma)
    step = table.column("t_draft_s")
    decode, verify = table.column("t_decode_s"), table.column("t_verify_s")
    costs_s = round_time_s(
        t_draft_total_s=np.where(np.isnan(step), table.column("t_draft_total_s"), step * gamma),
        t_verify_s=verify,
        t_draft_catch_up_s=np.nan_to_num(table.column("t_draft_catch_up_s")),
        full_acceptance=alpha**gamma,
        batch_size=np.nan_to_num(table.column("batch_size"), nan=1.0),
    )
    overhead, measured = table.column("t_overhead_s"), table.column("speedup_measured")
    compared, fit = np.isfinite(measured), None
    if fit_overhead_by is not None:
        labels = _labels(table, fit_overhead_by, compared)
        fitted = fit_overhead(
            omega[compared],
            t_decode_s=decode[compared],
            t_costs_s=costs_s[compared],
            t_verify_s=verify[compared],
            speedup_measured=measured[compared],
            groups=labels[compared].tolist(),
        )
        by_group = {group.group: group.t_overhead_s for group in fitted.groups}
        overhead = np.array([by_group.get(label, math.nan) for label in labels])
        groups = {
            group.group: {name: getattr(group, name) for name in ("rows", "t_overhead_s", *FIT_ERRORS)}
            for group in fitted.groups
        }
        fit = {"column": fit_overhead_by, "groups": groups, **{name: getattr(fitted, name) for name in FIT_ERRORS}}
    round_s = with_overhead_s(costs_s, verify, np.nan_to_num(overhead))
    gain = speedup(omega, t_decode_s=decode, t_round_s=round_s)
    errors = np.full(gain.shape, np.nan)
    errors[compared] = relative_errors(gain[compared], measured[compared])
    known = np.abs(errors[compared])
    computed = {
        "tokens_per_round": omega,
        "accepted_draft_tokens": omega - 1,
        "t_overhead_s": overhead,
        "t_round_s": round_s,
        "speedup": gain,
        "relative_error": errors,
    }
    plain = {name: table.plain(name) for name in table.header}
    rows = [
        {name: values[i] for name, values in plain.items()}
        | {name: finite_or_none(values[i]) for name, values in computed.items()}
        | {"label": OPTIMISTIC if math.isnan(overhead[i]) else None}
        for i in range(gain.size)
    ]
    summary = None
    if known.size:
        summary = {"rows": known.size, "mean_abs_error": float(known.mean()), "worst_abs_error": float(known.max())}
    return {"rows": rows, "errors": summary, "fit": fit}


def _labels(table: Table[TableRow], column: str, compared: FloatArray) -> np.ndarray[Any, Any]:
    if "t_overhead_s" in table.header:
        raise ValueError(f"{table.path}: expected a fit only where overheads are not given, got t_overhead_s")
    for needed in (column, "speedup_measured"):
        if needed not in table.header:
            raise ValueError(
                f"--fit-overhead {column}: expected one of {', '.join(table.header)}, got no {needed} in {table.path}"
            )
    if not np.any(compared):
        raise ValueError(f"{table.path}: speedup_measured: expected at least one value to fit on, got none")
    at = table.header.index(column)
    return np.array([cells[at].strip() for cells in table.texts])


def rows_text(document: Mapping[str, Any]) -> str:
    """The text of the document of `predict_rows`."""
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
    if any(row["t_verify_provenance"] == ASSUMED_FLAT for row in rows):
        lines.append("T_verify was given once and is assumed flat over gamma; give a list with one time for each.")
    lines += [*_implausible(rows), *(f"warning: {words}" for words in document["warnings"])]
    if document["label"]:
        lines.append(f"S is {document['label']} (give --t-overhead once a decoder has).")
    return "\n".join(lines)


def _implausible(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each part of a round that is nowhere near what as many decode steps take."""
    lines = []
    for name, column, least_share in (
        ("T_verify", "t_verify_s", LEAST_VERIFY_SHARE),
        ("C", "t_draft_total_s", 0.0),
        ("the catch-up", "t_draft_catch_up_s", 0.0),
        ("overhead", "t_overhead_s", 0.0),
    ):
        for row in rows:
            value_s, decode_s, most = row[column], row["t_decode_s"], MOST_STEPS * (row["gamma"] + 1)
            if value_s is not None and not least_share * decode_s <= abs(value_s) <= most * decode_s:
                lines.append(
                    f"{name} is {1e3 * value_s:.6g} ms at gamma {row['gamma']}, a decode step {1e3 * decode_s:.6g} ms: "
                    "check the units (19 is 19 s, 19ms is 19 ms)."
                )
                break
    return lines


def table_text(document: Mapping[str, Any]) -> str:
    """The text of the document of `predict_table`."""
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    measured = ["speedup_measured", "relative_error"] if "speedup_measured" in rows[0] else []
    hidden = ("t_round_s", "speedup", *measured, *_HIDDEN)
    inputs = [name for name in rows[0] if name not in hidden and not (name.startswith("t_") and name.endswith("_s"))]
    headings = [*inputs, "T_round (ms)", "speed-up", *(["measured", "error (%)"] if measured else [])]
    cells = []
    for row in rows:
        cells.append([*(row[name] for name in inputs), milliseconds(row["t_round_s"]), row["speedup"]])
        if measured:
            error = row["relative_error"]
            cells[-1] += [row["speedup_measured"], None if error is None else round(100 * error, 2)]
    lines = [text_table(headings, cells), ""]
    errors, fit = document["errors"], document["fit"]
    if errors is not None:
        mean, worst = 100 * errors["mean_abs_error"], 100 * errors["worst_abs_error"]
        lines.append(f"error of S over {errors['rows']} measured rows: mean {mean:.2f} %, worst {worst:.2f} %")
    if fit is not None:
        lines += ["", f"overhead fitted for each {cell_text(fit['column'])}, errors of S in sample and leave-one-out:"]
        lines.append(_fit_table(fit))
    optimistic = sum(row["label"] is not None for row in rows)
    if optimistic:
        lines.append(f"S is optimistic in {optimistic} rows: their overhead was not measured (column t_overhead_s).")
    return "\n".join(lines)


def _fit_table(fit: Mapping[str, Any]) -> str:
    headings = [cell_text(fit["column"]), "rows", "overhead (ms)"]
    headings += ["mean (%)", "worst (%)", "LOO mean (%)", "LOO worst (%)"]
    total = {"rows": sum(values["rows"] for values in fit["groups"].values()), "t_overhead_s": None, **fit}
    cells = []
    for group, values in [*fit["groups"].items(), ("all", total)]:
        errors = [None if values[name] is None else 100 * values[name] for name in FIT_ERRORS]
        cells.append([group, values["rows"], milliseconds(values["t_overhead_s"]), *errors])
    return text_table(headings, cells)


def _marks(row: Mapping[str, Any], source: str) -> str:
    marks = [word for word in ("best", "recommended") if row[f"{word}_gamma"] == row["gamma"]]
    if not row["within_limits"]:
        marks.append("over --max-itl")
    if source != "alpha" and row["acceptance_provenance"] in ("assumed", "extrapolated"):
        marks.append(f"acceptance {row['acceptance_provenance']}")
    return ", ".join(marks)


def _acceptance(document: Mapping[str, Any]) -> str:
    row, source = document["rows"][0], document["acceptance"]["source"]
    if source == "alpha":
        return f"acceptance: alpha {row['alpha']:g}, assumed the same at every position"
    if source == "run":
        setting = [
            f"{name.replace('_', ' ')} {row[name]}"
            for name in ("pair", "sampling", "draft_sampling", "acceptance_rule")
        ]
        return f"acceptance: recorded in {row['run']}, {', '.join(setting)}"
    text = f"acceptance: {source.replace('_', ' ')}, taken at gamma {document['acceptance']['gamma_drafted']}"
    fit = document["one_alpha"]
    if fit is not None:
        interval = "" if fit["low"] is None else f" ({fit['low']:.3f} to {fit['high']:.3f})"
        text += f"; maximum-likelihood alpha {fit['alpha_accepted']:.3f}{interval}: {fit['verdict']}"
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
