"""What the host adds to a round: ε as the decoder's phases have it, and what one early-stop check costs.

    ε       median of accept + rest over the rounds with all rows active of one call at the middle γ: testing more
            drafts takes a little longer, and ε is one number for all γ
    check   (chain of γ drafts with a check after each but the last − the same chain without) / (γ − 1): the mean of the
            medians over neighbours in time, either of them first, since a machine drifts; the policy asked is the one
            that computes most.  Where lookups draft, a check is the policy's own time

    costs = measure_host_costs(decoder, prompts, gamma_max=6, max_new_tokens=64)
    costs.t_early_stop_check_s

All times in seconds.  Shapes: B rows, G drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specgauge.bench.decoding.decoder import SpeculativeDecoder
from specgauge.bench.decoding.drafters import EarlyStopChecks, ModelDrafter
from specgauge.bench.decoding.records import PromptBatch
from specgauge.bench.timing.clock import Clock, timed_marks
from specgauge.model.policies.forecast import by_confidence
from specgauge.model.policies.policy import GammaChoice, GammaPolicy
from specgauge.model.policies.stopping import RenewalStoppingPolicy

CHAINS = 24
"""Chains of each kind that a check is measured over, after a first one that counts for nothing."""


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """Of one batch size and context."""

    t_overhead_s: float
    """ε."""
    t_early_stop_check_s: float
    """One early-stop check."""


class EveryGamma(GammaPolicy):
    """γ = 1, 2, … γ_max in turn, with a check after every draft: a policy that meets every shape."""

    reads_signals = True

    def __init__(self, gamma_max: int) -> None:
        self._gamma_max, self._rounds = gamma_max, 0

    @property
    def gamma(self) -> int:
        """That of the next round."""
        return self._rounds % self._gamma_max + 1

    def begin(self) -> EveryGamma:
        """At γ = 1."""
        return EveryGamma(self._gamma_max)

    def goes_on(self, depth: int, top_probs: Sequence[float], entropies_nats: Sequence[float]) -> bool:  # noqa: ARG002
        """Until γ."""
        return depth < self.gamma

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:  # noqa: ARG002
        """The next γ."""
        self._rounds += 1


def measure_host_costs(
    decoder: SpeculativeDecoder, prompts: Sequence[Sequence[int]], *, gamma_max: int, max_new_tokens: int
) -> HostCosts:
    """One call at the middle γ, then chains of the most drafts after the prompts; all shapes are warm already.

    gamma_max: the most drafts that a policy may ask for.
    """
    batch = PromptBatch(prompts=prompts, numbers=range(len(prompts)), max_new_tokens=max_new_tokens)
    found = decoder.run(batch, gamma=(gamma_max + 1) // 2)
    whole = [times.t_overhead_s for times in found.times if times.active_rows == len(prompts)]
    return HostCosts(
        t_overhead_s=float(np.median(whole)) if whole else 0.0,
        t_early_stop_check_s=_check_s(decoder, decoder.drafter, prompts, gamma_max)
        if isinstance(decoder.drafter, ModelDrafter)
        else _asking_s(decoder.clock, len(prompts), gamma_max),
    )


@torch.inference_mode()
def _check_s(decoder: SpeculativeDecoder, drafter: ModelDrafter, prompts: Sequence[Sequence[int]], gamma: int) -> float:
    """Seconds of one check; 0 where chains of one draft leave nothing to check."""
    if gamma < 2:
        return 0.0
    rows = len(prompts)
    drafter.start(prompts, gamma + 1)
    uniforms = torch.full((rows, gamma), 0.5, dtype=torch.float64, device=drafter.draft.device)

    def chain(choice: GammaChoice | None) -> Callable[[], object]:
        checks = None if choice is None else EarlyStopChecks(choice, [True] * rows)
        return lambda: drafter.propose(prompts, [gamma] * rows, uniforms, checks)

    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(CHAINS + 1):
        for is_asked in (False, True) if number % 2 else (True, False):
            run = chain(_never_stops(gamma) if is_asked else None)
            seconds[is_asked] += timed_marks(decoder.clock, [run])
            drafter.keep(prompts, [0] * rows)
    longer_s = np.subtract(seconds[True], seconds[False])[1:]
    either_first = float(np.median(longer_s[::2]) + np.median(longer_s[1::2])) / 2
    return max(0.0, either_first) / (gamma - 1)


def _asking_s(clock: Clock, rows: int, gamma: int) -> float:
    """Seconds of one question to a policy, of rows whose signals are at hand; 0 where there is nothing to ask."""
    if gamma < 2:
        return 0.0

    def ask() -> None:
        checks = EarlyStopChecks(_never_stops(gamma), [True] * rows)
        for depth in range(1, gamma):
            checks(depth, [0.5] * rows, [0.0] * rows)

    seconds = [timed_marks(clock, [ask])[0] for _ in range(CHAINS + 1)]
    return float(np.median(seconds[1:])) / (gamma - 1)


def _never_stops(gamma: int) -> GammaChoice:
    """The stopping rule, with drafts that cost nothing."""
    forecast = by_confidence([0.0, 1.0], [0.0, 1.0], 0.5)
    return RenewalStoppingPolicy(
        forecast=forecast, t_round_s=(1.0,) * (gamma + 1), seconds_saved_per_token=1.0, fewest=gamma
    ).begin()
