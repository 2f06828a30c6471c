"""Where texts end, how far γ reaches, and what is refused: on networks whose logits are written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specgauge.bench.decoding.drafters import Drafter, ModelDrafter, NgramDrafter
from specgauge.bench.decoding.records import Decoded
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import DRAWN, GREEDY, decode, decoder_of, plain
from tests.bench.scripted import FAR, GivenDrafter, always, scripted, text_of

EOS = 0
VOCABULARY = 30
PROMPT = [1, 2]


def writes(script: Sequence[int], *, eos: Sequence[int] = (), **options: Any) -> LoadedModel:
    return scripted(text_of(script, len(PROMPT), VOCABULARY), vocabulary=VOCABULARY, eos=eos, **options)


def run(target: LoadedModel, draft: Drafter | LoadedModel, *, prompts: Any = (PROMPT,), **options: Any) -> Decoded:
    return decode(target, draft, prompts=prompts, **options)


@pytest.mark.parametrize("ends", [[EOS], [29, EOS]])
def test_an_identical_draft_stops_at_any_end_token_without_a_bonus(ends: list[int]) -> None:
    script = [7, 3, EOS, 9, 9]
    found = run(writes(script, eos=ends), writes(script), gamma=4, new=8)
    assert found.texts[0].tokens == (7, 3, EOS)
    assert found.texts[0].end_reason == "eos"
    (row,) = found.rows
    assert (row.drafted, row.accepted, row.emitted) == (4, 2, 2)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", ["accepted or bonus", "replacement"])
@pytest.mark.parametrize("place", range(9))
def test_an_end_token_at_every_place_of_a_block(place: int, kind: str, settings: SamplingSettings) -> None:
    script = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    script[place] = EOS
    drafts = list(script)
    if kind == "replacement":
        drafts[place] = 20
    found = run(writes(script, eos=[EOS]), writes(drafts), gamma=3, new=10, settings=settings)
    assert found.texts[0].tokens == tuple(script[: place + 1])
    assert found.texts[0].end_reason == "eos"
    assert sum(row.emitted for row in found.rows) == place
    for row in found.rows:
        assert row.emitted in (row.accepted, row.accepted + 1)
        assert row.accepted <= row.drafted == row.gamma
    if place and kind == "replacement":
        assert found.rows[-1].emitted == found.rows[-1].accepted + 1
    if place and kind == "accepted or bonus":
        is_bonus = place % 4 == 0
        assert found.rows[-1].emitted - found.rows[-1].accepted == int(is_bonus)


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


def test_gamma_in_force_is_the_smallest_of_four() -> None:
    target, draft = writes([1], max_context=40), writes([1], max_context=30)
    decoder = decoder_of(target, draft)
    assert decoder.gamma_in_force(4, 10, 20) == (4, "asked")
    assert decoder.gamma_in_force(4, 10, 3) == (2, "tokens_left")
    assert decoder.gamma_in_force(4, 27, 20) == (3, "draft_context")
    assert decoder.gamma_in_force(4, 30, 20) == (0, "draft_context")
    assert decoder.gamma_in_force(4, 36, 20) == (0, "draft_context")
    lookup = decoder_of(target, NgramDrafter())
    assert lookup.gamma_in_force(4, 36, 20) == (3, "target_context")
    assert lookup.gamma_in_force(4, 39, 20) == (0, "target_context")


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
