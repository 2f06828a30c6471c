"""Sources of round costs by name: where T_decode, C(gamma), T_verify(gamma), … are taken from.

    source = cost_source("measured", run=run, setting=setting)
    source = cost_source("roofline", target=target, draft=draft)
    source.costs(4, [512, 1024], [1, 2, 3])            # `RoundCosts` by batch size, context and gamma

A new source is one file with a function or class that makes a `CostSource`, and one line in `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specgauge.model.costs import CostSource
from specgauge.model.roofline.costs import RooflineCosts
from specgauge.model.settings import Setting

if TYPE_CHECKING:
    from specgauge.sweeps.store.rundir import Run


def measured(run: Run, setting: Setting) -> CostSource:
    """The medians that the run's journal has of a setting's cells, over batch size and context.

    Raises:
        ValueError: the run has no such setting, none of its cells has times, or the journal is damaged.
    """
    from specgauge.sweeps.analysis.counted_rounds import costs_of_cells  # late: a plan reads no run
    from specgauge.sweeps.analysis.settings import cells_of, run_settings
    from specgauge.sweeps.analysis.timings import timings_of

    timed = timings_of(run)
    for found in run_settings(run, {}, pairs=[setting.pair]):
        if found.key == setting:
            costs = costs_of_cells(cells_of(found, timed))
            if costs is None:
                raise ValueError(f"{run.path}: no round of {setting.pair}, sampling {setting.sampling}, was timed")
            return costs
    raise ValueError(f"{run.path}: found no setting {setting}")


SOURCES: Mapping[str, Callable[..., CostSource]] = {
    "measured": measured,
    "roofline": RooflineCosts,
}


def cost_source(name: str, **given: Any) -> CostSource:
    """The source of that name, made of what it needs.

    Raises:
        ValueError: another name, or as the source raises.
    """
    if name not in SOURCES:
        raise ValueError(f"source of costs: expected one of {', '.join(SOURCES)}, got {name!r}")
    return SOURCES[name](**given)
