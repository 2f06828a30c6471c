"""Output of `specgauge explain`: positions, the tree of a round and rows of logits as text, and bars as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from specgauge.model.checks import FloatArray
from specgauge.model.exact import PositionDistribution
from specgauge.model.explain import Explanation, tree
from specgauge.model.explain_logits import LogitsExplanation
from specgauge.model.sampling import chain_name
from specgauge.sweeps.store.files import atomic_path, check_output
from specgauge.sweeps.text_table import printable, text_table

ACCEPTED, DEFICIT, SURPLUS = "#4477aa", "#228833", "#ee6677"
_LONGEST_NAME = 12


def explanation_text(explanation: Explanation) -> str:
    """Tables of the positions, the paths to every token, and the tree of the round."""
    drawn = "its argmax" if explanation.draft_sampling == "greedy" else "a draw from its probabilities"
    lines = [f"acceptance rule: {explanation.rule}; the draft proposes {drawn}", ""]
    for i, position in enumerate(explanation.positions, start=1):
        lines += [
            f"position {i}" if len(explanation.positions) > 1 else "the position",
            _table(explanation.names, position),
        ]
        lines += [
            f"overlap (accepted mass) {_short(position.overlap)}, rejected mass {_short(position.rejected)}",
            "paths to each token: accepted + rejected mass x residual = output",
            *(_path(name, position, v) for v, name in enumerate(explanation.names)),
            "",
        ]
    lines += ["probability tree of the round", *_tree_lines(explanation), ""]
    lines.append(f"tokens per round {_short(explanation.tokens_per_round)}, bonus or replacement included")
    return "\n".join(lines)


def _table(names: Sequence[str], position: PositionDistribution) -> str:
    columns = ("target_probs", "draft_probs", "accept", "accepted", "surplus", "deficit", "residual")
    rows = [[str(name), *(_rounded(getattr(position, one)[v]) for one in columns)] for v, name in enumerate(names)]
    for v, row in enumerate(rows):
        if position.draft_probs[v] == 0:
            row[3] = None
    return text_table(["token", *(one.removesuffix("_probs") for one in columns)], rows)


def _path(name: str, position: PositionDistribution, v: int) -> str:
    accepted, residual, output = _short(position.accepted[v]), _short(position.residual[v]), _short(position.output[v])
    return f"  {name}: {accepted} + {_short(position.rejected)} x {residual} = {output}"


def _tree_lines(explanation: Explanation) -> list[str]:
    lines, leaves = ["round 1"], tree(explanation)
    for i, leaf in enumerate(leaves[:-1], start=1):
        indent, position = "   " * (i - 1), explanation.positions[i - 1]
        share, survived = _short(leaf["probability"]), _short(explanation.survival[i - 1])
        lines.append(f"{indent}├─ draft {i} rejected ({_short(position.rejected)}): {share}, {_commits(leaf)}")
        lines.append(f"{indent}└─ draft {i} accepted ({_short(position.overlap)}): {survived}")
    indent = "   " * len(explanation.positions)
    lines.append(f"{indent}└─ bonus: {_short(leaves[-1]['probability'])}, {_commits(leaves[-1])}")
    return lines


def _commits(leaf: Mapping[str, Any]) -> str:
    count = "1 token" if leaf["tokens"] == 1 else f"{leaf['tokens']} tokens, the last"
    origin = "the residual" if leaf["last_token"] == "residual" else "the target"
    probs = leaf["last_token_probs"] or {}
    shown = ", ".join(f"{name} {_short(value)}" for name, value in probs.items() if value > 0)
    return f"commits {count} from {origin}" + (f" ({shown})" if shown else "")


def _rounded(value: Any) -> float:
    return round(float(value), 12)


def _short(value: Any) -> str:
    return f"{_rounded(value):.4g}"


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


def draw_explanation(explanation: Explanation, path: Path) -> None:
    """Draw the bars as SVG into `path`: a panel a position, for every token the target's bar left, the draft's right.

    Both share their accepted part; above it stand the deficit (filled by the residual) and the surplus (rejected).

    Raises:
        ValueError: `path` cannot be a file.
        StorageError: the disk refused the write; an older picture stays.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    check_output(path, "bars.svg")
    names = [name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…" for name in explanation.names]
    count, width = len(explanation.positions), 0.38
    figure = Figure(figsize=(max(5.0, 1.2 + 0.8 * len(names)), 3.2 * count), layout="constrained")
    at = np.arange(len(names))
    for i, (axes, position) in enumerate(
        zip(figure.subplots(count, squeeze=False)[:, 0], explanation.positions, strict=True)
    ):
        axes.bar(at - width / 2, position.accepted, width, color=ACCEPTED, label="accepted")
        axes.bar(at + width / 2, position.accepted, width, color=ACCEPTED)
        axes.bar(at - width / 2, position.deficit, width, position.accepted, color=DEFICIT, label="target: deficit")
        axes.bar(
            at + width / 2, position.surplus, width, position.accepted, color=SURPLUS, label="draft: surplus (rejected)"
        )
        labels = [f"{printable(name)}\nres. {float(position.residual[v]):.3g}" for v, name in enumerate(names)]
        axes.set_xticks(at, labels, parse_math=False)
        axes.set_ylabel("probability")
        masses = f"overlap {float(position.overlap):.4g}, rejected {float(position.rejected):.4g}"
        axes.set_title(f"position {i + 1} (target left, draft right): {masses}", fontsize=10)
        axes.legend(fontsize=8)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "specgauge"}), atomic_path(path) as temporary:
        title = f"Speculative sampling, {explanation.rule} rule"
        figure.savefig(temporary, format="svg", metadata={"Title": title, "Date": None})
