"""The adaptive arms of a cell while it is decoded: which policies there are, and what each batch is decoded under.

    arms = AdaptiveArms(path=run.path, names=("svip",), tuner=tuner)
    tuned = arms.of(key, lambda gamma_max: bench.host_costs(rows, gamma=gamma_max))    # kept, or tuned and kept now
    tuned.halves[half].policies["svip"]

What a look costs and ε are measured once a cell, before its policies are tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.sweeps.decoded_tables import DecodedKey
from specgauge.sweeps.policy_tuner import PolicyTuner
from specgauge.sweeps.tuned_policies import TunedCell, keep_tuned, read_tuned

if TYPE_CHECKING:
    from specgauge.bench.host_costs import HostCosts


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
