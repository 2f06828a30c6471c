"""What the benchmark found, as tables and as JSON.

print(report(lines, checks, splits, runs))
json.dumps(as_json(vars(options), lines, checks, splits, runs), allow_nan=False)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specgauge.bench.contest import CONFIDENCE, Ratio, Runs, Split
from specgauge.model.text_table import text_table


@dataclass(frozen=True, kw_only=True)
class Line:
    """One ratio, and what is asked of it."""

    what: str
    ratio: Ratio
    at_least: float | None = None
    at_most: float | None = None

    @property
    def verdict(self) -> str:
        """``met`` or ``missed`` where the whole interval is on one side, ``undecided`` between; '' without a target."""
        low = self.ratio.value if self.ratio.low is None else self.ratio.low
        high = self.ratio.value if self.ratio.high is None else self.ratio.high
        if self.at_least is not None:
            return "met" if low >= self.at_least else "missed" if high < self.at_least else "undecided"
        if self.at_most is not None:
            return "met" if high <= self.at_most else "missed" if low > self.at_most else "undecided"
        return ""


@dataclass(frozen=True, kw_only=True)
class TextCheck:
    """How the greedy texts of one way compare with those of transformers' plain loop."""

    same: int
    ties: int
    failures: list[str]


def gain_split(splits: Mapping[str, Split]) -> dict[str, float]:
    """What the decoder saves over assisted generation in the timed-forward pass, in seconds, and where.

    ``outside_share`` is the part of the gain that is host work rather than forwards: 1 if forwards cost the same.
    """
    ours, theirs = splits["speculative"], splits["assisted"]
    gain = theirs.total_s - ours.total_s
    outside = theirs.outside_s - ours.outside_s
    return {"gain_s": gain, "outside_s": outside, "outside_share": outside / gain if gain else math.nan}


def report(
    lines: Sequence[Line],
    checks: Mapping[str, TextCheck],
    splits: Mapping[str, Split],
    runs: Mapping[str, Runs],
) -> str:
    """The tables."""
    blocks = [
        text_table(
            ["what", "ratio", f"{CONFIDENCE:.0%} low", "high", "target", ""],
            [
                [line.what, line.ratio.value, line.ratio.low, line.ratio.high, _target(line), line.verdict]
                for line in lines
            ],
        ),
        text_table(
            ["way", "tokens/s", "target forwards", "draft forwards", "per token (ms): target", "draft", "outside"],
            [
                [
                    name,
                    _tokens_per_s(runs[name]),
                    split.target_forwards,
                    split.draft_forwards,
                    *(1e3 * seconds / split.tokens for seconds in (split.target_s, split.draft_s, split.outside_s)),
                ]
                for name, split in splits.items()
            ],
        ),
    ]
    gain = gain_split(splits)
    blocks.append(
        f"gain over assisted with forwards timed: {gain['gain_s']:.3g} s, of which outside the models "
        f"{gain['outside_s']:.3g} s ({gain['outside_share']:.0%})"
    )
    if checks:
        rows = [[name, check.same, check.ties, len(check.failures)] for name, check in checks.items()]
        blocks.append(text_table(["greedy texts against generate", "same", "numeric ties", "FAILURES"], rows))
        blocks += [line for check in checks.values() for line in check.failures]
    else:
        blocks.append("texts are drawn, each loop from its own random numbers: not compared")
    return "\n\n".join(blocks)


def _target(line: Line) -> str:
    if line.at_least is not None:
        return f">= {line.at_least:g}"
    return "" if line.at_most is None else f"<= {line.at_most:g}"


def _tokens_per_s(runs: Runs) -> float:
    tokens = sum(len(run.text.tokens) for repeats in runs for run in repeats)
    return tokens / sum(run.total_s for repeats in runs for run in repeats)


def as_json(
    options: Mapping[str, Any],
    lines: Sequence[Line],
    checks: Mapping[str, TextCheck],
    splits: Mapping[str, Split],
    runs: Mapping[str, Runs],
) -> dict[str, Any]:
    """Everything the tables show, and the seconds behind it."""
    return {
        "options": dict(options),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "ratios": [
            {**asdict(line.ratio), "what": line.what, "target": _target(line), "verdict": line.verdict}
            for line in lines
        ],
        "texts": {name: asdict(check) for name, check in checks.items()},
        "splits": {name: {**asdict(split), "outside_s": split.outside_s} for name, split in splits.items()},
        "gain_over_assisted": {
            name: value if math.isfinite(value) else None for name, value in gain_split(splits).items()
        },
        "runs": {
            name: [
                {"prompt": number, "tokens": len(run.text.tokens), "total_s": run.total_s}
                for number, repeats in enumerate(prompts)
                for run in repeats
            ]
            for name, prompts in runs.items()
        },
    }
