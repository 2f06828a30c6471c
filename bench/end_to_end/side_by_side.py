"""Several loops that write the same texts, run beside each other: prompt by prompt, in shuffled order, again and again.

    loops = loops_to_compare(target, draft, prompts, settings, gamma=4, max_new_tokens=64, seed=0, clock=clock)
    runs = run_side_by_side(loops, prompts=len(prompts), repeats=3, seed=0)
    rate_ratio(runs["speculative"], runs["assisted"], weights)         # tokens a second, over all prompts

All at batch 1.  A prompt's seconds are the median of its repeats; ratios pair the prompts: with r the seconds a token,

    tokens/s of a over b = Σ_p r_b,p / Σ_p r_a,p          resampled over prompts p, both sides by the same draws
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from specgauge.bench.decoding.decoder import SpeculativeDecoder
from specgauge.bench.decoding.drafters import ModelDrafter
from specgauge.bench.decoding.plain import generate_plain
from specgauge.bench.decoding.records import Decoded, Text
from specgauge.bench.end_to_end.baselines import assisted_with_transformers, generate_with_transformers
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.timing.clock import Clock, undisturbed
from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.sampling import SamplingSettings
from specgauge.model.stats.bootstrap import percentile_interval, ratio_replicates

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


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A pooled ratio with its interval over prompts; None with fewer than two prompts."""

    value: float
    low: float | None
    high: float | None


def _timed(clock: Clock, decode: Callable[[], Decoded | list[Text]]) -> LoopRun:
    """One prompt through a loop of ours, timed from outside like the others."""
    clock.synchronize()
    start = clock.mark()
    found = decode()
    clock.synchronize()
    end = clock.mark()
    clock.synchronize()
    total_s = clock.elapsed_s(start, end)
    if isinstance(found, Decoded):
        return LoopRun(text=found.texts[0], total_s=total_s, decoded=found)
    return LoopRun(text=found[0], total_s=total_s)


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
    length: dict[str, Any] = {"max_new_tokens": max_new_tokens}

    def decode(number: int, *, gamma: int) -> LoopRun:
        decoder = SpeculativeDecoder(target, ModelDrafter(draft, settings), settings, seed=seed, clock=clock)
        return _timed(clock, lambda: decoder.run([prompts[number]], gamma=gamma, prompt_numbers=[number], **length))

    def plain(number: int) -> LoopRun:
        given = {"seed": seed, "prompt_numbers": [number], **length}
        return _timed(clock, lambda: generate_plain(target, [prompts[number]], settings, **given))

    def assisted(number: int) -> LoopRun:
        given = {"seed": seed + number, "prompt_number": number, "clock": clock, **length}
        found = assisted_with_transformers(target, draft, prompts[number], settings, gamma=gamma, **given)
        return LoopRun(text=found.texts[0], total_s=found.total_s)

    def generate(number: int) -> LoopRun:
        given = {"seed": seed + number, "prompt_numbers": [number], "clock": clock, **length}
        found = generate_with_transformers(target, [prompts[number]], settings, **given)
        return LoopRun(text=found.texts[0], total_s=found.total_s)

    return {
        "speculative": partial(decode, gamma=gamma),
        "assisted": assisted,
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
    overhead = [sum(t.t_accept_s + t.t_rest_s for t in prompt) for prompt in times]
    return np.array(overhead), np.array([sum(t.t_round_s for t in prompt) for prompt in times])


def rate_ratio(runs: Runs, others: Runs, weights: IntArray) -> Ratio:
    """Tokens a second of ``runs`` over those of ``others``."""
    return pooled(seconds_per_token(others), seconds_per_token(runs), weights)


def pooled(numerators: FloatArray, denominators: FloatArray, weights: IntArray) -> Ratio:
    """Σ numerators / Σ denominators over prompts, with its interval; weights (R, P) of `draw_prompts`."""
    found = ratio_replicates(numerators[:, None], denominators[:, None], weights, confidence=CONFIDENCE)[:, 0]
    low, high = (float(end) for end in percentile_interval(found[1:], CONFIDENCE))
    if not np.isfinite([low, high]).all():
        return Ratio(value=float(found[0]), low=None, high=None)
    return Ratio(value=float(found[0]), low=low, high=high)
