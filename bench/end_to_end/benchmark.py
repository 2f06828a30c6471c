"""How fast the loops are beside transformers' own: ratios over the same prompts, with intervals.

    python -m specgauge.bench.end_to_end.benchmark --gamma 4 --tokens 64 --repeats 3
    python -m specgauge.bench.end_to_end.benchmark --target DIR --draft DIR --dtype bfloat16 --prompts FILE --json

At batch 1, one pair, one γ: our speculative decoder, transformers' assisted generation, our plain loop, our decoder at
γ = 0 and transformers' plain loop, interleaved prompt by prompt.  Exit code 1 where a ratio misses its target beyond
the interval, or where greedy texts differ by more than rounding.

    speculative over assisted >= 1.10       plain over generate >= 1.0       ε share of a round <= 5 %

A prompt's seconds are the median of its repeats; ratios pair the prompts: with r the seconds a token,

    tokens/s of a over b = Σ_p r_b,p / Σ_p r_a,p          resampled over prompts p, both sides by the same draws

On a machine that others load, `--processor-seconds` counts this process's own seconds on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch

from specgauge.bench.decoding.decoder import SpeculativeDecoder
from specgauge.bench.decoding.drafters import ModelDrafter
from specgauge.bench.decoding.plain import decode_plain
from specgauge.bench.decoding.records import Decoded, PromptBatch, Text
from specgauge.bench.end_to_end.baselines import generate_with_transformers
from specgauge.bench.end_to_end.text_checks import divergences
from specgauge.bench.environment import use_threads
from specgauge.bench.models.pair import LoadedModel, load_pair
from specgauge.bench.prompts import encode_prompts, read_prompts
from specgauge.bench.timing.clock import Clock, HostClock, clock_for, undisturbed
from specgauge.configs.fields import LARGEST_CONTEXT, LARGEST_GAMMA, LARGEST_REPETITIONS
from specgauge.configs.pairs import PairConfig
from specgauge.configs.schema import WorkloadConfig
from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.sampling import SamplingSettings
from specgauge.model.stats.bootstrap import draw_prompts, percentile_interval, ratio_replicates

REPLICATES = 2000
CONFIDENCE = 0.9


@dataclass(frozen=True, kw_only=True)
class LoopRun:
    """One text written by one loop."""

    text: Text
    total_s: float
    """From the call to its return, both prefills included."""
    decoded: Decoded | None = None
    """Rounds and phases, where the decoder is ours."""


Loop = Callable[[int], LoopRun]
"""Writes the text of the prompt with this number."""
Runs = list[list[LoopRun]]
"""By prompt, then by repeat."""


def _timed(clock: Clock, decode: Callable[[], Decoded]) -> LoopRun:
    """One prompt through a loop of ours, timed from outside like the others."""
    clock.synchronize()
    start = clock.mark()
    found = decode()
    clock.synchronize()
    end = clock.mark()
    clock.synchronize()
    return LoopRun(text=found.texts[0], total_s=clock.elapsed_s(start, end), decoded=found)


def loops_to_compare(
    target: LoadedModel,
    draft: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    gamma: int,
    max_new_tokens: int,
    seed: int,
    clock: Clock,
) -> dict[str, Loop]:
    """Our decoder at γ, transformers assisted at γ, our plain loop, our decoder at γ = 0, transformers' plain loop."""

    def batch(number: int) -> PromptBatch:
        return PromptBatch(prompts=[prompts[number]], numbers=[number], max_new_tokens=max_new_tokens)

    def decode(number: int, *, gamma: int) -> LoopRun:
        decoder = SpeculativeDecoder(target, ModelDrafter(draft, settings), settings, seed=seed, clock=clock)
        return _timed(clock, lambda: decoder.run(batch(number), gamma=gamma))

    def plain(number: int) -> LoopRun:
        return _timed(clock, lambda: decode_plain(target, batch(number), settings, seed=seed))

    def generate(number: int, **assistant: Any) -> LoopRun:
        own: dict[str, Any] = {"seed": seed + number, "clock": clock, **assistant}
        found = generate_with_transformers(target, batch(number), settings, **own)
        return LoopRun(text=found.texts[0], total_s=found.total_s)

    return {
        "speculative": partial(decode, gamma=gamma),
        "assisted": partial(generate, draft=draft, gamma=gamma),
        "plain": plain,
        "gamma_0": partial(decode, gamma=0),
        "generate": generate,
    }


def run_side_by_side(
    loops: Mapping[str, Loop],
    *,
    prompts: int,
    repeats: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Runs]:
    """Every loop on every prompt, ``repeats`` times: prompts in shuffled order, the loops of each in shuffled order.

    Each loop runs once on the first prompt before anything counts.
    """
    order = random.Random(seed)
    runs: dict[str, Runs] = {name: [[] for _ in range(prompts)] for name in loops}
    for loop in loops.values():
        loop(0)
    for repeat in range(repeats):
        for done, number in enumerate(order.sample(range(prompts), prompts)):
            for name in order.sample(list(loops), len(loops)):
                runs[name][number].append(undisturbed(partial(loops[name], number)))
            if progress is not None:
                progress(repeat * prompts + done + 1, repeats * prompts)
    return runs


def seconds_per_token(runs: Runs) -> FloatArray:
    """(P,) the median total of each prompt's repeats, over the tokens of its text."""
    return np.array([median(run.total_s / len(run.text.tokens) for run in repeats) for repeats in runs])


def overhead_and_round_s(runs: Runs) -> tuple[FloatArray, FloatArray]:
    """((P,) accept and rest, (P,) whole rounds) in seconds, all rounds of all repeats of each prompt."""
    times = [[t for run in repeats if run.decoded is not None for t in run.decoded.times] for repeats in runs]
    overhead = [sum(t.t_overhead_s for t in prompt) for prompt in times]
    return np.array(overhead), np.array([sum(t.t_round_s for t in prompt) for prompt in times])


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A pooled ratio with its interval over prompts, and what is asked of it."""

    what: str
    value: float
    low: float | None
    """None, as ``high``, with fewer than two prompts."""
    high: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def target(self) -> str:
        """What is asked, in words; '' without a target."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    @property
    def verdict(self) -> str:
        """``met`` or ``missed`` where the whole interval is on one side, ``undecided`` between; '' without a target."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        if self.at_most is not None:
            return "met" if high <= self.at_most else "missed" if low > self.at_most else "undecided"
        if self.at_least is not None:
            return "met" if low >= self.at_least else "missed" if high < self.at_least else "undecided"
        return ""


def pooled(what: str, numerators: FloatArray, denominators: FloatArray, weights: IntArray, **limits: float) -> Ratio:
    """Σ numerators / Σ denominators over prompts, with its interval; weights (R, P) of `draw_prompts`."""
    found = ratio_replicates(numerators[:, None], denominators[:, None], weights, confidence=CONFIDENCE)[:, 0]
    interval = percentile_interval(found[1:], CONFIDENCE)
    low, high = (float(end) for end in interval) if np.isfinite(interval).all() else (None, None)
    return Ratio(what=what, value=float(found[0]), low=low, high=high, **limits)


@dataclass(frozen=True, kw_only=True)
class TextCheck:
    """How the greedy texts of one loop compare with those of transformers' plain loop."""

    same: int
    ties: int
    failures: list[str]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was measured."""

    ratios: list[Ratio]
    checks: dict[str, TextCheck]
    """Empty where texts are drawn."""
    runs: dict[str, Runs]

    @property
    def is_good(self) -> bool:
        """Whether no target is missed and no text differs by more than rounding."""
        missed = any(ratio.verdict == "missed" for ratio in self.ratios)
        return not missed and not any(check.failures for check in self.checks.values())

    def text(self) -> str:
        """The tables."""
        ratios = [
            {"what": one.what, "ratio": one.value, f"{CONFIDENCE:.0%} low": one.low, "high": one.high}
            | {"target": one.target, "": one.verdict}
            for one in self.ratios
        ]
        rates = []
        for name, prompts in self.runs.items():
            runs = [run for repeats in prompts for run in repeats]
            tokens, seconds = sum(len(run.text.tokens) for run in runs), sum(run.total_s for run in runs)
            rates.append({"loop": name, "tokens": tokens, "seconds": seconds, "tokens/s": tokens / seconds})
        blocks = [_table(ratios), _table(rates)]
        if not self.checks:
            return "\n\n".join([*blocks, "texts are drawn, each loop from its own random numbers: not compared"])
        texts = [
            {"greedy texts against generate": name, "same": check.same, "numeric ties": check.ties}
            | {"FAILURES": len(check.failures)}
            for name, check in self.checks.items()
        ]
        failures = [line for check in self.checks.values() for line in check.failures]
        return "\n\n".join([*blocks, _table(texts), *failures])

    def as_json(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Everything the tables show, and the seconds behind it."""
        return {
            "options": dict(options),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "ratios": [
                {name: getattr(one, name) for name in ("value", "low", "high", "what", "target", "verdict")}
                for one in self.ratios
            ],
            "texts": {name: asdict(check) for name, check in self.checks.items()},
            "runs": {
                name: [
                    {"prompt": number, "tokens": len(run.text.tokens), "total_s": run.total_s}
                    for number, repeats in enumerate(prompts)
                    for run in repeats
                ]
                for name, prompts in self.runs.items()
            },
        }


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    return str(pd.DataFrame(rows).to_string(index=False, na_rep="", float_format=lambda value: f"{value:.4g}"))


class ProcessorClock(HostClock):
    """Seconds that this process spent on a processor: other processes' share of the machine does not count."""

    def mark(self) -> float:
        """The process's own clock, in seconds."""
        return time.process_time()


def ratios(runs: Mapping[str, Runs], seed: int) -> list[Ratio]:
    """Every ratio with its target, in the order printed."""
    weights = draw_prompts(len(runs["plain"]), REPLICATES, seed)
    overhead, rounds = overhead_and_round_s(runs["speculative"])
    seconds = {name: seconds_per_token(of_loop) for name, of_loop in runs.items()}

    def rate(what: str, name: str, other: str, **limits: float) -> Ratio:
        return pooled(f"tokens/s, {what}", seconds[other], seconds[name], weights, **limits)

    return [
        rate("speculative over assisted", "speculative", "assisted", at_least=1.1),
        rate("plain loop over generate", "plain", "generate", at_least=1.0),
        rate("decoder at gamma 0 over generate", "gamma_0", "generate"),
        rate("speculative over plain loop", "speculative", "plain"),
        rate("assisted over generate", "assisted", "generate"),
        pooled("overhead share of the round", overhead, rounds, weights, at_most=0.05),
    ]


def check_texts(target: LoadedModel, runs: Mapping[str, Runs], settings: SamplingSettings) -> dict[str, TextCheck]:
    """Greedy texts of every loop against `generate`: the same, a numeric tie, or a failure; {} if drawn."""
    if settings.temperature != 0.0:
        return {}
    texts = {name: [repeats[0].text for repeats in prompts] for name, prompts in runs.items()}
    checks = {}
    for name in texts:
        if name != "generate":
            found = divergences(target, texts["generate"], texts[name], settings)
            failures = [place.line() for place in found if not place.is_tie]
            same, ties = len(texts[name]) - len(found), len(found) - len(failures)
            checks[name] = TextCheck(same=same, ties=ties, failures=failures)
    return checks


def measure(options: argparse.Namespace) -> Comparison:
    """Measure as the command's options say.

    Raises:
        ValueError: they cannot be run.
    """
    bounds = {"gamma": (1, LARGEST_GAMMA), "tokens": (2, LARGEST_CONTEXT), "repeats": (1, LARGEST_REPETITIONS)}
    for name, (least, largest) in bounds.items():
        if not least <= (found := getattr(options, name)) <= largest:
            raise ValueError(f"--{name}: expected from {least} to {largest}, got {found}")
    use_threads(1 if options.processor_seconds else options.threads)
    specs = {
        role: {"model": getattr(options, role), "dtype": options.dtype, "device": options.device}
        for role in ("target", "draft")
    }
    pair = load_pair(PairConfig.model_validate({"name": "benchmark", **specs}))
    target, draft = pair.target, pair.draft_model
    workload = WorkloadConfig(prompts=options.prompts, limit=options.limit)
    prompts = encode_prompts(read_prompts(workload), target.tokenizer, workload)
    settings = SamplingSettings(temperature=options.temperature, top_p=options.top_p)
    clock: Clock = clock_for(target.device)
    if options.processor_seconds:
        if target.device.type != "cpu":
            raise ValueError(f"--processor-seconds: expected device cpu, got {target.device}")
        clock = ProcessorClock()
    loops = loops_to_compare(
        target,
        draft,
        prompts,
        settings,
        gamma=options.gamma,
        max_new_tokens=options.tokens,
        seed=options.seed,
        clock=clock,
    )
    runs = run_side_by_side(
        loops,
        prompts=len(prompts),
        repeats=options.repeats,
        seed=options.seed,
        progress=lambda done, total: print(f"prompt {done} of {total}", file=sys.stderr),
    )
    return Comparison(ratios=ratios(runs, options.seed), checks=check_texts(target, runs, settings), runs=runs)


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
    parser.add_argument("--repeats", type=int, default=3, help="runs of every loop on every prompt")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--top-p", type=float, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument(
        "--processor-seconds", action="store_true", help="this process's own seconds on one core, not the clock's"
    )
    parser.add_argument("--json", action="store_true")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where a target is missed or texts differ, 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        found = measure(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found.as_json(vars(options)), indent=2, allow_nan=False))
    else:
        print(found.text())
    return 0 if found.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
