"""Run directories made up for the report's tests, in the product's own file format.

Costs follow a small closed form and acceptance is one number per sampling setting at every position, so that every
figure a report prints can be worked out by hand: survival is alpha^i, tokens per round (1 - alpha^(gamma+1)) /
(1 - alpha), and five samples per block lie symmetrically around their median.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgauge.configs.schema import Config
from specgauge.model.speedup import round_time_s, tokens_per_round_iid
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.derived import write_answers
from specgauge.sweeps.store.rows import row_of, write_csv
from specgauge.sweeps.store.rundir import acceptance_path
from specgauge.sweeps.store.schema import PredictionRow, RecommendationRow
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps.made import acceptance_frame

SPREAD = (-0.01, -0.005, 0.0, 0.005, 0.01)
BLOCKS = 3
OPTIMISTIC = "optimistic: overhead not measured"
KEYS = ("pair", "mode", "sampling", "draft_sampling", "acceptance_rule", "batch_size", "context")
NEEDS_TIMES = (
    "t_decode_s", "t_draft_total_s", "t_draft_catch_up_s", "t_verify_s", "t_verify_mean_s", "t_round_s",
    "speedup", "speedup_low", "speedup_high", "p_best",
)  # fmt: skip
SPEEDUP = {"value": "speedup", "low": "speedup_low", "high": "speedup_high"}
PAYS = {"speculate": 1.0, "undecided": 0.6, "do not speculate": 0.0}


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
    t_decode_s: float = 0.010
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
        return Config.model_validate(
            {
                "name": self.name,
                "pairs": [{"name": pair, "target": "embedded", "draft": "embedded"} for pair in self.pairs],
                "sampling": [{"name": name, "temperature": 0 if name == "greedy" else 1.0} for name in self.alphas],
                "draft_sampling": list(self.draft_sampling),
                "acceptance_rule": list(self.acceptance_rule),
                "grid": {"batch_size": [*self.batch_sizes], "context": [*self.contexts], "gamma": [*self.gammas]},
            }
        )

    def decode_s(self, batch_size: int, context: int) -> float:
        return self.t_decode_s * (1 + 0.02 * (batch_size - 1)) * (1 + context / 10_000)

    def verify_s(self, batch_size: int, context: int, gamma: int) -> float:
        return self.decode_s(batch_size, context) * (1 + self.verify_slope.get(batch_size, 0.3) * gamma)

    def draft_total_s(self, batch_size: int, context: int, gamma: int) -> float:
        return gamma * self.draft_share * self.decode_s(batch_size, context)

    def catch_up_s(self, batch_size: int, context: int) -> float:
        return 0.1 * self.draft_total_s(batch_size, context, 1)


def build_run(folder: Path, shape: Shape | None = None) -> Path:
    """Write the run directory of `shape` and return it."""
    shape = shape or Shape()
    config = shape.config()
    with OpenRun(folder, config, fresh=False) as run:
        for cell in plan_cells(config):
            for record in _records(shape, cell.axes):
                run.journal.append(record)
    (folder / "environment.json").write_text(json.dumps(shape.environment), encoding="utf-8")
    for pair, (sampling, alpha) in itertools.product(shape.pairs, shape.alphas.items()):
        if shape.with_acceptance:
            frame = acceptance_frame(shape.prompts, shape.positions, alpha, context=32)
            frame.to_parquet(acceptance_path(folder, pair, sampling), index=False)
    if shape.with_predictions:
        rows = prediction_rows(shape)
        write_csv(folder / "predictions.csv", PredictionRow, rows)
        write_answers(folder, recommendation_rows(shape, rows), [])
    return folder


def _records(shape: Shape, axes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The journal of one cell."""
    batch_size, context = axes["batch_size"], axes["context"]
    costs = {"decode": [shape.decode_s(batch_size, context)]}
    costs["draft"] = [shape.draft_total_s(batch_size, context, k) for k in range(1, max(shape.gammas) + 1)]
    costs["draft_catch_up"] = [costs["draft"][0] + shape.catch_up_s(batch_size, context)]
    costs |= {f"verify:{gamma}": [shape.verify_s(batch_size, context, gamma)] for gamma in shape.gammas}
    costs |= {"prefill_target": [context * 1e-4], "prefill_draft": [context * 3e-5]}
    status, reason = shape.broken.get((batch_size, context), ("ok", None))
    is_timed = status == "ok"
    for block, (arm, marks) in itertools.product(range(BLOCKS if is_timed else 1), costs.items()):
        samples = [[mark * (1 + share) for mark in marks] for share in SPREAD] if is_timed else []
        known = {"axes": axes, "arm": arm, "block": block, "status": status, "reason": reason, "samples_s": samples}
        first_call_s = 5 * marks[-1] if block == 0 and is_timed else None
        device_s = sum(sample[-1] for sample in samples)
        yield known | {"first_call_s": first_call_s, "device_s": device_s, "at": "2026-01-02T03:05:06+00:00"}


def prediction_rows(shape: Shape) -> list[dict[str, Any]]:
    """One row per (pair, sampling, draft sampling, rule, batch size, context, gamma); broken cells have no number."""
    axes: tuple[Iterable[Any], ...] = (
        shape.pairs, ["eager"], shape.alphas, shape.draft_sampling, shape.acceptance_rule,
        shape.batch_sizes, shape.contexts,
    )  # fmt: skip
    keys = (dict(zip(KEYS, values, strict=True)) for values in itertools.product(*axes))
    return [row for key in keys for row in _curve_rows(shape, key)]


def _curve_rows(shape: Shape, key: dict[str, Any]) -> list[dict[str, Any]]:
    alpha, batch_size, context = shape.alphas[key["sampling"]], key["batch_size"], key["context"]
    status, reason = shape.broken.get((batch_size, context), ("ok", ""))
    rows: list[dict[str, Any]] = []
    for gamma in shape.gammas:
        omega, t_decode_s = float(tokens_per_round_iid(alpha, gamma)), shape.decode_s(batch_size, context)
        costs: dict[str, Any] = {
            "t_draft_total_s": shape.draft_total_s(batch_size, context, gamma),
            "t_draft_catch_up_s": shape.catch_up_s(batch_size, context),
            "t_verify_s": shape.verify_s(batch_size, context, gamma),
            "t_overhead_s": shape.overhead_s,
            "full_acceptance": alpha**gamma,
        }
        t_round_s = float(round_time_s(batch_size=batch_size, **costs))
        gain = omega * t_decode_s / t_round_s
        rows.append(
            {
                **(key | costs),
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
                "cost_provenance": "measured",
                "acceptance_provenance": "measured" if context >= 32 else "extrapolated",
                "label": OPTIMISTIC if shape.overhead_s is None else "",
                "status": status,
                "reason": reason,
            }
        )
    top = max(row["speedup"] for row in rows)
    recommended = next(row for row in rows if row["speedup"] >= 0.99 * top)
    for row in rows:
        row["is_best"] = row["speedup"] == top
        row["is_recommended"] = row is recommended
        row["p_best"] = 0.8 if row["is_best"] else 0.2 / max(len(rows) - 1, 1)
        if status != "ok":
            row |= dict.fromkeys(NEEDS_TIMES) | {"is_best": False, "is_recommended": False}
            row |= {"cost_provenance": "", "label": ""}
    return rows


def recommendation_rows(shape: Shape, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The decision of every place by its recommended row's interval; places without a number only give the reason."""
    answers = []
    for key, curve in itertools.groupby(rows, lambda row: {name: row[name] for name in KEYS}):
        own = list(curve)
        row = next((one for one in own if one["is_recommended"]), {})
        decision = _decision(row) if row else "undecided"
        answers.append(
            key
            | {
                "decision": decision,
                "gamma": row["gamma"] if decision == "speculate" else None,
                "best_gamma": next((one["gamma"] for one in own if one["is_best"]), None),
                "recommended_gamma": row.get("gamma"),
                "speedup": {end: row.get(name) for end, name in SPEEDUP.items()},
                "p_gamma_best": row.get("p_best"),
                "expected_loss": 0.004 if row else None,
                "p_speculation_pays": PAYS[decision] if row else None,
                "reason": "" if row else f"{own[0]['status']}: {own[0]['reason']}",
            }
        )
    return answers


def _decision(row: Mapping[str, Any]) -> str:
    if row["speedup_low"] > 1:
        return "speculate"
    return "do not speculate" if row["speedup_high"] < 1.01 else "undecided"


def predicted(shape: Shape, **changes: Any) -> list[PredictionRow]:
    """The predictions of a shape as typed rows, with `changes` in each."""
    return [row_of(PredictionRow, row | changes, "row") for row in prediction_rows(shape)]


def recommended(shape: Shape, **changes: Any) -> list[RecommendationRow]:
    """Its recommendations, of predictions with `changes` in each."""
    rows = [row | changes for row in prediction_rows(shape)]
    return [row_of(RecommendationRow, entry, "entry") for entry in recommendation_rows(shape, rows)]
