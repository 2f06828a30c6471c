"""Times of a round's parts as somebody gives them, in options or from Python, for `predict`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specgauge.model.checks import IntArray, numbers, positive_times_s, times_s
from specgauge.model.costs import DraftKind, RoundCosts
from specgauge.model.settings import Provenance


@dataclass(frozen=True, kw_only=True)
class GivenCosts:
    """Costs as given, and what the numbers alone do not say."""

    costs: RoundCosts
    draft_steps: IntArray
    """(G,) forwards of the draft in a round."""
    verify_is_flat: bool
    """T_verify was given once for all gammas."""


def given_costs(
    gammas: Sequence[int],
    *,
    t_decode_s: float,
    t_verify_s: float | Sequence[float],
    t_draft_s: float | Sequence[float] | None = None,
    t_draft_total_s: Sequence[float] | None = None,
    t_draft_catch_up_s: float = 0.0,
    t_overhead_s: float | None = None,
    draft_kind_name: str = "autoregressive",
    called: Callable[[str], str] = str,
) -> GivenCosts:
    """The costs of some gammas in seconds; lists hold one value or one for each gamma, `t_draft_s` one a step.

    called: what errors call a time, by the name it has here.

    Raises:
        ValueError: times that no machine has, lists that do not fit the gammas, or not exactly one of the draft costs.
    """
    drafts, count = np.array(gammas), len(gammas)
    verify = np.atleast_1d(positive_times_s(called("t_verify_s"), t_verify_s))
    if verify.shape not in ((1,), drafts.shape):
        raise ValueError(
            f"{called('t_verify_s')}: expected one value for all {count} gammas or one each, got {verify.size}"
        )
    step, total = called("t_draft_s"), called("t_draft_total_s")
    if (t_draft_s is None) == (t_draft_total_s is None):
        got = "neither" if t_draft_s is None else "both"
        raise ValueError(f"draft cost: expected one of {step} and {total}, got {got}")
    kind = DraftKind(draft_kind_name, 0.0 if t_draft_s is None else t_draft_s)
    total_s = kind.total_s(drafts) if t_draft_total_s is None else np.atleast_1d(times_s(total, t_draft_total_s))
    if total_s.shape != drafts.shape:
        raise ValueError(f"{total}: expected one value for each of the {count} gammas, got {total_s.size}")
    overhead = called("t_overhead_s")
    times_s(overhead, abs(numbers(overhead, 0.0 if t_overhead_s is None else t_overhead_s)))
    costs = RoundCosts(
        gammas=drafts,
        t_decode_s=positive_times_s(called("t_decode_s"), t_decode_s),
        t_draft_total_s=total_s,
        t_verify_s=np.broadcast_to(verify, drafts.shape),
        t_draft_catch_up_s=times_s(called("t_draft_catch_up_s"), t_draft_catch_up_s),
        t_overhead_s=None if t_overhead_s is None else np.full(drafts.shape, t_overhead_s),
        provenance=np.full(drafts.shape, int(Provenance.ASSUMED)),
    )
    return GivenCosts(costs=costs, draft_steps=kind.passes(drafts), verify_is_flat=verify.size == 1 < drafts.size)
