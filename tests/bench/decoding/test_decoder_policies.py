"""Policies at work in the decoder: exact traces of what they are asked and told, and what is written under them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from specgauge.bench.decoding.drafters import Drafter, ModelDrafter, NgramDrafter, confidence
from specgauge.bench.decoding.records import Decoded
from specgauge.bench.decoding.sampling import Draws
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.acceptance.renewal import text_ends
from specgauge.model.policies.feedback import GammaTunePolicy, HeuristicPolicy
from specgauge.model.policies.policy import GammaPolicy
from specgauge.model.policies.stopping import AdaEdlPolicy, SvipPolicy
from specgauge.model.replay.rounds import ReplayBatches, ReplayCosts
from specgauge.model.replay.texts import ReplayTexts, Rollouts, replay_texts
from specgauge.model.sampling import SamplingSettings
from tests.bench import decoded
from tests.bench.decoded import DRAWN, GREEDY, batch_of, decoder_of
from tests.bench.decoding.test_decoder_distribution import (
    CAUGHT,
    DRAFT,
    PASSES,
    PROMPT,
    SETTINGS,
    TARGET,
    exact_distribution,
    network,
    p_value,
)
from tests.bench.scripted import FAR, Trace, always, scripted, spread, text_of
from tests.model.policy_cases import CAP, POLICIES, ROUNDS_S

SCRIPT = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 1, 4, 2, 6, 0]


def decode(
    target: LoadedModel, draft: Drafter | LoadedModel, policy: GammaPolicy, *, prompts: Any = ([0, 1],), **options: Any
) -> Decoded:
    return decoded.decode(target, draft, prompts=prompts, gamma=policy, **{"new": 9, "seed": 3, **options})


def writer(**options: Any) -> LoadedModel:
    return scripted(text_of(SCRIPT, 2, 7), vocabulary=7, **options)


def test_a_policy_that_stops_at_two_drafts_exactly_two() -> None:
    """A perfect draft; 9 tokens: the first, 2 + 1, 2 + 1, 1 + 1 where two are left before the limit."""
    policy, draft = Trace(5, until=lambda depth: depth < 2), writer()
    network_: Any = draft.model
    found = decode(writer(), draft, policy)
    assert found.texts[0].tokens == tuple(SCRIPT[:9])
    told = [(row.gamma_asked, row.gamma, row.gamma_limit, row.drafted, row.accepted) for row in found.rows]
    assert told == [(2, 2, "asked", 2, 2), (2, 2, "asked", 2, 2), (5, 1, "tokens_left", 1, 1)]
    assert policy.told == [([2], [2]), ([2], [2]), ([1], [1])]
    assert [depth for depth, _, _ in policy.asked] == [1, 2, 1, 2]
    assert len(network_.forwards) == 1 + 2 + 2 + 1  # the prompt, then a forward a draft
    assert found.why_not_lossless is None


def test_the_signals_asked_about_are_those_recorded() -> None:
    """Those of the draft's own distribution, before any processor.

    Nobody is asked after the last draft that may be made, so that its signals are not read.
    """
    probs = (0.625, 0.25, 0.125)
    policy = Trace(3)
    target, draft = (scripted(spread(*row), vocabulary=3) for row in ((0.5, 0.25, 0.25), probs))
    found = decode(target, draft, policy, settings=SamplingSettings(temperature=0.5))
    entropy = -sum(p * math.log(p) for p in probs)
    assert all(tops == pytest.approx([0.625]) and h == pytest.approx([entropy]) for _, tops, h in policy.asked)
    asked = iter(policy.asked)
    for row in found.rows:
        in_order = [next(asked) for _ in range(row.drafted - 1)]
        assert [depth for depth, _, _ in in_order] == list(range(1, row.drafted))
        assert row.top_probs == tuple(tops[0] for _, tops, _ in in_order)
        assert row.entropies_nats == tuple(entropies[0] for _, _, entropies in in_order)
    assert next(asked, None) is None
    kept = decode(writer(), ModelDrafter(writer(), GREEDY, signals=True), Trace(3))
    assert [len(row.top_probs) for row in kept.rows] == [row.drafted for row in kept.rows] == [3, 3]


def test_a_row_near_its_limit_is_asked_about_as_nan_and_one_that_ended_not_at_all() -> None:
    """The draft takes 12 tokens: after 8 committed ones a row has 5 of them left, after 11 only 2.

    The target's third token ends a row: the longer prompt meets it in the second round.
    """
    prompts = [[0] * 8, [0] * 11]
    target, draft = (scripted(always([0, 9, 0]), vocabulary=3, max_context=limit) for limit in (64, 12))
    policy = Trace(4, until=lambda depth: depth < 3)
    found = decode(target, draft, policy, prompts=prompts, new=8)
    first = [row for row in found.rows if row.round == 0]
    limits = [(row.gamma_asked, row.gamma, row.gamma_limit, row.drafted) for row in first]
    assert limits == [(3, 3, "asked", 3), (3, 1, "draft_context", 1)]
    shown = [(depth, np.isnan([tops, h]).tolist()) for depth, tops, h in policy.asked[:3]]
    assert shown == [(depth, [[False, True]] * 2) for depth in (1, 2, 3)]
    assert policy.told[0] == ([3, 1], [3, 1])
    ends = scripted(text_of([1] * 9 + [2, 3], 1, 4), vocabulary=4, max_context=64, eos=[3])
    policy = Trace(2)
    found = decode(ends, ends, policy, prompts=[[0] * 5, [0] * 9], new=8)
    rows = [len([row for row in found.rows if row.round == number]) for number in range(len(found.times))]
    assert rows == [2, 1]
    assert [len(tops) for _, tops, _ in policy.asked] == rows
    assert [len(drafted) for drafted, _ in policy.told] == rows


def test_lookups_show_how_much_agreed_before_each_draft() -> None:
    """A text that repeats itself: 3 tokens match, then 4 and 5; what is not wanted is not verified."""
    target, policy = scripted(always([0, 9, 0]), vocabulary=3), Trace(4, until=lambda depth: depth < 3)
    found = decode(target, NgramDrafter(), policy, prompts=[[1, 1, 1, 1]], new=10)
    assert found.texts[0].tokens == (1,) * 10
    counts = [(row.gamma_asked, row.gamma, row.drafted, row.accepted) for row in found.rows]
    assert counts == [(3, 3, 3, 3), (3, 3, 3, 3), (4, 0, 0, 0)]
    shown = [(1, [3 / 4], [0.0]), (2, [4 / 5], [0.0]), (3, [5 / 6], [0.0])]
    assert policy.asked == shown * 2
    assert [row.top_probs for row in found.rows] == [(3 / 4, 4 / 5, 5 / 6)] * 2 + [()]


def test_an_entropy_stops_no_lookup() -> None:
    """Its drafts are certain: entropy 0, as far as γ goes; nobody is asked after the last."""
    target = scripted(always([0, 9, 0]), vocabulary=3)
    found = decode(target, NgramDrafter(), SvipPolicy(threshold=0.0, cap=4), prompts=[[1, 1, 1, 1]], new=11)
    assert [(row.gamma_asked, row.gamma, row.drafted, row.accepted) for row in found.rows] == [(4, 4, 4, 4)] * 2
    assert [len(row.entropies_nats) for row in found.rows] == [3, 3]


def test_rows_without_a_match_are_not_asked_about() -> None:
    """Row 0 is offered 3 drafts, row 1 none: (B,) signals, the second unknown."""
    drafter, asked = NgramDrafter(), list[tuple[int, list[float], list[float]]]()

    def goes_on(depth: int, tops: Sequence[float], entropies: Sequence[float]) -> bool:
        asked.append((depth, list(tops), list(entropies)))
        return depth < 2

    rows = [[7, 1, 2, 7], [1, 2, 3, 4]]
    drafter.start(rows, 8)
    proposal = drafter.propose(rows, [3, 3], None, goes_on)
    assert (proposal.tokens.tolist(), proposal.drafted) == ([[1, 2], [0, 0]], [2, 0])
    assert [(depth, tops[0], entropies[0]) for depth, tops, entropies in asked] == [(1, 1 / 2, 0.0), (2, 2 / 3, 0.0)]
    assert all(math.isnan(tops[1]) and math.isnan(entropies[1]) for _, tops, entropies in asked)
    drafter.start([[1, 2, 3]], 8)
    assert drafter.propose([[1, 2, 3]], [3], None, goes_on).drafted == [0]
    assert len(asked) == 2


def test_rounds_at_zero_are_plain_and_recorded_as_such() -> None:
    policy = Trace(0, 2)
    found = decode(writer(), writer(), policy)
    assert found.texts[0].tokens == tuple(SCRIPT[:9])
    assert [(row.gamma_asked, row.gamma, row.drafted) for row in found.rows] == [(0, 0, 0), (2, 2, 2)] * 2
    assert policy.told == [([0], [0]), ([2], [2])] * 2


def test_the_heuristic_grows_to_its_cap_and_the_next_call_starts_anew() -> None:
    target = scripted(always([0, 9, 0]), vocabulary=3)
    decoder = decoder_of(target, target)
    for _ in range(2):
        found = decoder.run(batch_of([[1]], 112), gamma=HeuristicPolicy())
        assert [row.gamma_asked for row in found.rows] == [5, 7, 9, 11, 13, 15, 16, 16, 16]
        assert [row.drafted for row in found.rows[:8]] == [5, 7, 9, 11, 13, 15, 16, 16]
        assert (found.rows[8].gamma, found.rows[8].gamma_limit) == (10, "tokens_left")


def test_signals_are_read_for_policies_that_read_them_and_for_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()

    def counted(logits: Tensor) -> Any:
        next(calls)
        return confidence(logits)

    monkeypatch.setattr("specgauge.bench.decoding.drafters.confidence", counted)
    drafter = ModelDrafter(writer(), GREEDY)
    decode(writer(), drafter, HeuristicPolicy(start=3, cap=4))
    decode(writer(), drafter, Trace(3, reads_signals=False))
    assert next(calls) == 0
    decode(writer(), drafter, Trace(3))
    assert next(calls) - 1 == 2 + 2  # two rounds of three drafts


COSTS = ReplayCosts(t_decode_s=1.0, t_round_s=ROUNDS_S)
VOCABULARY, NEW = 6, 60
RNG = np.random.default_rng(8)
TEXT = RNG.integers(0, VOCABULARY, NEW)
TOPS = RNG.permutation(np.linspace(0.3, 0.97, NEW + CAP))
"""The draft's largest probability at each token of the text and beyond, all different."""
AGREES = RNG.random(NEW + CAP) < TOPS


def tokens_of_the_draft() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    longer = np.append(TEXT, np.zeros(CAP, dtype=np.int64))
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


@pytest.mark.parametrize("name", POLICIES)
def test_the_decoder_takes_the_rounds_of_the_replay(name: str) -> None:
    """The draft's distribution depends on the place alone, so that a replay knows what the policy will be shown."""
    policy, texts = POLICIES[name], recorded()
    played = ReplayBatches.drawn(texts, COSTS, replicates=1, seed=0).simulate(policy)
    target = scripted(text_of(TEXT.tolist(), len(PROMPT), VOCABULARY), vocabulary=VOCABULARY)
    found = decode(target, scripted(drafting, vocabulary=VOCABULARY), policy, prompts=[PROMPT], new=NEW)
    assert found.texts[0].tokens == tuple(TEXT.tolist())
    totals = len(found.rows), sum(row.drafted for row in found.rows), sum(row.accepted for row in found.rows)
    assert totals == (int(played.rounds[0]), int(played.drafted[0]), int(played.accepted[0]))
    if name != "fixed":
        assert len({row.drafted for row in found.rows}) > 1, "it adapts"


def written(
    target: LoadedModel, draft: LoadedModel, policy: GammaPolicy, settings: SamplingSettings, *, rows: int, calls: int
) -> tuple[list[tuple[int, ...]], set[int]]:
    """Texts of six tokens, and what the policy asked for."""
    decoder = decoder_of(target, draft, settings, seed=11)
    texts, asked = [], set[int]()
    for call in range(calls):
        numbers = range(call * rows, (call + 1) * rows)
        found = decoder.run(batch_of([PROMPT] * rows, 6, numbers), gamma=policy)
        texts += [text.tokens for text in found.texts]
        asked |= {row.gamma_asked for row in found.rows if row.gamma_limit == "asked"}
    return texts, asked


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - {"fixed"}))
def test_the_distribution_stays_the_targets_under_every_policy(name: str) -> None:
    """Five rows a call, in which the policy drafts now more and now fewer."""
    for_short_texts: dict[str, GammaPolicy] = {
        "heuristic": HeuristicPolicy(start=2, cap=4),
        "gammatune": GammaTunePolicy(start=2, cap=4),
        "svip": SvipPolicy(threshold=0.97, cap=3),
        "adaedl": AdaEdlPolicy(start=0.56, step=0.3, threshold_memory=0.5, cap=3),
    }
    policy = for_short_texts.get(name, POLICIES[name])
    texts, asked = written(network(TARGET), network(DRAFT), policy, SETTINGS, rows=5, calls=60)
    assert len(asked) > 1
    chances = exact_distribution(6)
    assert min(p_value(texts, chances, True), p_value(texts, chances, False)) > PASSES


class Spy(GammaPolicy):
    """Goes by what the third draft says, which tells the second: where that is low, the next round drafts nothing."""

    reads_signals = True

    def begin(self) -> Spy:
        self.gamma, self.third = 4, 0.0
        return self

    def goes_on(self, depth: int, top_probs: Sequence[float], entropies_nats: Sequence[float]) -> bool:
        self.third = top_probs[0] if depth == 3 else 0.0
        return True

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        self.gamma = 0 if self.gamma and self.third < 0.275 else 4


def shared(draws: Draws, known: Tensor, first: Tensor, drafts: int) -> Tensor:
    """The fault: by token index alone, as for policies that read no signals."""
    assert draws._index is not None
    return draws._tables["draft"].gather(1, draws._index[:, :drafts])


@pytest.mark.parametrize("is_shared", [False, True], ids=["own uniforms", "shared uniforms"])
def test_a_draft_that_was_cut_off_never_decides_on_its_own_place(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target always writes 3 after its first token, where the draft never does, and else any token.

    Any token is about what the draft writes too, only its largest probability tells the token before.
    """
    if is_shared:
        monkeypatch.setattr(Draws, "_of_round", shared)
    tops = torch.tensor([0.26, 0.27, 0.28, 0.29], dtype=torch.float64)
    table = ((1 - tops) / 3)[:, None].repeat(1, 4)
    table[:, 0] = tops

    def three(positions: Tensor) -> Tensor:
        return FAR * (positions == 1)[..., None] * torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)

    target = scripted(lambda _, positions: three(positions), vocabulary=4)
    draft = scripted(lambda tokens, positions: table[tokens].log() - three(positions), vocabulary=4)
    texts, _ = written(target, draft, Spy(), DRAWN, rows=1, calls=150)
    assert {text[1] for text in texts} == {3}
    p = float(chisquare(np.bincount([text[2] // 2 for text in texts], minlength=2)).pvalue)
    assert p < CAUGHT if is_shared else p > PASSES
