"""Whether a context and what follows it fit into a model: a round, context + γ + 1 positions, or a whole text.

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


def check_text_context(where: str, *, context: int, new_tokens: int, max_context: int | None) -> None:
    """Refuse a context to decode from that leaves no room for a text in a model of `max_context` positions.

    Nothing is refused where the limit is not known (None).  Raises ValueError: the context, what is allowed and why.
    """
    if max_context is None or context + new_tokens <= max_context:
        return
    raise ValueError(
        f"verify: found context {context}, allowed: at most {max_context - new_tokens}, since texts of {new_tokens} "
        f"tokens follow and {where} takes {max_context}; leave that context out of verify.context, or lower "
        f"verify.max_new_tokens"
    )
