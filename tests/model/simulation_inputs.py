"""What a simulation is made of: where acceptance comes from, what gamma is asked for, what a round costs.

All three are functions of arrays, so a user's own are written the same way:

    policy = lambda view: np.where(view.last_accepted == view.last_drafted, 5, 2)

R replications, N requests in each, B slots, D the largest gamma asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    positive_times_s,
    probabilities,
    times_s,
    whole_numbers,
)

Acceptance = Callable[[IntArray, IntArray, int], FloatArray]
"""(request ids (…), positions (…), depth D) -> conditional acceptance rates of the next D drafts (…, D)."""


@dataclass(frozen=True, kw_only=True)
class PolicyView:
    """What a gamma policy may look at before a round; arrays (R, B)."""

    round_index: int
    active: BoolArray
    position: IntArray
    """Tokens the row has committed after the one from the prefill."""
    last_drafted: IntArray
    """Drafts of the row's previous round; 0 before its first."""
    last_accepted: IntArray


Policy = Callable[[PolicyView], ArrayLike]
"""gamma asked for, broadcast to (R, B); at most the `gamma_max` given to `simulate`."""


@dataclass(frozen=True, kw_only=True)
class RoundShape:
    """What a round's cost may depend on; arrays (R,)."""

    gamma: IntArray
    """Largest gamma in force among active rows; 0 is a plain decoding step."""
    batch_size: IntArray
    """Rows paid for: all slots of a static batch, the active ones under continuous batching."""
    context: IntArray
    """Tokens in the cache of the longest active row."""
    catch_up: BoolArray
    """Whether some active row accepted everything in its previous round."""


RoundCost = Callable[[RoundShape], ArrayLike]
"""Seconds of a round, (R,)."""


def iid_acceptance(alpha: float) -> Acceptance:
    """Every judged draft is accepted with probability alpha."""
    return per_position_acceptance([float(probabilities("alpha", alpha))])


def per_position_acceptance(conditional: ArrayLike) -> Acceptance:
    """Conditional rates by position within the round (D,); the last one goes on beyond the list."""
    rates = np.atleast_1d(probabilities("conditional rates", conditional))

    def sample(_requests: IntArray, positions: IntArray, depth: int) -> FloatArray:
        return np.broadcast_to(rates[np.minimum(np.arange(depth), rates.size - 1)], (*positions.shape, depth))

    return sample


def trajectory_acceptance(acceptance: ArrayLike) -> Acceptance:
    """Recorded rates a_t by place in the text, (N, T): request n follows row n of every replication."""
    rates = probabilities("acceptance", acceptance)
    if rates.ndim != 2:
        raise ValueError(f"acceptance: found shape {rates.shape}, allowed: (texts, positions)")

    def sample(requests: IntArray, positions: IntArray, depth: int) -> FloatArray:
        places = positions[..., np.newaxis] + np.arange(depth)
        inside = rates[requests[..., np.newaxis], np.minimum(places, rates.shape[1] - 1)]
        return np.where(places < rates.shape[1], inside, 0.0)

    return sample


def fixed_costs(*, t_decode_s: float, t_round_s: ArrayLike, t_draft_catch_up_s: float = 0.0) -> RoundCost:
    """Costs by gamma in force alone: T_decode at 0, `t_round_s` (D,) for 1 … D, Delta_2 added in catch-up rounds."""
    decode = np.atleast_1d(positive_times_s("t_decode_s", t_decode_s))
    by_gamma = np.concatenate([decode, np.atleast_1d(positive_times_s("t_round_s", t_round_s))])
    catch_up = float(times_s("t_draft_catch_up_s", t_draft_catch_up_s))

    def cost(shape: RoundShape) -> FloatArray:
        extra = np.where(shape.catch_up & (shape.gamma > 0), catch_up, 0.0)
        return np.asarray(by_gamma[shape.gamma] + extra, dtype=np.float64)

    return cost


def fixed_gamma(gamma: int) -> Policy:
    """The policy that always asks for the same gamma."""
    drafts = int(whole_numbers("gamma", gamma, minimum=0))
    return lambda view: np.full(view.position.shape, drafts)


def eos_lengths(hazard: float, *, limit: int, shape: tuple[int, int], seed: int) -> tuple[IntArray, BoolArray]:
    """Text lengths (R, N) where each token is an end of text with probability `hazard`, cut at `limit` tokens.

    Returns the lengths and whether each text ended by its end-of-text token.
    """
    rate = float(probabilities("hazard", hazard))
    most = int(whole_numbers("limit", limit, minimum=1))
    rng = np.random.default_rng(seed)
    drawn = rng.geometric(rate, size=shape) if rate > 0 else np.full(shape, most + 1)
    return np.minimum(drawn, most).astype(np.int64), np.asarray(drawn <= most)
