"""The teacher-forced pass with a draft model and with lookups, against definition, scan of the text and decoder."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgauge.bench.acceptance.lookups import LOOKUP_COLUMNS, measure_lookups, pair_acceptance, starts_of
from specgauge.bench.acceptance.teacher_forced import FLOAT_COLUMNS, INTEGER_COLUMNS, measure_acceptance
from specgauge.bench.decoding.drafters import NgramDrafter
from specgauge.bench.decoding.records import NonFiniteLogitsError, Text
from specgauge.bench.end_to_end.end_to_end import drafter_for
from specgauge.bench.end_to_end.text_checks import expected_counts
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.configs.pairs import NgramConfig
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import DRAWN, FILTERED, GREEDY, Make, decode, next_probs, plain
from tests.bench.scripted import broken_at, scripted, text_of, written

WARM = SamplingSettings(temperature=0.7)
PENALISED = SamplingSettings(temperature=0.7, repetition_penalty=1.3)
NGRAM = NgramConfig()
NEW = 24
CHAINS = [GREEDY, DRAWN, FILTERED]


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
    frame = measure_acceptance(tiny_model(), tiny_model(), [written([3], eos=True)], DRAWN, batch_size=1, chunk=8)
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


def lookup_pair(target: LoadedModel, ngram: NgramConfig = NGRAM) -> LoadedPair:
    return LoadedPair(name="p", target=target, draft=None, ngram=ngram)


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    gamma_max=st.integers(1, 5),
    longest=st.integers(1, 3),
)
def test_every_start_is_a_fresh_lookup(prompt: list[int], tokens: list[int], gamma_max: int, longest: int) -> None:
    found = list(starts_of(written(tokens, prompt=prompt), NgramConfig(longest=longest), gamma_max))
    assert len(found) == len(tokens) - 1
    for position, start in enumerate(found):
        committed = prompt + tokens[: position + 1]
        drafter = NgramDrafter(longest=longest)
        drafter.start([committed], 20)
        proposal = drafter.propose([committed], [gamma_max], None)
        drafts, ahead = proposal.tokens[0].tolist()[: proposal.drafted[0]], tokens[position + 1 :]
        run = 0
        while run < min(len(drafts), len(ahead)) and drafts[run] == ahead[run]:
            run += 1
        assert (start.proposed, start.matching, [start.ngram]) == (len(drafts), run, proposal.match_lengths)
        assert start.rejected == (drafts[run] if run < min(len(drafts), len(ahead)) else None)


@pytest.mark.parametrize("settings", [WARM, PENALISED], ids=["drawn", "penalised"])
def test_probabilities_are_the_targets_own(tiny_model: Make, settings: SamplingSettings) -> None:
    """Those of the tokens as the pass with a draft model has them; that of a failing proposal as of a text with it."""
    target = tiny_model(scale=0.25)
    prompts = [[1, 2, 1], [3, 4, 5, 3, 4]]
    texts = plain(target, settings, prompts, new=10)
    options: Any = {"batch_size": 2, "chunk": 4}
    frame = measure_lookups(target, NGRAM, texts, settings, gamma_max=3, **options)
    beside = measure_acceptance(target, target, texts, settings, **options)
    for name in ("prompt", "position", "context", "token", "target_prob", "end_reason"):
        assert frame[name].tolist() == pytest.approx(beside[name].tolist(), abs=1e-12), name
    for name in set(FLOAT_COLUMNS) - {"target_prob"} | {"draft_argmax"}:
        assert frame[name].isna().all()
    assert list(frame.columns) == [*INTEGER_COLUMNS, *FLOAT_COLUMNS, *LOOKUP_COLUMNS, "end_reason"]
    checked = 0
    for one in texts:
        for position, start in enumerate(starts_of(one, NGRAM, 3)):
            row = frame[(frame["prompt"] == one.prompt) & (frame["position"] == position)].iloc[0]
            assert (row["proposed_length"], row["match_length"]) == (start.proposed, start.matching)
            if start.rejected is None:
                assert np.isnan(row["rejected_target_prob"])
                continue
            kept = one.tokens[: position + 1 + start.matching]
            other = written([*kept, start.rejected], one.prompt, prompt=one.prompt_tokens)
            expected = measure_lookups(target, NGRAM, [other], settings, gamma_max=3, **options)["target_prob"].iloc[-1]
            assert row["rejected_target_prob"] == pytest.approx(expected, abs=1e-6)
            checked += 1
    assert checked > 5


def test_the_target_alone_is_run_and_texts_of_one_token_have_no_row(tiny_model: Make) -> None:
    told: list[float] = []
    texts = [written([3]), written([3, 1, 2], 1), written([4, 4, 4, 4], 2, prompt=[4, 4], eos=True)]
    options: Any = {"gamma_max": 2, "batch_size": 1, "chunk": 8, "progress": told.append}
    frame = pair_acceptance(lookup_pair(tiny_model()), texts, WARM, **options)
    assert frame["prompt"].tolist() == [1, 1, 2, 2, 2]
    assert frame["context"].tolist() == [2, 3, 2, 3, 4]
    assert frame["match_length"].tolist() == [0, 1, 2, 2, 1]
    assert frame["end_reason"].tolist() == ["length"] * 2 + ["eos"] * 3
    assert told == [1, 2]
    assert pair_acceptance(lookup_pair(tiny_model()), texts[:1], WARM, **options).empty


@pytest.mark.parametrize("gamma", [1, 3, 6])
@pytest.mark.parametrize("settings", [GREEDY, WARM], ids=["greedy", "drawn"])
@pytest.mark.parametrize("eos", [(), (4,)], ids=["to the limit", "some end early"])
def test_rounds_counted_are_those_expected(
    tiny_model: Make, gamma: int, settings: SamplingSettings, eos: tuple[int, ...]
) -> None:
    """Given its own text, a lookup decoder's every round is known: where it starts, its drafts and what it keeps."""
    pair = lookup_pair(tiny_model(eos=eos, scale=0.25))
    prompts = [[1 + number % 7, 2 + number % 5, 3, 1 + number % 7] for number in range(12)]
    found = decode(pair.target, drafter_for(pair, settings), settings, prompts, gamma=gamma, new=NEW, seed=2)
    expected = expected_counts(pair, found.texts, settings, gammas=[gamma], window=gamma, max_new_tokens=NEW)
    counted = [sum(row.prompt == prompt for row in found.rows) for prompt in range(len(prompts))]
    assert [one.rounds for one in expected] == [(float(rounds),) for rounds in counted]

    frame = pair_acceptance(pair, found.texts, settings, gamma_max=gamma, batch_size=12, chunk=64)
    by_place = {(row["prompt"], row["position"]): row for row in frame.to_dict("records")}
    for row in found.rows:
        place = by_place[row.prompt, row.position - 1]
        assert row.drafted == min(row.gamma, place["proposed_length"])
        left = len(found.texts[row.prompt].tokens) - row.position
        assert row.accepted == min(row.drafted, place["match_length"], left)
        if row.gamma:
            assert row.match_length == place["lookup_match"]
    assert {0, gamma} <= {row.drafted for row in found.rows}


def test_the_drafter_of_a_pair(tiny_model: Make) -> None:
    target = tiny_model()
    lookups = drafter_for(lookup_pair(target, NgramConfig(longest=4, shortest=2)), GREEDY)
    assert isinstance(lookups, NgramDrafter)
    assert (lookups.longest, lookups.shortest) == (4, 2)
    pair = LoadedPair(name="m", target=target, draft=tiny_model(layers=1, name="small"))
    model = drafter_for(pair, WARM, draft_sampling="greedy")
    assert (model.name, vars(model)["certain"]) == ("small", True)
