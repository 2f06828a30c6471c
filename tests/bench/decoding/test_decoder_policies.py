"""Policies at work in the decoder: exact traces of what they are asked and told, and what is written under them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
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
from specgauge.bench.models.pair import LoadedModel, first_layers
from specgauge.model.policies.feedback import HeuristicPolicy
from specgauge.model.policies.policy import GammaPolicy
from specgauge.model.policies.stopping import AdaEdlPolicy, SvipPolicy
from specgauge.model.sampling import SamplingSettings
from tests.bench import decoded
from tests.bench.decoded import DRAWN, GREEDY, batch_of, decoder_of, plain
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
    assert found.lossless


def test_the_signals_asked_about_are_those_recorded() -> None:
    """Nobody is asked after the last draft that may be made, so that its signals are not read."""
    probs = (0.625, 0.25, 0.125)
    policy = Trace(3)
    target, draft = (scripted(spread(*row), vocabulary=3) for row in ((0.5, 0.25, 0.25), probs))
    found = decode(target, draft, policy, settings=DRAWN)
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


def test_the_targets_first_layers_are_asked_like_any_draft(tiny_model: Callable[..., LoadedModel]) -> None:
    target, policy = tiny_model(scale=0.4), Trace(6, until=lambda depth: depth < 2)
    found = decode(target, first_layers(target, 1), policy, prompts=[[1, 2, 3]], new=12)
    assert found.texts == plain(target, prompts=[[1, 2, 3]], new=12)
    assert [row.gamma for row in found.rows] == [row.drafted for row in found.rows]
    assert {row.gamma_asked for row in found.rows if row.gamma_limit == "asked"} == {2}
    assert all(0 < top <= 1 for _, (top,), _ in policy.asked)


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


def test_what_is_learnt_while_drafting_is_forgotten_in_the_next_call() -> None:
    target, draft = (scripted(spread(*row), vocabulary=3) for row in ((0.5, 0.25, 0.25), (0.3, 0.4, 0.3)))
    decoder = decoder_of(target, draft, DRAWN)
    policy = AdaEdlPolicy(cap=5, start=0.53)
    one, two = (decoder.run(batch_of([[1]], 40), gamma=policy) for _ in range(2))
    assert one.rows == two.rows
    assert len({row.gamma_asked for row in one.rows}) > 1


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


def written(
    target: LoadedModel, draft: LoadedModel, policy: GammaPolicy, settings: SamplingSettings, *, rows: int, calls: int
) -> tuple[list[tuple[int, ...]], Counter[int]]:
    """Texts of six tokens, and how often the policy went how far."""
    decoder = decoder_of(target, draft, settings, seed=11)
    texts, asked = [], Counter[int]()
    for call in range(calls):
        numbers = range(call * rows, (call + 1) * rows)
        found = decoder.run(batch_of([PROMPT] * rows, 6, numbers), gamma=policy)
        texts += [text.tokens for text in found.texts]
        asked.update({row.round: row.gamma_asked for row in found.rows if row.gamma_limit == "asked"}.values())
    return texts, asked


@pytest.mark.parametrize(
    "policy",
    [SvipPolicy(threshold=0.97, cap=3), AdaEdlPolicy(start=0.56, step=0.3, threshold_memory=0.5, cap=3)],
    ids=["svip", "adaedl"],
)
def test_the_distribution_stays_the_targets_where_drafting_stops_by_signals(policy: GammaPolicy) -> None:
    """Five rows a call, so that the policy stops them now here and now there."""
    texts, asked = written(network(TARGET), network(DRAFT), policy, SETTINGS, rows=5, calls=60)
    assert min(asked[1], asked[3]) > 0.1 * asked.total(), asked
    found = exact_distribution(6)
    assert min(p_value(texts, found, True), p_value(texts, found, False)) > PASSES


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
