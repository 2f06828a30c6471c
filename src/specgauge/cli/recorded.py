"""What a run recorded of acceptance, as `predict` takes it: `predict --from-run RUN`, and `Run.predict` from Python.

    (setting,) = recorded_settings(run, pair="small", sampling="greedy")
    acceptance = acceptance_of(run, setting, None)
    predict_rows(acceptance, with_mean_verification(given_costs, acceptance, batch_size=1))

Acceptance is of the texts and the pair; the times may be those of any machine or engine that runs the same pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from specgauge.cli.costs import GivenCosts
from specgauge.cli.parsing import GivenAcceptance, RecordedProfile
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.lookups import mean_verify_s
from specgauge.model.checks import FloatArray
from specgauge.model.costs import RoundCosts
from specgauge.model.sensitivity import alpha_from_tokens_per_round
from specgauge.model.speedup import speedups
from specgauge.model.stats.bootstrap import percentile_interval
from specgauge.sweeps.analysis.settings import RunSetting, run_settings
from specgauge.sweeps.plan import planned_pairs
from specgauge.sweeps.recommend import refuse_what_is_not_there
from specgauge.sweeps.store.rundir import Run


def recorded_settings(
    run: Run, *, pair: str | None = None, sampling: str | None = None, context: int | None = None
) -> list[RunSetting]:
    """The settings of one pair whose acceptance was recorded, of all its sampling settings unless one is named.

    Raises:
        ValueError: a pair, sampling or context that the run does not have, several pairs and none named, or no
            acceptance that was recorded.
    """
    refuse_what_is_not_there(run, pair=pair, sampling=sampling, batch_size=None, context=context)
    pairs = [one.name for one in planned_pairs(run.config)]
    if pair is None and len(pairs) > 1:
        raise ValueError(f"pair: expected one of {', '.join(pairs)}, since times are those of one pair, got none")
    found = list(run_settings(run, {}, pairs=pairs if pair is None else [pair]))
    found = [one for one in found if sampling in (None, one.key.sampling)]
    recorded = [one for one in found if one.rounds is not None]
    if not recorded:
        first = found[0]
        raise ValueError(f"{run.path}: pair {first.key.pair}, sampling {first.key.sampling}: {first.reason}")
    return recorded


def acceptance_of(
    run: Run, setting: RunSetting, gammas: Sequence[int] | None, *, context: int | None = None
) -> GivenAcceptance:
    """What a setting recorded, at some gammas of the run's grid, or at all that its texts are long enough for.

    context: of the texts that start there, where the run has some; else, or with None, of all its texts.

    Raises:
        ValueError: a gamma that is not known.
    """
    rounds = setting.rounds if context is None else setting.rounds_at(context)
    assert rounds is not None
    acceptance = rounds.acceptance
    known = acceptance.gammas[acceptance.is_known].tolist()
    wrong = [gamma for gamma in gammas or () if gamma not in known]
    if wrong or not known:
        listed = ", ".join(map(str, known)) or "none, since no text is long enough"
        raise ValueError(f"gamma: expected those that {run.path} knows, {listed}, got {wrong[0] if wrong else 'none'}")
    inputs = {name: value for name, value in asdict(setting.key).items() if name != "mode"}
    return GivenAcceptance(
        profile=RecordedProfile(recorded=_with_full_acceptance(acceptance.only(known)), gamma_drafted=max(known)),
        gammas=list(known if gammas is None else gammas),
        inputs={"run": str(run.path), **inputs},
    )


def _with_full_acceptance(acceptance: Acceptance) -> Acceptance:
    """A_gamma where an import told tokens a round without positions: that of one alpha with the same Omega."""
    unknown = np.isnan(acceptance.full_acceptance)
    if not unknown.any():
        return acceptance
    omega = np.clip(acceptance.tokens_per_round, 1.0, acceptance.gammas + 1.0)
    alpha = np.asarray(alpha_from_tokens_per_round(omega, acceptance.gammas))
    full = np.where(unknown, alpha**acceptance.gammas, acceptance.full_acceptance)
    return replace(acceptance, full_acceptance=full)


def with_mean_verification(given: GivenCosts, acceptance: GivenAcceptance, *, batch_size: int) -> GivenCosts:
    """The costs with the verification that rounds take on average, where a lookup may find fewer than gamma drafts."""
    shares = acceptance.profile.at(acceptance.gammas).draft_count_distribution
    if shares is None:
        return given
    verify_s = mean_verification_s(given.costs, shares[np.newaxis], batch_size=batch_size)[0]
    return replace(given, costs=replace(given.costs, t_verify_s=verify_s))


def drawn_interval(
    costs: RoundCosts, acceptance: GivenAcceptance, *, batch_size: int, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of S at exact costs, each (G,), over the prompts of recorded acceptance; NaN with a single one."""
    assert isinstance(acceptance.profile, RecordedProfile)
    drawn = acceptance.profile.recorded.only(acceptance.gammas)
    if drawn.draft_count_distribution is not None:
        verify_s = mean_verification_s(costs, drawn.draft_count_distribution, batch_size=batch_size)
        costs = replace(costs, t_verify_s=verify_s)
    return percentile_interval(speedups(costs, drawn, batch_size=batch_size)[1:], confidence)


def mean_verification_s(costs: RoundCosts, shares: FloatArray, *, batch_size: int) -> FloatArray:
    """(1 + R, G) E[T_verify] of costs (G,), by P(a round verifies k drafts) of one row, (1 + R, G, D + 1)."""
    rows = shares.shape[0]
    drawn = replace(
        costs,
        t_decode_s=np.broadcast_to(costs.t_decode_s, (rows,)),
        t_verify_s=np.broadcast_to(costs.t_verify_s, (rows, costs.gammas.size)),
    )
    return mean_verify_s(drawn, shares, batch_size=batch_size)
