"""What a replay of adaptive policies takes from a run directory: texts with signals, rollouts, and costs of a cell.

texts = replayed_texts(run, way, context=256, gamma_max=6)
costs = round_costs(cell, t_overhead_s=None)

No torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.acceptance.estimate import acceptance_probability, fill_nulls, overlap, recorded_columns
from specgauge.model.acceptance.lookups import recorded_lookups
from specgauge.model.acceptance.recorded_rounds import are_lookups, needed_columns
from specgauge.model.acceptance.renewal import judged_texts
from specgauge.model.acceptance.texts import pad_texts
from specgauge.model.costs import CostTable
from specgauge.model.replay.rounds import RoundCosts
from specgauge.model.replay.texts import ReplayTexts, Rollouts, lookup_texts, replay_texts
from specgauge.sweeps.analysis.counted_rounds import cost_table
from specgauge.sweeps.analysis.settings import Way
from specgauge.sweeps.analysis.timings import CellTimings
from specgauge.sweeps.store.rundir import ROLLOUTS, Run
from specgauge.sweeps.store.tables import read_rollouts

if TYPE_CHECKING:
    import pandas as pd

_SIGNALS = ("draft_top_prob", "draft_entropy_nats")
_LOOKUP_SIGNALS = ("lookup_match",)
_KEYS = ("pair", "sampling", "draft_sampling", "acceptance_rule")


def replayed_texts(run: Run, way: Way, *, context: int, gamma_max: int) -> ReplayTexts:
    """The recorded texts of a way; those that start at exactly `context` where predictions there take only them.

    Raises:
        ValueError: the acceptance or rollouts of the run are damaged, foreign or without signals.
    """
    frame = run.acceptance_of(way.pair, way.sampling)
    if context in way.starting_at:
        frame = frame[frame["context"] - frame["position"] == context]
    looked_up = are_lookups(frame.columns)
    signals = _LOOKUP_SIGNALS if looked_up else _SIGNALS
    padded = pad_texts(
        frame["prompt"].to_numpy(),
        frame["repetition"].to_numpy(),
        frame["position"].to_numpy(),
        frame["end_reason"].to_numpy(dtype=str),
        {name: frame[name].to_numpy() for name in (*needed_columns(frame.columns), *signals)},
    )
    limit = run.config.workload.max_new_tokens - 1
    if looked_up:
        nothing = np.zeros(padded.columns["token"].shape)
        return lookup_texts(
            judged_texts(nothing, padded.lengths, padded.ended_by_eos, limit),
            prompts=padded.prompts,
            repetitions=padded.repetitions,
            lookups=recorded_lookups(padded.columns),
            matched=padded.columns["lookup_match"],
        )
    recorded = recorded_columns(padded.columns)
    how = {"acceptance_rule": way.acceptance_rule, "draft_sampling": way.draft_sampling}
    acceptance = fill_nulls(acceptance_probability(recorded, **how), overlap(recorded, **how))
    return replay_texts(
        judged_texts(acceptance, padded.lengths, padded.ended_by_eos, limit),
        prompts=padded.prompts,
        repetitions=padded.repetitions,
        top_probs=padded.columns["draft_top_prob"],
        entropies_nats=padded.columns["draft_entropy_nats"],
        gamma_max=gamma_max,
        rollouts=rollouts_of(run, way),
        seed=run.config.seed,
    )


def rollouts_of(run: Run, way: Way) -> Rollouts | None:
    """The draft chains of a way; None where none were recorded.

    Raises:
        ValueError: the file is truncated, not parquet, of another release, or lacks a column.
    """
    path = run.path / ROLLOUTS
    if not path.is_file():
        return None
    frame = read_rollouts(path)
    own = _of_way(frame, way)
    if own.empty:
        return None
    whole = {name: own[name].to_numpy(dtype=np.int64) for name in ("prompt", "repetition", "start", "depth")}
    return Rollouts(
        **whole,
        top_prob=own["top_prob"].to_numpy(dtype=np.float64),
        entropy_nats=own["entropy_nats"].to_numpy(dtype=np.float64),
    )


def _of_way(frame: pd.DataFrame, way: Way) -> pd.DataFrame:
    """The rows of a way, by as many of its keys as the table has."""
    for key in _KEYS:
        if key in frame.columns:
            frame = frame[frame[key] == getattr(way, key)]
    return frame


def round_costs(cell: CellTimings, t_overhead_s: float | None, t_look_s: float = 0.0) -> RoundCosts | None:
    """Seconds of rounds of 0 … γ_max drafts, γ_max the largest γ whose parts the cell has; None where it has none.

    Between measured γ, T_verify is taken as linear. ε is in every round of the loop, the plain one included, but none
    is shorter than a plain step; None counts as 0. t_look_s: what a look at a draft's signals costs, where it is known.
    """
    gammas = [int(arm.partition(":")[2]) for arm in cell.arms if arm.startswith("verify:")]
    measured = [gamma for gamma in gammas if cell.trouble(gamma)[0] == "ok"]
    table = cost_table([cell])
    if not measured or table is None:
        return None
    place = cell.cell
    return round_costs_at(
        table, place.batch_size, place.context, max(measured), t_overhead_s=t_overhead_s or 0.0, t_look_s=t_look_s
    )


def round_costs_at(
    table: CostTable, batch_size: int, context: int, gamma_max: int, *, t_overhead_s: float, t_look_s: float
) -> RoundCosts:
    """The same from a table of costs, between its contexts too."""
    costs = table.at(batch_size, context, np.arange(1, gamma_max + 1))
    t_decode_s = float(costs.t_decode_s)
    drafting_s = costs.t_draft_total_s + costs.t_verify_s
    rounds_s = np.concatenate([[t_decode_s], drafting_s]) + t_overhead_s
    return RoundCosts(
        t_decode_s=t_decode_s,
        t_round_s=tuple(np.maximum(rounds_s, t_decode_s).tolist()),
        t_draft_catch_up_s=float(costs.t_draft_catch_up_s),
        t_look_s=t_look_s,
        batch_size=batch_size,
    )
