"""What a server that takes every γ in turn costs beside one started with a γ alone, from their blocks. No torch.

    restart_ratios(read_served(run.path), confidence=.9)     # T_round of servers of one γ over that of the live server

Both are compared as their clients see them, since a server of one γ has no log of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specgauge.sweeps.store.served import LIVE, ServedRow

MOST_APART = 0.03
"""What a round of both servers may differ by, though it is known to differ."""


@dataclass(frozen=True, kw_only=True)
class RestartRatio:
    """T_round of a server that was started with a γ alone, over that of the server that takes every γ in turn."""

    sampling: str
    gamma: int
    batch_size: int
    context: int
    ratio: float
    low: float
    high: float
    plain: float | None
    """What plain decoding took after the live server, over before it: what changed on the machine meanwhile."""

    @property
    def is_apart(self) -> bool:
        """Whether they differ by more than chance, and by enough to matter."""
        return (self.low > 1.0 or self.high < 1.0) and abs(self.ratio - 1.0) > MOST_APART

    @property
    def line(self) -> str:
        """It in words."""
        meanwhile = "" if self.plain is None else f"; plain decoding after it took {self.plain:.3f} of before"
        return (
            f"γ = {self.gamma}, batch size {self.batch_size}, context {self.context}: a round on a server started with "
            f"that γ alone took {self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}) of one on the server that takes "
            f"every γ in turn{meanwhile}"
        )


def is_live(row: ServedRow) -> bool:
    """Whether a block is one of the server that takes every γ in turn, and counts."""
    return row.purpose == "timing" and row.server == LIVE and row.reason is None


def restart_ratios(rows: Iterable[ServedRow], *, confidence: float) -> list[RestartRatio]:
    """The ratio of each cell and γ of a pair that was checked, over blocks of both servers.

    rows: in the order taken. Intervals are Welch's on logarithms, wide enough to hold all together at that confidence,
    without bounds (NaN) where a server has a single block.
    """
    known = [row for row in rows if row.reason is None]
    checked = dict.fromkeys(
        (row.sampling, row.gamma, row.batch_size, row.context)
        for row in known
        if row.purpose == "restart" and row.gamma is not None
    )
    found = []
    for sampling, gamma, batch_size, context in sorted(checked):
        cell = [row for row in known if (row.sampling, row.batch_size, row.context) == (sampling, batch_size, context)]
        live = _logs(row for row in cell if is_live(row) and row.gamma == gamma)
        own = _logs(row for row in cell if row.purpose == "restart" and row.gamma == gamma)
        if not live or not own:
            continue
        ratio, low, high = _welch(own, live, 1 - (1 - confidence) / len(checked))
        found.append(
            RestartRatio(
                sampling=sampling,
                gamma=gamma,
                batch_size=batch_size,
                context=context,
                ratio=ratio,
                low=low,
                high=high,
                plain=_plain(cell),
            )
        )
    return found


def _logs(rows: Iterable[ServedRow]) -> list[float]:
    seen = ((row.t_round_client_s or row.t_round_s) for row in rows)
    return [math.log(seconds) for seconds in seen if seconds]


def _plain(cell: Sequence[ServedRow]) -> float | None:
    """Of rows in the order taken; None where plain decoding was not measured both before and after the live server."""
    live = [index for index, row in enumerate(cell) if is_live(row)]
    own = [(index, row) for index, row in enumerate(cell) if row.purpose == "timing" and row.gamma == 0]
    before = _logs(row for index, row in own if index < live[0])
    after = _logs(row for index, row in own if index > live[-1])
    return math.exp(float(np.mean(after) - np.mean(before))) if before and after else None


def _welch(own: Sequence[float], other: Sequence[float], confidence: float) -> tuple[float, float, float]:
    from scipy.special import stdtrit

    distance = float(np.mean(own) - np.mean(other))
    if min(len(own), len(other)) < 2:
        return math.exp(distance), math.nan, math.nan
    parts = [float(np.var(one, ddof=1)) / len(one) for one in (own, other)]
    if not sum(parts):
        return (math.exp(distance),) * 3
    freedom = sum(parts) ** 2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, (own, other), strict=True))
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * math.sqrt(sum(parts))
    return math.exp(distance), math.exp(distance - half), math.exp(distance + half)
