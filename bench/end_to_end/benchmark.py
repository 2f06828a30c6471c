"""How fast the loops are beside transformers' own: ratios over the same prompts, with intervals.

    python -m specgauge.bench.end_to_end.benchmark --gamma 4 --tokens 64 --repeats 3
    python -m specgauge.bench.end_to_end.benchmark --target DIR --draft DIR --dtype bfloat16 --prompts FILE --json

At batch 1, one pair, one γ: our speculative decoder, transformers' assisted generation, our plain loop, our decoder at
γ = 0 and transformers' plain loop, interleaved prompt by prompt.  Exit code 1 where a ratio misses its target beyond
the interval, or where greedy texts differ by more than rounding.

    speculative over assisted >= 1.10       plain over generate >= 1.0       ε share of a round <= 5 %

A second pass counts forwards and the seconds inside them, so that a gain can be split into fewer or faster forwards and
less time outside.  On a machine that others load, `--processor-seconds` counts this process's own seconds on one core.

What the benchmark found, as tables and as JSON.

print(report(lines, checks, splits, runs))
json.dumps(as_json(vars(options), lines, checks, splits, runs), allow_nan=False)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specgauge.bench.end_to_end.divergence import divergences
from specgauge.bench.end_to_end.side_by_side import (
    CONFIDENCE,
    Ratio,
    Runs,
    Split,
    overhead_and_round_s,
    pooled,
    race,
    rate_ratio,
    split_times,
    start_s,
    ways_to_generate,
    ways_to_start,
)
from specgauge.bench.environment import use_threads
from specgauge.bench.models.pair import LoadedModel, load_pair
from specgauge.bench.prompts import encode_prompts, read_prompts
from specgauge.bench.timing.clock import Clock, HostClock, clock_for
from specgauge.configs.fields import LARGEST_CONTEXT, LARGEST_GAMMA, LARGEST_REPETITIONS
from specgauge.configs.pairs import PairConfig
from specgauge.configs.schema import WorkloadConfig
from specgauge.model.sampling import SamplingSettings
from specgauge.model.stats.bootstrap import draw_prompts
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


REPLICATES = 2000


class ProcessorClock(HostClock):
    """Seconds that this process spent on a processor: other processes' share of the machine does not count."""

    def mark(self) -> float:
        """The process's own clock, in seconds."""
        return time.process_time()


def ratios(runs: Mapping[str, Runs], starts: Mapping[str, Runs], seed: int) -> list[Line]:
    """Every ratio with its target, in the order printed."""
    weights = draw_prompts(len(runs["plain"]), REPLICATES, seed)
    overhead, rounds = overhead_and_round_s(runs["speculative"])

    def rate(what: str, name: str, other: str, at_least: float | None = None) -> Line:
        return Line(what=what, ratio=rate_ratio(runs[name], runs[other], weights), at_least=at_least)

    return [
        rate("tokens/s, speculative over assisted", "speculative", "assisted", 1.1),
        rate("tokens/s, plain loop over generate", "plain", "generate", 1.0),
        rate("tokens/s, decoder at gamma 0 over generate", "gamma_0", "generate"),
        rate("tokens/s, speculative over plain loop", "speculative", "plain"),
        rate("tokens/s, assisted over generate", "assisted", "generate"),
        Line(what="overhead share of the round", ratio=pooled(overhead, rounds, weights), at_most=0.05),
        Line(
            what="draft prefill and first drafts, first token taken along over not",
            ratio=pooled(start_s(starts["with"]), start_s(starts["without"]), weights),
        ),
    ]


def check_texts(target: LoadedModel, runs: Mapping[str, Runs], settings: SamplingSettings) -> dict[str, TextCheck]:
    """Greedy texts of every way against `generate`: the same, different by a numeric tie, or a failure; {} if drawn."""
    if settings.temperature != 0.0:
        return {}
    texts = {name: [repeats[0].text for repeats in prompts] for name, prompts in runs.items()}
    checks = {}
    for name in texts:
        if name != "generate":
            found = divergences(target, texts["generate"], texts[name], settings)
            failures = [place.line() for place in found if not place.is_tie]
            checks[name] = TextCheck(
                same=len(texts[name]) - len(found), ties=len(found) - len(failures), failures=failures
            )
    return checks


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where a target is missed or texts differ, 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        result = measure(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    lines, checks, splits, runs = result
    if options.json:
        print(json.dumps(as_json(vars(options), lines, checks, splits, runs), indent=2, allow_nan=False))
    else:
        print(report(lines, checks, splits, runs))
    missed = any(line.verdict == "missed" for line in lines) or any(check.failures for check in checks.values())
    return int(missed)


def measure(
    options: argparse.Namespace,
) -> tuple[list[Line], dict[str, TextCheck], dict[str, Split], dict[str, Runs]]:
    """(ratios, text checks, time splits, all runs) of the command's options; raises ValueError for what cannot run."""
    bounds = {"gamma": (1, LARGEST_GAMMA), "tokens": (2, LARGEST_CONTEXT), "repeats": (1, LARGEST_REPETITIONS)}
    for name, (least, largest) in bounds.items():
        if not least <= (found := getattr(options, name)) <= largest:
            raise ValueError(f"--{name}: found {found}, allowed: from {least} to {largest}")
    use_threads(1 if options.processor_seconds else options.threads)
    pair = load_pair(
        PairConfig.model_validate(
            {
                "name": "benchmark",
                "target": {"model": options.target, "dtype": options.dtype, "device": options.device},
                "draft": {"model": options.draft, "dtype": options.dtype, "device": options.device},
            }
        )
    )
    target, draft = pair.target, pair.draft_model
    workload = WorkloadConfig(prompts=options.prompts, limit=options.limit)
    prompts = encode_prompts(read_prompts(workload), target.tokenizer, workload)
    settings = SamplingSettings(temperature=options.temperature, top_p=options.top_p)
    clock: Clock = clock_for(target.device)
    if options.processor_seconds:
        if target.device.type != "cpu":
            raise ValueError(f"--processor-seconds: found device {target.device}; allowed is cpu")
        clock = ProcessorClock()
    given: dict[str, Any] = {"gamma": options.gamma, "seed": options.seed, "clock": clock}
    ways = ways_to_generate(target, draft, prompts, settings, max_new_tokens=options.tokens, **given)
    starts = ways_to_start(target, draft, prompts, settings, **given)
    counts: dict[str, Any] = {"prompts": len(prompts), "repeats": options.repeats, "seed": options.seed}
    runs = race(ways, progress=_tell, **counts)
    lines = ratios(runs, race(starts, **counts), options.seed)
    splits = split_times(ways, target, draft, prompts=min(len(prompts), options.split_prompts), clock=clock)
    return lines, check_texts(target, runs, settings), splits, runs


def _tell(done: int, total: int) -> None:
    print(f"prompt {done} of {total}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specgauge.bench.end_to_end.benchmark", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--target", default="embedded", help="model directory, hub id, or embedded")
    parser.add_argument("--draft", default="embedded", help="model directory, hub id, or embedded")
    parser.add_argument("--dtype", default="auto", help="type of the weights of both")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:0")
    parser.add_argument("--prompts", default="embedded", help="a file as a workload names it, or embedded")
    parser.add_argument("--limit", type=int, default=None, help="only this many prompts")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a text")
    parser.add_argument("--repeats", type=int, default=3, help="runs of every way on every prompt")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--top-p", type=float, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--split-prompts", type=int, default=8, help="prompts of the pass that times forwards")
    parser.add_argument(
        "--processor-seconds", action="store_true", help="this process's own seconds on one core, not the clock's"
    )
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
