"""Run directories made up for the report's tests, in the product's own file format.

Costs follow a small closed form and acceptance is one number per sampling setting at every position, so that every
figure a report prints can be worked out by hand: survival is alpha^i, tokens per round (1 - alpha^(gamma+1)) /
(1 - alpha), and five samples per block lie symmetrically around their median.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgauge.configs.schema import Config
from specgauge.model.decision import OPTIMISTIC
from specgauge.model.settings import Setting
from specgauge.model.speedup import round_time_s, tokens_per_round_iid
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.derived import write_answers
from specgauge.sweeps.store.rows import plain, row_of, write_csv
from specgauge.sweeps.store.rundir import acceptance_path
from specgauge.sweeps.store.schema import Interval, PredictionRow, RecommendationRow, ValidationRow
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made
from tests.sweeps.validation_rows import validation_row

SPREAD = (-0.01, -0.005, 0.0, 0.005, 0.01)
NEEDS_TIMES = ("t_decode", "t_draft", "t_verify", "t_round", "speedup", "p_best")
"""How the names of what a broken cell lacks begin."""
ENDS = ("value", "low", "high")
NOTHING = dict.fromkeys((*ENDS, "p_speculation_pays", "best_gamma"))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a made-up run looks like; the defaults are a small version of the shipped quickstart."""

    name: str = "quickstart"
    pairs: Sequence[str] = ("p",)
    alphas: Mapping[str, float] = field(default_factory=lambda: {"greedy": 0.82, "t1": 0.7})
    draft_sampling: Sequence[str] = ("same",)
    acceptance_rule: Sequence[str] = ("ratio",)
    batch_sizes: Sequence[int] = (1, 4)
    contexts: Sequence[int] = (64, 256)
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6)
    draft_share: float = 0.15
    verify_slope: Mapping[int, float] = field(default_factory=lambda: {1: 0.06, 4: 0.2})
    uncertainty: float = 0.03
    """Half-width of the made-up speed-up intervals, relative."""
    overhead_s: float | None = None
    broken: Mapping[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    """(batch_size, context) → (status, reason) of cells that gave no time."""
    environment: Mapping[str, Any] = field(
        default_factory=lambda: {
            "collected_at": "2026-01-02T03:04:05Z",
            "device": "cpu",
            "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
            "driver": None,
        }
    )
    with_acceptance: bool = True
    with_predictions: bool = True
    prompts: int = 12
    positions: int = 40

    def config(self) -> Config:
        """The resolved configuration this run would have had."""
        return made.config(
            name=self.name,
            pairs=[{"name": pair, "target": "embedded", "draft": "embedded"} for pair in self.pairs],
            sampling=[{"name": name, "temperature": 0 if name == "greedy" else 1.0} for name in self.alphas],
            draft_sampling=[*self.draft_sampling],
            acceptance_rule=[*self.acceptance_rule],
            grid={"batch_size": [*self.batch_sizes], "context": [*self.contexts], "gamma": [*self.gammas]},
        )

    def marks_s(self, batch_size: int, context: int) -> dict[str, list[float]]:
        """What the arms of a cell take."""
        t_decode_s = 0.010 * (1 + 0.02 * (batch_size - 1)) * (1 + context / 10_000)
        drafts_s = [gamma * self.draft_share * t_decode_s for gamma in range(1, max(self.gammas) + 1)]
        slope = self.verify_slope.get(batch_size, 0.3)
        return {
            "decode": [t_decode_s],
            "draft": drafts_s,
            "draft_catch_up": [1.1 * drafts_s[0]],
            **{f"verify:{gamma}": [t_decode_s * (1 + slope * gamma)] for gamma in self.gammas},
            "prefill_target": [context * 1e-4],
            "prefill_draft": [context * 3e-5],
        }


ONE = Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64,))
GREEDY = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")


def build_run(folder: Path, shape: Shape | None = None, *warnings: dict[str, str]) -> Path:
    """Write the run directory of `shape`, warned of what `warnings` say, and return it."""
    shape = shape or Shape()
    config = shape.config()
    with OpenRun(folder, config, fresh=False) as run:
        for cell in plan_cells(config):
            for record in _records(shape, cell.axes):
                run.journal.append(record)
    (folder / "environment.json").write_text(json.dumps(shape.environment), encoding="utf-8")
    for pair, (sampling, alpha) in itertools.product(shape.pairs, shape.alphas.items()):
        if shape.with_acceptance:
            frame = made.acceptance_frame(shape.prompts, shape.positions, alpha, context=32)
            frame.to_parquet(acceptance_path(folder, pair, sampling), index=False)
    if shape.with_predictions:
        write_csv(folder / "predictions.csv", PredictionRow, predicted(shape))
        write_answers(folder, [*map(plain, recommended(shape))], [*warnings])
    return folder


def _records(shape: Shape, axes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The journal of one cell: three blocks of every arm, or why there are none."""
    cell = axes["batch_size"], axes["context"]
    status, reason = shape.broken.get(cell, ("ok", None))
    for arm, marks in shape.marks_s(*cell).items():
        line = {"axes": axes, "arm": arm, "status": status, "reason": reason, "at": "2026-01-02T03:05:06+00:00"}
        if status != "ok":
            yield line | {"block": 0}
            continue
        samples_s = [[mark * (1 + share) for mark in marks] for share in SPREAD]
        timed = {"samples_s": samples_s, "device_s": sum(sample[-1] for sample in samples_s)}
        for block in range(3):
            yield line | timed | {"block": block, "first_call_s": None if block else 5 * marks[-1]}


def predicted(shape: Shape, **changes: Any) -> list[PredictionRow]:
    """One row per (pair, sampling, draft sampling, rule, batch size, context, gamma), with `changes` in each."""
    axes = {
        "pair": shape.pairs, "mode": ["eager"], "sampling": shape.alphas, "draft_sampling": shape.draft_sampling,
        "acceptance_rule": shape.acceptance_rule, "batch_size": shape.batch_sizes, "context": shape.contexts,
    }  # fmt: skip
    cells = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [PredictionRow(**(row | changes)) for cell in cells for row in _curve(shape, cell)]


def curve(**changes: Any) -> list[PredictionRow]:
    """The rows of `ONE`."""
    return predicted(ONE, **changes)


def _curve(shape: Shape, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a cell; of a broken one without a number."""
    alpha, batch_size, context = shape.alphas[cell["sampling"]], cell["batch_size"], cell["context"]
    status, reason = shape.broken.get((batch_size, context), ("ok", ""))
    is_timed, marks_s = status == "ok", shape.marks_s(batch_size, context)
    (t_decode_s,), rows = marks_s["decode"], []
    for gamma in shape.gammas:
        omega = float(tokens_per_round_iid(alpha, gamma))
        costs: dict[str, Any] = {
            "t_draft_total_s": marks_s["draft"][gamma - 1],
            "t_draft_catch_up_s": 0.1 * marks_s["draft"][0],
            "t_verify_s": marks_s[f"verify:{gamma}"][0],
            "t_overhead_s": shape.overhead_s,
            "full_acceptance": alpha**gamma,
        }
        t_round_s = float(round_time_s(batch_size=batch_size, **costs))
        gain = omega * t_decode_s / t_round_s
        row = {
            "gamma": gamma,
            "t_decode_s": t_decode_s,
            "t_verify_mean_s": costs["t_verify_s"],
            "t_round_s": t_round_s,
            "tokens_per_round": omega,
            "tokens_per_round_low": omega * (1 - shape.uncertainty / 2),
            "tokens_per_round_high": omega * (1 + shape.uncertainty / 2),
            "accepted_draft_tokens": omega - 1,
            "drafts_per_round": gamma,
            "speedup": gain,
            "speedup_low": gain * (1 - shape.uncertainty),
            "speedup_high": gain * (1 + shape.uncertainty),
            "cost_provenance": "measured" if is_timed else "",
            "acceptance_provenance": "measured" if context >= 32 else "extrapolated",
            "label": OPTIMISTIC if shape.overhead_s is None and is_timed else "",
            "status": status,
            "reason": reason,
        }
        rows.append(cell | costs | row)
    top = max(row["speedup"] for row in rows)
    recommended = next(row for row in rows if row["speedup"] >= 0.99 * top)
    for row in rows:
        row["is_best"] = is_timed and row["speedup"] == top
        row["is_recommended"] = is_timed and row is recommended
        row["p_best"] = 0.8 if row["is_best"] else 0.2 / max(len(rows) - 1, 1)
        row |= {} if is_timed else {name: None for name in row if name.startswith(NEEDS_TIMES)}
    return rows


def recommended(shape: Shape, **changes: Any) -> list[RecommendationRow]:
    """The decision of every cell, of predictions with `changes` in each."""
    curves = itertools.groupby(predicted(shape, **changes), lambda row: (row.setting, row.point))
    return [_answer(list(rows)) for _, rows in curves]


def _answer(rows: Sequence[PredictionRow]) -> RecommendationRow:
    """By the interval of the recommended row; without a number only the reason."""
    where: dict[str, Any] = vars(rows[0].setting) | vars(rows[0].point)
    row = next((one for one in rows if one.is_recommended), None)
    if row is None:
        reason = f"{rows[0].status}: {rows[0].reason}"
        where |= dict.fromkeys(("recommended_gamma", "p_gamma_best", "expected_loss")) | NOTHING
        return an_answer(decision="undecided", gamma=None, reason=reason, **where)
    pays, fails = made.known(row.speedup_low) > 1, made.known(row.speedup_high) < 1.01
    decision = "speculate" if pays else "do not speculate" if fails else "undecided"
    return an_answer(
        decision=decision,
        gamma=row.gamma if pays else None,
        best_gamma=next((one.gamma for one in rows if one.is_best), None),
        recommended_gamma=row.gamma,
        p_gamma_best=row.p_best,
        tokens_per_round=row.tokens_per_round,
        t_decode_s=row.t_decode_s,
        t_round_s=row.t_round_s,
        p_speculation_pays={"speculate": 1.0, "undecided": 0.6}.get(decision, 0.0),
        value=row.speedup,
        low=row.speedup_low,
        high=row.speedup_high,
        **where,
    )


def an_answer(
    batch_size: int, context: int, decision: str = "speculate", gamma: int | None = 3, **more: Any
) -> RecommendationRow:
    """A recommendation of `GREEDY`; `more` are its other fields and the ends of its speed-up."""
    plain = vars(GREEDY) | {
        "best_gamma": gamma, "recommended_gamma": gamma or 1, "p_gamma_best": 0.8, "expected_loss": 0.004,
        "p_speculation_pays": 1.0, "reason": "",
    }  # fmt: skip
    found = {"value": 1.42, "low": 1.38, "high": 1.46} | {end: more.pop(end) for end in ENDS if end in more}
    where: dict[str, Any] = {"batch_size": batch_size, "context": context, "decision": decision, "gamma": gamma}
    spans: dict[str, Any] = {"speedup": Interval(**found), "speedup_predicted": Interval(**found)}
    return RecommendationRow(**where, **spans, **(plain | {"t_decode_s": 0.02, "t_round_s": 0.035} | more))


def a_record(**changes: Any) -> ValidationRow:
    """`validation_row` as the report's record."""
    return row_of(ValidationRow, validation_row(**changes), "row")


def decode(run: Path, *rows: dict[str, Any]) -> Path:
    """Write rows of validation.csv into the run directory."""
    write_csv(run / "validation.csv", ValidationRow, rows)
    made.restamp(run)
    return run
