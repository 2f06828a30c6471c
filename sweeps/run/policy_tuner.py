"""Adaptive policies of a pair, tuned once a cell on what the run recorded, before they are decoded end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.policies.tuning import MAKERS, UNTUNED
from specgauge.model.replay.replay import TUNING_REPLICATES
from specgauge.model.replay.rounds import ReplayBatches
from specgauge.sweeps.analysis.replay_inputs import replay_costs, replayed_texts
from specgauge.sweeps.analysis.settings import cells_of, run_settings
from specgauge.sweeps.analysis.timings import collect_timings
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.schema import DecodedKey, TunedCell, TunedHalf
from specgauge.sweeps.store.tables import half_of, keep_tuned, read_tuned

if TYPE_CHECKING:
    from specgauge.bench.end_to_end.host_costs import HostCosts
    from specgauge.sweeps.store.rundir import Run

NO_COSTS = "it is tuned on the costs of a round, and no round was timed here"
FEW_PROMPTS = "it is tuned on other prompts than it decodes: record acceptance of at least two"


class PolicyTuner:
    """The adaptive policies of a pair, tuned once a cell on what the run recorded.

    Schedules need no text and run wherever anything is decoded. All others are tuned on recorded acceptance, the
    draft's signals and the cell's costs; where one of these is missing they are left out, with the reason.
    """

    def __init__(self, run: Run, pair: str, names: Sequence[str], prompts: int) -> None:
        """Read what the run has of the pair, to tune the policies `names`; `prompts` is how many the workload has.

        Raises:
            ValueError: a file of the run is damaged.
        """
        self.run, self.names, self.prompts = run, names, prompts
        cells = [cell for cell in plan_cells(run.config) if cell.pair == pair]
        timed = collect_timings(cells, run.config.grid.gamma, run.journal())
        self.points = {
            setting.decoded_key(cell.cell): (setting, cell)
            for setting in run_settings(run, {}, pairs=[pair])
            for cell in cells_of(setting, timed)
        }

    def gamma_max(self, key: DecodedKey) -> int:
        """The most drafts that a policy may ask for: the largest γ whose round was timed, or that of the grid."""
        point = self.points.get(key)
        costs = None if point is None else replay_costs(point[1], None)
        return max(self.run.config.grid.gamma) if costs is None else costs.gamma_max

    def tuned(self, key: DecodedKey, host_costs: Callable[[int], HostCosts]) -> TunedCell:
        """The policies of a cell for both halves of the prompts, kept ones or tuned and kept now.

        host_costs: measures them at the most drafts of a round.

        Raises:
            ValueError: what they are tuned on is damaged.
            StorageError: the disk refused to keep them.
        """
        kept = read_tuned(self.run.path).get(key)
        if kept is not None:
            return kept
        gamma_max, needy = self.gamma_max(key), [name for name in self.names if name not in UNTUNED]
        costs = host_costs(gamma_max)
        found = self._tunings(key, costs) if needy else ""

        def half(of: int) -> TunedHalf:
            tuning = None if isinstance(found, str) else found[of]
            policies = {name: UNTUNED[name](gamma_max) for name in self.names if name in UNTUNED}
            if tuning is not None:
                policies |= {name: MAKERS[name](tuning) for name in needy}
            return TunedHalf(
                tuned_on=() if tuning is None else tuple(np.unique(tuning.texts.prompts).tolist()),
                policies={name: policies[name] for name in self.names if name in policies},
            )

        tuned = TunedCell(
            key=key,
            prompts=self.prompts,
            gamma_max=gamma_max,
            t_overhead_s=costs.t_overhead_s,
            t_early_stop_check_s=costs.t_early_stop_check_s,
            halves=(half(0), half(1)),
            left_out=dict.fromkeys(needy, found) if isinstance(found, str) else {},
        )
        keep_tuned(self.run.path, tuned)
        return tuned

    def _tunings(self, key: DecodedKey, host_costs: HostCosts) -> tuple[ReplayBatches, ReplayBatches] | str:
        """What to tune the policies of even and of odd prompts on, which is the other half; or why there is nothing."""
        if key not in self.points:
            return NO_COSTS
        setting, cell = self.points[key]
        if setting.texts is None:
            return setting.reason
        costs = replay_costs(cell, host_costs.t_overhead_s, host_costs.t_early_stop_check_s)
        if costs is None:
            return NO_COSTS
        texts = replayed_texts(self.run, setting, context=key.start_context, gamma_max=costs.gamma_max)
        numbers = np.unique(texts.prompts)
        halves = np.array([half_of(number, self.prompts) for number in numbers.tolist()])
        if len(set(halves.tolist())) < 2:
            return FEW_PROMPTS
        seed = self.run.config.seed
        even, odd = (
            ReplayBatches.drawn(
                texts.of_prompts(numbers[halves != half]), costs, replicates=TUNING_REPLICATES, seed=seed
            )
            for half in (0, 1)
        )
        return even, odd
