"""Rounds of a policy simulated along recorded texts, for thousands of calls at once.

Given its text, drafts are accepted at tested positions independently with probability a_t, whatever the policy. So one
uniform is drawn by a counter for every (prompt, repetition, position, replicate), and every policy meets the same ones
(common random numbers): the draft at t is accepted where it is below a_t. A round is then

    γ in force   min(γ, positions left before the length limit - 1)        an EOS is not foreseen
    drafts       until γ in force, or until the policy stops
    accepted     the run of accepted positions, cut at the drafts and at the text's end
    emitted      accepted + 1 (replacement or bonus); an accepted EOS ends the text without one
    seconds      T_round(the most drafts of a row), Δ₂ where a row has two tokens to catch up, its early-stop checks

as the decoder does it. Lookups may offer fewer drafts than γ in force, or none: a plain step. A policy sees the signals
of `specgauge.model.replay.texts`, after an accepted EOS those of the EOS itself. A batch goes on until its last row has
ended, at the cost of all its rows.

    ReplayBatches.drawn(texts, costs, replicates=200, seed=0).simulate(HeuristicPolicy(cap=6)).time_s       # (L,)

N texts, T positions, L calls of B rows each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from specgauge.model.acceptance.lookups import confidence
from specgauge.model.checks import BoolArray, FloatArray, IntArray, positive_times_s, times_s, whole_numbers
from specgauge.model.costs import RoundCosts
from specgauge.model.policies.policy import GammaChoices, GammaPolicy, RoundSeen, Signals, decodes_plainly
from specgauge.model.replay.texts import ReplayTexts
from specgauge.model.sampling import uniforms
from specgauge.model.speedup import round_times_by_drafts_s
from specgauge.model.stats.bootstrap import sum_by_prompt


@dataclass(frozen=True, kw_only=True)
class ReplayCosts:
    """Seconds of rounds by drafts at one batch size and context, plain data; `of` makes them from `RoundCosts`."""

    t_decode_s: float
    """One step of the plain loop, without speculation loaded: what every speed is compared with."""
    t_round_s: tuple[float, ...]
    """(γ_max + 1,) a round of 0, 1, … γ_max drafts in the speculative loop."""
    t_draft_catch_up_s: float = 0.0
    """Δ₂."""
    t_early_stop_check_s: float = 0.0
    """What one early-stop check adds to a round, for the host then waits for the draft's confidence."""
    batch_size: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0 (Δ₂ and checks: below 0) and without a plain round."""
        positive_times_s("t_decode_s", self.t_decode_s)
        if positive_times_s("t_round_s", self.t_round_s).ndim != 1 or not self.t_round_s:
            raise ValueError(f"t_round_s: expected one time for each of 0 … γ_max drafts, got {self.t_round_s!r}")
        times_s("t_draft_catch_up_s", self.t_draft_catch_up_s)
        times_s("t_early_stop_check_s", self.t_early_stop_check_s)
        whole_numbers("batch_size", self.batch_size, minimum=1)

    @classmethod
    def of(cls, costs: RoundCosts, *, batch_size: int, t_early_stop_check_s: float = 0.0) -> Self:
        """From costs of every gamma 1 … gamma_max at one point."""
        catch_up_s = costs.t_draft_catch_up_s
        return cls(
            t_decode_s=float(costs.t_decode_s),
            t_round_s=tuple(round_times_by_drafts_s(costs).tolist()),
            t_draft_catch_up_s=0.0 if catch_up_s is None else float(catch_up_s),
            t_early_stop_check_s=t_early_stop_check_s,
            batch_size=batch_size,
        )

    @property
    def gamma_max(self) -> int:
        """The most drafts of a round whose cost is known; no policy may ask for more."""
        return len(self.t_round_s) - 1

    @property
    def rounds_s(self) -> FloatArray:
        """`t_round_s` as an array."""
        return np.array(self.t_round_s, dtype=np.float64)


GROUPING = 10
"""The purpose of the uniforms that put texts into batches."""
ACCEPTANCE_DRAWS = 1024
"""The purpose of the uniforms of replicate 0; those of replicate r have ACCEPTANCE_DRAWS + r."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRounds:
    """What each call came to, (L,); rows of a batch are added up."""

    time_s: FloatArray
    rounds: IntArray
    """Rounds of the batch."""
    row_rounds: IntArray
    """Rounds of its active rows."""
    drafted: IntArray
    tested: IntArray
    """Drafts accepted or rejected: those before the first rejection, and that one."""
    accepted: IntArray
    early_stop_checks: IntArray
    """How often the host asked for a draft's confidence."""
    progress: FloatArray
    """Tokens of the mean active row, added up over rounds."""
    switches: IntArray
    """Rounds whose γ differs from the one before: the γ asked for, or the drafts at which the policy stopped."""


@dataclass(frozen=True, kw_only=True)
class ReplayBatches:
    """L calls of B rows along N texts, with their random numbers and costs: what every policy is simulated on."""

    texts: ReplayTexts
    costs: ReplayCosts
    rows: IntArray
    """(L, B) the text of each row."""
    replicates: IntArray
    """(L, B) whose random numbers it meets."""
    first_rejected: IntArray
    """(N, R, T + 1) as `rejections` has it."""
    seed: int

    @classmethod
    def drawn(cls, texts: ReplayTexts, costs: ReplayCosts, *, replicates: int, seed: int) -> ReplayBatches:
        """Every text once per replicate, in batches of B drawn anew for each: L = R ⌈N / B⌉.

        What a batch lacks is filled up with texts drawn first; a text that is in a batch more than once meets random
        numbers of its own each time: replicate numbers go up to ⌈B / N⌉ R - 1.
        """
        count, batch_size = texts.prompts.size, costs.batch_size
        order = np.broadcast_to(np.arange(count), (replicates, count))
        if batch_size > 1:
            ranks = uniforms(seed, texts.prompts, texts.repetitions, np.arange(replicates)[:, None], GROUPING)
            order = np.argsort(ranks, axis=1, kind="stable")
        filled = np.arange(-(-count // batch_size) * batch_size)
        times = filled % batch_size // count if count < batch_size else np.zeros(filled.size, dtype=np.int64)
        numbers = (np.arange(replicates)[:, None] + replicates * times).reshape(-1, batch_size)
        return cls._with_draws(texts, costs, order[:, filled % count].reshape(-1, batch_size), numbers, seed)

    @classmethod
    def of_prompts(
        cls, texts: ReplayTexts, costs: ReplayCosts, prompts: IntArray, *, replicates: int, seed: int
    ) -> ReplayBatches:
        """Batches as they were put together, (L / R, B) prompt numbers, each as often as there are replicates.

        The texts of a prompt interleave; random numbers as in `drawn`, replicate numbers up to B R - 1.

        Raises:
            ValueError: a prompt without a text.
        """
        order = np.argsort(texts.prompts, kind="stable")
        recorded, firsts, counts = np.unique(texts.prompts[order], return_index=True, return_counts=True)
        missing = np.setdiff1d(prompts, recorded)
        if missing.size:
            raise ValueError(f"prompts: expected those of the texts, got {missing[0]}, of which no text was recorded")
        place = np.searchsorted(recorded, prompts)[:, None, :]
        before = [(prompts[:, :row] == prompts[:, row, None]).sum(axis=1) for row in range(prompts.shape[1])]
        earlier = np.stack(before, axis=1)[:, None, :]
        replicate = np.arange(replicates)[:, None]
        rows = order[firsts[place] + (replicate + earlier) % counts[place]]
        numbers = replicate + replicates * (earlier // counts[place])
        shape = (-1, prompts.shape[1])
        return cls._with_draws(texts, costs, rows.reshape(shape), numbers.reshape(shape), seed)

    @classmethod
    def _with_draws(
        cls, texts: ReplayTexts, costs: ReplayCosts, rows: IntArray, replicates: IntArray, seed: int
    ) -> ReplayBatches:
        rejected = rejections(texts, int(replicates.max(initial=0)) + 1, seed)
        return cls(texts=texts, costs=costs, rows=rows, replicates=replicates, first_rejected=rejected, seed=seed)

    @property
    def plain_s(self) -> FloatArray:
        """(L,) seconds of plain decoding: every step at T_decode until the longest row has ended."""
        return np.asarray(self.texts.ends.lengths[self.rows].max(axis=1) * self.costs.t_decode_s, dtype=np.float64)

    def simulate(self, policy: GammaPolicy) -> SimulatedRounds:
        """Follow every call to its end; a policy that never drafts runs the plain loop, at T_decode a step.

        Raises:
            ValueError: the policy asks for more drafts than the costs know.
        """
        costs = self.costs
        if decodes_plainly(policy):
            costs = replace(costs, t_round_s=(costs.t_decode_s, *costs.t_round_s[1:]))
        return _Simulation(policy, replace(self, costs=costs)).run()

    def time_s(self, policy: GammaPolicy) -> float:
        """Seconds of all calls together."""
        return float(self.simulate(policy).time_s.sum())

    def time_by_prompt_s(self, policy: GammaPolicy) -> FloatArray:
        """(P,) the same seconds by prompt."""
        return sum_by_prompt(self.time_by_text(self.simulate(policy).time_s), self.texts.prompts)

    def time_by_text(self, time_s: FloatArray) -> FloatArray:
        """Seconds of calls (L,), shared alike by the rows of each and added up by text: (N,)."""
        batch_size = self.rows.shape[1]
        shares = np.repeat(time_s / batch_size, batch_size)
        totals = np.bincount(self.rows.ravel(), weights=shares, minlength=self.texts.prompts.size)
        return np.asarray(totals, dtype=np.float64)


def rejections(texts: ReplayTexts, replicates: int, seed: int) -> IntArray:
    """(N, R, T + 1) the first position from t on whose draft is rejected; T where none is.

    The same for a text whatever other texts, replicates or policies there are. Lookups know no chance: the first draft
    is rejected that the text does not go on with, counted from where the round starts.
    """
    count, longest = texts.top_probs.shape
    if texts.lookups is not None:
        first = np.pad(np.arange(longest) + texts.lookups.matching, ((0, 0), (0, 1)), constant_values=longest)
        return np.asarray(np.broadcast_to(first[:, None, :], (count, replicates, longest + 1)), dtype=np.int64)
    positions, purposes = np.arange(longest), ACCEPTANCE_DRAWS + np.arange(replicates)
    found = np.full((count, replicates, longest + 1), longest, dtype=np.int64)
    for n in range(count):
        draws = uniforms(seed, texts.prompts[n], texts.repetitions[n], positions, purposes[:, None])
        rejected = (draws >= texts.acceptance[n]) & (positions < texts.ends.lengths[n])
        places = np.where(rejected, positions, longest)
        found[n, :, :longest] = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
    return found


class _Simulation:
    """The state of L calls; (L, B) by row."""

    def __init__(self, policy: GammaPolicy, batches: ReplayBatches) -> None:
        self._policy, self._texts, self._costs = policy, batches.texts, batches.costs
        self._text, self._replicates, self._rejected = batches.rows, batches.replicates, batches.first_rejected
        ends, (count, rows) = batches.texts.ends, batches.rows.shape
        self._size, self._limit = ends.lengths[batches.rows], ends.limits[batches.rows]
        self._position = np.zeros((count, rows), dtype=np.int64)
        self._behind = np.zeros((count, rows), dtype=np.bool_)
        self._stopped_at = np.full(count, -1)
        self._time_s, self._progress = np.zeros(count), np.zeros(count)
        names = ("rounds", "row_rounds", "drafted", "tested", "accepted", "early_stop_checks", "switches")
        self._counts = {name: np.zeros(count, dtype=np.int64) for name in names}

    def run(self) -> SimulatedRounds:
        choices = self._policy.begin_many(self._time_s.size)
        while bool((active := self._position < self._size).any()):
            self._round(choices, active)
        return SimulatedRounds(time_s=self._time_s, progress=self._progress, **self._counts)

    def _round(self, choices: GammaChoices, active: BoolArray) -> None:
        asked = choices.gammas
        if int(asked.max()) > self._costs.gamma_max or int(asked.min()) < 0:
            raise ValueError(
                f"policy: expected 0 to {self._costs.gamma_max}, whose cost is known, got gamma {int(asked.max())}"
            )
        in_force = np.where(active, np.clip(np.minimum(asked[:, None], self._limit - self._position - 1), 0, None), 0)
        offered = in_force
        if self._texts.lookups is not None:
            offered = np.minimum(in_force, self._texts.lookups.offered[self._text, self._place(0)])
        run = np.where(active, self._rejected[self._text, self._replicates, self._position] - self._position, 0)
        drafted, stopped_at = offered, asked
        if self._policy.reads_signals:
            drafted, stopped_at = self._until_it_stops(choices, offered, in_force, run)
        left = self._size - self._position
        accepted = np.where(active, np.minimum(np.minimum(run, drafted), left), 0)
        emitted = np.where(active, np.minimum(accepted + 1, left), 0)
        self._pay(active, drafted)
        self._count(active, drafted, accepted, stopped_at)
        full = (drafted > 0) & (accepted == drafted)
        self._behind = active & (full | (drafted == 0))
        self._progress += emitted.sum(axis=1) / np.maximum(active.sum(axis=1), 1)
        self._position = self._position + emitted
        choices.observe(RoundSeen(drafted=drafted, accepted=accepted, active=active))

    def _pay(self, active: BoolArray, drafted: IntArray) -> None:
        widest = drafted.max(axis=1)
        late = (self._behind & active).any(axis=1) & (widest > 0)
        seconds = self._costs.rounds_s[widest] + np.where(late, self._costs.t_draft_catch_up_s, 0.0)
        self._time_s += np.where(active.any(axis=1), seconds, 0.0)

    def _count(self, active: BoolArray, drafted: IntArray, accepted: IntArray, stopped_at: IntArray) -> None:
        counts, serving = self._counts, active.any(axis=1)
        counts["rounds"] += serving
        counts["row_rounds"] += active.sum(axis=1)
        counts["drafted"] += drafted.sum(axis=1)
        counts["tested"] += np.minimum(accepted + 1, drafted).sum(axis=1)
        counts["accepted"] += accepted.sum(axis=1)
        known = serving & (stopped_at >= 0)
        counts["switches"] += known & (self._stopped_at >= 0) & (stopped_at != self._stopped_at)
        self._stopped_at = np.where(known, stopped_at, self._stopped_at)

    def _until_it_stops(
        self, choices: GammaChoices, offered: IntArray, in_force: IntArray, run: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Drafts of each row, and the drafts at which each call's policy stopped (-1 where limits ended it first)."""
        widest, cap = offered.max(axis=1), choices.gammas
        reached, depth = np.minimum(widest, 1), 1
        while bool((asked := (reached == depth) & (depth < widest)).any()):
            goes_on = choices.goes_on(depth, self._signals(depth, run, asked[:, None] & (offered > depth)))
            self._counts["early_stop_checks"] += asked
            self._time_s += np.where(asked, self._costs.t_early_stop_check_s, 0.0)
            depth += 1
            reached[asked & goes_on] = depth
        stopped_at = np.where(reached < widest, reached, np.where(in_force.max(axis=1) == cap, cap, -1))
        return np.minimum(offered, reached[:, None]), stopped_at

    def _place(self, ahead: IntArray | int) -> IntArray:
        """(L, B) the position so many after each row's, its last one at most."""
        return np.asarray(np.minimum(self._position + ahead, self._size - 1), dtype=np.int64)

    def _signals(self, depth: int, run: IntArray, asked: BoolArray) -> Signals:
        """Those of the round's draft number `depth` >= 1, NaN where a row is not asked about."""
        texts, index = self._texts, depth - 1
        active_rows = (self._position < self._size).sum(axis=1)
        if texts.lookups is not None:
            tops = np.where(asked, confidence(texts.lookups.matched[self._text, self._place(0)] + index), np.nan)
            return Signals(top_probs=tops, entropies_nats=np.where(asked, 0.0, np.nan), active_rows=active_rows)
        place = self._place(np.minimum(index, run))
        off_path = index > run
        chain = texts.chains.chain_of[self._text, place]
        step = np.clip(index - run - 1, 0, texts.chains.top_probs.shape[1] - 1)

        def seen(recorded: FloatArray, rolled_out: FloatArray) -> FloatArray:
            values = np.where(off_path, rolled_out[chain, step], recorded[self._text, place])
            return np.where(asked, values, np.nan)

        return Signals(
            top_probs=seen(texts.top_probs, texts.chains.top_probs),
            entropies_nats=seen(texts.entropies_nats, texts.chains.entropies_nats),
            active_rows=active_rows,
        )
