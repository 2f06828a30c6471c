"""A run read once for whatever is predicted from it: cells with times, settings, and what was decoded. No torch.

analysed = AnalysedRun.read(run)
for setting, cell in analysed.points():
    estimate = analysed.estimate(setting, cell)          # S(γ), its uncertainty and the decision
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from specgauge.sweeps.analysis.cell_estimate import CellEstimate, SharedCosts, estimate_cell
from specgauge.sweeps.analysis.decoded import DecodedCells
from specgauge.sweeps.analysis.settings import RunSetting, cells_of, run_settings
from specgauge.sweeps.analysis.timings import CellTimings, collect_timings
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.rundir import Run


@dataclass(frozen=True, kw_only=True)
class AnalysedRun:
    """Everything that a run has of its settings."""

    run: Run
    cells: tuple[CellTimings, ...]
    settings: tuple[RunSetting, ...]
    decoded: DecodedCells
    shared: SharedCosts

    @classmethod
    def read(
        cls,
        run: Run,
        reasons: Mapping[tuple[str, str], str] | None = None,
        *,
        pairs: Collection[str] | None = None,
        seed: int | None = None,
    ) -> Self:
        """Read the journal, acceptance and decoded tables.

        reasons: why acceptance is missing, by (pair, sampling); pairs: those wanted, None for all; seed: of the blocks
        that are drawn, where it is not the run's own.

        Raises:
            ValueError: a file of the run is damaged, foreign or of another release.
        """
        settings = tuple(run_settings(run, reasons or {}, pairs=pairs))
        if seed is not None:
            run = replace(run, config=run.config.model_copy(update={"seed": seed}))
        cells = collect_timings(plan_cells(run.config), run.config.grid.gamma, run.journal())
        decoded = DecodedCells.read(run, cells, settings)
        return cls(run=run, cells=cells, settings=settings, decoded=decoded, shared=SharedCosts(run.config))

    def points(self) -> Iterator[tuple[RunSetting, CellTimings]]:
        """Every cell of every setting."""
        for setting in self.settings:
            for cell in cells_of(setting, self.cells):
                yield setting, cell

    def estimate(
        self, setting: RunSetting, cell: CellTimings, *, max_itl_s: float | None = None
    ) -> CellEstimate | None:
        """S(γ) of a cell, with ε where something like it was decoded; None where no γ is known."""
        return estimate_cell(
            self.run.config,
            cell,
            setting.acceptance_at(cell.cell.context),
            max_itl_s=max_itl_s,
            t_overhead_s=self.decoded.overhead_s(setting, cell),
            shared=self.shared,
        )
