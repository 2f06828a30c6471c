"""The teacher-forced pass against the definition: every position from a forward over its own prefix."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

from specgauge.bench.acceptance.lookups import measure_lookups
from specgauge.bench.acceptance.teacher_forced import measure_acceptance
from specgauge.bench.decoding.records import NonFiniteLogitsError, Text
from specgauge.bench.models.pair import LoadedModel
from specgauge.configs.pairs import NgramConfig
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import DRAWN, GREEDY, Make, next_probs, plain
from tests.bench.scripted import broken_at, scripted, text_of, written

CHAINS = [GREEDY, DRAWN, SamplingSettings(temperature=0.7, top_p=0.9, repetition_penalty=1.3)]


@pytest.mark.parametrize("settings", CHAINS)
@pytest.mark.parametrize("chunk", [3, 64])
def test_columns_are_the_definitions(tiny_model: Make, settings: SamplingSettings, chunk: int) -> None:
    target, draft = tiny_model(seed=1, eos=(4,), scale=0.4), tiny_model(seed=2, layers=1, scale=0.4)
    texts = plain(target, settings, new=9, seed=3)
    frame = measure_acceptance(target, draft, texts, settings, batch_size=2, chunk=chunk)
    assert len(frame) == sum(len(text.tokens) - 1 for text in texts)
    rows: Any = frame.itertuples()
    for row in rows:
        text = texts[row.prompt]
        history = [*text.prompt_tokens, *text.tokens[: row.position + 1]]
        token = text.tokens[row.position + 1]
        assert (row.token, row.context, row.end_reason) == (token, len(history) - 1, text.end_reason)
        target_probs = next_probs(target, history, settings)
        draft_probs = next_probs(draft, history, settings)
        assert row.target_prob == pytest.approx(float(target_probs[token]), abs=1e-6)
        assert row.draft_prob == pytest.approx(float(draft_probs[token]), abs=1e-6)
        assert row.overlap_ratio == pytest.approx(float(torch.minimum(target_probs, draft_probs).sum()), abs=1e-6)
        assert row.overlap_match == pytest.approx(float((target_probs * draft_probs).sum()), abs=1e-6)
        assert row.draft_argmax == int(draft_probs.argmax())
        assert row.draft_argmax_target_prob == pytest.approx(float(target_probs[row.draft_argmax]), abs=1e-6)
        own = next_probs(draft, history, DRAWN)
        assert row.draft_top_prob == pytest.approx(float(own.max()), abs=1e-6)
        assert row.draft_entropy_nats == pytest.approx(float(-(own * own.log()).sum()), abs=1e-5)


def test_one_model_after_the_other_gives_the_same(tiny_model: Make) -> None:
    """Loaded one after the other, the target is gone before the draft comes."""
    texts = plain(tiny_model(seed=1), DRAWN, new=9, seed=3)
    alive: list[weakref.ref[LoadedModel]] = []

    def load_target() -> LoadedModel:
        model = tiny_model(seed=1)
        alive.append(weakref.ref(model))
        return model

    def load_draft() -> LoadedModel:
        assert alive[0]() is None
        return tiny_model(seed=2)

    apart = measure_acceptance(load_target, load_draft, texts, DRAWN, batch_size=2, chunk=3)
    side_by_side = measure_acceptance(tiny_model(seed=1), tiny_model(seed=2), texts, DRAWN, batch_size=2, chunk=3)
    assert apart.equals(side_by_side)


def test_an_id_the_draft_lacks_is_never_accepted_and_never_fed(tiny_model: Make) -> None:
    target, draft = tiny_model(seed=1, vocabulary=14), tiny_model(seed=2, vocabulary=11)
    text = written((3, 12, 4, 5), 0, prompt=(1, 13, 2))
    frame = measure_acceptance(target, draft, [text], DRAWN, batch_size=1, chunk=8)
    proposed, after_it, later = frame["draft_prob"].tolist()
    assert proposed == 0.0
    assert after_it == 0.0  # the draft cannot be fed token 12, so it drafts nothing in a round that starts there
    assert later > 0.0
    assert frame["draft_argmax"].tolist()[1] == -1
    assert frame["overlap_ratio"].tolist()[1] == frame["overlap_match"].tolist()[1] == 0.0
    assert 0.0 < frame["overlap_ratio"].tolist()[2] < 1.0


def test_a_token_outside_the_recomputed_support_is_null(tiny_model: Make) -> None:
    target = tiny_model(seed=1)
    (own,) = plain(target, prompts=[[1, 2]], new=3)
    other = (own.tokens[0], (own.tokens[1] + 1) % 11, 5)
    text = written(other, 0, prompt=(1, 2))
    frame = measure_acceptance(target, tiny_model(seed=2), [text], GREEDY, batch_size=1, chunk=8)
    assert frame["target_prob"].isna().tolist()[0]
    assert frame["draft_prob"].isna().tolist()[0]
    assert frame["overlap_ratio"].notna().all()


def test_texts_of_one_token_have_no_position(tiny_model: Make) -> None:
    text = written((3,), 0, prompt=(1, 2), eos=True)
    frame = measure_acceptance(tiny_model(), tiny_model(), [text], DRAWN, batch_size=1, chunk=8)
    assert len(frame) == 0
    assert "overlap_ratio" in frame


def test_a_text_beyond_the_drafts_context_is_refused(tiny_model: Make) -> None:
    text = written((3, 4, 5), 7, prompt=(1,) * 30)
    draft = tiny_model(max_context=32, name="draft")
    with pytest.raises(ValueError, match=r"draft: prompt 7 has 30 tokens and 3 more .* takes 32"):
        measure_acceptance(tiny_model(), draft, [text], DRAWN, batch_size=1, chunk=8)


@pytest.mark.parametrize("settings", CHAINS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [1, 5, 8])
@pytest.mark.parametrize("who", ["target", "draft"])
@pytest.mark.parametrize("how", ["side by side", "one by one", "lookups"])
def test_logits_that_are_no_numbers_are_named(
    settings: SamplingSettings, value: float, place: int, who: str, how: str
) -> None:
    """Filling after a shorter text is not looked at: text 4 ends before the place."""
    texts = [written(range(3, 3 + count), number) for number, count in ((4, place), (9, 9), (11, 9))]
    good = text_of(range(3, 12), 2, 12)
    target, draft = (
        scripted(broken_at(place, value) if name == who else good, vocabulary=12, name=f"pair 'x' {name}")
        for name in ("target", "draft")
    )
    options: Any = {"batch_size": 2, "chunk": 3}
    measure: dict[str, Callable[[list[Text]], pd.DataFrame]] = {
        "side by side": lambda given: measure_acceptance(target, draft, given, settings, **options),
        "one by one": lambda given: measure_acceptance(lambda: target, lambda: draft, given, settings, **options),
        "lookups": lambda given: measure_lookups(
            target if who == "target" else draft, NgramConfig(), given, settings, gamma_max=2, **options
        ),
    }
    with pytest.raises(NonFiniteLogitsError) as caught:
        measure[how](texts)
    assert (caught.value.model, caught.value.prompt, caught.value.position) == (f"pair 'x' {who}", 9, place)
    frame = measure[how](texts[:1] * 2)
    assert len(frame) == 2 * (place - 1)
    assert frame[["target_prob"] if how == "lookups" else list(frame)].notna().all(axis=None)
