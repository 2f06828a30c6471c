"""Every adaptive policy at work in the decoder: the text stays the target's, and the rounds are those of its replay.

A draft whose distribution depends on the place alone says the same on the path and off it, so that a replay knows
exactly what the policy will be shown, and every round of the decoder can be foretold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specgauge.model.acceptance.renewal import text_ends
from specgauge.model.policies.feedback import Exp3Policy, GammaTunePolicy, GoodputPolicy, HeuristicPolicy, UcbPolicy
from specgauge.model.policies.forecast import fit_forecast
from specgauge.model.policies.policy import FixedPolicy, GammaPolicy
from specgauge.model.policies.stopping import AdaEdlPolicy, RenewalStoppingPolicy, SvipPolicy
from specgauge.model.policies.tuning import MAKERS
from specgauge.model.replay.rounds import ReplayBatches, ReplayCosts
from specgauge.model.replay.texts import ReplayTexts, Rollouts, replay_texts
from tests.bench.decoded import decode
from tests.bench.decoding.test_decoder_distribution import (
    DRAFT,
    PASSES,
    PROMPT,
    SETTINGS,
    TARGET,
    exact_distribution,
    network,
    p_value,
)
from tests.bench.scripted import scripted, text_of

COSTS = ReplayCosts(t_decode_s=1.0, t_round_s=(1.0, 1.25, 1.4, 1.5, 1.65))
CAP, VOCABULARY, NEW = COSTS.gamma_max, 6, 60
RNG = np.random.default_rng(8)
SCRIPT = RNG.integers(0, VOCABULARY, NEW)
TOPS = RNG.permutation(np.linspace(0.3, 0.97, NEW + CAP))
"""The draft's largest probability at each token of the text and beyond, all different."""
AGREES = RNG.random(NEW + CAP) < TOPS


def tokens_of_the_draft() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    longer = np.append(SCRIPT, np.zeros(CAP, dtype=np.int64))
    return np.where(AGREES, longer, (longer + 1) % VOCABULARY)


def drafting(_: Tensor, positions: Tensor) -> Tensor:
    """The draft's token at each place with its probability, all others alike."""
    index = (positions - (len(PROMPT) - 1)).clamp(0, NEW + CAP - 1)
    tops = torch.from_numpy(TOPS)[index]
    rest = ((1 - tops) / (VOCABULARY - 1)).log()
    hot = torch.nn.functional.one_hot(torch.from_numpy(tokens_of_the_draft())[index], VOCABULARY).bool()
    return torch.where(hot, tops.log()[..., None], rest[..., None])


def entropies(tops: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rest = (1 - tops) / (VOCABULARY - 1)
    return np.asarray(-tops * np.log(tops) - (1 - tops) * np.log(rest))


def recorded() -> ReplayTexts:
    """The text's positions 1 to the end, and every chain that begins with a rejected draft."""
    places = np.arange(NEW - 1)
    depths = np.arange(1, CAP)
    start, depth = (grid.ravel() for grid in np.meshgrid(places, depths, indexing="ij"))
    off_path = TOPS[start + depth + 1]
    nothing = np.zeros(start.size, dtype=np.int64)
    return replay_texts(
        AGREES[None, 1:NEW].astype(np.float64),
        text_ends((1, NEW - 1), [NEW - 1], [False], NEW - 1),
        prompts=[0],
        repetitions=[0],
        top_probs=TOPS[None, 1:NEW],
        entropies_nats=entropies(TOPS)[None, 1:NEW],
        gamma_max=CAP,
        rollouts=Rollouts(
            prompt=nothing,
            repetition=nothing,
            start=start,
            depth=depth,
            top_prob=off_path,
            entropy_nats=entropies(off_path),
        ),
    )


def renewal_rule() -> RenewalStoppingPolicy:
    return RenewalStoppingPolicy(
        forecast=fit_forecast(recorded()), t_round_s=COSTS.t_round_s, seconds_saved_per_token=0.8
    )


POLICIES: dict[str, Callable[[], GammaPolicy]] = {
    "fixed": lambda: FixedPolicy(gamma=3),
    "heuristic": lambda: HeuristicPolicy(start=2, cap=CAP),
    "gammatune": lambda: GammaTunePolicy(start=2, cap=CAP),
    "svip": lambda: SvipPolicy(threshold=0.9, cap=CAP),
    "adaedl": lambda: AdaEdlPolicy(start=0.5, cap=CAP),
    "ucb": lambda: UcbPolicy(t_round_s=COSTS.t_round_s, width=0.2),
    "exp3": lambda: Exp3Policy(t_round_s=COSTS.t_round_s, seed=5),
    "goodput": lambda: GoodputPolicy(t_round_s=COSTS.t_round_s),
    "renewal": renewal_rule,
}


def test_every_policy_is_here() -> None:
    assert set(POLICIES) == set(MAKERS)


@pytest.mark.parametrize("name", POLICIES)
def test_the_decoder_takes_the_rounds_of_the_replay(name: str) -> None:
    policy, texts = POLICIES[name](), recorded()
    played = ReplayBatches.drawn(texts, COSTS, replicates=1, seed=0).simulate(policy)
    target = scripted(text_of(SCRIPT.tolist(), len(PROMPT), VOCABULARY), vocabulary=VOCABULARY)
    found = decode(target, scripted(drafting, vocabulary=VOCABULARY), prompts=[PROMPT], gamma=policy, new=NEW)
    assert found.texts[0].tokens == tuple(SCRIPT.tolist())
    totals = len(found.rows), sum(row.drafted for row in found.rows), sum(row.accepted for row in found.rows)
    assert totals == (int(played.rounds[0]), int(played.drafted[0]), int(played.accepted[0]))
    if name != "fixed":
        assert len({row.drafted for row in found.rows}) > 1, "it adapts"


@pytest.mark.parametrize("name", ["heuristic", "gammatune", "ucb", "exp3", "goodput", "renewal"])
def test_the_distribution_stays_the_targets_under_every_policy(name: str) -> None:
    """Five rows a call; policies that stop by signals alone have tests of their own."""
    texts = []
    for call in range(40):
        given: Any = {"gamma": POLICIES[name](), "numbers": range(5 * call, 5 * call + 5), "new": 6, "seed": 11}
        found = decode(network(TARGET), network(DRAFT), SETTINGS, [PROMPT] * 5, **given)
        texts += [text.tokens for text in found.texts]
    chances = exact_distribution(6)
    assert min(p_value(texts, chances, True), p_value(texts, chances, False)) > PASSES
