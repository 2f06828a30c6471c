"""Texts made up for replays: acceptance and confidence as wanted, prompts numbered, one text each."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import text_ends
from specgauge.model.checks import FloatArray
from specgauge.model.policies.policy import RoundPolicy
from specgauge.model.replay.rounds import ReplayBatches, ReplayCosts, SimulatedRounds
from specgauge.model.replay.texts import ReplayTexts, Rollouts, replay_texts


def made_texts(
    acceptance: ArrayLike,
    top_probs: ArrayLike | None = None,
    *,
    gamma_max: int = 6,
    lengths: ArrayLike | None = None,
    ended_by_eos: bool = False,
    length_limits: int | None = None,
    rollouts: Rollouts | None = None,
    prompts: ArrayLike | None = None,
    seed: int = 0,
) -> ReplayTexts:
    """Texts (N, T) whose confidence is their acceptance where nothing else is said; entropy is -ln of it."""
    a = np.asarray(acceptance, dtype=np.float64)
    tops = a if top_probs is None else np.asarray(top_probs, dtype=np.float64)
    sizes = np.full(a.shape[0], a.shape[1]) if lengths is None else np.asarray(lengths)
    return replay_texts(
        a,
        text_ends(a.shape, sizes, np.full(a.shape[0], ended_by_eos), length_limits),
        prompts=np.arange(a.shape[0]) if prompts is None else prompts,
        repetitions=np.zeros(a.shape[0], dtype=np.int64),
        top_probs=tops,
        entropies_nats=-np.log(np.maximum(tops, 1e-9)),
        gamma_max=gamma_max,
        rollouts=rollouts,
        seed=seed,
    )


def simulated(policy: RoundPolicy, texts: ReplayTexts, costs: ReplayCosts, replicates: int = 1) -> SimulatedRounds:
    """Every text once per replicate."""
    return ReplayBatches.drawn(texts, costs, replicates=replicates, seed=0).simulate(policy)


def linear_costs(gamma_max: int, per_draft: float, *, batch_size: int = 1, catch_up: float = 0.0) -> ReplayCosts:
    """A plain step takes 1 s, every draft the same on top."""
    return ReplayCosts(
        t_decode_s=1.0,
        t_round_s=tuple(1.0 + per_draft * drafts for drafts in range(gamma_max + 1)),
        t_draft_catch_up_s=catch_up,
        batch_size=batch_size,
    )


def regions(texts: int, longest: int, *, easy: float, hard: float, width: int = 16) -> FloatArray:
    """(N, T) acceptance that alternates between easy and hard stretches of `width`, from an easy one or a hard one."""
    place = np.arange(longest) + width * (np.arange(texts) % 2)[:, None]
    return np.where((place // width) % 2 == 0, easy, hard)
