"""Whether a context and a round on top of it fit into a model: context + γ + 1 positions, the fed token included.

check_context("pair 'p' target", context=256, gamma_max=6, max_context=1024)      # None, or a ValueError of one line
"""

from __future__ import annotations


def check_context(where: str, *, context: int, gamma_max: int, max_context: int | None) -> None:
    """Refuse a context that leaves no room for a round of `gamma_max` drafts in a model of `max_context` positions.

    Nothing is refused where the limit is not known (None).  Raises ValueError: the model (`where`), the context, what a
    round needs, what the model takes and the largest context allowed.
    """
    needed = context + gamma_max + 1
    if max_context is None or needed <= max_context:
        return
    allowed = max_context - gamma_max - 1
    remedy = f"the largest context allowed is {allowed}" if allowed > 0 else "lower grid.gamma"
    raise ValueError(
        f"{where}: grid.context {context} and a round of gamma {gamma_max} need {needed} positions, the model takes "
        f"{max_context}; {remedy}"
    )
