"""Decode prompts end to end under every arm, and record each request and each round.

    plain          our plain loop
    loop           the speculative loop at γ = 0: what the loop itself costs, without a draft
    generate       transformers' own generate
    speculate:γ    the decoder at γ

All arms decode the same batch of prompts before the next batch's turn, in an order shuffled by batch, so that a machine
that slows down hits all alike and every comparison is between neighbours in time.

    bench = EndToEnd(pair, settings, max_new_tokens=64, seed=0)
    for arm in shuffled(end_to_end_arms([2, 3]), seed=0, block=0):
        run = bench.run(arm, prompts, prompt_numbers=[0, 1], repetition=0)

Prompts of a cell have exactly its context's length (`specgauge.bench.prompts.prompts_of_length`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specgauge.bench.baselines import generate_with_transformers
from specgauge.bench.builds import nothing_built
from specgauge.bench.clock import Clock, clock_for
from specgauge.bench.decoded import Decoded
from specgauge.bench.decoder import SpeculativeDecoder
from specgauge.bench.generate import PlainDecoded, Text, decode_plain
from specgauge.bench.models import LoadedPair
from specgauge.bench.pair_drafter import drafter_for
from specgauge.bench.round_check import expected_rounds
from specgauge.model.end_to_end import BASELINES, arm_gamma
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.sampling import SamplingSettings

WARM_UP_TOKENS = 4
"""Tokens beyond γ that an untimed first call of an arm writes."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One row of one batch under one arm."""

    arm: str
    gamma: int
    row: int
    prompt: int
    repetition: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    finish_reason: str
    prefill_s: float
    """The batch's, up to its first tokens; the draft's prefill included.  Of `generate`, the whole first step."""
    seconds: float | None
    """From the call to the end of this row; None where only the batch's end was seen."""
    decode_s: float
    """The batch's, from the first tokens to the end of its last row."""
    rounds: int | None
    """Rounds this row took part in; plain steps are rounds.  None where transformers decoded."""
    expected_rounds: float | None
    """What the one-pass estimate expects for this text; None where it is not asked."""
    lossless: bool
    why_not_lossless: str | None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One row's part in one round of one batch under one arm; a plain step is a round without drafts."""

    arm: str
    round: int
    active_rows: int
    row: int
    prompt: int
    repetition: int
    position: int
    context: int
    gamma_asked: int
    gamma: int
    gamma_limit: str
    drafted: int
    accepted: int
    emitted: int
    t_round_s: float
    """The whole round of the batch, as are its phases."""
    t_draft_s: float | None
    t_verify_s: float | None
    t_accept_s: float | None
    t_rest_s: float | None
    top_probs: tuple[float, ...]
    entropies_nats: tuple[float, ...]
    match_length: int | None


@dataclass(frozen=True, kw_only=True)
class ArmRun:
    """One batch under one arm."""

    requests: tuple[Request, ...]
    rounds: tuple[Round, ...]


def shuffled(arms: Sequence[str], *, seed: int, block: int) -> list[str]:
    """The arms in the order in which a block of them is taken."""
    return [arms[index] for index in np.random.default_rng((seed, block)).permutation(len(arms))]


class EndToEnd:
    """Runs the arms of one pair under one sampling setting."""

    def __init__(
        self,
        pair: LoadedPair,
        settings: SamplingSettings,
        *,
        max_new_tokens: int,
        seed: int,
        draft_sampling: DraftSampling = "same",
        acceptance_rule: AcceptanceRule = "ratio",
        forced_rates: float | Sequence[float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take a pair and a way to decode; raises ValueError as `SpeculativeDecoder` does."""
        self.pair, self.settings, self.max_new_tokens, self.seed = pair, settings, max_new_tokens, seed
        self.draft_sampling, self.acceptance_rule, self.forced = draft_sampling, acceptance_rule, forced_rates
        self.clock = clock_for(pair.target.device) if clock is None else clock
        self.decoder = SpeculativeDecoder(
            pair.target,
            drafter_for(pair, settings, draft_sampling=draft_sampling),
            settings,
            seed=seed,
            acceptance_rule=acceptance_rule,
            forced_rates=forced_rates,
            clock=self.clock,
        )

    def warm_up(self, arm: str, prompts: Sequence[Sequence[int]]) -> None:
        """One short untimed call in the arm's shapes: allocation and the choice of kernels are not part of a run.

        Where forwards are compiled or captured, all of an arm's are before the call.
        """
        gamma, longest = arm_gamma(arm), max(len(prompt) for prompt in prompts)
        self.decoder.build(
            batch_size=len(prompts), prompt_tokens=longest, gamma=gamma, max_new_tokens=self.max_new_tokens
        )
        tokens = min(self.max_new_tokens, 2 * (gamma + 1) + WARM_UP_TOKENS)
        if self.pair.target.mode != "eager":
            tokens = self.max_new_tokens  # another number would need other buckets
        short = EndToEnd(
            self.pair,
            self.settings,
            max_new_tokens=tokens,
            seed=self.seed,
            draft_sampling=self.draft_sampling,
            acceptance_rule=self.acceptance_rule,
            forced_rates=self.forced,
            clock=self.clock,
        )
        short.decode(arm, prompts, prompt_numbers=range(len(prompts)), repetition=0)

    def run(
        self, arm: str, prompts: Sequence[Sequence[int]], *, prompt_numbers: Sequence[int], repetition: int
    ) -> ArmRun:
        """Decode a batch and record it; a speculative text is teacher-forced afterwards for the rounds it should take.

        Raises ValueError as the decoder and `generate` do, CompileInsideError where anything was compiled or captured.
        """
        with nothing_built(f"{arm}, {len(prompts)} prompts,"):
            found = self.decode(arm, prompts, prompt_numbers=prompt_numbers, repetition=repetition)
        gamma = arm_gamma(arm)
        if not gamma or self.forced is not None:
            return found
        texts = [
            Text(
                prompt=request.prompt,
                repetition=request.repetition,
                prompt_tokens=tuple(prompt),
                tokens=request.tokens,
                end_reason="eos" if request.finish_reason == "eos" else "length",
            )
            for request, prompt in zip(found.requests, prompts, strict=True)
        ]
        expected = expected_rounds(
            self.pair,
            texts,
            self.settings,
            gamma=gamma,
            max_new_tokens=self.max_new_tokens,
            acceptance_rule=self.acceptance_rule,
            draft_sampling=self.draft_sampling,
        )
        requests = (
            replace(request, expected_rounds=value) for request, value in zip(found.requests, expected, strict=True)
        )
        return replace(found, requests=tuple(requests))

    def decode(
        self, arm: str, prompts: Sequence[Sequence[int]], *, prompt_numbers: Sequence[int], repetition: int
    ) -> ArmRun:
        """Decode a batch under an arm."""
        if arm == "plain":
            plain = decode_plain(
                self.pair.target,
                prompts,
                self.settings,
                max_new_tokens=self.max_new_tokens,
                seed=self.seed,
                prompt_numbers=prompt_numbers,
                repetition=repetition,
                clock=self.clock,
            )
            return _of_plain(plain)
        if arm == "generate":
            return self._generate(prompts, prompt_numbers, repetition)
        assert arm not in BASELINES or arm == "loop", arm
        decoded = self.decoder.run(
            prompts,
            gamma=arm_gamma(arm),
            max_new_tokens=self.max_new_tokens,
            prompt_numbers=prompt_numbers,
            repetition=repetition,
        )
        return _of_decoded(arm, decoded)

    def _generate(self, prompts: Sequence[Sequence[int]], numbers: Sequence[int], repetition: int) -> ArmRun:
        found = generate_with_transformers(
            self.pair.target,
            prompts,
            self.settings,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
            prompt_numbers=numbers,
            repetition=repetition,
            clock=self.clock,
        )
        alone = len(found.texts) == 1
        requests = [
            _request(
                "generate",
                row,
                text,
                prefill_s=found.first_step_s,
                seconds=found.total_s if alone else None,
                decode_s=found.decode_s,
                rounds=None,
            )
            for row, text in enumerate(found.texts)
        ]
        return ArmRun(requests=tuple(requests), rounds=())


def _request(
    arm: str,
    row: int,
    text: Text,
    *,
    prefill_s: float,
    seconds: float | None,
    decode_s: float,
    rounds: int | None,
    lossless: bool = True,
    why_not_lossless: str | None = None,
) -> Request:
    return Request(
        arm=arm,
        gamma=arm_gamma(arm),
        row=row,
        prompt=text.prompt,
        repetition=text.repetition,
        prompt_tokens=len(text.prompt_tokens),
        tokens=text.tokens,
        finish_reason=text.end_reason,
        prefill_s=prefill_s,
        seconds=seconds,
        decode_s=decode_s,
        rounds=rounds,
        expected_rounds=None,
        lossless=lossless,
        why_not_lossless=why_not_lossless,
    )


def _of_plain(found: PlainDecoded) -> ArmRun:
    """The plain loop's steps as rounds without drafts, one for every row that was active."""
    ends_s = [found.prefill_s, *(found.prefill_s + s for s in np.cumsum([step.t_step_s for step in found.steps]))]
    requests = [
        _request(
            "plain",
            row,
            text,
            prefill_s=found.prefill_s,
            seconds=float(ends_s[len(text.tokens) - 1]),
            decode_s=found.decode_s,
            rounds=len(text.tokens) - 1,
        )
        for row, text in enumerate(found.texts)
    ]
    rounds = [
        Round(
            arm="plain",
            round=number,
            active_rows=step.active_rows,
            row=row,
            prompt=text.prompt,
            repetition=text.repetition,
            position=step.position,
            context=len(text.prompt_tokens) + step.position - 1,
            gamma_asked=0,
            gamma=0,
            gamma_limit="asked",
            drafted=0,
            accepted=0,
            emitted=1,
            t_round_s=step.t_step_s,
            t_draft_s=None,
            t_verify_s=None,
            t_accept_s=None,
            t_rest_s=None,
            top_probs=(),
            entropies_nats=(),
            match_length=None,
        )
        for number, step in enumerate(found.steps)
        for row, text in enumerate(found.texts)
        if step.position < len(text.tokens)
    ]
    return ArmRun(requests=tuple(requests), rounds=tuple(rounds))


def _of_decoded(arm: str, decoded: Decoded) -> ArmRun:
    """The decoder's rounds with the batch's times beside each row's counts."""
    index = {text.prompt: row for row, text in enumerate(decoded.texts)}
    ends_s = decoded.prefill_s + np.cumsum([times.t_round_s for times in decoded.times])
    last = {round_.prompt: round_.round for round_ in decoded.rows}
    counts = {text.prompt: 0 for text in decoded.texts}
    rounds = []
    for one in decoded.rows:
        times = decoded.times[one.round]
        counts[one.prompt] += 1
        rounds.append(
            Round(
                arm=arm,
                round=one.round,
                active_rows=times.active_rows,
                row=index[one.prompt],
                prompt=one.prompt,
                repetition=one.repetition,
                position=one.position,
                context=one.context,
                gamma_asked=one.gamma_asked,
                gamma=one.gamma,
                gamma_limit=one.gamma_limit,
                drafted=one.drafted,
                accepted=one.accepted,
                emitted=one.emitted,
                t_round_s=times.t_round_s,
                t_draft_s=times.t_draft_s,
                t_verify_s=times.t_verify_s,
                t_accept_s=times.t_accept_s,
                t_rest_s=times.t_rest_s,
                top_probs=one.top_probs,
                entropies_nats=one.entropies_nats,
                match_length=one.match_length,
            )
        )
    requests = [
        _request(
            arm,
            row,
            text,
            prefill_s=decoded.prefill_s,
            seconds=float(ends_s[last[text.prompt]]) if text.prompt in last else decoded.prefill_s,
            decode_s=decoded.decode_s,
            rounds=counts[text.prompt],
            lossless=decoded.lossless,
            why_not_lossless=decoded.why_not_lossless,
        )
        for row, text in enumerate(decoded.texts)
    ]
    return ArmRun(requests=tuple(requests), rounds=tuple(rounds))
