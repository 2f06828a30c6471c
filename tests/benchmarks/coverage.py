"""How often intervals of S hold the truth, and how often a confident decision is wrong, on machines with neighbours.

    python -m tests.benchmarks.coverage [EXPERIMENTS]

prints both for made-up machines that drift, are slowed 3 to 30 × in bursts, have heavy tails, jitter in every sample,
slow down one arm alone, or have a pace of every arm or of plain steps alone in each block; with 3, 5 and 10 blocks of 5
samples; 1,000 experiments each. Then the same of 5 blocks where acceptance is recorded on 16 prompts that differ, and
some of them are decoded end to end. Exit code 1 where a promise is not kept: 90 % intervals hold S of the quiet
machine, or no decision is taken, in at least 88 %; at most 2 % are wrong. The half-width is
the median over the experiments, of log S.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.arms import verify_arm
from specgauge.model.checks import FloatArray
from specgauge.model.costs import RoundCosts
from specgauge.model.decision import WORTHWHILE_SPEEDUP, costs_from_blocks, estimate_speedup
from specgauge.model.search.levels import level_blocks
from specgauge.model.settings import Provenance
from specgauge.model.speedup import speedups
from specgauge.model.stats.bootstrap import draw_blocks, draw_prompts, ratio_replicates
from specgauge.sweeps.analysis.counted_rounds import CountedBlock
from specgauge.sweeps.analysis.validation import SINGLE_BATCH_SPREAD, measured_replicates
from specgauge.sweeps.text_table import text_table

EXPERIMENTS = 1000
MACHINES = (
    "quiet",
    "drift",
    "short bursts",
    "bursts",
    "long bursts",
    "heavy tails",
    "jitter",
    "arm drift",
    "arm pace",
    "plain pace",
)
BLOCKS = (3, 5, 10)
DECODING_MACHINES, DECODING_BLOCKS = MACHINES[:-3], 5
"""Those whose arms all slow down alike: a round decoded end to end has no arms of its own."""
PROMPTS, DECODED, TEXT, ROUND_SPREAD = 16, (4, 16), 64, 0.8
"""Prompts recorded; how many of them are decoded too; tokens of each; standard deviation of what a round commits."""
REPLICATES = 1000
LEAST_COVERED, MOST_WRONG = 0.88, 0.02
GAMMAS = (1, 2, 4)
SECONDS: Mapping[str, tuple[float, ...]] = {
    "decode": (1.0,),
    "draft": (0.2, 0.4, 0.6, 0.8),
    "draft_catch_up": (0.21,),
    **{verify_arm(gamma): (seconds,) for gamma, seconds in zip(GAMMAS, (1.1, 1.2, 1.35), strict=True)},
}
"""Marks of each arm where nothing disturbs them."""
BURST_S = {"short bursts": 0.5, "bursts": 5.0, "long bursts": 40.0}
"""Mean length of a burst; a fifth of the time is in one."""


@dataclass(kw_only=True)
class Machine:
    """A made-up machine: how long a piece of work takes from now on."""

    kind: str
    generator: np.random.Generator
    now_s: float = 0.0
    is_slow: bool = False
    changes_s: float = field(init=False)
    slower: float = field(init=False)

    def __post_init__(self) -> None:
        """How slow a burst is, and when the first begins."""
        self.slower = float(np.exp(self.generator.uniform(np.log(3.0), np.log(30.0))))
        self.changes_s = self._next_change_s() if self.kind in BURST_S else np.inf

    def _next_change_s(self) -> float:
        mean_s = BURST_S[self.kind] * (1.0 if self.is_slow else 4.0)
        return self.now_s + float(self.generator.exponential(mean_s))

    def take_s(self, work_s: float) -> float:
        """Seconds that work takes, through bursts that begin or end meanwhile."""
        begun_s = self.now_s
        while (pace := self.slower if self.is_slow else 1.0) * work_s > self.changes_s - self.now_s:
            work_s -= (self.changes_s - self.now_s) / pace
            self.now_s, self.is_slow = self.changes_s, not self.is_slow
            self.changes_s = self._next_change_s()
        self.now_s += pace * work_s
        return self.now_s - begun_s

    def sample_factor(self, count: int | None = None) -> float:
        """What one sample takes longer by itself; of `count` samples the sum."""
        drawn = self.generator
        extra = {"heavy tails": 0.05 * drawn.pareto(1.3, count), "jitter": drawn.exponential(0.5, count)}
        return float(np.sum(np.exp(drawn.normal(0.0, 0.02, count)) * (1.0 + extra.get(self.kind, 0.0))))


def timed_blocks(machine: Machine, blocks: int, samples: int = 5) -> dict[str, dict[int, FloatArray]]:
    """Samples (samples, marks) of every arm by block, interleaved as a cell is timed."""
    generator, arms = machine.generator, list(SECONDS)
    drift = generator.uniform(-0.4, 0.4) if machine.kind == "drift" else 0.0
    of_arm = dict.fromkeys(arms, 0.0)
    if machine.kind == "arm drift":
        of_arm[str(generator.choice(arms))] = generator.uniform(0.1, 0.4)
    found: dict[str, dict[int, FloatArray]] = {arm: {} for arm in arms}
    with_own_pace = {"arm pace": arms, "plain pace": ["decode"]}.get(machine.kind, [])
    steps_s = {arm: np.diff(SECONDS[arm], prepend=0.0) for arm in arms}
    for block in range(blocks):
        since = block / (blocks - 1)
        pace = drift * since + generator.normal(0.0, 0.0 if machine.kind == "quiet" else 0.05)
        own = generator.normal(0.0, [0.05 if arm in with_own_pace else 0.0 for arm in arms])
        taken: dict[str, list[FloatArray]] = {arm: [] for arm in arms}
        order = generator.permutation(len(arms))
        for _ in range(samples):
            for at in order.tolist():
                arm = arms[at]
                factor = float(np.exp(pace + own[at] + of_arm[arm] * since)) * machine.sample_factor()
                taken[arm].append(np.cumsum([machine.take_s(step) for step in (steps_s[arm] * factor).tolist()]))
        for arm in arms:
            found[arm][block] = np.array(taken[arm])
    return found


def recorded_acceptance(truth: Acceptance, shares: FloatArray, generator: np.random.Generator, seed: int) -> Acceptance:
    """Acceptance with replicates from a text of every prompt, of `shares` (P,) as in `_tokens_per_round`."""
    starts = np.full((shares.size, len(GAMMAS)), float(TEXT))
    noise = generator.normal(0.0, ROUND_SPREAD / math.sqrt(TEXT), starts.shape)
    committed = starts * (_tokens_per_round(truth, shares) + noise)
    return _acceptance(ratio_replicates(committed, starts, draw_prompts(shares.size, REPLICATES, seed)))


def decoded_speedup(
    machine: Machine, truth: Acceptance, t_round_s: float, shares: FloatArray, seed: int
) -> dict[int, FloatArray]:
    """S measured at the middle γ with replicates, a block of plain steps and rounds for each prompt."""
    generator, found = machine.generator, []
    for block, mean in enumerate(_tokens_per_round(truth, shares)[:, 1].tolist()):
        pace = math.exp(generator.normal(0.0, 0.0 if machine.kind == "quiet" else 0.05))
        rounds = round(TEXT / mean)
        seconds = []
        for count, step_s in ((TEXT, SECONDS["decode"][0]), (rounds, t_round_s)):
            seconds.append(machine.take_s(step_s * pace * machine.sample_factor(count)) / count)
        found.append(
            CountedBlock(
                gamma=GAMMAS[1],
                block=block,
                rounds=rounds,
                tokens_per_round=mean + float(generator.normal(0.0, ROUND_SPREAD / math.sqrt(rounds))),
                t_plain_step_s=seconds[0],
                t_round_s=seconds[1],
                **dict.fromkeys(
                    ("t_accept_rest_s", "t_decode_s", "t_costs_s", "t_verify_s", "t_draft_catch_up_s"), math.nan
                ),
                catch_up_share=math.nan,
            )
        )
    drawn = measured_replicates(
        found,
        np.arange(len(found)),
        confidence=0.9,
        replicates=REPLICATES,
        seed=seed,
        spread=SINGLE_BATCH_SPREAD,
    )
    return {GAMMAS[1]: drawn}


def _tokens_per_round(truth: Acceptance, shares: FloatArray) -> FloatArray:
    """(P, G) means of prompts that accept these shares of what the mean prompt accepts."""
    return np.asarray(1.0 + shares[:, None] * (truth.tokens_per_round - 1.0), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What one run of a made-up machine came to."""

    covered: bool
    undecided: bool
    wrong: bool
    half_width: float


def experiment(kind: str, blocks: int, seed: int, decoded: int = 0) -> Experiment:
    """Time one made-up machine, decide, and hold both against S of the quiet machine, between .8 and 1.3.

    decoded: prompts decoded end to end, of those recorded; with 0 acceptance is exact.
    """
    generator = np.random.default_rng((seed, blocks, MACHINES.index(kind)))
    machine = Machine(kind=kind, generator=generator)
    levelled = level_blocks(timed_blocks(machine, blocks))
    samples = {arm: [one if arm == "draft" else one[:, 0] for one in own.values()] for arm, own in levelled.items()}
    costs = costs_from_blocks(samples, GAMMAS, draw_blocks(blocks, REPLICATES, seed))
    quiet = RoundCosts(
        gammas=np.array(GAMMAS),
        t_decode_s=np.array(SECONDS["decode"][0]),
        t_draft_total_s=np.array(SECONDS["draft"])[np.array(GAMMAS) - 1],
        t_verify_s=np.array([SECONDS[verify_arm(gamma)][0] for gamma in GAMMAS]),
        t_draft_catch_up_s=np.array(0.01),
        provenance=np.full(len(GAMMAS), int(Provenance.MEASURED)),
    )
    wanted = float(np.exp(generator.uniform(np.log(0.8), np.log(1.3)))) * np.array([0.98, 1.0, 0.98])
    of_one_token = speedups(quiet, _acceptance(np.ones(len(GAMMAS))), batch_size=1)
    acceptance = known = _acceptance(wanted / of_one_token)
    truth = speedups(quiet, acceptance, batch_size=1)
    measured = None
    if decoded:
        shares = generator.uniform(0.5, 1.5, PROMPTS)
        known = recorded_acceptance(acceptance, shares, generator, seed)
        measured = decoded_speedup(machine, acceptance, 1.0 / float(of_one_token[1]), shares[:decoded], seed)
    found = estimate_speedup(costs, known, batch_size=1, measured=measured)
    assert found.low is not None
    assert found.high is not None
    verdict, chosen = found.decision.verdict, GAMMAS.index(found.recommended_gamma)
    return Experiment(
        covered=bool(found.low[1] <= truth[1] <= found.high[1]),
        undecided=verdict == "undecided",
        wrong=bool(
            (verdict == "speculate" and truth[chosen] < 1.0)
            or (verdict == "do not speculate" and truth.max() > WORTHWHILE_SPEEDUP)
        ),
        half_width=math.log(found.high[1] / found.low[1]) / 2,
    )


def _acceptance(tokens_per_round: FloatArray) -> Acceptance:
    """Of Ω (…, G)."""
    return Acceptance(
        gammas=np.array(GAMMAS),
        tokens_per_round=tokens_per_round,
        full_acceptance=np.full(tokens_per_round.shape, 0.3),
        provenance=np.full(len(GAMMAS), int(Provenance.MEASURED)),
    )


def figures(kind: str, blocks: int, seeds: Iterable[int], decoded: int = 0) -> dict[str, float]:
    """Shares of the experiments on one kind of machine, and the median half-width of their intervals."""
    found = [experiment(kind, blocks, seed, decoded) for seed in seeds]
    return {
        "covered": float(np.mean([one.covered for one in found])),
        "covered or undecided": float(np.mean([one.covered or one.undecided for one in found])),
        "undecided": float(np.mean([one.undecided for one in found])),
        "wrong": float(np.mean([one.wrong for one in found])),
        "half-width": float(np.median([one.half_width for one in found])),
    }


def main(count: int = EXPERIMENTS) -> int:
    """Print the figures of every machine; 1 where a promise is not kept."""
    timed = [(kind, blocks, 0) for kind in MACHINES for blocks in BLOCKS]
    cases = timed + [(kind, DECODING_BLOCKS, decoded) for kind in DECODING_MACHINES for decoded in DECODED]
    rows = {case: figures(case[0], case[1], range(count), case[2]) for case in cases}
    names = list(next(iter(rows.values())))
    table = [[*map(str, case), *(f"{100 * row[name]:.1f} %" for name in names)] for case, row in rows.items()]
    print(text_table(["machine", "blocks", "decoded", *names], table))
    kept = all(row["covered or undecided"] >= LEAST_COVERED and row["wrong"] <= MOST_WRONG for row in rows.values())
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
