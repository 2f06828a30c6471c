"""Adaptive policies as decoded end to end, beside plain decoding, the best fixed γ and their replay. No torch.

    S measured          tokens a second under the policy over those of the plain loop, after the first tokens, whole
                        texts with their ragged ends, pooled over the blocks that have both
    over best fixed     the same over the γ that was fastest by it, chosen with hindsight
    S predicted         the policy replayed on recorded texts of the very batches of prompts that it decoded, with ε
                        from the γ decoded, at the context half-way through a text
    S from counts       the rounds, tokens and early-stop checks as counted, at measured costs
    error, cost error   of these two over S measured, less 1; the first in blocks whose prompts were all recorded

Intervals draw batches of prompts with all their texts, the same for all arms and their replay; the uncertainty of the
costs is not in them. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.model.arms import PLAIN, Arm, adaptive_arm, speculate_arm
from specgauge.model.checks import FloatArray, IntArray, finite_or_none
from specgauge.model.costs import CostSource
from specgauge.model.replay.replay import replayed_seconds
from specgauge.model.settings import Point
from specgauge.model.speedup import measured_speedup
from specgauge.model.stats.bootstrap import (
    batch_numbers,
    draw_prompts,
    interval_around,
    ratio_replicates,
    sum_by_prompt,
)
from specgauge.sweeps.analysis.counted_rounds import CountedArm, costs_along
from specgauge.sweeps.analysis.decoded import (
    DecodedCells,
    Totals,
    arm_figures,
    block_totals,
    empty_row,
    gammas_of,
)
from specgauge.sweeps.analysis.replay_inputs import replay_costs_at, replayed_texts
from specgauge.sweeps.plan import decoded_tokens
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey, TunedCell
from specgauge.sweeps.store.tables import half_of, read_tuned

if TYPE_CHECKING:
    import pandas as pd

REPLICATES = 100
"""Replays of every text."""


def policy_rows(run: Run, decoded: DecodedCells) -> list[dict[str, Any]]:
    """One row for every cell and policy that was decoded, cells in the order decoded; unknown is None.

    Raises:
        ValueError: policies.json, the acceptance or the rollouts are damaged, foreign or of another release.
    """
    tuned = read_tuned(run.path)
    rows = []
    for key, requests in decoded.requests.items():
        names = sorted(name for arm in requests["arm"].unique() if (name := Arm.parse(arm).policy) is not None)
        if not names:
            continue
        halves = tuned[key].halves if key in tuned else ()
        if not halves or any(name not in half.policies for half in halves for name in names):
            raise ValueError(
                f"{run.path}: policies.json lacks the policies of {key.sampling}, batch size {key.batch_size}, context "
                f"{key.start_context}, which were decoded; start anew with `specgauge run --fresh`"
            )
        point = _DecodedPoint(run=run, decoded=decoded, key=key, tuned=tuned[key])
        rows += [point.row(name) for name in names]
    return rows


@dataclass(frozen=True, kw_only=True)
class _DecodedPoint:
    """A cell that policies were decoded in."""

    run: Run
    decoded: DecodedCells
    key: DecodedKey
    tuned: TunedCell

    @property
    def overhead_s(self) -> float:
        """ε of the γ decoded; where none can be held against its costs, what the policies were tuned with."""
        fitted = self.decoded.fitted.get(self.key)
        return self.tuned.t_overhead_s if fitted is None else float(fitted.t_overhead_s[0])

    def row(self, name: str) -> dict[str, Any]:
        """The row of one policy."""
        requests, rounds = self.decoded.requests[self.key], self.decoded.rounds[self.key]
        arm, totals = adaptive_arm(name), block_totals(requests)
        key, fitted = self.key, self.decoded.fitted.get(self.key)
        row = empty_row(key) | {"policy": name, "t_early_stop_check_s": self.tuned.t_early_stop_check_s}
        row |= {"t_overhead_s": self.overhead_s, "overhead_from": None if fitted is None else fitted.fitted_from}
        gammas = gammas_of(requests)
        blocks = _SharedBlocks.of(requests, totals, [arm, PLAIN, *map(speculate_arm, gammas)])
        row |= arm_figures(requests, totals, arm) | self._measured(blocks, gammas)
        counted = CountedArm.of(rounds, arm)
        row |= counted.figures()
        measured = row["speedup_measured"]
        source = self.decoded.sources.get(key)
        if source is not None and measured is not None:
            from_counts = self._from_counts(source, counted, totals, arm)
            row |= {"speedup_from_counts": from_counts, "cost_error": from_counts / measured - 1.0}
            row |= self._replayed(source, name, blocks)
        return row

    def _measured(self, blocks: _SharedBlocks, gammas: Sequence[int]) -> dict[str, Any]:
        """S and the ratio to the best fixed γ, with their intervals."""
        if not blocks.prompts:
            return {"blocks": 0}
        rates = self._replicates(batch_numbers(blocks.prompts), blocks.tokens, blocks.seconds)
        found = {"blocks": len(blocks.prompts)} | self._interval("speedup_measured", rates[:, 0] / rates[:, 1])
        if gammas:
            best = int(np.argmax(rates[0, 2:]))
            ratio = rates[:, 0] / rates[:, 2 + best]
            found |= {"best_fixed_gamma": gammas[best]} | self._interval("over_best_fixed", ratio)
        return found

    def _replicates(self, batch_of: IntArray, numerators: FloatArray, denominators: FloatArray) -> FloatArray:
        """Pooled rates (1 + R, A), over all blocks and over drawn batches, from sums (blocks, A)."""
        precision = self.decoded.config.precision
        top, bottom = sum_by_prompt(numerators, batch_of), sum_by_prompt(denominators, batch_of)
        weights = draw_prompts(len(top), precision.replicates, self.decoded.config.seed)
        return ratio_replicates(top, bottom, weights, confidence=precision.confidence, log_scale=True)

    def _interval(self, name: str, replicates: FloatArray) -> dict[str, float | None]:
        """The columns of an estimate (row 0) and its interval; None where a single batch leaves it unknown."""
        value, low, high = interval_around(replicates, self.decoded.config.precision.confidence)
        return {name: value, f"{name}_low": finite_or_none(low), f"{name}_high": finite_or_none(high)}

    def _from_counts(self, source: CostSource, counted: CountedArm, totals: Totals, arm: str) -> float:
        """S that the measured costs give for the rounds counted."""
        rounds = self.decoded.rounds[self.key]
        context, drafted = (rounds[name].to_numpy() for name in ("context", "drafted"))
        costs = costs_along(source, self.key.batch_size, context, drafted)
        plain_s = CountedArm.of(rounds, PLAIN).time_s(costs)
        policy_s = counted.time_s(costs, self.overhead_s) + counted.early_stop_checks * self.tuned.t_early_stop_check_s
        own, other = (sum(b.tokens - b.rows for b in totals[name].values()) for name in (arm, PLAIN))
        return float(measured_speedup(own, policy_s, plain_tokens=other, plain_seconds=plain_s))

    def _replayed(self, source: CostSource, name: str, blocks: _SharedBlocks) -> dict[str, Any]:
        """S of the replay and by how much it is off, over the blocks whose prompts were all recorded; {} without any.

        off_path: whether signals after a rejection were measured.
        """
        setting = self.decoded.settings[self.key]
        if setting.texts is None:
            return {}
        half_way = self.key.start_context + decoded_tokens(self.decoded.config) // 2
        point, look_s = Point(batch_size=self.key.batch_size, context=half_way), self.tuned.t_early_stop_check_s
        costs = replay_costs_at(source, point, self.tuned.gamma_max, self.overhead_s, look_s)
        texts = replayed_texts(self.run, setting, context=self.key.start_context, gamma_max=costs.gamma_max)
        known = np.flatnonzero([bool(np.isin(prompts, texts.prompts).all()) for prompts in blocks.prompts])
        if not known.size:
            return {}
        prompts = np.array([blocks.prompts[block] for block in known])
        halves = np.array([half_of(number, self.tuned.prompts) for number in prompts[:, 0].tolist()])
        seconds = np.zeros((known.size, 2))
        for half, policies in enumerate(self.tuned.halves):
            own = halves == half
            policy, seed = policies.policies[name], self.decoded.config.seed
            found = replayed_seconds(policy, texts, prompts[own], costs, replicates=REPLICATES, seed=seed)
            seconds[own] = np.stack([found.plain_s, found.policy_s], axis=1)
        rates = self._replicates(
            batch_numbers(prompts.tolist()),
            np.column_stack([blocks.tokens[known, :2], seconds[:, 0]]),
            np.column_stack([blocks.seconds[known, :2], seconds[:, 1]]),
        )
        errors = self._interval("error", rates[:, 2] * rates[:, 1] / rates[:, 0] - 1.0)
        return {"speedup_predicted": float(rates[0, 2]), "off_path": texts.chains.off_path} | errors


@dataclass(frozen=True, kw_only=True)
class _SharedBlocks:
    """The blocks of a cell that were decoded under every one of some arms."""

    prompts: list[tuple[int, ...]]
    """Of each block, by row."""
    tokens: FloatArray
    """(blocks, arms) committed in rounds, after the first ones."""
    seconds: FloatArray
    """(blocks, arms) that they took."""

    @classmethod
    def of(cls, requests: pd.DataFrame, totals: Totals, arms: Sequence[str]) -> _SharedBlocks:
        """Those of the arms named; none where an arm has none."""
        sums = [totals.get(arm, {}) for arm in arms]
        shared = [b for b in sums[0] if all(b in own and own[b].rate for own in sums)]
        own = requests[requests["arm"] == arms[0]]
        prompts = {block: tuple(rows.tolist()) for block, rows in own.groupby("block")["prompt"]}
        return cls(
            prompts=[prompts[b] for b in shared],
            tokens=np.array([[arm[b].tokens - arm[b].rows for arm in sums] for b in shared], dtype=np.float64),
            seconds=np.array([[arm[b].decode_s for arm in sums] for b in shared], dtype=np.float64),
        )
