"""The adaptive policies of a cell while it is decoded: tuned on what the run recorded, and which batch takes which.

    tuner = PolicyTuner.of(Run.open(path), pair="embedded")
    tuner.gamma_max(key)                                       # the most drafts a policy may ask for there
    tuned = tuner.tune(key, ["heuristic", "renewal"], t_overhead_s=0.0004, t_look_s=0.00005)

Schedules need no text and run wherever anything is decoded. All others are tuned on recorded acceptance, the draft's
signals and the cell's costs; where one of these is missing they are left out, with the reason.

The adaptive arms of a cell while it is decoded: which policies there are, and what each batch is decoded under.

    arms = AdaptiveArms(path=run.path, names=("svip",), tuner=tuner)
    tuned = arms.of(key, lambda gamma_max: bench.host_costs(rows, gamma=gamma_max))    # kept, or tuned and kept now
    tuned.halves[half].policies["svip"]

What a look costs and ε are measured once a cell, before its policies are tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.policies.tuning import MAKERS, UNTUNED
from specgauge.model.replay.replay import TUNING_REPLICATES
from specgauge.model.replay.rounds import ReplayBatches
from specgauge.sweeps.analysis.replay_inputs import replay_costs, replayed_texts
from specgauge.sweeps.analysis.settings import RunSetting, cells_of, run_settings
from specgauge.sweeps.analysis.timings import CellTimings, collect_timings
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey, TunedCell, TunedHalf
from specgauge.sweeps.store.tables import half_of, keep_tuned, read_tuned

if TYPE_CHECKING:
    from specgauge.bench.end_to_end.host_costs import HostCosts
    from specgauge.sweeps.store.schema import DecodedKey


NO_COSTS = "it is tuned on the costs of a round, and no round was timed here"
FEW_PROMPTS = "it is tuned on other prompts than it decodes: record acceptance of at least two"


@dataclass(frozen=True, kw_only=True)
class PolicyTuner:
    """The cells of one pair."""

    run: Run
    prompts: int
    """Prompts of the workload; each may have been recorded at several lengths."""
    places: Mapping[DecodedKey, tuple[RunSetting, CellTimings]]

    @classmethod
    def of(cls, run: Run, pair: str, prompts: int) -> PolicyTuner:
        """Read what the run has of the pair; ValueError where a file of it is damaged."""
        cells = [cell for cell in plan_cells(run.config) if cell.pair == pair]
        timed = collect_timings(cells, run.config.grid.gamma, run.journal())
        places = {
            setting.decoded_key(cell.cell): (setting, cell)
            for setting in run_settings(run, {}, pairs=[pair])
            for cell in cells_of(setting, timed)
        }
        return cls(run=run, prompts=prompts, places=places)

    def gamma_max(self, key: DecodedKey) -> int:
        """The largest γ whose round was timed; that of the grid where none was."""
        place = self.places.get(key)
        costs = None if place is None else replay_costs(place[1], None)
        return max(self.run.config.grid.gamma) if costs is None else costs.gamma_max

    def tune(self, key: DecodedKey, names: Sequence[str], *, t_overhead_s: float, t_look_s: float) -> TunedCell:
        """The policies of both halves of the prompts.

        t_overhead_s: ε of a round; t_look_s: what a look at a draft's signals costs.
        Raises ValueError where the acceptance or the rollouts of the run are damaged.
        """
        gamma_max, needy = self.gamma_max(key), [name for name in names if name not in UNTUNED]
        found = self._tunings(key, t_overhead_s, t_look_s) if needy else ""

        def half(of: int) -> TunedHalf:
            tuning = None if isinstance(found, str) else found[of]
            policies = {name: UNTUNED[name](gamma_max) for name in names if name in UNTUNED}
            if tuning is not None:
                policies |= {name: MAKERS[name](tuning) for name in needy}
            return TunedHalf(
                tuned_on=() if tuning is None else tuple(np.unique(tuning.texts.prompts).tolist()),
                policies={name: policies[name] for name in names if name in policies},
            )

        return TunedCell(
            key=key,
            prompts=self.prompts,
            gamma_max=gamma_max,
            t_overhead_s=t_overhead_s,
            t_look_s=t_look_s,
            halves=(half(0), half(1)),
            left_out=dict.fromkeys(needy, found) if isinstance(found, str) else {},
        )

    def _tunings(
        self, key: DecodedKey, t_overhead_s: float, t_look_s: float
    ) -> tuple[ReplayBatches, ReplayBatches] | str:
        """What to tune the policies of even and of odd prompts on, which is the other half; or why there is nothing."""
        if key not in self.places:
            return NO_COSTS
        setting, cell = self.places[key]
        if setting.texts is None:
            return setting.reason
        costs = replay_costs(cell, t_overhead_s, t_look_s)
        if costs is None:
            return NO_COSTS
        texts = replayed_texts(self.run, setting, context=key.start_context, gamma_max=costs.gamma_max)
        numbers = np.unique(texts.prompts)
        halves = np.array([half_of(number, self.prompts) for number in numbers.tolist()])
        if len(set(halves.tolist())) < 2:
            return FEW_PROMPTS
        even, odd = (
            ReplayBatches.drawn(
                texts.of_prompts(numbers[halves != half]),
                costs,
                replicates=TUNING_REPLICATES,
                seed=self.run.config.seed,
            )
            for half in (0, 1)
        )
        return even, odd


@dataclass(frozen=True, kw_only=True)
class AdaptiveArms:
    """What is asked for in one run directory."""

    path: Path
    names: Sequence[str]
    tuner: PolicyTuner

    def gamma_max(self, key: DecodedKey) -> int:
        """The most drafts that a policy may ask for in a cell."""
        return self.tuner.gamma_max(key)

    def of(self, key: DecodedKey, host_costs: Callable[[int], HostCosts]) -> TunedCell:
        """The policies of a cell; `host_costs` measures at the most drafts of a round.

        Raises:
            ValueError: what they are tuned on is damaged.
            StorageError: the disk refused to keep them.
        """
        kept = read_tuned(self.path).get(key)
        if kept is not None:
            return kept
        costs = host_costs(self.gamma_max(key))
        tuned = self.tuner.tune(key, self.names, t_overhead_s=costs.t_overhead_s, t_look_s=costs.t_look_s)
        keep_tuned(self.path, tuned)
        return tuned
