"""Decode prompts end to end under every arm, and record each request and each round.

    plain          our plain loop
    loop           the speculative loop at γ = 0: what the loop itself costs, without a draft
    generate       transformers' own generate
    speculate:γ    the decoder at γ
    adaptive:NAME  the decoder under a policy that chooses γ from round to round; the plain loop where it never drafts

All arms decode the same batch of prompts before the next batch's turn, in an order shuffled by batch, so that a machine
that slows down hits all alike and every comparison is between neighbours in time.

    bench = EndToEnd(pair, settings, max_new_tokens=64, seed=0)
    for arm in shuffled(end_to_end_arms([2, 3]), seed=0, block=0):
        run = bench.run(arm, prompts, prompt_numbers=[0, 1], repetition=0)

Prompts of a cell have exactly its context's length (`specgauge.bench.prompts.prompts_of_length`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specgauge.bench.arm_runs import ArmRun, request_of, run_of_decoded, run_of_plain
from specgauge.bench.baselines import generate_with_transformers
from specgauge.bench.builds import nothing_built
from specgauge.bench.clock import Clock, clock_for
from specgauge.bench.decoder import SpeculativeDecoder
from specgauge.bench.generate import Text, decode_plain
from specgauge.bench.host_costs import EveryGamma, HostCosts, measure_host_costs
from specgauge.bench.models import LoadedPair
from specgauge.bench.pair_drafter import drafter_for
from specgauge.bench.round_check import expected_rounds
from specgauge.bench.suspension import undisturbed
from specgauge.model.end_to_end import BASELINES, arm_gamma
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.policies import GammaPolicy, decodes_plainly
from specgauge.model.sampling import SamplingSettings

WARM_UP_TOKENS = 4
"""Tokens beyond γ that an untimed first call of an arm writes."""


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

    def warm_up(self, arm: str, prompts: Sequence[Sequence[int]], *, gamma_max: int = 0) -> None:
        """One short untimed call in the arm's shapes: allocation and the choice of kernels are not part of a run.

        Where forwards are compiled or captured, all of an arm's are before the call.
        gamma_max: the most drafts that an adaptive arm may ask for; every γ up to it has its turn.
        """
        fixed, longest = arm_gamma(arm), max(len(prompt) for prompt in prompts)
        gamma = gamma_max if fixed is None else fixed
        self.decoder.build(
            batch_size=len(prompts), prompt_tokens=longest, gamma=gamma, max_new_tokens=self.max_new_tokens
        )
        rounds = 2 if fixed is not None else gamma_max
        tokens = min(self.max_new_tokens, rounds * (gamma + 1) + WARM_UP_TOKENS)
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
        policy = None if fixed is not None else EveryGamma(gamma_max)
        short.decode(arm, prompts, prompt_numbers=range(len(prompts)), repetition=0, policy=policy)

    def host_costs(self, prompts: Sequence[Sequence[int]], *, gamma: int) -> HostCosts:
        """ε and what a look costs, as `measure_host_costs` has them; the arm of this γ is warm."""
        return measure_host_costs(self.decoder, prompts, gamma=gamma, max_new_tokens=self.max_new_tokens)

    def run(
        self,
        arm: str,
        prompts: Sequence[Sequence[int]],
        *,
        prompt_numbers: Sequence[int],
        repetition: int,
        policy: GammaPolicy | None = None,
    ) -> ArmRun:
        """Decode a batch and record it; a text at fixed γ is teacher-forced afterwards for the rounds it should take.

        policy: what chooses γ under an adaptive arm.
        Raises ValueError as the decoder and `generate` do, CompileInsideError where anything was compiled or captured.
        """
        with nothing_built(f"{arm}, {len(prompts)} prompts,"):
            found = undisturbed(
                lambda: self.decode(arm, prompts, prompt_numbers=prompt_numbers, repetition=repetition, policy=policy)
            )
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
        self,
        arm: str,
        prompts: Sequence[Sequence[int]],
        *,
        prompt_numbers: Sequence[int],
        repetition: int,
        policy: GammaPolicy | None = None,
    ) -> ArmRun:
        """Decode a batch under an arm; `policy` as in `run`."""
        if arm == "plain" or decodes_plainly(policy):
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
            return run_of_plain(plain, arm)
        if arm == "generate":
            return self._generate(prompts, prompt_numbers, repetition)
        assert arm not in BASELINES or arm == "loop", arm
        gamma = arm_gamma(arm) if policy is None else policy
        assert gamma is not None, f"{arm}: no policy"
        decoded = self.decoder.run(
            prompts,
            gamma=gamma,
            max_new_tokens=self.max_new_tokens,
            prompt_numbers=prompt_numbers,
            repetition=repetition,
        )
        return run_of_decoded(arm, decoded)

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
            request_of(
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
