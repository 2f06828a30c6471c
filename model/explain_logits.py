"""Sampling settings explained on one row of logits: each processor's effect, what its order decides, and disguise.

    explain_logits([2, 1, 1, 0], SamplingSettings(temperature=0.7, top_k=3, top_p=0.9))

V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, IntArray, numbers
from specgauge.model.explain import token_names
from specgauge.model.sampling import (
    SamplingSettings,
    active_processors,
    chain_name,
    effectively_greedy,
    one_hot_argmax,
    processed_logits,
    softmax,
)

_SAME = 1e-12
"""Two orders whose probabilities differ by less give the same distribution."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is left after one processor."""

    processor: str
    """Its name, "logits" before any, "argmax" or "draw" at the end."""
    setting: str
    probs: FloatArray
    """(V,), zero for tokens removed."""

    @property
    def kept(self) -> int:
        """Tokens that can still be drawn."""
        return int(np.count_nonzero(self.probs))


@dataclass(frozen=True, kw_only=True)
class OtherOrder:
    """A distribution that other orders of the same processors give."""

    order: tuple[str, ...]
    """One of them."""
    orders: int
    """How many give it."""
    probs: FloatArray


@dataclass(frozen=True, kw_only=True)
class LogitsExplanation:
    """The chain on one row of logits, step by step."""

    names: tuple[str, ...]
    settings: SamplingSettings
    stages: tuple[Stage, ...]
    other_orders: tuple[OtherOrder, ...]
    """What differs from transformers' order; empty where every order gives the same."""
    greedy: bool
    """Whether the argmax is always taken."""
    greedy_reason: str
    """Why it is, or why it is not although it looks like it; empty where there is nothing to say."""

    @property
    def probs(self) -> FloatArray:
        """What the token is drawn from, (V,)."""
        return self.stages[-1].probs


@np.errstate(over="ignore")  # logits far apart differ by infinity: the lesser has no probability
def explain_logits(
    logits: ArrayLike,
    settings: SamplingSettings,
    *,
    names: Sequence[str] | None = None,
    history: Sequence[int] | None = None,
) -> LogitsExplanation:
    """Explain one row of logits (V,); `history` holds token ids seen before, for the repetition penalty.

    Raises:
        ValueError: logits that are no list of finite numbers, names of another length, or settings the chain refuses.
    """
    row = numbers("logits", logits)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"logits: expected one list of numbers, got shape {row.shape}")
    labels = token_names(names, row.size)
    outside = [] if history is None else [token for token in history if not 0 <= token < row.size]
    if outside:
        raise ValueError(f"history: expected ids from 0 to {row.size - 1}, got token {outside[0]}")
    past = None if history is None else np.asarray(history, dtype=np.int64)
    order = active_processors(settings)
    scores = row
    stages = [Stage(processor="logits", setting="", probs=softmax(row))]
    for name in order:
        scores = processed_logits(scores, _only(name, settings), past)
        stages.append(Stage(processor=name, setting=f"{getattr(settings, name):g}", probs=softmax(scores)))
    argmax = settings.temperature == 0
    final = one_hot_argmax(scores) if argmax else softmax(scores)
    stages.append(Stage(processor="argmax" if argmax else "draw", setting="", probs=final))
    penalised = processed_logits(row, _only("repetition_penalty", settings), past)
    greedy, reason = _greedy(settings, softmax(penalised), stages)
    return LogitsExplanation(
        names=labels,
        settings=settings,
        stages=tuple(stages),
        other_orders=() if argmax else _other_orders(row, settings, order, past, final),
        greedy=greedy,
        greedy_reason=reason,
    )


def logits_document(explanation: LogitsExplanation) -> dict[str, Any]:
    """Everything as plain values, for JSON."""
    settings = {name: value for name, value in vars(explanation.settings).items() if value is not None}
    return {
        "settings": settings,
        "chain": chain_name(explanation.settings),
        "tokens": list(explanation.names),
        "stages": [
            {
                "processor": s.processor,
                "setting": getattr(explanation.settings, s.processor, None),
                "kept": s.kept,
                "probs": s.probs.tolist(),
            }
            for s in explanation.stages
        ],
        "kept": explanation.stages[-1].kept,
        "probs": explanation.probs.tolist(),
        "greedy": explanation.greedy,
        "greedy_in_disguise": explanation.greedy and explanation.settings.temperature != 0,
        "greedy_reason": explanation.greedy_reason or None,
        "other_orders": [
            {
                "order": list(o.order),
                "orders": o.orders,
                "kept": int(np.count_nonzero(o.probs)),
                "probs": o.probs.tolist(),
            }
            for o in explanation.other_orders
        ],
    }


def _only(name: str, settings: SamplingSettings) -> SamplingSettings:
    """The settings with a single processor active."""
    return replace(SamplingSettings(min_tokens_to_keep=settings.min_tokens_to_keep), **{name: getattr(settings, name)})


def _other_orders(
    row: FloatArray,
    settings: SamplingSettings,
    order: tuple[str, ...],
    history: IntArray | None,
    final: FloatArray,
) -> tuple[OtherOrder, ...]:
    found: list[tuple[FloatArray, list[tuple[str, ...]]]] = []
    for other in permutations(order):
        scores = row
        for name in other:
            scores = processed_logits(scores, _only(name, settings), history)
        probs = softmax(scores)
        if np.abs(probs - final).max() <= _SAME:
            continue
        for known, orders in found:
            if np.abs(probs - known).max() <= _SAME:
                orders.append(other)
                break
        else:
            found.append((probs, [other]))
    return tuple(OtherOrder(order=orders[0], orders=len(orders), probs=probs) for probs, orders in found)


def _greedy(settings: SamplingSettings, probs: FloatArray, stages: Sequence[Stage]) -> tuple[bool, str]:
    """Whether the argmax is always taken, and why; `probs` are the model's after the repetition penalty."""
    tied = int(np.count_nonzero(probs == probs.max()))
    if settings.temperature == 0:
        ties = f"; {tied} tokens tie at the top, the lowest id is taken" if tied > 1 else ""
        return True, f"temperature 0 is the convention for greedy: the argmax is taken, nothing is divided by 0{ties}"
    reason = effectively_greedy(settings, probs)
    if reason is not None:
        return True, f"greedy in disguise: {reason}"
    narrow = [f"top_k {settings.top_k}"] if settings.top_k == 1 else []
    for before, after in pairwise(stages):
        top = float(before.probs.max())
        if after.processor == "top_p" and settings.top_p is not None and settings.top_p <= top:
            narrow.append(f"top_p {settings.top_p:g} is at or below the top probability {top:.4g}")
    stays = f"{stages[-1].kept} tokens stay"
    if tied > 1:
        after_all = f", although {' and '.join(narrow)}" if narrow else ""
        return False, f"not greedy: {tied} tokens tie at the top{after_all}"
    if narrow and settings.min_tokens_to_keep > 1:
        kept = f"min_tokens_to_keep is {settings.min_tokens_to_keep}"
        return False, f"not greedy: {' and '.join(narrow)}, but {kept}: {stays}"
    return False, ""
