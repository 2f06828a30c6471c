"""What a reader must know before relying on the numbers, each with its remedy, and the same thing said once.

First what is missing from the run; then what the run itself warns of; last what only the whole of the predictions
shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specgauge.reports.data import ReportData
from specgauge.reports.formatting import count, sentence
from specgauge.reports.records import SPECULATE, Curves

_PARTS = ("code", "message", "remedy")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One warning and what to do about it."""

    code: str
    message: str
    remedy: str


def findings(data: ReportData, curves: Curves) -> list[Finding]:
    """The warnings of a run, without repetitions; of a code that the run warned of, nothing is added."""
    told = [Finding(**{name: str(one.get(name) or "") for name in _PARTS}) for one in data.warnings]
    gaps = [Finding(code=gap.code, message=gap.message, remedy=gap.remedy) for gap in data.gaps]
    codes = {one.code for one in told}
    found = [one for one in gaps if one.code not in codes]
    found += told
    found += [one for one in (*_optimistic(curves), *_at_the_edge(data)) if one.code not in codes]
    sentences = [Finding(code=one.code, message=sentence(one.message), remedy=sentence(one.remedy)) for one in found]
    return list(dict.fromkeys(sentences))


def _optimistic(curves: Curves) -> Iterator[Finding]:
    """Speed-ups without the overhead of a round, and the smallest that is recommended all the same."""
    rows = [one for places in curves.values() for curve in places.values() for one in curve if one.speedup is not None]
    unknown = [one for one in rows if one.t_overhead_s is None]
    if unknown:
        which = "every speed-up is" if len(unknown) == len(rows) else f"{len(unknown)} of {len(rows)} speed-ups are"
        yield Finding(
            code="optimistic",
            message=f"{which} optimistic: overhead not measured (accepting, rolling back, host work: ε)",
            remedy="a small gain may vanish in an engine: try it there before relying on it",
        )


def _at_the_edge(data: ReportData) -> Iterator[Finding]:
    """Recommendations to speculate whose best gamma is the largest of the grid: a larger one may be better still."""
    largest = max(data.config.grid.gamma)
    edge = [one for one in data.answers if one.decision == SPECULATE and one.best_gamma == largest]
    if edge:
        first = edge[0]
        yield Finding(
            code="gamma_edge",
            message=f"in {count(len(edge), 'setting')} the best γ is {largest}, the largest measured; first sampling "
            f"{first.strategy.sampling}, batch {first.place.batch_size}, context {first.place.context}",
            remedy=f"extend grid.gamma beyond {largest} in a new run",
        )
