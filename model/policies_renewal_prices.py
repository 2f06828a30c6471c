"""What further drafts of a round cost, looks included.

further_prices_s((1.0, 1.1, 1.2), t_look_s=0.01, depth=0)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specgauge.model.checks import FloatArray


def further_prices_s(t_round_s: Sequence[float], t_look_s: float, depth: int) -> FloatArray:
    """Seconds of 1, 2, … further drafts after `depth`, the looks after each of them but the last of all."""
    rounds_s = np.array(t_round_s)
    more = np.arange(1, rounds_s.size - depth)
    return np.asarray(rounds_s[depth + more] - rounds_s[depth] + t_look_s * np.minimum(more, more.size - 1))
