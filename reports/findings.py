"""What a reader must know before relying on the numbers, each with its remedy, and the same thing said once.

First what is missing from the run; then what the run itself warns of; last what only the whole of the predictions
shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from specgauge.reports.formatting import count, sentence
from specgauge.reports.records import SPECULATE, Curves, Finding, ReportData, known_rows


def findings(data: ReportData, curves: Curves) -> list[Finding]:
    """The warnings of a run, without repetitions; of a code that the run warned of, nothing is added."""
    told = [Finding(**{part.name: str(one.get(part.name) or "") for part in fields(Finding)}) for one in data.warnings]
    codes = {one.code for one in told}
    found = [one for one in data.gaps if one.code not in codes]
    found += told
    found += [one for one in (*_optimistic(curves), *_at_the_edge(data)) if one.code not in codes]
    sentences = [Finding(code=one.code, message=sentence(one.message), remedy=sentence(one.remedy)) for one in found]
    return list(dict.fromkeys(sentences))


def _optimistic(curves: Curves) -> Iterator[Finding]:
    """Speed-ups without the overhead of a round."""
    rows = known_rows(curves)
    unknown = [row for row in rows if row.t_overhead_s is None]
    if unknown:
        which = "every speed-up is" if len(unknown) == len(rows) else f"{len(unknown)} of {len(rows)} speed-ups are"
        yield Finding(
            code="optimistic",
            message=f"{which} optimistic: overhead not measured (accepting, rolling back, host work: ε)",
            remedy="a small gain may vanish in an engine: try it there before relying on it",
        )


def _at_the_edge(data: ReportData) -> Iterator[Finding]:
    """Recommendations to speculate whose best γ is the largest of the grid: a larger one may be better still."""
    largest = max(data.config.grid.gamma)
    edge = [one for one in data.recommendations if one.decision == SPECULATE and one.best_gamma == largest]
    if edge:
        first = edge[0]
        yield Finding(
            code="gamma_edge",
            message=f"in {count(len(edge), 'cell')} the best γ is {largest}, the largest measured; first sampling "
            f"{first.setting.sampling}, batch {first.point.batch_size}, context {first.point.context}",
            remedy=f"extend grid.gamma beyond {largest} in a new run",
        )
