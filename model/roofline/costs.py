"""What the roofline says a round costs: a source of costs beside those that were timed.

    RooflineCosts(target=target, draft=draft).costs(batch_size=[1, 8], context=4096, gammas=[1, 2, 3, 4])

Without fitted efficiencies a part takes its roofline bound, the least time that the peaks allow.  With them, how far
such times were off where they were measured (`TimeErrors`) gives costs their replicates, and S its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, whole_numbers
from specgauge.model.costs import RoundCosts
from specgauge.model.roofline.deployment import Deployment
from specgauge.model.roofline.step_time import Efficiency, step_time_s, step_work
from specgauge.model.settings import Provenance


@dataclass(frozen=True, kw_only=True)
class RooflineCosts:
    """Costs of a draft and a target on one machine, predicted from their shapes; a `CostSource`."""

    target: Deployment
    draft: Deployment | None = None
    """None: drafts that cost nothing, such as those looked up in the prompt."""
    efficiency: Efficiency | None = None
    """Fitted to measured steps (`specgauge.model.roofline.calibration`); None: every peak is reached."""
    draft_efficiency: Efficiency | None = None
    """The draft's own, where its times were measured; None: as the target's."""
    t_overhead_s: float | None = None
    """Epsilon where it was measured; None: S is optimistic."""
    name: str = "roofline"

    def costs(self, batch_size: ArrayLike, context: ArrayLike, gammas: ArrayLike) -> RoundCosts:
        """Costs at every broadcast (batch size, context) of shape (…) and every gamma (G,), predicted.

        Delta_2 is a draft step of two tokens less one of one; drafts of a chain see the context grow.

        Raises:
            ValueError: a batch size or gamma below 1, a negative context, or a peak that the machine's entry lacks.
        """
        batch, held = np.broadcast_arrays(
            whole_numbers("batch_size", batch_size, minimum=1), whole_numbers("context", context, minimum=0)
        )
        drafts = np.atleast_1d(whole_numbers("gammas", gammas, minimum=1))
        shape = (*batch.shape, drafts.size)
        rows, tokens = batch[..., np.newaxis], held[..., np.newaxis]
        chain, catch_up = np.zeros(shape), None
        if self.draft is not None:
            own = self.draft_efficiency or self.efficiency
            steps = _step_s(self.draft, own, rows, tokens + np.arange(drafts.max()), 1)
            chain = np.cumsum(steps, axis=-1)[..., drafts - 1]
            fed = own and replace(own, token_s=0.0)  # a step that is fed two tokens draws one, as any other does
            two_s, one_s = (_step_s(self.draft, fed, batch, held, tokens) for tokens in (2, 1))
            catch_up = np.maximum(two_s - one_s, 0.0)
        return RoundCosts(
            gammas=drafts,
            t_decode_s=_step_s(self.target, self.efficiency, batch, held, 1),
            t_draft_total_s=chain,
            t_verify_s=_step_s(self.target, self.efficiency, rows, tokens, drafts + 1),
            t_draft_catch_up_s=catch_up,
            t_overhead_s=None if self.t_overhead_s is None else np.full(shape, self.t_overhead_s),
            provenance=np.full(shape, int(Provenance.PREDICTED)),
        )


def _step_s(
    model: Deployment, efficiency: Efficiency | None, batch_size: ArrayLike, context: ArrayLike, tokens: ArrayLike
) -> FloatArray:
    work = step_work(model, batch_size=batch_size, context=context, tokens=tokens)
    return step_time_s(work, model, efficiency)


REPLICATES = 400
_SEED = 11


@cache
def _draws(count: int) -> FloatArray:
    """Standard normal draws of what decode, verify and draft are off by, (count, 3)."""
    found = np.random.default_rng(_SEED).standard_normal((count, 3))
    found.flags.writeable = False
    return found


@dataclass(frozen=True, kw_only=True)
class TimeErrors:
    """How far predicted times are off: root mean squares of log(predicted / measured) of steps left out of the fit."""

    decode: float
    verify: float
    ratio: float
    """Of T_verify / T_decode, in which what both are off by alike cancels."""
    draft: float
    """Of C(gamma), the times of drafts."""

    def interval_s(self, t_decode_s: float, confidence: float) -> tuple[float, float]:
        """Central interval of a step of one token, its error taken as log-normal."""
        reach = NormalDist().inv_cdf(0.5 + confidence / 2) * self.decode
        return t_decode_s * math.exp(-reach), t_decode_s * math.exp(reach)

    def replicates(self, costs: RoundCosts, count: int = REPLICATES) -> RoundCosts:
        """Costs without leading axes as (1 + count) rows: themselves, then drawn as far off as times were.

        T_decode and T_verify are off together as measured (`ratio`), T_verify by the same share at every gamma; a
        draft, another model, is off by itself.  The draws are the same for all costs.
        """
        draws = _draws(count)
        both = self.decode * self.verify
        shared = (self.decode**2 + self.verify**2 - self.ratio**2) / (2 * both) if both else 0.0
        shared = min(max(shared, -1.0), 1.0)
        verify = self.verify * (shared * draws[:, 0] + math.sqrt(1 - shared**2) * draws[:, 1])
        factors = np.exp(np.stack([self.decode * draws[:, 0], verify, self.draft * draws[:, 2]]))
        decode, verify, draft = np.concatenate([np.ones((3, 1)), factors], axis=1)
        catch_up = costs.t_draft_catch_up_s
        return replace(
            costs,
            t_decode_s=costs.t_decode_s * decode,
            t_draft_total_s=costs.t_draft_total_s * draft[:, np.newaxis],
            t_verify_s=costs.t_verify_s * verify[:, np.newaxis],
            t_draft_catch_up_s=None if catch_up is None else catch_up * draft,
        )
