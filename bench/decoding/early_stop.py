"""Asking a policy, draft by draft, whether to go on drafting.

A policy that reads signals is asked after every draft of a round but the last that may be made.  Its answer depends on
what the draft says of its own tokens, never on the target, so that stopping leaves the law of the texts as it is.  Each
look waits for the device; policies that fix γ beforehand are not asked.

    looks = Looks(choice, active=[True, False, True])
    proposal = drafter.propose(committed, gammas, uniforms, looks)       # stops where the policy says no
    looks.stopped_at                                                     # at how many drafts, None where it did not

Shapes: B rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specgauge.model.policies.policy import GammaChoice

GoesOn = Callable[[int, Sequence[float], Sequence[float]], bool]
"""Whether to draft once more after so many drafts, whose last had these largest probabilities and entropies, (B,) each.

NaN stands for a row that may draft no more.  Asked after drafts 1, 2, …, until the answer is no or no row may go on.
"""


class Looks:
    """A policy's choice as a drafter asks it: rows that have ended are left out."""

    def __init__(self, choice: GammaChoice, active: Sequence[bool]) -> None:
        self._choice = choice
        self._rows = [row for row, is_active in enumerate(active) if is_active]
        self.stopped_at: int | None = None
        """Drafts after which the policy said no; None where it was not asked or never did."""

    def __call__(self, depth: int, top_probs: Sequence[float], entropies_nats: Sequence[float]) -> bool:
        """As `GoesOn`."""
        rows = self._rows
        if self._choice.goes_on(depth, [top_probs[row] for row in rows], [entropies_nats[row] for row in rows]):
            return True
        self.stopped_at = depth
        return False


def read_signals(signals: tuple[Tensor, Tensor], drafted: Sequence[int], depth: int) -> tuple[list[float], list[float]]:
    """The two (B,) signals of draft number ``depth`` on the host, NaN in rows that draft no more; waits for the device.

    drafted: the most drafts of each row.
    """
    tops, entropies = torch.stack(signals).tolist()
    return of_rows_that_may(tops, drafted, depth), of_rows_that_may(entropies, drafted, depth)


def of_rows_that_may(values: Sequence[float], drafted: Sequence[int], depth: int) -> list[float]:
    """(B,) values, NaN in rows that draft no more than ``depth``."""
    return [value if most > depth else math.nan for value, most in zip(values, drafted, strict=True)]
