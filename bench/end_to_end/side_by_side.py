"""Several ways to write the same texts, run beside each other: prompt by prompt, in shuffled order, again and again.

    ways = ways_to_generate(target, draft, prompts, settings, gamma=4, max_new_tokens=64, seed=0, clock=clock)
    runs = race(ways, prompts=len(prompts), repeats=3, seed=0)
    rate_ratio(runs["speculative"], runs["assisted"], weights)         # tokens a second, over all prompts

All at batch 1.  A prompt's seconds are the median of its repeats; ratios pair the prompts: with r the seconds a token,

    tokens/s of a over b = Σ_p r_b,p / Σ_p r_a,p          resampled over prompts p, both sides by the same draws

How long a loop spends inside a model's forwards, and how long outside: on the host, drawing, judging, moving data.

    with ForwardTimer(target.model, clock) as timer:
        decoder.run(…)
    timer.forwards, timer.inside_s          # outside: the call's seconds − inside_s of both models

Each forward is waited for on both sides, so a device's queue never fills: the split holds, the total is longer than
that of an undisturbed run.  Masks that a model makes itself count as forward, those made for it do not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from statistics import median
from types import TracebackType
from typing import Any

import numpy as np
from torch import nn

from specgauge.bench.decoding.decoded import Decoded
from specgauge.bench.decoding.decoder import SpeculativeDecoder
from specgauge.bench.decoding.drafters import ModelDrafter
from specgauge.bench.decoding.plain import Text, generate_plain
from specgauge.bench.end_to_end.baselines import assisted_with_transformers, generate_with_transformers
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.timing.clock import Clock, undisturbed
from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.sampling import SamplingSettings
from specgauge.model.stats.bootstrap import percentile_interval, ratio_replicates


class ForwardTimer:
    """Counts a model's forwards while the context lasts, and adds up their seconds."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        self.model, self.clock = model, clock
        self.forwards, self.inside_s = 0, 0.0
        self._start: Any = None
        self._hooks: list[Any] = []

    def __enter__(self) -> ForwardTimer:
        """Start counting."""
        self._hooks = [
            self.model.register_forward_pre_hook(self._begin),
            self.model.register_forward_hook(self._end),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop counting, whatever happened."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: Any) -> None:
        self.clock.synchronize()
        self._start = self.clock.mark()

    def _end(self, *_: Any) -> None:
        self.clock.synchronize()
        end = self.clock.mark()
        self.clock.synchronize()
        self.forwards += 1
        self.inside_s += self.clock.elapsed_s(self._start, end)


CONFIDENCE = 0.9


@dataclass(frozen=True, kw_only=True)
class WayRun:
    """One text written in one way."""

    text: Text
    total_s: float
    """From the call to its return, both prefills included."""
    decoded: Decoded | None = None
    """Rounds and phases, where the decoder is ours."""


Way = Callable[[int], WayRun]
"""Writes the text of the prompt with this number."""
Runs = list[list[WayRun]]
"""By prompt, then by repeat."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A pooled ratio with its interval over prompts; None with fewer than two prompts."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where the seconds of one way went, all prompts together."""

    tokens: int
    total_s: float
    target_forwards: int
    draft_forwards: int
    target_s: float
    draft_s: float

    @property
    def outside_s(self) -> float:
        """Seconds outside both models."""
        return self.total_s - self.target_s - self.draft_s


def ways_to_generate(
    target: LoadedModel,
    draft: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    gamma: int,
    max_new_tokens: int,
    seed: int,
    clock: Clock,
) -> dict[str, Way]:
    """Our decoder at γ, transformers assisted at γ, our plain loop, our decoder at γ = 0, transformers' plain loop."""

    def decode(number: int, *, gamma: int) -> WayRun:
        decoder = SpeculativeDecoder(target, ModelDrafter(draft, settings), settings, seed=seed, clock=clock)
        return decode_once(decoder, prompts[number], gamma=gamma, max_new_tokens=max_new_tokens, number=number)

    def plain(number: int) -> WayRun:
        clock.synchronize()
        start = clock.mark()
        (text,) = generate_plain(
            target,
            [prompts[number]],
            settings,
            max_new_tokens=max_new_tokens,
            seed=seed,
            prompt_numbers=[number],
        )
        clock.synchronize()
        end = clock.mark()
        clock.synchronize()
        return WayRun(text=text, total_s=clock.elapsed_s(start, end))

    def assisted(number: int) -> WayRun:
        found = assisted_with_transformers(
            target,
            draft,
            prompts[number],
            settings,
            gamma=gamma,
            max_new_tokens=max_new_tokens,
            seed=seed + number,
            prompt_number=number,
            clock=clock,
        )
        return WayRun(text=found.texts[0], total_s=found.total_s)

    def generate(number: int) -> WayRun:
        found = generate_with_transformers(
            target,
            [prompts[number]],
            settings,
            max_new_tokens=max_new_tokens,
            seed=seed + number,
            prompt_numbers=[number],
            clock=clock,
        )
        return WayRun(text=found.texts[0], total_s=found.total_s)

    return {
        "speculative": partial(decode, gamma=gamma),
        "assisted": assisted,
        "plain": plain,
        "gamma_0": partial(decode, gamma=0),
        "generate": generate,
    }


def decode_once(
    decoder: SpeculativeDecoder, prompt: Sequence[int], *, gamma: int, max_new_tokens: int, number: int
) -> WayRun:
    """One prompt through our decoder, timed from outside like the others."""
    clock = decoder.clock
    clock.synchronize()
    start = clock.mark()
    decoded = decoder.run([prompt], gamma=gamma, max_new_tokens=max_new_tokens, prompt_numbers=[number])
    clock.synchronize()
    end = clock.mark()
    clock.synchronize()
    return WayRun(text=decoded.texts[0], total_s=clock.elapsed_s(start, end), decoded=decoded)


def ways_to_start(
    target: LoadedModel,
    draft: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    gamma: int,
    seed: int,
    clock: Clock,
) -> dict[str, Way]:
    """Our decoder up to its first round, with the draft's prefill taking the target's first token along and without."""

    def start(number: int, *, takes_first: bool) -> WayRun:
        drafter = ModelDrafter(draft, settings, prefill_takes_first_token=takes_first)
        decoder = SpeculativeDecoder(target, drafter, settings, seed=seed, clock=clock)
        return decode_once(decoder, prompts[number], gamma=gamma, max_new_tokens=gamma + 2, number=number)

    return {"without": partial(start, takes_first=False), "with": partial(start, takes_first=True)}


def race(
    ways: Mapping[str, Way],
    *,
    prompts: int,
    repeats: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Runs]:
    """Every way on every prompt, ``repeats`` times: prompts in shuffled order, the ways of each in shuffled order.

    Each way runs once on the first prompt before anything counts.
    """
    order = random.Random(seed)
    runs: dict[str, Runs] = {name: [[] for _ in range(prompts)] for name in ways}
    for way in ways.values():
        way(0)
    for repeat in range(repeats):
        for done, number in enumerate(order.sample(range(prompts), prompts)):
            for name in order.sample(list(ways), len(ways)):
                runs[name][number].append(undisturbed(partial(ways[name], number)))
            if progress is not None:
                progress(repeat * prompts + done + 1, repeats * prompts)
    return runs


def split_times(
    ways: Mapping[str, Way], target: LoadedModel, draft: LoadedModel, *, prompts: int, clock: Clock
) -> dict[str, Split]:
    """Forwards and the seconds in them of every way, beside each other on every prompt.

    A pass of its own: timing forwards slows them down.
    """
    parts: dict[str, list[Split]] = {name: [] for name in ways}
    for number in range(prompts):
        for name, way in ways.items():
            with ForwardTimer(target.model, clock) as of_target, ForwardTimer(draft.model, clock) as of_draft:
                run = way(number)
            parts[name].append(
                Split(
                    tokens=len(run.text.tokens),
                    total_s=run.total_s,
                    target_forwards=of_target.forwards,
                    draft_forwards=of_draft.forwards,
                    target_s=of_target.inside_s,
                    draft_s=of_draft.inside_s,
                )
            )
    names = [field.name for field in fields(Split)]
    return {
        name: Split(**{field: sum(getattr(split, field) for split in splits) for field in names})
        for name, splits in parts.items()
    }


def seconds_per_token(runs: Runs) -> FloatArray:
    """(P,) the median total of each prompt's repeats, over the tokens of its text."""
    return np.array([median(run.total_s / len(run.text.tokens) for run in repeats) for repeats in runs])


def overhead_and_round_s(runs: Runs) -> tuple[FloatArray, FloatArray]:
    """((P,) accept and rest, (P,) whole rounds) in seconds, all rounds of all repeats of each prompt."""
    times = [[t for run in repeats if run.decoded is not None for t in run.decoded.times] for repeats in runs]
    overhead = [sum(t.t_accept_s + t.t_rest_s for t in prompt) for prompt in times]
    return np.array(overhead), np.array([sum(t.t_round_s for t in prompt) for prompt in times])


def start_s(runs: Runs) -> FloatArray:
    """(P,) seconds of the draft's prefill and the first round's drafts, the median of each prompt's repeats."""
    found = []
    for repeats in runs:
        decoded = [run.decoded for run in repeats if run.decoded is not None and run.decoded.times]
        found.append(median(d.prefill_draft_s + d.times[0].t_draft_s for d in decoded) if decoded else 0.0)
    return np.array(found)


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
