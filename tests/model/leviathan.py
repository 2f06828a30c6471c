"""Closed forms of Leviathan et al., arXiv 2211.17192, to hold the model against."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray
from specgauge.model.speedup import tokens_per_round_iid


def operations_factor(tokens_per_round: ArrayLike, gamma: ArrayLike, draft_operations_ratio: ArrayLike) -> FloatArray:
    """Arithmetic per committed token against plain decoding, (gamma c + gamma + 1) / Omega: theorem 3.11."""
    drafts = np.asarray(gamma)
    return np.asarray((drafts * np.asarray(draft_operations_ratio) + drafts + 1) / np.asarray(tokens_per_round))


def leviathan_speedup(alpha: ArrayLike, gamma: ArrayLike, cost_ratio: ArrayLike) -> FloatArray:
    """S where T_verify = T_decode and epsilon = 0: Omega / (gamma c + 1), theorem 3.8."""
    return np.asarray(tokens_per_round_iid(alpha, gamma) / (np.asarray(gamma) * np.asarray(cost_ratio) + 1))
