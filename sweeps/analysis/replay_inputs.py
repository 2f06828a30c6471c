"""What a replay of adaptive policies takes from a run directory: texts with signals, rollouts, and costs of a cell.

texts = replayed_texts(run, setting, context=256, gamma_max=6)
costs = replay_costs(cell, t_overhead_s=None)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specgauge.model.acceptance.lookups import lookup_lengths
from specgauge.model.acceptance.recorded import acceptance_and_overlap, are_lookups
from specgauge.model.acceptance.renewal import text_ends
from specgauge.model.costs import CostSource
from specgauge.model.replay.rounds import ReplayCosts
from specgauge.model.replay.texts import ReplayTexts, Rollouts, lookup_texts, replay_texts
from specgauge.model.settings import Point
from specgauge.sweeps.analysis.acceptance import padded_texts
from specgauge.sweeps.analysis.counted_rounds import costs_of_cells
from specgauge.sweeps.analysis.settings import RunSetting
from specgauge.sweeps.analysis.timings import CellTimings
from specgauge.sweeps.store.rundir import ROLLOUTS, Run
from specgauge.sweeps.store.tables import read_rollouts


def replayed_texts(run: Run, setting: RunSetting, *, context: int, gamma_max: int) -> ReplayTexts:
    """The recorded texts of a setting; those that start at exactly `context` where predictions there take only them.

    Raises:
        ValueError: the acceptance or rollouts of the run are damaged, foreign or without signals.
    """
    frame = run.acceptance_of(setting.key.pair, setting.key.sampling)
    if context in setting.starting_at:
        frame = frame[frame["context"] - frame["position"] == context]
    looked_up = are_lookups(frame.columns)
    signals = ("lookup_match",) if looked_up else ("draft_top_prob", "draft_entropy_nats")
    padded = padded_texts(frame, signals)
    shape = padded.columns["token"].shape
    ends = text_ends(shape, padded.lengths, padded.ended_by_eos, run.config.workload.max_new_tokens - 1)
    if looked_up:
        offered, matching = lookup_lengths(padded.columns)
        return lookup_texts(
            ends,
            prompts=padded.prompts,
            repetitions=padded.repetitions,
            offered=offered,
            matching=matching,
            matched=padded.columns["lookup_match"],
        )
    acceptance, _ = acceptance_and_overlap(
        padded.columns, acceptance_rule=setting.key.acceptance_rule, draft_sampling=setting.key.draft_sampling
    )
    return replay_texts(
        acceptance,
        ends,
        prompts=padded.prompts,
        repetitions=padded.repetitions,
        top_probs=padded.columns["draft_top_prob"],
        entropies_nats=padded.columns["draft_entropy_nats"],
        gamma_max=gamma_max,
        rollouts=rollouts_of(run, setting),
        seed=run.config.seed,
    )


def rollouts_of(run: Run, setting: RunSetting) -> Rollouts | None:
    """The draft chains of a setting; None where none were recorded.

    Raises:
        ValueError: the file is truncated, not parquet, of another release, or lacks a column.
    """
    path = run.path / ROLLOUTS
    if not path.exists():
        return None
    frame = read_rollouts(path, setting.key)
    if frame.empty:
        return None
    whole = {name: frame[name].to_numpy(dtype=np.int64) for name in ("prompt", "repetition", "start", "depth")}
    signals = {name: frame[name].to_numpy(dtype=np.float64) for name in ("top_prob", "entropy_nats")}
    return Rollouts(**whole, **signals)


def replay_costs(
    cell: CellTimings, t_overhead_s: float | None, t_early_stop_check_s: float = 0.0
) -> ReplayCosts | None:
    """Seconds of rounds of 0 … γ_max drafts, γ_max the largest γ whose costs the cell has; None where it has none.

    Between measured γ, T_verify is taken as linear. ε is in every round of the loop, the plain one included; None
    counts as 0. t_early_stop_check_s: what an early-stop check costs, where it is known.
    """
    measured = [gamma for gamma in cell.gammas if cell.trouble(gamma)[0] == "ok"]
    source = costs_of_cells([cell])
    if not measured or source is None:
        return None
    point = Point(batch_size=cell.cell.batch_size, context=cell.cell.context)
    return replay_costs_at(source, point, max(measured), t_overhead_s, t_early_stop_check_s)


def replay_costs_at(
    source: CostSource, point: Point, gamma_max: int, t_overhead_s: float | None, t_early_stop_check_s: float
) -> ReplayCosts:
    """The same from any source, between its contexts too."""
    costs = source.costs(point.batch_size, point.context, np.arange(1, gamma_max + 1))
    if t_overhead_s is not None:
        costs = replace(costs, t_overhead_s=np.full(gamma_max, t_overhead_s))
    return ReplayCosts.of(costs, batch_size=point.batch_size, t_early_stop_check_s=t_early_stop_check_s)
