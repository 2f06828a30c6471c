"""The one-pass estimate against the decoder: on its own texts both count the same rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specgauge.bench.decoding.decoder import SpeculativeDecoder
from specgauge.bench.decoding.drafters import ModelDrafter
from specgauge.bench.decoding.nonfinite import NonFiniteLogitsError
from specgauge.bench.decoding.plain import Text
from specgauge.bench.end_to_end.round_check import check_rounds, expected_counts
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.model.sampling import SamplingSettings
from tests.bench.scripted import broken_at, scripted, text_of

PROMPTS = [[1 + number % 7, 2 + number % 5, 3] for number in range(60)]
NEW = 20


@pytest.mark.parametrize(
    ("rule", "draft_sampling", "temperature"),
    [("ratio", "same", 1.0), ("match", "same", 1.0), ("ratio", "greedy", 0.8), ("ratio", "same", 0.0)],
)
@pytest.mark.parametrize("eos", [(), (4,)], ids=["to the limit", "some end early"])
def test_rounds_counted_are_those_expected(
    tiny_model: Callable[..., LoadedModel], rule: Any, draft_sampling: Any, temperature: float, eos: tuple[int, ...]
) -> None:
    target, draft = tiny_model(eos=eos, scale=0.25), tiny_model(seed=1, layers=1, scale=0.25)
    settings = SamplingSettings(temperature=temperature)
    drafter = ModelDrafter(draft, settings, draft_sampling=draft_sampling)
    decoder = SpeculativeDecoder(target, drafter, settings, seed=2, acceptance_rule=rule)
    found = decoder.run(PROMPTS, gamma=3, max_new_tokens=NEW, prompt_numbers=range(len(PROMPTS)))
    options: Any = {"gamma": 3, "max_new_tokens": NEW, "acceptance_rule": rule, "draft_sampling": draft_sampling}
    check = check_rounds(target, draft, [found], settings, batch_size=60, **options)
    assert check.counted == len(found.rows)
    assert check.agrees
    if temperature == 0.0 or draft_sampling == "greedy":
        assert check.expected == pytest.approx(check.counted, abs=1e-6), "nothing is left to chance"
    else:
        assert check.standard_errors is not None
        assert abs(check.standard_errors) < 3.5
    other = check_rounds(target, target, [found], settings, batch_size=60, **options)
    assert not other.agrees, "rounds of another draft are noticed"
    assert other.warning() is not None


def test_what_cannot_be_compared_is_refused(tiny_model: Callable[..., LoadedModel]) -> None:
    model, settings = tiny_model(), SamplingSettings()
    drafter = ModelDrafter(model, settings)
    decoder = SpeculativeDecoder(model, drafter, settings, seed=2)
    found = decoder.run(PROMPTS[:2], gamma=3, max_new_tokens=6, prompt_numbers=[0, 1])
    options: Any = {"settings": settings, "max_new_tokens": 6}
    with pytest.raises(ValueError, match="found rounds at gamma 3, expected 4 only"):
        check_rounds(model, model, [found], gamma=4, **options)
    forced = replace(found, lossless=False, why_not_lossless="acceptance is forced by coin at given rates")
    with pytest.raises(ValueError, match="acceptance is forced"):
        check_rounds(model, model, [forced], gamma=3, **options)
    with pytest.raises(ValueError, match="no text has a second token"):
        check_rounds(model, model, [replace(found, texts=[])], gamma=3, **options)


def test_logits_that_are_no_numbers_are_named_by_the_texts_own_prompt() -> None:
    """Equal texts are looked at once, under numbers that nobody else knows."""
    pair = LoadedPair(
        name="x",
        target=scripted(text_of(range(3, 12), 2, 12), vocabulary=12),
        draft=scripted(broken_at(5, torch.nan), vocabulary=12, name="pair 'x' draft"),
    )
    texts = [
        Text(prompt=number, repetition=0, prompt_tokens=(1, 2), tokens=tuple(range(3, 3 + count)), end_reason="length")
        for number, count in ((30, 4), (20, 4), (40, 9), (50, 9))
    ]
    with pytest.raises(NonFiniteLogitsError, match="pair 'x' draft: prompt 40: the logits of token 5 of its text"):
        expected_counts(pair, texts, SamplingSettings(), gammas=[2], window=2, max_new_tokens=9)
