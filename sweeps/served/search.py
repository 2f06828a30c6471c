"""Which γ and batch sizes of a pair's servers need another block: those that could be best, and where that changes.

    log S(γ) = log Ω(γ) + log T_decode − log T_round(B, γ)

Ω is that of the text, counted at any batch size. Where it was not counted, later drafts are accepted at most as often
as the last one counted; where T_round(B, γ) was not measured, it is at least that of every smaller batch and γ that
was, unless rounds were seen to get shorter with γ.

    could win      log S(γ) − log S(best) may reach log(1 − 1 %), blocks and requests allowed for
    left out       what could not, but for neighbours of the best γ, since rounds have cliffs, and for all from the best
                   γ here to those of the batch sizes beside, since a schedule goes from one to the other
    open           γ that may be over 1 % better than the best, a recommended γ that may be over 1 % worse, and the best
                   one until the times tell its S to `relative_ci`
    between        where two batch sizes share no γ within 1 % of the best, one between them is measured, and so on
                   until they are neighbours; where they share one, but rounds that rise from one to the other in some
                   way would let another γ win, one between them once, and more where rounds do not lie on a line there

Blocks differ by a standard deviation that is pooled over all arms and cells, one run of an engine's to begin with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray
from specgauge.model.search.candidates import CONFIDENCE, EQUIVALENCE_MARGIN
from specgauge.model.speedup import recommended_gamma
from specgauge.sweeps.analysis.cell_estimate import ONE_RUN_SPREAD
from specgauge.sweeps.analysis.counts import counted_acceptance
from specgauge.sweeps.plan import Cell, begun_config, first_batch_sizes, plan_cells
from specgauge.sweeps.store.counts import CountsRow
from specgauge.sweeps.store.served import ServedLog, ServedRow

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

REPLICATES = 200
"""Draws of requests by which Ω is known."""
PARTS_A_START = 4
"""Into which a range of batch sizes is divided where servers are started anew for those between."""
_HALF = NormalDist().inv_cdf(0.95)
_NEAR = math.log1p(-EQUIVALENCE_MARGIN)


@dataclass(frozen=True, kw_only=True)
class Known:
    """log S of one γ over plain decoding, in one cell."""

    log_s: float
    """An upper bound where the γ was not measured."""
    variance: float
    """Of its blocks and requests; those of plain decoding are not in it."""
    blocks: int


@dataclass(frozen=True, kw_only=True)
class GammaSearch:
    """What the blocks of one pair and sampling setting, so far, tell of every γ."""

    gammas: tuple[int, ...]
    """Rising, without 0."""
    times_s: Mapping[tuple[int, int], Mapping[int, FloatArray]]
    """T_round of each block by (batch size, context) and γ, 0 for plain decoding."""
    acceptance: Acceptance | None
    """(1 + R, G) of `gammas`, NaN where nothing was counted; None before anything was."""
    relative_ci: float
    """What S of the best is to be known to, as far as times go: half its 90 % interval over itself."""

    @classmethod
    def of(
        cls,
        rows: Iterable[ServedRow],
        counts: Sequence[CountsRow],
        gammas: Sequence[int],
        *,
        seed: int,
        relative_ci: float,
    ) -> GammaSearch:
        """From the rows of the timing and the counts of one sampling setting."""
        found: dict[tuple[int, int], dict[int, list[float]]] = {}
        for row in rows:
            if row.reason is None and row.t_round_s is not None and row.gamma is not None:
                found.setdefault((row.batch_size, row.context), {}).setdefault(row.gamma, []).append(row.t_round_s)
        times_s = {at: {gamma: np.array(own) for gamma, own in cell.items()} for at, cell in found.items()}
        acceptance = None
        if counts:
            acceptance = counted_acceptance(counts, gammas, replicates=REPLICATES, seed=seed, confidence=0.9)
        return cls(
            gammas=tuple(gammas),
            times_s=times_s,
            acceptance=acceptance,
            relative_ci=relative_ci,
        )

    @cached_property
    def spread(self) -> float:
        """Standard deviation of log T from block to block, with one degree of freedom for `ONE_RUN_SPREAD`."""
        logs = [np.log(own) for cell in self.times_s.values() for own in cell.values()]
        squares = sum(float(((own - own.mean()) ** 2).sum()) for own in logs)
        return math.sqrt((ONE_RUN_SPREAD**2 + squares) / (1 + sum(own.size - 1 for own in logs)))

    @cached_property
    def is_rising(self) -> bool:
        """Whether rounds were seen to get shorter nowhere with γ, by more than blocks differ."""
        reach = 2 * self.spread
        cells = [{gamma: float(np.log(own).mean()) for gamma, own in cell.items()} for cell in self.times_s.values()]
        return all(
            later >= earlier - reach for cell in cells for (_, earlier), (_, later) in pairwise(sorted(cell.items()))
        )

    def reason(self, at: tuple[int, int], gamma: int) -> str | None:
        """Why a γ need not be measured in a cell; None where it may be the best, or too little is known."""
        known = self._known(at)
        if known is None or gamma not in known or gamma in self._kept(at, known):
            return None
        best = self._best(known)
        most = known[gamma].log_s + self._margin(known[gamma], known[best])
        if most - known[best].log_s >= _NEAR:
            return None
        return f"cannot be best: S at most {math.exp(most):.3g}, best is {math.exp(known[best].log_s):.3g}"

    def is_open(self, at: tuple[int, int], gamma: int) -> bool:
        """Whether more blocks of a γ (0: plain decoding) can still change what is recommended in a cell.

        Not before plain decoding, a γ and its acceptance are known there: nothing is recommended then.
        """
        known = self._known(at)
        if known is None:
            return False
        measured = {one: own for one, own in known.items() if own.blocks}
        best, chosen = self._best(known), self._recommended(known)
        open_ones = set[int]()
        for other, own in measured.items():
            ahead, margin = own.log_s - measured[best].log_s, self._margin(own, measured[best])
            may_lead = other != best and ahead + margin > -_NEAR
            may_lose = other == chosen != best and ahead - margin < _NEAR
            if may_lead or may_lose:
                open_ones |= {other, best}
        half = _HALF * self.spread * math.sqrt(1 / measured[best].blocks + 1 / measured[0].blocks)
        if best and half > self.relative_ci:
            open_ones |= {0, best}
        return gamma in open_ones

    def next_sizes(
        self, context: int, left: Sequence[int], *, first: Collection[int] = (), parts: int = 2
    ) -> list[int]:
        """Batch sizes to be measured next: those that divide each range whose γ is not known into parts.

        left: rising batch sizes that are not measured; first: those that the search began with.
        """
        sizes = sorted(size for size, own in self.times_s if own == context and self._known((size, context)))
        found = set[int]()
        for low, high in pairwise(sizes):
            inside = [size for size in left if low < size < high]
            if inside and self._may_change((low, context), (high, context), first):
                found |= {inside[(len(inside) * part - 1) // parts] for part in range(1, parts)}
        return sorted(found)

    def _may_change(self, low: tuple[int, int], high: tuple[int, int], first: Collection[int]) -> bool:
        """Whether between two measured batch sizes another γ may be the best than at both."""
        ends = self._rates(low), self._rates(high)
        good = [{gamma for gamma, rate in own.items() if rate - max(own.values()) >= _NEAR} for own in ends]
        if not good[0] & good[1]:
            return True
        kept = max(good[0] & good[1], key=lambda gamma: ends[1][gamma])
        others = [rate for gamma, rate in ends[0].items() if gamma != kept]
        if not others or ends[1][kept] - max(others) >= _NEAR:  # however rounds rise from one to the other
            return False
        is_looked_at = not (low[0] in first and high[0] in first)
        return not is_looked_at or self._is_bent(low) or self._is_bent(high)

    def _rates(self, at: tuple[int, int]) -> dict[int, float]:
        """log of the tokens a second of a stream, of every γ that was measured in a cell."""
        known = self._known(at) or {}
        plain = float(np.log(self.times_s[at][0]).mean())
        return {gamma: own.log_s - plain for gamma, own in known.items() if own.blocks}

    def _is_bent(self, at: tuple[int, int]) -> bool:
        """Whether rounds of a γ lie off the line between the batch sizes beside by more than blocks differ."""
        beside = self._beside(at)
        if len(beside) < 2:
            return False
        (low, _), (high, _) = beside
        share = (at[0] - low) / (high - low)
        for gamma, own in self.times_s[at].items():
            ends = [self.times_s[one].get(gamma) for one in beside]
            if ends[0] is None or ends[1] is None:
                continue
            line = (1 - share) * float(ends[0].mean()) + share * float(ends[1].mean())
            reach = _HALF * self.spread * math.sqrt(sum(1 / one.size for one in (own, ends[0], ends[1])))
            if abs(math.log(float(own.mean()) / line)) > EQUIVALENCE_MARGIN + reach:
                return True
        return False

    def _known(self, at: tuple[int, int]) -> dict[int, Known] | None:
        """Every γ of a cell that anything is known of, plain decoding as 0; None before both were measured there."""
        if at not in self._cells:
            self._cells[at] = self._cell(at)
        return self._cells[at]

    @cached_property
    def _cells(self) -> dict[tuple[int, int], dict[int, Known] | None]:
        """What was asked for before."""
        return {}

    def _cell(self, at: tuple[int, int]) -> dict[int, Known] | None:
        cell, spread, accepted = self.times_s.get(at, {}), self.spread, self.acceptance
        if 0 not in cell or accepted is None or len(cell) < 2:
            return None
        plain = float(np.log(cell[0]).mean())
        found = {0: Known(log_s=0.0, variance=spread**2 / cell[0].size, blocks=cell[0].size)}
        for index, gamma in enumerate(self.gammas):
            own, (log_omega, variance) = cell.get(gamma), self._log_omega(index)
            if own is not None and accepted.is_known[index]:
                least, blocks = float(np.log(own).mean()), own.size
            elif self.is_rising:
                least, blocks = self._least(at, gamma)
            else:
                continue
            found[gamma] = Known(
                log_s=log_omega + plain - least,
                variance=variance + spread**2 / blocks,
                blocks=blocks if own is not None else 0,
            )
        return found

    def _log_omega(self, index: int) -> tuple[float, float]:
        """log Ω of a γ, an upper bound where nothing was counted at it, and its variance."""
        assert self.acceptance is not None
        gammas, omega = self.gammas, self.acceptance.tokens_per_round
        known = np.isfinite(omega[0])
        if known[index]:
            logs = np.log(np.clip(omega[:, index], 1.0, gammas[index] + 1.0))
            return float(logs[0]), float(logs[1:].var())
        smaller = [place for place in range(index) if known[place]]
        if not smaller:
            return math.log(gammas[index] + 1.0), 0.0
        below = smaller[-1]
        full = float(self.acceptance.estimate.full_acceptance[below])
        rate = full if np.isfinite(full) else (omega[0, below] - 1.0) / gammas[below]
        logs = np.log(np.clip(omega[:, below], 1.0, gammas[below] + 1.0) + rate * (gammas[index] - gammas[below]))
        return float(logs[0]), float(logs[1:].var())

    def _least(self, at: tuple[int, int], gamma: int) -> tuple[float, int]:
        """log of the least that T_round of a γ can be in a measured cell, and the blocks it is known by."""
        return max(
            (float(np.log(own).mean()), own.size)
            for (batch_size, context), cell in self.times_s.items()
            if batch_size <= at[0] and context == at[1]
            for other, own in cell.items()
            if other <= gamma
        )

    def _kept(self, at: tuple[int, int], known: Mapping[int, Known]) -> set[int]:
        """γ that are measured in any case."""
        best = [self._best(known)]
        for beside in self._beside(at):
            there = self._known(beside)
            best += [] if there is None else [self._best(there)]
        return {gamma for gamma in self.gammas if min(best) <= gamma <= max(best)} | set(self._neighbours(known))

    def _beside(self, at: tuple[int, int]) -> list[tuple[int, int]]:
        """The cells of the next smaller and the next larger batch size."""
        sizes = sorted(size for size, context in self.times_s if context == at[1])
        place = sizes.index(at[0])
        return [(size, at[1]) for size in (*sizes[max(place - 1, 0) : place], *sizes[place + 1 : place + 2])]

    def _best(self, known: Mapping[int, Known]) -> int:
        return max((one for one in known if known[one].blocks), key=lambda one: known[one].log_s)

    def _recommended(self, known: Mapping[int, Known]) -> int:
        measured = sorted(one for one in known if known[one].blocks)
        return int(recommended_gamma(np.exp([known[one].log_s for one in measured]), measured))

    def _neighbours(self, known: Mapping[int, Known]) -> tuple[int, ...]:
        """The best γ above 0 and those beside it."""
        measured = [one for one in known if one and known[one].blocks]
        if not measured:
            return ()
        place = self.gammas.index(max(measured, key=lambda one: known[one].log_s))
        return self.gammas[max(place - 1, 0) : place + 2]

    def _margin(self, own: Known, best: Known) -> float:
        """How much larger than estimated log S over that of the best may be."""
        deviations = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / len(self.gammas))  # γ share the confidence
        return deviations * math.sqrt(own.variance + best.variance)


def most_passes(sizes: Sequence[int], parts: int) -> int:
    """How often a search may go on with more of some rising batch sizes, dividing each range into parts.

    >>> most_passes(range(1, 17), 4), most_passes(range(1, 17), 2), most_passes([1, 2, 4], 2)
    (2, 3, 0)
    """
    places = [list(sizes).index(size) for size in first_batch_sizes(sizes)]
    left, passes = max((after - before - 1 for before, after in pairwise(places)), default=0), 0
    while left > 0:
        left, passes = -(-(left - parts + 1) // parts), passes + 1
    return passes


class PairSearch:
    """The search for γ, and for the batch sizes where it changes, of one pair while its servers are measured."""

    def __init__(self, config: Config, pair: str, log: ServedLog) -> None:
        self._config, self._pair, self._log = config, pair, log
        self._found: dict[str, GammaSearch] = {}
        """By sampling setting; made anew once the log has another block."""
        self._changes = log.changes
        self._cells = [cell for cell in plan_cells(config) if cell.pair == pair]
        first = {(cell.batch_size, cell.context) for cell in plan_cells(begun_config(config, ())) if cell.pair == pair}
        self._first = {
            context: tuple(sorted(size for size, own in first if own == context)) for context in config.grid.context
        }

    def leaves_out(self, sampling: str, at: tuple[int, int], gamma: int) -> str | None:
        """Why a γ need not be measured in a cell; None where it must, or all are asked for (`grid.gamma_search`)."""
        return self._of(sampling).reason(at, gamma) if self._config.grid.is_searched else None

    def is_open(self, sampling: str, at: tuple[int, int], gamma: int) -> bool:
        """Whether more blocks of a γ can still change what is recommended."""
        return self._of(sampling).is_open(at, gamma)

    def more_cells(self, begun: Collection[Cell], *, parts: int = 2) -> list[Cell]:
        """Cells of further batch sizes at which another γ may be the best; none once nothing can change.

        begun: the cells that are measured, or were tried; parts: into which a range of batch sizes is divided.
        """
        if not self._config.grid.are_sizes_searched:
            return []
        have, wanted = {cell.id for cell in begun}, set[tuple[int, int]]()
        left = [cell for cell in self._cells if cell.id not in have]
        for sampling in self._config.sampling:
            search = self._of(sampling.name)
            for context in self._config.grid.context:
                sizes = sorted({cell.batch_size for cell in left if cell.context == context})
                found = search.next_sizes(context, sizes, first=self._first[context], parts=parts)
                wanted |= {(size, context) for size in found}
        return [cell for cell in left if (cell.batch_size, cell.context) in wanted]

    def _of(self, sampling: str) -> GammaSearch:
        if self._changes != self._log.changes:
            self._found.clear()
            self._changes = self._log.changes
        if sampling not in self._found:
            self._found[sampling] = GammaSearch.of(
                (row for row in self._log.rows("timing", self._pair) if row.sampling == sampling),
                self._log.counts(self._pair, sampling),
                self._config.grid.gamma,
                seed=self._config.seed,
                relative_ci=self._config.precision.relative_ci,
            )
        return self._found[sampling]
