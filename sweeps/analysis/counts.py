"""What rounds yield, from counts that an engine kept: the acceptance of an imported run, and of one of servers.

    Omega(gamma)    tokens over rounds, pooled over everything counted at that γ
    A_i             rounds that accepted at least i drafts over all rounds, those that had none to verify included

γ that nothing was counted at takes the rates by position of the next larger one, interpolated. Replicates draw what was
counted apart (requests, runs) where there are several; of a single count they vary as independent rounds would, and of
an Ω without counts they do not vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.profiles import run_distribution
from specgauge.model.checks import FloatArray
from specgauge.model.sensitivity import alpha_from_tokens_per_round
from specgauge.model.settings import Provenance
from specgauge.model.speedup import survival_iid
from specgauge.model.stats.bootstrap import draw_prompts, ratio_replicates
from specgauge.sweeps.store.counts import CountsRow

_COUNTS_STREAM = 7


def counted_acceptance(
    rows: Sequence[CountsRow],
    gammas: Sequence[int],
    *,
    replicates: int,
    seed: int,
    confidence: float,
    counted: Provenance = Provenance.IMPORTED,
) -> Acceptance:
    """Ω and A_γ of some γ, (1 + R, G); NaN where neither a count nor one at a larger γ tells.

    counted: the provenance of what was counted at a γ itself.
    """
    omega, full = (np.full((1 + replicates, len(gammas)), np.nan) for _ in range(2))
    provenance = np.full(len(gammas), int(counted))
    for index, gamma in enumerate(gammas):
        own = [row for row in rows if row.gamma == gamma]
        larger = sorted({row.gamma for row in rows if row.gamma > gamma and row.accepted_by_position is not None})
        if own:
            omega[:, index] = _omega(own, gamma, replicates, (seed, gamma), confidence)
            full[:, index] = _share_of_full(own, gamma)
        elif larger:
            source = [row for row in rows if row.gamma == larger[0] and row.accepted_by_position is not None]
            omega[:, index] = _omega(_cut(source, gamma), gamma, replicates, (seed, gamma), confidence)
            full[:, index] = _share_of_full(_cut(source, gamma), gamma)
            provenance[index] = int(Provenance.INTERPOLATED)
    return Acceptance(gammas=np.array(gammas), tokens_per_round=omega, full_acceptance=full, provenance=provenance)


def _cut(rows: Iterable[CountsRow], gamma: int) -> list[CountsRow]:
    """The rows as if their rounds had drafted fewer."""
    found = []
    for row in rows:
        assert row.accepted_by_position is not None
        own = row.accepted_by_position[:gamma]
        found.append(
            CountsRow(
                pair=row.pair,
                sampling=row.sampling,
                source=row.source,
                gamma=gamma,
                rounds=row.rounds,
                accepted=sum(own),
                accepted_by_position=own,
            )
        )
    return found


def _omega(
    rows: Sequence[CountsRow], gamma: int, replicates: int, seed: tuple[int, int], confidence: float
) -> FloatArray:
    """(1 + R,) pooled Ω with its replicates."""
    counted = [row for row in rows if row.rounds is not None]
    if not counted:
        return np.full(1 + replicates, np.mean([row.omega for row in rows]))
    rounds = np.array([float(row.rounds or 0) for row in counted])
    tokens = rounds * np.array([row.omega for row in counted])
    if len(counted) > 1:
        weights = draw_prompts(len(counted), replicates, seed)
        return ratio_replicates(tokens[:, None], rounds[:, None], weights, confidence=confidence)[:, 0]
    estimate = float(tokens[0] / rounds[0])
    error = np.sqrt(_variance(counted[0], gamma, estimate) / rounds[0])
    drawn = np.random.default_rng([_COUNTS_STREAM, *seed]).standard_normal(replicates)
    return np.concatenate([[estimate], estimate + error * drawn])


def _variance(row: CountsRow, gamma: int, omega: float) -> float:
    """Of the drafts that one round accepts, by position where counted, else as one alpha spreads them."""
    if row.accepted_by_position is not None and row.rounds is not None:
        survival = np.array(row.accepted_by_position) / row.rounds
    else:
        survival = survival_iid(float(alpha_from_tokens_per_round(min(omega, gamma + 1.0), gamma)), gamma)
    shares, lengths = run_distribution(survival), np.arange(gamma + 1)
    mean = float(shares @ lengths)
    return float(shares @ (lengths - mean) ** 2)


def _share_of_full(rows: Iterable[CountsRow], gamma: int) -> float:
    """A_γ; NaN where no count tells it."""
    known = [row for row in rows if row.accepted_by_position is not None and row.rounds is not None]
    if not known:
        return float("nan")
    full = sum(row.accepted_by_position[gamma - 1] for row in known if row.accepted_by_position is not None)
    return full / sum(row.rounds or 0 for row in known)
