"""Decode prompts end to end under every arm, and record each request and each round.

    plain          our plain loop
    loop           the speculative loop at γ = 0: what the loop itself costs, without a draft
    generate       transformers' own generate
    speculate:γ    the decoder at γ
    adaptive:NAME  the decoder under a policy that chooses γ from round to round; the plain loop where it never drafts

All arms decode the same batch of prompts before the next batch, in an order shuffled by batch.  Eager ones are
interleaved round by round, so that a machine that slows down hits all alike; `generate` cannot be interrupted, and is
run before or after them.  Where forwards are compiled or captured, or memory does not hold a cache for each arm, arms
run one after another.  A batch that other programs disturbed is decoded again, as long as that helps and there are
seconds for it; what they did beside the one that counts stands in its requests.

    bench = EndToEnd(pair, settings, max_new_tokens=64, seed=0)
    arms = shuffled(end_to_end_arms([2, 3]), seed=0, block=0)
    found = bench.run(arms, prompts, prompt_numbers=[0, 1], repetition=0)
    found["speculate:2"].requests, found["plain"].rounds
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from specgauge.bench.decoding.decoder import SpeculativeDecoder
from specgauge.bench.decoding.drafters import Drafter, ModelDrafter, NgramDrafter
from specgauge.bench.decoding.plain import Interleavable, interleave, plain_steps
from specgauge.bench.decoding.records import PromptBatch
from specgauge.bench.device import free_memory, is_out_of_memory, on_cpu
from specgauge.bench.end_to_end.arm_runs import (
    ArmRun,
    Round,
    caches_fit,
    request_of,
    run_of_decoded,
)
from specgauge.bench.end_to_end.baselines import generate_with_transformers
from specgauge.bench.end_to_end.host_costs import EveryGamma, HostCosts, measure_host_costs
from specgauge.bench.end_to_end.text_checks import ExpectedCounts, divergences, expected_counts
from specgauge.bench.models.pair import LoadedPair
from specgauge.bench.models.static_graphs import no_compilation
from specgauge.bench.timing.clock import Clock, clock_for, undisturbed
from specgauge.bench.timing.gpu_state import gpu_watch
from specgauge.bench.timing.neighbours import Retakes, calm
from specgauge.model.arms import DIFFERS, GENERATE, PLAIN, SAME, TIE, Arm
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.policies.policy import GammaPolicy, decodes_plainly
from specgauge.model.sampling import SamplingSettings

FEWEST_RETAKES = 2
"""Batches of a cell that are decoded again before one of them must have been left alone for further ones."""
WARM_UP_TOKENS = 4
"""Tokens beyond γ that an untimed first call of an arm writes."""


def shuffled(arms: Sequence[str], *, seed: int, block: int) -> list[str]:
    """The arms in the order in which a block of them is taken."""
    return [arms[index] for index in np.random.default_rng((seed, block)).permutation(len(arms))]


def drafter_for(pair: LoadedPair, settings: SamplingSettings, *, draft_sampling: DraftSampling = "same") -> Drafter:
    """A new drafter of a loaded pair; a lookup, whose proposals are certain, needs no option."""
    if pair.ngram is not None:
        return NgramDrafter(longest=pair.ngram.longest, shortest=pair.ngram.shortest)
    return ModelDrafter(pair.draft_model, settings, draft_sampling=draft_sampling)


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
        memory: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take a pair and a sampling setting; raises as `SpeculativeDecoder` does.

        memory: bytes that weights and the caches of all arms may take; where they would take more, or the machine does
        not have them, arms run one after another.
        """
        self.pair, self.settings, self.max_new_tokens, self.seed = pair, settings, max_new_tokens, seed
        self.draft_sampling, self.acceptance_rule, self.forced = draft_sampling, acceptance_rule, forced_rates
        self.memory = memory
        self.clock = clock_for(*pair.devices) if clock is None else clock
        self.decoder = self._decoder()
        self.retakes, self.read_gpus = Retakes(fewest=FEWEST_RETAKES), gpu_watch(pair.devices)
        self.interleaves = all(model.mode == "eager" for model in pair.models)
        """Whether arms run interleaved; false from where on memory cannot hold all their caches."""
        self._progress: Callable[[float], object] | None = None

    def warm_up(self, arm: str, prompts: Sequence[Sequence[int]], *, gamma_max: int = 0) -> None:
        """One short untimed call in the arm's shapes: allocation and the choice of kernels are not part of a run.

        Where forwards are compiled or captured, all of an arm's are before the call.
        gamma_max: the most drafts that an adaptive arm may ask for; every γ up to it is met.
        """
        fixed, longest = Arm.parse(arm).gamma, max(len(prompt) for prompt in prompts)
        gamma = gamma_max if fixed is None else fixed
        self.decoder.compile(
            batch_size=len(prompts), prompt_tokens=longest, gamma=gamma, max_new_tokens=self.max_new_tokens
        )
        rounds = 2 if fixed is not None else gamma_max
        tokens = min(self.max_new_tokens, rounds * (gamma + 1) + WARM_UP_TOKENS)
        if self.pair.target.mode != "eager":
            tokens = self.max_new_tokens  # another number would need other buckets
        policies = {} if fixed is not None else {arm: EveryGamma(gamma_max)}
        self._together(
            [arm], PromptBatch(prompts=prompts, numbers=range(len(prompts)), max_new_tokens=tokens), policies
        )

    def host_costs(self, prompts: Sequence[Sequence[int]], *, gamma: int) -> HostCosts:
        """ε and what an early-stop check costs, as `measure_host_costs` has them; every γ up to this one is warm."""
        return measure_host_costs(self.decoder, prompts, gamma_max=gamma, max_new_tokens=self.max_new_tokens)

    def run(
        self,
        arms: Sequence[str],
        prompts: Sequence[Sequence[int]],
        *,
        prompt_numbers: Sequence[int],
        repetition: int,
        policies: Mapping[str, GammaPolicy] | None = None,
        window: int | None = None,
        progress: Callable[[float], object] | None = None,
        spare_s: float = math.inf,
    ) -> dict[str, ArmRun]:
        """Decode a batch under every arm and record it; texts at fixed γ are teacher-forced afterwards.

        That gives the rounds each of them should take, and those at every other γ that is decoded beside it. Greedy
        texts are compared with the plain loop's, where that is an arm.

        policies: what chooses γ under each adaptive arm.  window: positions that a round has left to be counted among
        the expected starts; the largest γ unless given.  progress: told how much of the decoding is done, from 0 to 1.
        spare_s: seconds that decoding it again may take.

        Raises:
            ValueError: as the decoder and `generate`.
            CompileInsideError: anything was compiled or captured.
        """
        batch = PromptBatch(
            prompts=prompts, numbers=prompt_numbers, max_new_tokens=self.max_new_tokens, repetition=repetition
        )
        self.interleaves = self.interleaves and caches_fit(
            self.pair,
            arms=sum(arm != GENERATE for arm in arms),
            batch_size=len(prompts),
            tokens=batch.longest + self.max_new_tokens,
            limit=self.memory,
        )
        self._progress = progress
        decoded, disturbance = calm(
            lambda: undisturbed(lambda: self._every(arms, batch, policies or {})),
            self.retakes,
            on_cpu=on_cpu(self.pair.devices),
            most=1,
            spare_s=spare_s,
        )
        told = asdict(disturbance.on_gpus(self.read_gpus(), 1))
        found = self._against_plain(
            {
                arm: replace(run, requests=tuple(replace(request, **told) for request in run.requests))
                for arm, run in decoded.items()
            }
        )
        speculating = {arm: gamma for arm in arms if (gamma := Arm.parse(arm).gamma)}
        gammas = sorted(speculating.values())
        if self.forced is not None or not gammas:
            return found
        expected = expected_counts(
            self.pair,
            [text for arm in speculating for text in found[arm].texts],
            self.settings,
            gammas=gammas,
            window=max(gammas) if window is None else window,
            max_new_tokens=self.max_new_tokens,
            acceptance_rule=self.acceptance_rule,
            draft_sampling=self.draft_sampling,
        )
        of_text = iter(expected)
        for arm, gamma in speculating.items():
            own = [next(of_text) for _ in found[arm].requests]
            requests = [
                replace(
                    request,
                    expected_rounds=one.rounds[gammas.index(gamma)],
                    expected_starts=one.starts,
                    expected_committed=one.committed,
                )
                for request, one in zip(found[arm].requests, own, strict=True)
            ]
            rounds = [_with_signals(one, own[one.row]) for one in found[arm].rounds]
            found[arm] = replace(found[arm], requests=tuple(requests), rounds=tuple(rounds))
        return found

    def _against_plain(self, found: dict[str, ArmRun]) -> dict[str, ArmRun]:
        """Greedy texts, generate's too, with where they leave the plain loop's, and whether rounding explains it."""
        if self.settings.temperature != 0.0 or self.forced is not None or PLAIN not in found:
            return found
        compared = dict(found)
        for arm in found.keys() - {PLAIN}:
            leaving = divergences(self.pair.target, found[PLAIN].texts, found[arm].texts, self.settings)
            places = {place.prompt: place for place in leaving}
            requests = []
            for request in found[arm].requests:
                place = places.get(request.prompt)
                against = SAME if place is None else TIE if place.is_tie else DIFFERS
                at, margin = (None, None) if place is None else (place.position, place.margin)
                requests.append(replace(request, against_plain=against, leaves_plain_at=at, leaves_plain_margin=margin))
            compared[arm] = replace(found[arm], requests=tuple(requests))
        return compared

    def _every(self, arms: Sequence[str], batch: PromptBatch, policies: Mapping[str, GammaPolicy]) -> dict[str, ArmRun]:
        """Every arm once: interleaved where they can be, one after another where they cannot."""
        found: dict[str, ArmRun] = {}

        def tell(tokens: float) -> None:
            if self._progress is not None:
                self._progress((len(found) + len(group) * min(1.0, tokens / self.max_new_tokens)) / len(arms))

        groups = [[arm] for arm in arms]
        if self.interleaves:
            own = [arm for arm in arms if arm != GENERATE]
            alone = [[arm] for arm in arms if arm == GENERATE]
            is_late = bool(alone) and 2 * arms.index(GENERATE) >= len(arms)
            groups = [own, *alone] if is_late else [*alone, own]
        while groups:
            group = groups.pop(0)
            try:
                with no_compilation(f"{', '.join(group)}, {len(batch.prompts)} prompts,"):
                    found |= self._together(group, batch, policies, tell)
                continue
            except Exception as error:
                if len(group) < 2 or not is_out_of_memory(error):
                    raise
            self.interleaves = False  # the caches of all arms were too much; one is what a deployment has
            free_memory()
            groups = [*([arm] for arm in group), *groups]
        return {arm: found[arm] for arm in arms}

    def _together(
        self,
        arms: Sequence[str],
        batch: PromptBatch,
        policies: Mapping[str, GammaPolicy],
        progress: Callable[[float], object] | None = None,
    ) -> dict[str, ArmRun]:
        """Arms that run at the same time, each with caches of its own."""
        if list(arms) == [GENERATE]:
            return {GENERATE: self._generate(batch)}
        return interleave({arm: self._rounds(arm, batch, policies.get(arm)) for arm in arms}, progress)

    def _rounds(self, arm: str, batch: PromptBatch, policy: GammaPolicy | None) -> Interleavable[ArmRun]:
        """One arm of our own, round by round; ``policy`` chooses γ where the arm is adaptive."""
        if arm == PLAIN or decodes_plainly(policy):
            plain = yield from plain_steps(self.pair.target, batch, self.settings, seed=self.seed, clock=self.clock)
            return run_of_decoded(arm, plain)
        gamma = Arm.parse(arm).gamma if policy is None else policy
        assert gamma is not None, f"{arm}: no policy"
        decoder = self._decoder() if self.interleaves else self.decoder
        decoded = yield from decoder.rounds(batch, gamma=gamma)
        return run_of_decoded(arm, decoded)

    def _decoder(self) -> SpeculativeDecoder:
        """A decoder with a drafter of its own."""
        return SpeculativeDecoder(
            self.pair.target,
            drafter_for(self.pair, self.settings, draft_sampling=self.draft_sampling),
            self.settings,
            seed=self.seed,
            acceptance_rule=self.acceptance_rule,
            forced_rates=self.forced,
            clock=self.clock,
        )

    def _generate(self, batch: PromptBatch) -> ArmRun:
        found = generate_with_transformers(self.pair.target, batch, self.settings, seed=self.seed, clock=self.clock)
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
        return ArmRun(requests=tuple(requests), rounds=(), texts=tuple(found.texts))


def _with_signals(one: Round, read: ExpectedCounts) -> Round:
    """The round with what the draft says of the drafts that were tested, read off the text afterwards."""
    tested = slice(one.position - 1, one.position - 1 + min(one.accepted + 1, one.drafted))
    return replace(one, top_probs=read.top_probs[tested], entropies_nats=read.entropies_nats[tested])
