"""`specgauge predict --table`: S for every row of a CSV file, its errors against measurements, and fitted overheads.

Columns: `gamma`, `t_decode_s`, `t_verify_s`; `t_draft_total_s` (a round's drafts) or `t_draft_s` (one step);
`tokens_per_round` or `acceptance_rate` (i.i.d.); optional `t_overhead_s`, `t_draft_catch_up_s`, `batch_size`,
`speedup_measured`.  Others are carried along.  The document that comes out is what `--json` prints: `rows`, `errors`
of S against `speedup_measured`, and with `--fit-overhead COLUMN` `fit`.  Unknown is None.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from specgauge.cli.csv_input import CsvTable, read_csv
from specgauge.model.checks import LARGEST_GAMMA, LONGEST_S, FloatArray, IntArray
from specgauge.model.decision import OPTIMISTIC
from specgauge.model.overhead import OverheadFit, fit_overhead, relative_errors
from specgauge.model.provenance import finite_or_none
from specgauge.model.sensitivity import alpha_from_tokens_per_round
from specgauge.model.speedup import round_time_s, speedup, tokens_per_round_iid, with_overhead_s

REQUIRED = ("gamma", "t_decode_s", "t_verify_s")
DRAFT_COSTS = ("t_draft_total_s", "t_draft_s")
ACCEPTANCE = ("tokens_per_round", "acceptance_rate")
OPTIONAL = ("t_overhead_s", "t_draft_catch_up_s", "batch_size", "speedup_measured")
COMPUTED = ("speedup", "t_round_s", "accepted_draft_tokens", "relative_error", "label")


def predict_table(path: str | Path, *, fit_overhead_by: str | None = None) -> dict[str, Any]:
    """The document of a whole table.

    Raises ValueError (file, row, column) for missing or doubled columns, cells that are no numbers, negative times,
    rates outside [0, 1], more tokens a round than gamma + 1, and a fit without its column or measurements.
    """
    table = read_csv(path, required=REQUIRED, known=(*REQUIRED, *DRAFT_COSTS, *ACCEPTANCE, *OPTIONAL))
    for pair in (DRAFT_COSTS, ACCEPTANCE):
        found = [name for name in pair if name in table.columns]
        if len(found) != 1:
            both = " and ".join(found) or "neither"
            raise ValueError(f"{table.path}, header: found {both}, allowed: one of {', '.join(pair)}")
    for name in COMPUTED:
        if name in table.columns:
            raise ValueError(
                f"{table.path}, header: found column {name!r}, allowed: other names, since predict computes it; a "
                "measured speed-up is called speedup_measured"
            )
    gamma = table.whole_numbers("gamma", minimum=1, maximum=LARGEST_GAMMA)
    omega = _tokens_per_round(table, gamma)
    decode = table.numbers("t_decode_s", above=0, maximum=LONGEST_S)
    verify = table.numbers("t_verify_s", above=0, maximum=LONGEST_S)
    costs = _costs_s(table, gamma, omega, verify)
    overhead = table.optional_numbers("t_overhead_s", minimum=0, maximum=LONGEST_S)
    measured = table.optional_numbers("speedup_measured", above=0)
    fit = None
    if fit_overhead_by is not None:
        overhead, fit = _fit(table, fit_overhead_by, omega, decode, (costs, verify), measured)
    round_s = with_overhead_s(costs, verify, np.nan_to_num(overhead))
    gain = speedup(omega, t_decode_s=decode, t_round_s=round_s)
    errors = np.full(gain.shape, np.nan)
    compared = np.isfinite(measured)
    errors[compared] = relative_errors(gain[compared], measured[compared])
    computed = {
        "tokens_per_round": omega,
        "accepted_draft_tokens": omega - 1,
        "t_overhead_s": overhead,
        "t_round_s": round_s,
        "speedup": gain,
        "relative_error": errors,
    }
    plain = {name: table.plain(name) for name in table.columns}
    rows = [
        {name: values[i] for name, values in plain.items()}
        | {name: finite_or_none(values[i]) for name, values in computed.items()}
        | {"label": OPTIMISTIC if math.isnan(overhead[i]) else None}
        for i in range(table.size)
    ]
    return {"rows": rows, "errors": _errors(np.abs(errors[compared])), "fit": fit}


def _tokens_per_round(table: CsvTable, gamma: IntArray) -> FloatArray:
    if "acceptance_rate" in table.columns:
        return tokens_per_round_iid(table.numbers("acceptance_rate", minimum=0, maximum=1), gamma)
    omega = table.numbers("tokens_per_round", minimum=1)
    for row in np.flatnonzero(omega > gamma + 1 + 1e-9):
        raise ValueError(
            f"{table.place(int(row), 'tokens_per_round')}: found {omega[row]:g} at gamma {gamma[row]}, allowed: at "
            "most gamma + 1, which is all a chain of drafts can commit; counts of draft trees are not covered"
        )
    return omega


def _costs_s(table: CsvTable, gamma: IntArray, omega: FloatArray, verify: FloatArray) -> FloatArray:
    """C + pi Delta_2 + T_verify; A_gamma in pi is that of the alpha that reproduces Omega."""
    if "t_draft_s" in table.columns:
        draft = table.numbers("t_draft_s", minimum=0, maximum=LONGEST_S / LARGEST_GAMMA) * gamma
    else:
        draft = table.numbers("t_draft_total_s", minimum=0, maximum=LONGEST_S)
    rows = table.whole_numbers("batch_size", minimum=1) if "batch_size" in table.columns else np.ones_like(gamma)
    catch_up = np.nan_to_num(table.optional_numbers("t_draft_catch_up_s", minimum=0, maximum=LONGEST_S))
    return round_time_s(
        t_draft_total_s=draft,
        t_verify_s=verify,
        t_draft_catch_up_s=catch_up,
        full_acceptance=alpha_from_tokens_per_round(omega, gamma) ** gamma,
        batch_size=rows,
    )


def _fit(
    table: CsvTable,
    column: str,
    omega: FloatArray,
    decode: FloatArray,
    costs: tuple[FloatArray, FloatArray],
    measured: FloatArray,
) -> tuple[FloatArray, dict[str, Any]]:
    """The overhead of every row and the `fit` of the document."""
    if "t_overhead_s" in table.columns:
        raise ValueError(f"{table.path}, header: found t_overhead_s, allowed: a fit only where overheads are not given")
    for needed in (column, "speedup_measured"):
        if needed not in table.columns:
            raise ValueError(
                f"--fit-overhead {column}: found no column {needed} in {table.path}, allowed: "
                f"{', '.join(table.columns)}"
            )
    use = np.isfinite(measured)
    if not np.any(use):
        raise ValueError(f"{table.path}, column speedup_measured: found no value, allowed: at least one to fit on")
    labels = np.array([cell.strip() for cell in table.columns[column]])
    fitted = fit_overhead(
        omega[use],
        t_decode_s=decode[use],
        t_costs_s=costs[0][use],
        t_verify_s=costs[1][use],
        speedup_measured=measured[use],
        groups=labels[use].tolist(),
    )
    by_group = {group.group: group.t_overhead_s for group in fitted.groups}
    overhead = np.array([by_group.get(label, math.nan) for label in labels])
    return overhead, _fit_document(column, fitted)


def _fit_document(column: str, fitted: OverheadFit) -> dict[str, Any]:
    names = ("mean_abs_error", "worst_abs_error", "loo_mean_abs_error", "loo_worst_abs_error")
    return {
        "column": column,
        "groups": {
            group.group: {
                "rows": group.rows,
                "t_overhead_s": group.t_overhead_s,
                **{name: getattr(group, name) for name in names},
            }
            for group in fitted.groups
        },
        **{name: getattr(fitted, name) for name in names},
    }


def _errors(errors: FloatArray) -> dict[str, Any] | None:
    if not errors.size:
        return None
    return {
        "rows": int(errors.size),
        "mean_abs_error": float(errors.mean()),
        "worst_abs_error": float(errors.max()),
    }
