"""`specgauge predict` from flags: one row for each gamma, the best of them, and what would change the answer.

The document that comes out is what `--json` prints: `rows` (inputs, Omega, T_round, S, break-even points) beside
`best_gamma`, `recommended_gamma`, `one_alpha` (the fit of one alpha, where rates were given) and `at_recommended`
(limits and sensitivities there).  Unknown is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specgauge.cli.parsing import GivenAcceptance
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.profiles import OneAlpha
from specgauge.model.checks import FloatArray, positive_times_s, times_s
from specgauge.model.costs import DraftKind, RoundCosts
from specgauge.model.decision import OPTIMISTIC, estimate_speedup
from specgauge.model.provenance import Provenance, finite_or_none
from specgauge.model.sensitivity import (
    alpha_from_tokens_per_round,
    break_even_alpha,
    break_even_draft_total_s,
    required_alpha,
    sensitivities,
    speedup_limits,
)
from specgauge.model.speedup import (
    accepted_draft_tokens,
    round_times_s,
    throughput_tokens_per_s,
    time_per_token_s,
    within_limits,
)

ASSUMED_FLAT = "assumed flat"
GIVEN = "given"


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """The times typed, in seconds; lists hold one value or one for each gamma."""

    t_decode_s: float
    t_verify_s: list[float]
    draft: DraftKind | None = None
    t_draft_total_s: list[float] | None = None
    """C(gamma) itself, in place of a draft kind."""
    t_draft_catch_up_s: float = 0.0
    t_overhead_s: float | None = None

    def costs(self, gammas: list[int]) -> RoundCosts:
        """What rounds of these gammas cost."""
        verify = _by_gamma("--t-verify", positive_times_s("--t-verify", self.t_verify_s), gammas)
        if (self.draft is None) == (self.t_draft_total_s is None):
            raise ValueError("draft cost: found both or neither of --t-draft and --t-draft-total, allowed: one of them")
        if self.draft is not None:
            draft = self.draft.total_s(gammas)
        else:
            draft = times_s("--t-draft-total", self.t_draft_total_s or [])
            if draft.size != len(gammas):
                raise ValueError(
                    f"--t-draft-total: found {draft.size} values for {len(gammas)} gammas, allowed: one for each, "
                    "since a chain of more drafts takes longer"
                )
        overhead = None if self.t_overhead_s is None else times_s("--t-overhead", self.t_overhead_s)
        return RoundCosts(
            gammas=np.array(gammas),
            t_decode_s=positive_times_s("--t-decode", self.t_decode_s),
            t_draft_total_s=draft,
            t_verify_s=verify,
            t_draft_catch_up_s=times_s("--t-draft-catch-up", self.t_draft_catch_up_s),
            t_overhead_s=None if overhead is None else np.broadcast_to(overhead, verify.shape),
            provenance=np.full(len(gammas), int(Provenance.ASSUMED)),
        )


def predict_rows(
    acceptance: GivenAcceptance,
    times: RoundTimes,
    *,
    batch_size: int = 1,
    max_itl_s: float | None = None,
    wanted_speedup: float | None = None,
) -> dict[str, Any]:
    """The document of one prediction by gamma.

    Raises:
        ValueError: negative times, lists that do not fit the gammas, a missing or doubled draft cost.
    """
    costs, accepted = times.costs(acceptance.gammas), acceptance.profile.at(acceptance.gammas)
    estimate = estimate_speedup(costs, accepted, batch_size=batch_size, max_itl_s=max_itl_s)
    chosen = len(acceptance.gammas) > 1
    choice = {
        "best_gamma": estimate.best_gamma if chosen else None,
        "recommended_gamma": estimate.recommended_gamma if chosen else None,
    }
    t_round_s = round_times_s(costs, accepted, batch_size=batch_size)
    allowed = within_limits(t_round_s=t_round_s, max_itl_s=max_itl_s)
    columns: dict[str, Any] = {
        **_costs_columns(costs, flat=chosen and len(times.t_verify_s) == 1),
        **_acceptance_columns(accepted),
        "t_round_s": t_round_s,
        "speedup": estimate.speedup,
        "time_per_token_s": time_per_token_s(accepted.tokens_per_round, t_round_s=t_round_s),
        "throughput_tokens_per_s": throughput_tokens_per_s(
            accepted.tokens_per_round, t_round_s=t_round_s, batch_size=batch_size
        ),
        "break_even_alpha": break_even_alpha(costs, batch_size=batch_size),
        "break_even_draft_total_s": break_even_draft_total_s(costs, accepted, batch_size=batch_size),
        "within_limits": allowed,
    }
    profile, recommended = acceptance.profile, estimate.recommended_gamma
    return {
        "rows": [
            {"gamma": gamma, "batch_size": batch_size, **acceptance.inputs}
            | {name: _plain(values[i]) for name, values in columns.items()}
            | choice
            for i, gamma in enumerate(acceptance.gammas)
        ],
        **choice,
        "speculation_pays": bool(np.any(estimate.speedup[allowed] > 1)),
        "acceptance": {
            "source": profile.source,
            "gamma_drafted": None if profile.source == "alpha" else profile.gamma_drafted,
        },
        "one_alpha": _one_alpha(profile.fit),
        "label": OPTIMISTIC if costs.is_optimistic else None,
        "max_itl_s": max_itl_s,
        "wanted_speedup": wanted_speedup,
        "at_recommended": None
        if not recommended
        else _at(costs.only(recommended), accepted.only([recommended]), times.draft, batch_size, wanted_speedup),
    }


def _costs_columns(costs: RoundCosts, *, flat: bool) -> dict[str, Sequence[Any]]:
    """The times of every gamma, as given."""
    count = costs.gammas.size
    catch_up, overhead = costs.t_draft_catch_up_s, costs.t_overhead_s
    return {
        "t_decode_s": [costs.t_decode_s] * count,
        "t_draft_total_s": costs.t_draft_total_s.tolist(),
        "t_draft_catch_up_s": [0.0 if catch_up is None else catch_up] * count,
        "t_verify_s": costs.t_verify_s.tolist(),
        "t_verify_known": [ASSUMED_FLAT if flat else GIVEN] * count,
        "t_overhead_s": [None] * count if overhead is None else overhead.tolist(),
    }


def _acceptance_columns(accepted: Acceptance) -> dict[str, Sequence[Any]]:
    return {
        "acceptance_known": [Provenance(origin).label for origin in accepted.provenance.tolist()],
        "tokens_per_round": accepted.tokens_per_round.tolist(),
        "accepted_draft_tokens": accepted_draft_tokens(accepted.tokens_per_round).tolist(),
        "full_acceptance": accepted.full_acceptance.tolist(),
    }


def _plain(value: Any) -> Any:
    """A number of an array as it stands in JSON."""
    if isinstance(value, str | bool | np.bool_ | None):
        return bool(value) if isinstance(value, np.bool_) else value
    return finite_or_none(value)


def _by_gamma(name: str, values: FloatArray, gammas: list[int]) -> FloatArray:
    if values.size not in (1, len(gammas)):
        raise ValueError(
            f"{name}: found {values.size} values for {len(gammas)} gammas, allowed: one for each, or one for all"
        )
    return np.broadcast_to(values, (len(gammas),))


def _at(
    costs: RoundCosts, accepted: Acceptance, draft: DraftKind | None, batch_size: int, wanted: float | None
) -> dict[str, Any]:
    """What would change the answer at one gamma."""
    gamma = int(costs.gammas[0])
    alpha = float(alpha_from_tokens_per_round(accepted.tokens_per_round[0], gamma))
    passes = gamma if draft is None else int(draft.passes(gamma))
    slopes = sensitivities(alpha, costs, batch_size=batch_size, draft_steps=passes)
    limits = speedup_limits(alpha, costs, batch_size=batch_size)
    required = None if wanted is None else required_alpha(wanted, costs, batch_size=batch_size)[0]
    return {
        "gamma": gamma,
        "alpha_omega": alpha,
        "required_alpha": None if required is None else finite_or_none(required),
        "limits": {name: float(value[0]) for name, value in vars(limits).items()},
        "sensitivities": {name: float(value[0]) for name, value in vars(slopes).items()},
    }


def _one_alpha(fit: OneAlpha | None) -> dict[str, Any] | None:
    return None if fit is None else {**vars(fit), "misleads": fit.misleads, "verdict": fit.verdict}
