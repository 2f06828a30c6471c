"""Logits that are not numbers, vocabularies that differ, acceptance that is forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from specgauge.bench.decoding.drafters import Drafter, ModelDrafter, NgramDrafter
from specgauge.bench.decoding.records import Decoded, NonFiniteLogitsError, broken_logits, refuse_places
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.timing.clock import HostClock
from specgauge.model.sampling import SamplingSettings, uniforms
from tests.bench.decoded import DRAWN, GREEDY, PROMPTS, decode
from tests.bench.scripted import GivenDrafter, after, always, broken_at, scripted, text_of, written

VOCABULARY = 12


def run(
    target: LoadedModel,
    draft: Drafter | LoadedModel,
    settings: SamplingSettings = GREEDY,
    *,
    prompts: Sequence[Sequence[int]] = ((1, 2),),
    **options: Any,
) -> Decoded:
    return decode(target, draft, settings, prompts, **{"gamma": 3, "new": 9, "seed": 5, **options})


def writes(script: Sequence[int], **options: Any) -> LoadedModel:
    return scripted(text_of(script, 2, VOCABULARY), vocabulary=VOCABULARY, **options)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", range(9))
def test_the_target_stops_at_the_place_and_keeps_what_was_written(
    place: int, value: float, settings: SamplingSettings
) -> None:
    target = scripted(broken_at(place, value), vocabulary=VOCABULARY, name="pair 'x' target")
    with pytest.raises(NonFiniteLogitsError) as caught:
        run(target, writes(range(3, 12)), settings, numbers=[7])
    error, kept = caught.value, caught.value.decoded
    assert (error.model, error.prompt, error.position) == ("pair 'x' target", 7, place)
    assert kept is not None
    assert kept.texts == []
    assert [row.position for row in kept.rows] == list(range(1, place - 3, 4))
    assert len(kept.times) == len(kept.rows)


class Events(HostClock):
    """Seconds as events of a device, which are there once it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.marks, self.there = 0, 0

    def synchronize(self) -> None:
        self.there = self.marks

    def mark(self) -> float:
        self.marks += 1
        return float(self.marks)

    def elapsed_s(self, start: float, end: float) -> float:
        assert max(start, end) <= self.there, "read before the device got there"
        return end - start


def test_a_fault_in_the_prefill_is_told_on_a_device_that_runs_behind() -> None:
    target = scripted(broken_at(0, torch.nan), vocabulary=VOCABULARY)
    with pytest.raises(NonFiniteLogitsError) as caught:
        run(target, writes(range(3, 12)), clock=Events())
    kept = caught.value.decoded
    assert kept is not None
    assert (kept.times, kept.prefill_target_s, kept.prefill_draft_s) == ([], 1.0, 0.0)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_draft_is_named_when_its_logits_break(settings: SamplingSettings) -> None:
    draft = scripted(broken_at(6, torch.nan), vocabulary=VOCABULARY, name="pair 'x' draft")
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
    draft = scripted(text_of(drafts, 2, 10), vocabulary=10)
    found = run(writes(script), draft, settings, prompts=[[1, 11]], new=10)
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
    target = scripted(text_of(range(9), 2, 10), vocabulary=10)
    draft = scripted(always([0.0] * 11 + [30.0]), vocabulary=12)
    found = run(target, ModelDrafter(draft, settings, draft_sampling=draft_sampling), settings, acceptance_rule=rule)
    assert found.texts[0].tokens == tuple(range(9))
    assert {row.accepted for row in found.rows} == {0}
    forced = run(target, ModelDrafter(draft, settings, draft_sampling=draft_sampling), settings, forced_rates=1.0)
    assert forced.texts[0].tokens == tuple(range(9)), "not even where acceptance is forced"


def numbers_with_runs(runs: Sequence[int], rate: float) -> list[int]:
    """Prompt numbers whose first round of four accepts the given numbers of drafts at a forced rate."""

    def run_of(number: int) -> int:
        """By the accept uniforms at seed 5."""
        found = uniforms(5, number, 0, np.arange(1, 5), "accept")
        return next((i for i, u in enumerate(found) if u >= rate), 4)

    return [next(number for number in range(10_000) if run_of(number) == wanted) for wanted in runs]


def test_ragged_rows_with_forced_acceptance_equal_their_own_batch_of_one(
    tiny_model: Callable[..., LoadedModel],
) -> None:
    """Prompts of 3, 9 and 17 tokens accept 0, 2 and 4 of 4 drafts in the first round; one row ends early."""
    numbers = numbers_with_runs([0, 2, 4], 0.5)
    free = tiny_model(scale=0.3)
    draft = tiny_model(seed=1, scale=0.3)
    options: Any = {"gamma": 4, "new": 24, "forced_rates": 0.5}
    whole = run(free, draft, DRAWN, prompts=PROMPTS, numbers=numbers, **options)
    assert [row.accepted for row in whole.rows if row.round == 0] == [0, 2, 4]
    ending = next(token for token in whole.texts[1].tokens if token not in whole.texts[0].tokens[:12])
    target = tiny_model(scale=0.3, eos=(ending,))
    together = run(target, draft, DRAWN, prompts=PROMPTS, numbers=numbers, **options)
    assert together.texts[1].end_reason == "eos"
    assert len(together.texts[1].tokens) < len(together.texts[0].tokens)
    for prompt, number in zip(PROMPTS, numbers, strict=True):
        alone = run(target, draft, DRAWN, prompts=[prompt], numbers=[number], **options)
        assert alone.texts == [text for text in together.texts if text.prompt == number]
        assert [vars(row) for row in alone.rows] == [vars(row) for row in together.rows if row.prompt == number]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_forced_acceptance_says_that_it_is_not_lossless(rate: float) -> None:
    target, draft = writes(range(3, 12)), scripted(always([0.0] * 11 + [30.0]), vocabulary=VOCABULARY)
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


NAN, INF = torch.nan, torch.inf
TEXTS = [written((2, 3, 4), 5), written((2, 3, 4), 7)]


def test_a_token_without_mass_is_no_fault_and_all_without_is_one() -> None:
    logits = torch.tensor([[1.0, 2.0], [-INF, 0.0], [NAN, 0.0], [0.0, INF], [-INF, -INF]])
    assert broken_logits(logits).tolist() == [False, False, True, True, True]


def test_the_first_text_is_named_at_its_first_broken_place() -> None:
    broken = torch.zeros(2, 4, dtype=torch.bool)
    refuse_places("pair 'x' draft", TEXTS, broken, 8)
    broken[1, 2:] = True
    with pytest.raises(NonFiniteLogitsError) as caught:
        refuse_places("pair 'x' draft", TEXTS, broken, 8)
    assert (caught.value.model, caught.value.prompt, caught.value.position) == ("pair 'x' draft", 7, 11)
    assert str(caught.value).startswith("pair 'x' draft: prompt 7: the logits of token 11 of its text are NaN or inf")
