"""`specgauge replay`: adaptive policies over what a run recorded, beside fixed γ and the bounds. No torch.

    replays = replay_run(Run.open(path), sampling="t1", batch_size=1)
    print(replays_text(replays))                 # or replays_json(replays)

Every cell with times and every setting with recorded acceptance is replayed by itself: policies are
tuned on some prompts and replayed on others (`specgauge.model.replay.replay`), at the cell's measured costs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specgauge.model.decision import OPTIMISTIC
from specgauge.model.policies.tuning import MAKERS, PolicyMaker
from specgauge.model.replay.replay import Interval, ReplayResult, replay
from specgauge.model.replay.rounds import ReplayCosts
from specgauge.sweeps.analysis.predictions import AnalysedRun
from specgauge.sweeps.analysis.replay_inputs import replay_costs, replayed_texts
from specgauge.sweeps.analysis.settings import RunSetting
from specgauge.sweeps.recommend import refuse_what_is_not_there
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.tables import read_tuned
from specgauge.sweeps.text_table import printable, rounded, text_table

REPLICATES = 100
"""Replays of every text: fixed γ in place of a policy is then met within .2 % or so."""
NO_COSTS = "no round was timed here"
FEW_PROMPTS = "one prompt cannot both tune and test; record at least two"


@dataclass(frozen=True, kw_only=True)
class ReplayedCell:
    """One setting at one cell; `result` is None for the reason given."""

    key: Mapping[str, Any]
    """pair, mode, sampling, draft_sampling, acceptance_rule, batch_size, context."""
    result: ReplayResult | None
    reason: str
    t_overhead_s: float | None
    """ε in the costs; None where no decoder has measured it, and every speed-up is optimistic."""
    t_early_stop_check_s: float | None = None
    """What an early-stop check costs, in the costs; None where no policy was decoded, and checks are free."""
    answer_gamma: int | None = None
    """The γ that the run recommends in this cell; None where it knows none."""


def replay_run(
    run: Run,
    *,
    pair: str | None = None,
    sampling: str | None = None,
    batch_size: int | None = None,
    context: int | None = None,
    replicates: int = REPLICATES,
    makers: Mapping[str, PolicyMaker] = MAKERS,
    progress: Callable[[str], None] | None = None,
) -> list[ReplayedCell]:
    """Replay every matching cell; None matches everything, `progress` is told of each before it starts.

    Raises:
        ValueError: a name or number the run does not have, or a damaged file of it.
    """
    refuse_what_is_not_there(run, pair=pair, sampling=sampling, batch_size=batch_size, context=context)
    analysed, tuned = AnalysedRun.read(run, pairs=None if pair is None else [pair]), read_tuned(run.path)
    replayed = []
    for setting, cell in analysed.points():
        matches = (sampling, setting.key.sampling), (batch_size, cell.cell.batch_size), (context, cell.cell.context)
        if any(wanted not in (None, own) for wanted, own in matches):
            continue
        if progress is not None:
            progress(_label(setting.columns(cell.cell)))
        overhead_s = analysed.decoded.overhead_s(setting, cell)
        t_overhead_s = None if overhead_s is None else float(overhead_s[0])
        tuned_cell = tuned.get(setting.decoded_key(cell.cell))
        t_early_stop_check_s = None if tuned_cell is None else tuned_cell.t_early_stop_check_s
        costs = replay_costs(cell, t_overhead_s, t_early_stop_check_s or 0.0)
        result, reason = _replayed(run, setting, costs, cell.cell.context, replicates, makers)
        estimate = analysed.estimate(setting, cell)
        key = setting.columns(cell.cell)
        replayed.append(
            ReplayedCell(
                key=key,
                result=result,
                reason=reason,
                t_overhead_s=t_overhead_s,
                t_early_stop_check_s=t_early_stop_check_s,
                answer_gamma=None if estimate is None else estimate.speedup.recommended_gamma or None,
            )
        )
    return replayed


def _replayed(
    run: Run,
    setting: RunSetting,
    costs: ReplayCosts | None,
    context: int,
    replicates: int,
    makers: Mapping[str, PolicyMaker],
) -> tuple[ReplayResult | None, str]:
    """The result, or why there is none."""
    if setting.texts is None:
        return None, setting.reason
    if costs is None:
        return None, NO_COSTS
    texts = replayed_texts(run, setting, context=context, gamma_max=costs.gamma_max)
    if len(set(texts.prompts.tolist())) < 2:
        return None, FEW_PROMPTS
    confidence, seed = run.config.precision.confidence, run.config.seed
    return replay(texts, costs, makers=makers, replicates=replicates, confidence=confidence, seed=seed), ""


def _label(key: Mapping[str, Any]) -> str:
    return (
        f"pair {printable(key['pair'])}, {key['mode']}, sampling {printable(key['sampling'])} (drafts "
        f"{key['draft_sampling']}, rule {key['acceptance_rule']}), batch {key['batch_size']}, context {key['context']}"
    )


def replays_text(replays: list[ReplayedCell]) -> str:
    """A table for each cell: every policy by its speed-up, what bounds it above the table."""
    blocks = [_cell_text(cell) for cell in replays]
    notes = [
        "S is over plain decoding; to fixed is over the best fixed gamma, chosen with hindsight.",
        "A gap is the share of the way from there to a bound: start knows every acceptance rate and fixes gamma as a",
        "round starts, run knows how many drafts will be accepted. A batch has one gamma for all rows; its bounds let",
        "each row choose for itself, and are out of reach. The loop at gamma 0 is plain decoding inside the loop that",
        "speculates: what that loop costs by itself. Switches: the share of rounds whose gamma differs from the last.",
    ]
    if any(cell.result is not None and cell.t_overhead_s is None for cell in replays):
        notes.append(f"Every S is {OPTIMISTIC}.")
    if any(cell.result is not None and cell.t_early_stop_check_s is None for cell in replays):
        notes.append("What it costs to check a draft before the next is left out; a run with validate.policies has it.")
    if any(cell.result is not None and cell.result.off_path == "assumed" for cell in replays):
        notes.append(
            "What a draft says after a rejected one is assumed; to record it: --set acceptance.rollouts=8 in a new run."
        )
    return "\n\n".join([*blocks, "\n".join(notes)])


def _cell_text(cell: ReplayedCell) -> str:
    result = cell.result
    if result is None:
        return f"{_label(cell.key)}\n  nothing replayed: {cell.reason}"
    share = f"{result.confidence:.0%}"
    rows = [
        [
            name,
            policy.speedup.value,
            _range(policy.speedup),
            policy.over_best_fixed.value,
            _range(policy.over_best_fixed),
            *_gap(policy.gap_closed_by_start),
            *_gap(policy.gap_closed_oracle),
            rounded(policy.mean_gamma),
            rounded(policy.switches_per_round),
        ]
        for name, policy in sorted(result.policies.items(), key=lambda item: -item[1].speedup.value)
    ]
    intervals = [name for figure in ("S", "to fixed", "gap: start", "gap: run") for name in (figure, share)]
    summary = (
        f"  {result.prompts} prompts; S of the best fixed gamma, {result.best_fixed_gamma}: "
        f"{result.best_fixed_speedup:.4g}; of the loop at gamma 0: {result.loop_speedup:.4g}; of the bounds: start "
        f"{result.bound_by_start_speedup:.4g}, run {result.bound_oracle_speedup:.4g}"
    )
    table = text_table(["policy", *intervals, "mean gamma", "switches"], rows)
    return "\n".join([_label(cell.key), summary, *_other_answer(cell, result.best_fixed_gamma), table])


def _other_answer(cell: ReplayedCell, best_fixed_gamma: int) -> list[str]:
    """Why the best fixed γ is not that of the run's answer; no line where it is."""
    if cell.answer_gamma in (None, best_fixed_gamma):
        return []
    waits = ", with the wait for the longest row" if cell.key["batch_size"] > 1 else ""
    return [
        f"  the run recommends gamma {cell.answer_gamma} here, the smallest within 1 % of the best by rounds with all "
        f"rows at work; S here is of whole texts, with their short last rounds{waits}"
    ]


def _gap(closed: Interval | None) -> tuple[float | None, str]:
    """The share of a gap that is closed, and its interval; nothing where there is no gap."""
    if closed is None or closed.low is None or closed.high is None:
        return None if closed is None else rounded(closed.value), "-"
    return rounded(closed.value), f"{rounded(closed.low):.3f} to {rounded(closed.high):.3f}"


def _range(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return "-"
    return f"{interval.low:.3f}-{interval.high:.3f}"


def replays_json(replays: list[ReplayedCell]) -> str:
    """One strict-JSON object with the list `replays`; unknown is null."""
    content = {"replays": [_mapping(cell) for cell in replays]}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def _mapping(cell: ReplayedCell) -> dict[str, Any]:
    result = cell.result
    costs = {"t_overhead_s": cell.t_overhead_s, "t_early_stop_check_s": cell.t_early_stop_check_s}
    entry: dict[str, Any] = {**cell.key, **costs, "answer_gamma": cell.answer_gamma, "reason": cell.reason or None}
    if result is None:
        return entry | {"policies": None}
    entry |= {name: value for name, value in vars(result).items() if name != "policies"}
    entry["label"] = OPTIMISTIC if cell.t_overhead_s is None else None
    entry["policies"] = {
        name: {
            figure: asdict(value) if isinstance(value, Interval) else value for figure, value in vars(policy).items()
        }
        for name, policy in result.policies.items()
    }
    return entry
