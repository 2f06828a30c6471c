"""What the roofline says a round costs: a source of costs beside those that were timed.

    RooflineCosts(target=target, draft=draft).costs(batch_size=[1, 8], context=4096, gammas=[1, 2, 3, 4])

Without fitted efficiencies a part takes its roofline bound, the least time that the peaks allow.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    name: str = "roofline"

    def costs(self, batch_size: ArrayLike, context: ArrayLike, gammas: ArrayLike) -> RoundCosts:
        """Costs at every broadcast (batch size, context) of shape (…) and every gamma (G,), predicted; epsilon unknown.

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
            steps = self._step_s(self.draft, rows, tokens + np.arange(drafts.max()), 1)
            chain = np.cumsum(steps, axis=-1)[..., drafts - 1]
            catch_up = np.maximum(self._step_s(self.draft, batch, held, 2) - steps[..., 0], 0.0)
        return RoundCosts(
            gammas=drafts,
            t_decode_s=self._step_s(self.target, batch, held, 1),
            t_draft_total_s=chain,
            t_verify_s=self._step_s(self.target, rows, tokens, drafts + 1),
            t_draft_catch_up_s=catch_up,
            provenance=np.full(shape, int(Provenance.PREDICTED)),
        )

    def _step_s(self, model: Deployment, batch_size: ArrayLike, context: ArrayLike, tokens: ArrayLike) -> FloatArray:
        work = step_work(model, batch_size=batch_size, context=context, tokens=tokens)
        return step_time_s(work, model, self.efficiency)
