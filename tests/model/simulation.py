"""Monte Carlo of rounds: what the closed forms promise, played out row by row, for whole texts and batches.

Each replication is a queue of N requests served in B slots.  A round drafts gamma (what a policy asks for, held under
the length limit), every active row accepts a run, commits run + 1 tokens (an accepted end-of-text token: run), and the
batch waits for a round of its largest gamma at its longest context.  A static batch refills when its last row has ended
and pays for ended rows until then; continuous batching refills a slot as soon as its row ends.

    runs = simulate(iid_acceptance(0.8), lengths=np.full((1000, 8), 256), slots=8, policy=4, cost=..., seed=0)
    runs.tokens_per_round(), runs.mean_seconds()         # each with its standard error

R replications, N requests in each, B slots, D the largest gamma asked for.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import NO_LIMIT
from specgauge.model.checks import BoolArray, FloatArray, IntArray, positive_times_s, times_s, whole_numbers
from tests.model.simulation_inputs import (
    Acceptance,
    Policy,
    PolicyView,
    RoundCost,
    RoundShape,
    fixed_gamma,
    per_position_acceptance,
)
from tests.model.simulation_results import SimulatedRuns

Batching = Literal["static", "continuous"]


def simulate_runs(conditional: ArrayLike, gamma: int, *, rounds: int, seed: int) -> IntArray:
    """Accepted drafts of `rounds` independent rounds, (rounds,), without a text around them."""
    drafts = int(whole_numbers("gamma", gamma, minimum=1))
    count = int(whole_numbers("rounds", rounds, minimum=1))
    places = np.zeros(count, dtype=np.int64)
    rates = per_position_acceptance(conditional)(places, places, drafts)
    return _runs(rates, np.random.default_rng(seed), np.full(count, drafts))


def simulate(
    acceptance: Acceptance,
    *,
    lengths: ArrayLike,
    slots: int,
    policy: Policy | int,
    gamma_max: int | None = None,
    cost: RoundCost,
    seed: int,
    ended_by_eos: ArrayLike = False,
    length_limits: ArrayLike | None = None,
    prompt_tokens: ArrayLike = 0,
    t_prefill_s: float = 0.0,
    batching: Batching = "static",
) -> SimulatedRuns:
    """Serve R queues of N requests; see the module's text for the rules.

    Args:
        acceptance: the rates drafts are accepted at (`iid_acceptance`, `per_position_acceptance`, …).
        lengths: (R, N) tokens of each request after the one from its prefill, at least 1.
        slots: B, rows decoded together.
        policy: a gamma, or a function of `PolicyView`; a function needs `gamma_max`, the largest it may ask for.
        cost: seconds of a round by its `RoundShape` (`fixed_costs` where context and batch do not matter).
        ended_by_eos: (R, N) or one value; such texts end on an end-of-text token, others on their length limit.
        length_limits: tokens allowed, (R, N) or one value, for texts that end by end-of-text (no limit without it).
        prompt_tokens: (R, N) or one value, cached before the first round.
        t_prefill_s: seconds the whole batch waits for each request that enters a slot.

    Raises ValueError for lengths below 1, a limit below a length, a policy that asks for more than `gamma_max`.
    """
    if batching not in ("static", "continuous"):
        raise ValueError(f"batching: found {batching!r}, allowed: static, continuous")
    sizes = whole_numbers("lengths", lengths, minimum=1)
    if sizes.ndim != 2 or sizes.size == 0:
        raise ValueError(f"lengths: found shape {sizes.shape}, allowed: (replications, requests)")
    limits = _limits(sizes, np.broadcast_to(np.asarray(ended_by_eos, dtype=np.bool_), sizes.shape), length_limits)
    if isinstance(policy, int):
        gamma_max, policy = policy, fixed_gamma(policy)
    if gamma_max is None:
        raise ValueError("gamma_max: found none beside a policy function, allowed: the largest gamma it may ask for")
    service = _Service(
        sizes=sizes,
        limits=limits,
        prompt_tokens=np.broadcast_to(whole_numbers("prompt_tokens", prompt_tokens, minimum=0), sizes.shape),
        slots=int(whole_numbers("slots", slots, minimum=1)),
        continuous=batching == "continuous",
        t_prefill_s=float(times_s("t_prefill_s", t_prefill_s)),
    )
    rng = np.random.default_rng(seed)
    depth = int(whole_numbers("gamma_max", gamma_max, minimum=0))
    while service.admit():
        service.play_round(acceptance, policy, depth, cost, rng)
    return service.results()


class _Service:
    """The state of R queues being served; (R, B) arrays by slot, (R, N) arrays by request."""

    def __init__(
        self,
        *,
        sizes: IntArray,
        limits: IntArray,
        prompt_tokens: IntArray,
        slots: int,
        continuous: bool,
        t_prefill_s: float,
    ) -> None:
        replications = sizes.shape[0]
        self._sizes, self._limits, self._prompt_tokens = sizes, limits, prompt_tokens
        self._continuous, self._t_prefill_s = continuous, t_prefill_s
        self._request = np.zeros((replications, slots), dtype=np.int64)
        self._active = np.zeros((replications, slots), dtype=np.bool_)
        self._position, self._last_drafted, self._last_accepted = (np.zeros_like(self._request) for _ in range(3))
        self._next = np.zeros(replications, dtype=np.int64)
        self._round_index = 0
        self._seconds = np.zeros(replications)
        self._batch_rounds, self._row_rounds = np.zeros_like(self._next), np.zeros_like(self._next)
        self._emitted, self._drafted, self._accepted = (np.zeros_like(self._next) for _ in range(3))
        self._started_s, self._finished_s = np.zeros(sizes.shape), np.zeros(sizes.shape)

    def admit(self) -> bool:
        """Fill slots from the queues; whether any replication still has an active row."""
        free = ~self._active
        if not self._continuous:
            free &= ~self._active.any(axis=1, keepdims=True)
        ticket = self._next[:, np.newaxis] + np.cumsum(free, axis=1) - 1
        enters = free & (ticket < self._sizes.shape[1])
        rows, _ = np.nonzero(enters)
        requests = ticket[enters]
        self._request[enters] = requests
        self._active |= enters
        for state in (self._position, self._last_drafted, self._last_accepted):
            state[enters] = 0
        self._started_s[rows, requests] = self._seconds[rows]
        entered = enters.sum(axis=1)
        self._next += entered
        self._seconds += entered * self._t_prefill_s
        return bool(self._active.any())

    def play_round(
        self, acceptance: Acceptance, policy: Policy, depth: int, cost: RoundCost, rng: np.random.Generator
    ) -> None:
        """One round of every replication that has an active row."""
        row = np.arange(self._request.shape[0])[:, np.newaxis]
        active, serving = self._active, self._active.any(axis=1)
        view = PolicyView(
            round_index=self._round_index,
            active=active.copy(),
            position=self._position.copy(),
            last_drafted=self._last_drafted.copy(),
            last_accepted=self._last_accepted.copy(),
        )
        asked = np.broadcast_to(whole_numbers("policy", policy(view), minimum=0), active.shape)
        if np.any(asked[active] > depth):
            raise ValueError(f"policy: found gamma {asked[active].max()}, allowed: at most gamma_max = {depth}")
        drafts = np.where(active, np.minimum(asked, self._limits[row, self._request] - self._position - 1), 0)
        context = np.where(active, self._prompt_tokens[row, self._request] + self._position, 0)
        full = active & (self._last_drafted > 0) & (self._last_accepted == self._last_drafted)
        shape = RoundShape(
            gamma=drafts.max(axis=1),
            batch_size=active.sum(axis=1) if self._continuous else np.full(serving.size, active.shape[1]),
            context=context.max(axis=1),
            catch_up=full.any(axis=1),
        )
        self._seconds += np.where(serving, positive_times_s("cost", cost(shape)), 0.0)
        runs = _runs(acceptance(self._request, self._position, depth), rng, drafts)
        left = self._sizes[row, self._request] - self._position
        accepted = np.where(active, np.minimum(runs, left), 0)
        emitted = np.where(active, np.minimum(runs + 1, left), 0)
        self._position += emitted
        self._last_drafted, self._last_accepted = drafts, accepted
        self._batch_rounds += serving
        self._row_rounds += active.sum(axis=1)
        self._emitted += emitted.sum(axis=1)
        self._drafted += drafts.sum(axis=1)
        self._accepted += accepted.sum(axis=1)
        ended = active & (emitted == left)
        rows, _ = np.nonzero(ended)
        self._finished_s[rows, self._request[ended]] = self._seconds[rows]
        self._active = active & ~ended
        self._round_index += 1

    def results(self) -> SimulatedRuns:
        """The sums, once every queue is empty."""
        return SimulatedRuns(
            seconds=self._seconds,
            batch_rounds=self._batch_rounds,
            row_rounds=self._row_rounds,
            emitted=self._emitted,
            drafted=self._drafted,
            accepted=self._accepted,
            finished_s=self._finished_s,
            started_s=self._started_s,
        )


def _limits(sizes: IntArray, ended_by_eos: BoolArray, length_limits: ArrayLike | None) -> IntArray:
    if length_limits is None:
        return np.where(ended_by_eos, NO_LIMIT, sizes)
    limits = np.broadcast_to(whole_numbers("length_limits", length_limits, minimum=1), sizes.shape)
    if np.any(ended_by_eos & (limits < sizes)):
        raise ValueError(f"length_limits: found {limits.min()} below a text's length, allowed: at least its length")
    return np.where(ended_by_eos, limits, sizes)


def _runs(rates: FloatArray, rng: np.random.Generator, drafts: IntArray) -> IntArray:
    """Length of the accepted run among the first `drafts` (…) of rates (…, D)."""
    passed = rng.random(rates.shape) < rates
    passed &= np.arange(rates.shape[-1]) < drafts[..., np.newaxis]
    return np.asarray(np.logical_and.accumulate(passed, axis=-1).sum(axis=-1), dtype=np.int64)
