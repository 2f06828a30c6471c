"""Where texts end, how far γ reaches, logits that are no numbers, vocabularies that differ, and forced acceptance.

The networks' logits are written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from specgauge.bench.decoding.drafters import Drafter, ModelDrafter, NgramDrafter
from specgauge.bench.decoding.records import Decoded, NonFiniteLogitsError, broken_logits
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import DRAWN, GREEDY, decode, plain
from tests.bench.scripted import FAR, GivenDrafter, after, always, broken_at, scripted, text_of

EOS = 0
VOCABULARY = 30
PROMPT = [1, 2]


def writes(script: Sequence[int], *, vocabulary: int = VOCABULARY, **options: Any) -> LoadedModel:
    return scripted(text_of(script, len(PROMPT), vocabulary), vocabulary=vocabulary, **options)


def run(
    target: LoadedModel,
    draft: Drafter | LoadedModel,
    settings: SamplingSettings = GREEDY,
    *,
    prompts: Sequence[Sequence[int]] = (PROMPT,),
    **options: Any,
) -> Decoded:
    return decode(target, draft, settings, prompts, **{"gamma": 3, "new": 9, "seed": 5, **options})


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", ["accepted or bonus", "replacement"])
@pytest.mark.parametrize("place", range(9))
def test_an_end_token_at_every_place_of_a_block(place: int, kind: str, settings: SamplingSettings) -> None:
    script = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    script[place] = EOS
    drafts = list(script)
    if kind == "replacement":
        drafts[place] = 20
    found = run(writes(script, eos=[29, EOS]), writes(drafts), gamma=3, new=10, settings=settings)
    assert found.texts[0].tokens == tuple(script[: place + 1])
    assert found.texts[0].end_reason == "eos"
    assert sum(row.emitted for row in found.rows) == place
    assert all(row.accepted <= row.drafted == row.gamma for row in found.rows)
    assert all(row.emitted == row.accepted + 1 for row in found.rows[:-1])
    if place:
        is_draft = kind == "accepted or bonus" and place % 4 != 0
        assert found.rows[-1].emitted == found.rows[-1].accepted + (not is_draft)


@pytest.mark.parametrize("new", range(1, 8))
@pytest.mark.parametrize("gamma", [0, 1, 3, 50])
def test_the_length_limit_is_met_exactly(new: int, gamma: int) -> None:
    """Two allowed, γ = 3, a perfect draft: exactly two; γ in force is what the tokens left allow."""
    script = list(range(3, 15))
    found = run(writes(script), writes(script), gamma=gamma, new=new)
    assert found.texts[0].tokens == tuple(script[:new])
    assert found.texts[0].end_reason == "length"
    for row in found.rows:
        assert row.gamma == min(gamma, new - row.position - 1) == row.drafted == row.accepted
        assert row.gamma_asked == gamma
        assert row.gamma_limit == ("asked" if row.gamma == gamma else "tokens_left")
        assert row.emitted == row.accepted + 1
    assert len(found.rows) == -(-(new - 1) // (gamma + 1))


def test_one_new_token_and_an_end_token_at_once_need_no_draft() -> None:
    class Untouched(GivenDrafter):
        def start(self, committed: Sequence[Sequence[int]], max_new_tokens: int) -> None:
            raise AssertionError("nothing is left to draft for")

    for target, new in ((writes([7, 8]), 1), (writes([EOS, 8], eos=[EOS]), 9)):
        found = run(target, Untouched([]), gamma=4, new=new)
        assert len(found.texts[0].tokens) == 1
        assert (found.rows, found.times, found.decode_s) == ([], [], 0.0)


def test_ties_go_to_the_lowest_index_on_every_path() -> None:
    """Logits (0, 1, 1): index 1 from the prefill, as a draft, as a replacement, as a bonus, and in plain decoding."""
    tied = scripted(always([0.0, 1.0, 1.0]), vocabulary=3)
    assert plain(tied, prompts=[[0]], new=6)[0].tokens == (1,) * 6
    found = run(tied, tied, gamma=2, new=6, prompts=[[0]])
    assert found.texts[0].tokens == (1,) * 6
    assert [row.accepted for row in found.rows] == [2, 1]
    replaced = run(tied, GivenDrafter([[2, 2], [1, 2]]), gamma=2, new=6, prompts=[[0]])
    assert replaced.texts[0].tokens == (1,) * 6
    assert [row.accepted for row in replaced.rows][:2] == [0, 1]
    drawn = ModelDrafter(tied, DRAWN, draft_sampling="greedy")
    drawn.start([[0, 1]], 4)
    assert drawn.propose([[0, 1]], [2], torch.zeros(1, 2)).tokens.tolist() == [[1, 1]]


def test_a_penalty_sees_every_token_of_a_round_and_forgets_rejected_ones() -> None:
    """A = 2.0, B = 1.5, penalty 2, draft [A, A]: A accepted, then B instead; history afterwards exactly A, B."""
    a, b, start = 0, 1, 2
    penalised = SamplingSettings(temperature=0.0, repetition_penalty=2.0)

    def logits_of(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        first = torch.tensor([0.0, 0.0, 50.0], dtype=torch.float64)
        later = torch.tensor([2.0, 1.5, -9.0], dtype=torch.float64)
        return torch.where((positions == 0)[..., None], first, later)

    target = scripted(logits_of, vocabulary=3)
    drafter = GivenDrafter([[a, a], [a, b], [b]])
    found = run(target, drafter, gamma=2, new=6, settings=penalised, prompts=[[start]])
    assert found.texts == plain(target, penalised, [[start]], new=6)
    assert found.texts[0].tokens[:3] == (start, a, b)
    assert (found.rows[0].accepted, found.rows[0].emitted) == (1, 2)
    assert found.texts[0].tokens[3:] == (a, a, a), "A 1.0 and B 0.75 from here on"


def test_a_draft_with_a_shorter_context_ends_in_plain_decoding_and_says_so() -> None:
    script = list(range(3, 28))
    found = run(writes(script), writes(script, max_context=9), gamma=4, new=20)
    assert found.texts[0].tokens == tuple(script[:20])
    assert [row.gamma for row in found.rows[:3]] == [4, 2, 0]
    assert [row.gamma_limit for row in found.rows[:3]] == ["asked", "draft_context", "draft_context"]
    assert [row.gamma_limit for row in found.rows if row.gamma == 0] == ["draft_context"] * 10 + ["tokens_left"]


def test_a_prompt_longer_than_the_drafts_context_decodes_plainly_beside_one_that_drafts() -> None:
    script = list(range(3, 15))
    found = run(writes(script), writes(script, max_context=16), gamma=3, new=9, prompts=[[1] * 20, PROMPT])
    long, short = (max(row.gamma for row in found.rows if row.prompt == prompt) for prompt in (0, 1))
    assert (long, short) == (0, 3)
    assert found.texts[1].tokens == tuple(script[:9])
    assert {row.accepted for row in found.rows if row.prompt == 1} == {3}


@pytest.mark.parametrize("prompt_tokens", [44, 50, 54])
def test_a_row_at_the_end_of_its_context_beside_a_fresh_one(prompt_tokens: int) -> None:
    """The first row has 2 tokens left after 6 accepted drafts, the second one 8: its block is wider."""
    limit, new = 64, 10
    prompts = [[1] * prompt_tokens, [2] * 3]
    scripts = [list(range(3, 13)), list(range(13, 23))]
    wrong = [[3, 4, 5, 6, 7, 8, 9, 0, 11, 12], [0] * 10]

    def writing(lines: list[list[int]]) -> LoadedModel:
        def logits_of(_: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            places = positions - torch.tensor([[len(prompt) - 1] for prompt in prompts])
            return FAR * torch.nn.functional.one_hot(torch.tensor(lines).gather(1, places.clamp(0, 9)), VOCABULARY)

        return scripted(logits_of, vocabulary=VOCABULARY, max_context=limit)

    target = writing(scripts)
    for drafter in (writing(wrong), GivenDrafter([[4, 5, 6, 7, 8, 9, 0, 0], [11] * 8])):
        found = run(target, drafter, gamma=8, new=new, prompts=prompts)
        assert [text.tokens for text in found.texts] == [tuple(script) for script in scripts]
        assert [(row.gamma, row.accepted) for row in found.rows if row.prompt == 0] == [(8, 6), (1, 1)]
        assert [row.gamma for row in found.rows if row.prompt == 1] == [8, 7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("prompts", "options", "words"),
    [
        ([], {}, "prompts: expected one or more to decode, got none"),
        ([[]], {}, "prompt 0 has no token"),
        ([[1] * 30], {"new": 20}, "prompt 0 has 30 tokens and 20 more .* takes 40"),
        ([[1]], {"new": 0}, "max_new_tokens: expected 1 or more, got 0"),
        ([[1]], {"gamma": -1}, "gamma: expected 0 .*got -1"),
        ([[1, 30]], {}, "prompt 0: expected ids from 0 to 29, got 30"),
        ([[1, -2]], {}, "prompt 0: expected ids from 0 to 29, got -2"),
        ([[1]], {"forced_rates": 1.5}, "validate.acceptance: expected rates from 0 to 1, got 1.5"),
        ([[1]], {"forced_rates": []}, "validate.acceptance: expected rates from 0 to 1"),
        (
            [[1]],
            {"forced_rates": [0.5, 0.4]},
            "validate.acceptance: expected one rate, or one for each of 4 drafts, got 2",
        ),
        ([[1]], {"acceptance_rule": "rati"}, "acceptance_rule: expected ratio or match, got 'rati'"),
    ],
)
def test_bad_input_is_refused_in_one_line(prompts: list[list[int]], options: dict[str, Any], words: str) -> None:
    target = writes([1], max_context=40, name="pair 'x' target")
    with pytest.raises(ValueError, match=words) as caught:
        run(target, target, prompts=prompts, **{"gamma": 4, "new": 9} | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", range(9))
def test_the_target_stops_at_the_place_and_keeps_what_was_written(
    place: int, value: float, settings: SamplingSettings
) -> None:
    target = scripted(broken_at(place, value, vocabulary=VOCABULARY), vocabulary=VOCABULARY, name="pair 'x' target")
    with pytest.raises(NonFiniteLogitsError) as caught:
        run(target, writes(range(3, 12)), settings, numbers=[7])
    error, kept = caught.value, caught.value.decoded
    assert (error.model, error.prompt, error.position) == ("pair 'x' target", 7, place)
    assert kept is not None
    assert kept.texts == []
    assert [row.position for row in kept.rows] == list(range(1, place - 3, 4))
    assert len(kept.times) == len(kept.rows)


class MarkClock:
    """A second from mark to mark of a device that runs behind; knows what was asked of it last."""

    marks_on_host = False
    marks, waited = 0, False

    def synchronize(self) -> None:
        self.waited = True

    def mark(self) -> int:
        self.marks, self.waited = self.marks + 1, False
        return self.marks

    def elapsed_s(self, start: int, end: int) -> float:
        return float(end - start)


def test_a_fault_in_the_prefill_is_told_on_a_device_that_runs_behind() -> None:
    """Marks are read once the device got there."""
    target, clock = scripted(broken_at(0, torch.nan, vocabulary=VOCABULARY), vocabulary=VOCABULARY), MarkClock()
    with pytest.raises(NonFiniteLogitsError) as caught:
        run(target, writes(range(3, 12)), clock=clock)
    assert clock.waited
    kept = caught.value.decoded
    assert kept is not None
    assert (kept.times, kept.prefill_target_s, kept.prefill_draft_s) == ([], 1.0, 0.0)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_draft_is_named_when_its_logits_break(settings: SamplingSettings) -> None:
    draft = scripted(broken_at(6, torch.nan, vocabulary=VOCABULARY), vocabulary=VOCABULARY, name="pair 'x' draft")
    with pytest.raises(NonFiniteLogitsError, match="pair 'x' draft: prompt 0: the logits of token 6"):
        run(writes(range(3, 12)), draft, settings)


def test_texts_that_ended_before_are_kept() -> None:
    """Row 0 ends at its third token; row 1 meets a NaN at its sixth."""
    good = text_of(range(3, 12), 2, VOCABULARY)

    def logits_of(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits = good(tokens, positions)
        if tokens.shape[0] == 2:
            logits[0, positions[0] == 3] = 20.0 * torch.nn.functional.one_hot(torch.tensor(0), VOCABULARY).double()
            logits[1, positions[1] == 6] = torch.nan
        return logits

    target = scripted(logits_of, vocabulary=VOCABULARY, eos=[0])
    with pytest.raises(NonFiniteLogitsError, match="prompt 1: the logits of token 5") as caught:
        run(target, GivenDrafter([[4]]), prompts=[[1, 2], [1, 2]], gamma=1)
    kept = caught.value.decoded
    assert kept is not None
    assert [(text.prompt, text.tokens) for text in kept.texts] == [(0, (3, 4, 0))]
    assert {row.prompt for row in kept.rows} == {0, 1}


def test_a_fault_behind_a_rejected_draft_is_never_reached() -> None:
    """The target is broken only after a token that it does not write."""
    table = 20.0 * torch.eye(VOCABULARY, dtype=torch.float64).roll(1, dims=1)
    table[9] = torch.nan
    target = scripted(after(table), vocabulary=VOCABULARY)
    found = run(target, GivenDrafter([[9, 9, 9], [5, 9, 9]]), prompts=[[1]], new=6)
    assert found.texts[0].tokens == (2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_an_id_that_only_the_target_has_never_reaches_the_draft(settings: SamplingSettings) -> None:
    """Target ids 10 and 11 are not in the draft's ten rows: drafting ends for that round and resumes in the next."""
    script = [3, 11, 4, 5, 10, 6, 7, 8, 11, 9]
    drafts = [token if token < 10 else 0 for token in script]
    found = run(writes(script), writes(drafts, vocabulary=10), settings, prompts=[[1, 11]], new=10)
    assert found.texts[0].tokens == tuple(script)
    after_unknown = [row for row in found.rows if script[row.position - 1] >= 10]
    assert after_unknown
    assert {(row.gamma > 0, row.drafted, row.accepted, row.emitted) for row in after_unknown[:-1]} == {(True, 0, 0, 1)}
    assert next(row.drafted for row in found.rows if script[row.position - 1] < 10) == 3


@pytest.mark.parametrize("rule", ["ratio", "match"])
@pytest.mark.parametrize("draft_sampling", ["same", "greedy"])
@pytest.mark.parametrize("settings", [GREEDY, DRAWN, SamplingSettings(repetition_penalty=1.5)])
def test_an_id_that_only_the_draft_has_is_always_rejected(
    settings: SamplingSettings, draft_sampling: Any, rule: Any
) -> None:
    target = writes(range(9), vocabulary=10)
    draft = scripted(always([0.0] * 11 + [30.0]), vocabulary=12)
    for options in ({"acceptance_rule": rule}, {"forced_rates": 1.0}):
        found = run(target, ModelDrafter(draft, settings, draft_sampling=draft_sampling), settings, **options)
        assert found.texts[0].tokens == tuple(range(9))
        assert {row.accepted for row in found.rows} == {0}


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_forced_acceptance_says_that_it_is_not_lossless(rate: float) -> None:
    target, draft = writes(range(3, 12)), scripted(always([0.0] * 29 + [30.0]), vocabulary=VOCABULARY)
    found = run(target, draft, forced_rates=rate)
    assert found.why_not_lossless == "acceptance is forced by coin at given rates"
    assert {row.accepted for row in found.rows if row.gamma == 3} == {3 if rate else 0}
    assert run(target, draft).why_not_lossless is None


def test_forced_acceptance_follows_the_rate_of_each_place() -> None:
    """Rates .9, .5, .2 over 4,000 rows: A_1, A_2, A_3 are .9, .45, .09, each within its binomial range."""
    model = scripted(always([0.0] * VOCABULARY), vocabulary=VOCABULARY)
    rows = 4_000
    given = GivenDrafter([[1, 2, 3]])
    found = run(model, given, DRAWN, prompts=[[1]] * rows, new=5, forced_rates=[0.9, 0.5, 0.2])
    accepted = np.array([row.accepted for row in found.rows if row.round == 0])
    for drafts, chance in ((1, 0.9), (2, 0.45), (3, 0.09)):
        low, high = binom.interval(1 - 1e-6, rows, chance)
        assert low <= int((accepted >= drafts).sum()) <= high


def test_a_lookup_without_a_match_decodes_plainly_for_that_round() -> None:
    script = [3, 4, 5, 3, 4, 5, 3, 4, 5, 3]
    found = run(writes(script), NgramDrafter(), new=10)
    assert found.texts[0].tokens == tuple(script)
    counts = [(row.drafted, row.match_length, row.accepted, row.emitted) for row in found.rows]
    assert counts == [(0, 0, 0, 1)] * 3 + [(3, 1, 3, 4), (1, 3, 1, 2)]


def test_a_token_without_mass_is_no_fault_and_all_without_is_one() -> None:
    logits = torch.tensor([[1.0, 2.0], [-torch.inf, 0.0], [torch.nan, 0.0], [0.0, torch.inf], [-torch.inf] * 2])
    assert broken_logits(logits).tolist() == [False, False, True, True, True]
