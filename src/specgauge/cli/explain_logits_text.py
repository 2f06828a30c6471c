"""The text of an explained row of logits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from specgauge.model.checks import FloatArray
from specgauge.model.explain_logits import LogitsExplanation
from specgauge.model.sampling import chain_name
from specgauge.model.text_table import text_table


def logits_text(explanation: LogitsExplanation) -> str:
    """A column for each stage of the chain, then what its order decides and whether it is greedy."""
    names, stages = explanation.names, explanation.stages
    headings = ["token", *(f"{s.processor} {s.setting}".strip() for s in stages)]
    rows: list[list[object]] = [
        [name, *(None if s.probs[v] == 0 else float(s.probs[v]) for s in stages)] for v, name in enumerate(names)
    ]
    rows.append(["tokens kept", *(s.kept for s in stages)])
    lines = [f"chain: {chain_name(explanation.settings)}", "", text_table(headings, rows), ""]
    for before, after in pairwise(stages):
        removed = [name for v, name in enumerate(names) if before.probs[v] > 0 and after.probs[v] == 0]
        if removed:
            lines.append(f"{f'{after.processor} {after.setting}'.strip()} removes {', '.join(removed)}")
    final = stages[-1]
    lines.append(f"{final.kept} of {len(names)} tokens stay: {_shown(explanation, final.probs)}")
    lines += _orders(explanation)
    if explanation.greedy_reason:
        lines.append(explanation.greedy_reason)
    elif not explanation.greedy:
        lines.append(f"not greedy: the most probable token is drawn with probability {final.probs.max():.4g}")
    return "\n".join(lines)


def _orders(explanation: LogitsExplanation) -> list[str]:
    processors = [s.processor for s in explanation.stages[1:-1]]
    if len(processors) < 2:
        return []
    if not explanation.other_orders:
        return ["order: every order of these processors gives the same distribution"]
    lines = [f"order: {', '.join(processors)} is transformers' order; others would give"]
    for other in explanation.other_orders:
        also = "" if other.orders == 1 else f" (and {other.orders - 1} more)"
        lines.append(f"  {', '.join(other.order)}{also}: {_shown(explanation, other.probs)}")
    return lines


def _shown(explanation: LogitsExplanation, probs: FloatArray) -> str:
    return ", ".join(f"{explanation.names[v]} {probs[v]:.4g}" for v in np.flatnonzero(probs))
