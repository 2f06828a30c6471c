"""`specgauge recommend`: what a run recommends for one point or all, also under a latency limit. No torch.

    answers = recommend(Run.open(path), batch_size=4, context=256, sampling="greedy", max_itl_s=0.05)
    print(recommendations_json(answers))                 # or answer_text(answers) of `specgauge.sweeps.answer_table`

`max_itl_s` bounds T_round, since the tokens of a round arrive together: γ whose round takes longer cannot win, and the
decision is taken again among the others. Where the γ of an answer was decoded end to end, the speed-up measured stands
beside the one predicted, else that of the nearest γ decoded. S is called optimistic where no decoder has measured ε.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specgauge.model.checks import positive_times_s
from specgauge.model.decision import OPTIMISTIC
from specgauge.model.settings import Setting
from specgauge.sweeps.analysis.answers import Recommendations, is_known, is_optimistic
from specgauge.sweeps.analysis.predictions import AnalysedRun, recommendation, standing
from specgauge.sweeps.analysis.validation import outcome
from specgauge.sweeps.plan import plan_cells, planned_pairs
from specgauge.sweeps.side_by_side import Ranking, side_by_side
from specgauge.sweeps.store.derived import doubts
from specgauge.sweeps.store.rundir import Run


def recommend(
    run: Run,
    *,
    pair: str | None = None,
    sampling: str | None = None,
    batch_size: int | None = None,
    context: int | None = None,
    max_itl_s: float | None = None,
    setting: Setting | None = None,
) -> Recommendations:
    """The recommendations of `run` that match; None matches everything, a setting what has all of its values.

    Raises:
        ValueError: a name or number that the run does not have (those it has are listed, with the nearest), a limit
            that is no time, or a file of the run is missing or damaged.
    """
    refuse_what_is_not_there(run, pair=pair, sampling=sampling, batch_size=batch_size, context=context)
    wanted: dict[str, Any] = {"pair": pair, "sampling": sampling, "batch_size": batch_size, "context": context}
    wanted |= {} if setting is None else asdict(setting)
    found = standing(run)
    entries = found.recommendations if max_itl_s is None else _limited(run, max_itl_s)

    def matching(found: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        return tuple(
            one for one in found if all(value is None or one.get(name) == value for name, value in wanted.items())
        )

    return Recommendations(
        entries=matching(entries),
        max_itl_s=max_itl_s,
        confidence=run.config.precision.confidence,
        is_served=run.is_served,
        warnings=(*map(asdict, doubts(run.path)), *found.warnings),
        validation=matching(found.validation),
        policies=matching(found.policies),
        pairs={one.name: one for one in planned_pairs(run.config)},
        break_even=() if max_itl_s is not None or batch_size is not None else matching(found.break_even),
        are_some=any(value is not None for value in wanted.values()),
    )


def refuse_what_is_not_there(
    run: Run, *, pair: str | None, sampling: str | None, batch_size: int | None, context: int | None
) -> None:
    """Raise ValueError for a name or number that the run does not have; None asks for nothing."""
    cells, grid = list(plan_cells(run.config)), run.config.grid
    _known_name("pair", pair, list(dict.fromkeys(cell.pair for cell in cells)))
    _known_name("sampling", sampling, [one.name for one in run.config.sampling])
    cells = [cell for cell in cells if pair in (None, cell.pair)]
    _known_number("batch size", batch_size, sorted({cell.batch_size for cell in cells}), grid.batch_size)
    cells = [cell for cell in cells if batch_size in (None, cell.batch_size)]
    _known_number("context", context, sorted({cell.context for cell in cells}), grid.context)


def _known_name(what: str, name: str | None, names: Sequence[str]) -> None:
    if name is not None and name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{what} {name!r} is not in this run, allowed: {', '.join(names)}{hint}")


def _known_number(what: str, number: int | None, numbers: Sequence[int], grid: Sequence[int]) -> None:
    if number is not None and number not in numbers:
        near = min(numbers, key=lambda measured: (abs(measured - number), measured))
        remedy = f"to have it measured, put it into grid.{what.replace(' ', '_')}"
        raise ValueError(
            f"{what} {number} was not measured, allowed: {', '.join(map(str, numbers))}; the nearest is {near}; "
            f"{'there the rules of the grid leave it out' if number in grid else remedy}"
        )


def _limited(run: Run, max_itl_s: float) -> Iterable[Mapping[str, Any]]:
    """Every recommendation taken again, with rounds over the limit left out."""
    positive_times_s("max_itl_s", max_itl_s)
    analysed = AnalysedRun.read(run)
    for setting, cell in analysed.points():
        estimate = analysed.estimate(setting, cell, max_itl_s=max_itl_s)
        entry = recommendation(setting, cell, estimate)
        if estimate is not None and (shortest_s := float(estimate.t_round_s.min())) > max_itl_s:
            entry["reason"] = _out_of_reach(shortest_s, float(estimate.costs.t_decode_s[0]), max_itl_s)
        yield entry


def _out_of_reach(t_round_s: float, t_decode_s: float, max_itl_s: float) -> str:
    """Why no γ keeps a limit on the time between tokens, and whether plain decoding does."""
    too = ", which is over it too" if t_decode_s > max_itl_s else ""
    return (
        f"no gamma keeps the limit: the shortest round takes {1e3 * t_round_s:.4g} ms; a plain step takes "
        f"{1e3 * t_decode_s:.4g} ms{too}"
    )


def recommendations_json(answers: Recommendations) -> str:
    """The recommendations as one strict-JSON object.

    `label` is that of every known speed-up, null where they differ or have none; `validation` is null where nothing was
    decoded, as are `speedup_measured` and `speedup_whole` (prefills and ragged ends included) of a γ that was not.
    """
    labels = {_label(entry) for entry in answers.entries if is_known(entry)}
    summary = answers.summary
    ends = {"value": "speedup_measured", "low": "speedup_measured_low", "high": "speedup_measured_high"}
    entries = []
    for entry in answers.entries:
        row = answers.measured(entry)
        measured = None if row is None else {name: row[column] for name, column in ends.items()}
        whole = None if row is None else row["speedup_whole"]
        entries.append({**entry, "label": _label(entry), "speedup_measured": measured, "speedup_whole": whole})
    content = {
        "recommendations": entries,
        "max_itl_s": answers.max_itl_s,
        "confidence": answers.confidence,
        "label": labels.pop() if len(labels) == 1 else None,
        "trust": answers.trust.as_mapping(),
        "next_step": answers.next_step,
        "validation": None if summary is None else summary.as_mapping(),
        "policies": [_policy(row) for row in answers.policies],
        **({"break_even": list(answers.break_even)} if answers.break_even else {}),
        "side_by_side": [_ranking(one) for one in side_by_side(answers)],
        "warnings": [dict(warning) for warning in answers.warnings],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def _policy(row: Mapping[str, Any]) -> dict[str, Any]:
    """A policy as it was run: S, and how many times as fast as the best fixed γ, with how it stands to each."""
    found: dict[str, Any] = {name: row[name] for name in (*Setting.__dataclass_fields__, "batch_size", "context")}
    found |= {name: row[name] for name in ("policy", "measured_in", "mean_gamma", "best_fixed_gamma")}
    for name, against in (("speedup_measured", "against_plain"), ("over_best_fixed", "against_best_fixed")):
        ends = {end: row[f"{name}{tail}"] for end, tail in (("value", ""), ("low", "_low"), ("high", "_high"))}
        is_known = ends["value"] is not None
        found |= {name: ends if is_known else None}
        found |= {against: outcome(ends["low"], ends["high"]) if is_known else None}
    return found


def _ranking(ranking: Ranking) -> dict[str, Any]:
    """Alternatives as they stand to each other; their answers are those under the same setting above."""
    keys = Setting.__dataclass_fields__
    return {
        "target": ranking.target,
        "sampling": ranking.sampling,
        **asdict(ranking.point),
        "best": None if ranking.best is None else ranking.best.entry["pair"],
        "alternatives": [
            {name: one.entry[name] for name in keys}
            | {"standing": one.standing, "tokens_per_s": {"value": one.tokens_per_s, "low": one.low, "high": one.high}}
            for one in ranking.alternatives
        ],
    }


def _label(entry: Mapping[str, Any]) -> str | None:
    return OPTIMISTIC if is_optimistic(entry) else None
