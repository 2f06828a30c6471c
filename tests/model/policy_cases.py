"""One policy of each kind, all under a cap of 6 drafts, and made-up rounds, texts, lookups and costs for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import TextEnds, text_ends
from specgauge.model.checks import FloatArray
from specgauge.model.policies.feedback import Exp3Policy, GammaTunePolicy, GoodputPolicy, HeuristicPolicy, UcbPolicy
from specgauge.model.policies.forecast import AcceptanceForecast
from specgauge.model.policies.policy import FixedPolicy, GammaPolicy, RoundSeen
from specgauge.model.policies.stopping import AdaEdlPolicy, RenewalStoppingPolicy, SvipPolicy
from specgauge.model.replay.rounds import ReplayBatches, ReplayCosts, SimulatedRounds
from specgauge.model.replay.texts import ReplayTexts, Rollouts, lookup_texts, replay_texts

CAP = 6
ROUNDS_S = tuple(1.0 + 0.1 * drafts for drafts in range(CAP + 1))

PLAIN_FORECAST = AcceptanceForecast(
    top_probs=(0.0, 1.0),
    acceptance=(0.0, 1.0),
    mean=0.5,
    this_weights=(0.0, 1.0, 0.0, 0.0),
    next_weights=(0.5, 0.0, 0.0, 0.0),
    first_weights=(0.8, 0.0, 0.0),
)
"""This draft: its top probability. The next one: .5. The first one: .8."""

STOPPING = RenewalStoppingPolicy(forecast=PLAIN_FORECAST, t_round_s=ROUNDS_S, seconds_saved_per_token=0.5)
"""A draft costs .1 s, a token is worth .5 s; the next draft is accepted with .5, any other with .8."""

POLICIES: dict[str, GammaPolicy] = {
    "fixed": FixedPolicy(gamma=4),
    "heuristic": HeuristicPolicy(cap=CAP),
    "gammatune": GammaTunePolicy(cap=CAP),
    "goodput": GoodputPolicy(t_round_s=ROUNDS_S),
    "svip": SvipPolicy(cap=CAP),
    "adaedl": AdaEdlPolicy(cap=CAP),
    "ucb": UcbPolicy(t_round_s=ROUNDS_S),
    "exp3": Exp3Policy(t_round_s=ROUNDS_S),
    "renewal": STOPPING,
}


def seen(drafted: ArrayLike, accepted: ArrayLike) -> RoundSeen:
    """A round of calls whose rows are all active."""
    made = np.array(drafted)
    return RoundSeen(drafted=made, accepted=np.array(accepted), active=np.ones(made.shape, dtype=np.bool_))


def made_ends(
    shape: tuple[int, ...], lengths: ArrayLike | None, ended_by_eos: bool, length_limits: int | None
) -> TextEnds:
    sizes = np.full(shape[0], shape[1]) if lengths is None else lengths
    return text_ends(shape, sizes, np.full(shape[0], ended_by_eos), length_limits)


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
    return replay_texts(
        a,
        made_ends(a.shape, lengths, ended_by_eos, length_limits),
        prompts=np.arange(a.shape[0]) if prompts is None else prompts,
        repetitions=np.zeros(a.shape[0], dtype=np.int64),
        top_probs=tops,
        entropies_nats=-np.log(np.maximum(tops, 1e-9)),
        gamma_max=gamma_max,
        rollouts=rollouts,
        seed=seed,
    )


def looked_up(
    offered: ArrayLike,
    matching: ArrayLike,
    matched: ArrayLike | None = None,
    *,
    lengths: ArrayLike | None = None,
    ended_by_eos: bool = False,
    length_limits: int | None = None,
) -> ReplayTexts:
    """Of lookups, (N, T); where nothing else is said, 2 tokens matched where anything is offered."""
    most = np.asarray(offered)
    return lookup_texts(
        made_ends(most.shape, lengths, ended_by_eos, length_limits),
        prompts=np.arange(most.shape[0]),
        repetitions=np.zeros(most.shape[0], dtype=np.int64),
        offered=most,
        matching=matching,
        matched=np.where(most > 0, 2, 0) if matched is None else matched,
    )


def random_lookups(seed: int, *, texts: int = 5, longest: int = 12, gamma_max: int = 4) -> ReplayTexts:
    """Of all lengths, some ended by EOS before a limit."""
    generator = np.random.default_rng(seed)
    offered = generator.integers(0, gamma_max + 1, (texts, longest))
    matching = np.minimum(generator.integers(0, gamma_max + 1, (texts, longest)), offered)
    lengths = generator.integers(1, longest + 1, texts)
    left = lengths[:, None] - np.arange(longest)
    return looked_up(
        offered,
        np.clip(np.minimum(matching, left), 0, None),
        np.where(offered > 0, generator.integers(1, 4, offered.shape), 0),
        lengths=lengths,
        ended_by_eos=bool(seed % 2),
        length_limits=longest + 2 if seed % 2 else None,
    )


def simulated(policy: GammaPolicy, texts: ReplayTexts, costs: ReplayCosts, replicates: int = 1) -> SimulatedRounds:
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
