"""Recorded lookups against a scan of the text, against the target's own probabilities, and against the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.bench.acceptance.lookups import LOOKUP_COLUMNS, measure_lookups, pair_acceptance, starts_of
from specgauge.bench.acceptance.teacher_forced import FLOAT_COLUMNS, INTEGER_COLUMNS, measure_acceptance
from specgauge.bench.decoding.drafters import NgramDrafter
from specgauge.bench.decoding.records import Text
from specgauge.bench.end_to_end.end_to_end import drafter_for
from specgauge.bench.end_to_end.text_checks import expected_counts
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.configs.pairs import NgramConfig
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import GREEDY, Make, decode, plain
from tests.bench.scripted import written

WARM = SamplingSettings(temperature=0.7)
PENALISED = SamplingSettings(temperature=0.7, repetition_penalty=1.3)
NGRAM = NgramConfig()
NEW = 24


def text(prompt: Sequence[int], tokens: Sequence[int], number: int = 0, *, eos: bool = False) -> Text:
    return written(tokens, number, prompt=prompt, eos=eos)


def lookup_pair(target: LoadedModel, ngram: NgramConfig = NGRAM) -> LoadedPair:
    return LoadedPair(name="p", target=target, draft=None, ngram=ngram)


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    gamma_max=st.integers(1, 5),
    longest=st.integers(1, 3),
)
def test_every_start_is_a_fresh_lookup(prompt: list[int], tokens: list[int], gamma_max: int, longest: int) -> None:
    found = list(starts_of(text(prompt, tokens), NgramConfig(longest=longest), gamma_max))
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
            other = text(one.prompt_tokens, [*kept, start.rejected], one.prompt)
            expected = measure_lookups(target, NGRAM, [other], settings, gamma_max=3, **options)["target_prob"].iloc[-1]
            assert row["rejected_target_prob"] == pytest.approx(expected, abs=1e-6)
            checked += 1
    assert checked > 5


def test_the_target_alone_is_run_and_texts_of_one_token_have_no_row(tiny_model: Make) -> None:
    told: list[tuple[int, int]] = []
    texts = [text([1, 2], [3]), text([1, 2], [3, 1, 2], 1), text([4, 4], [4, 4, 4, 4], 2, eos=True)]
    options: Any = {"gamma_max": 2, "batch_size": 1, "chunk": 8, "progress": lambda *done: told.append(done)}
    frame = pair_acceptance(lookup_pair(tiny_model()), texts, WARM, **options)
    assert frame["prompt"].tolist() == [1, 1, 2, 2, 2]
    assert frame["context"].tolist() == [2, 3, 2, 3, 4]
    assert frame["match_length"].tolist() == [0, 1, 2, 2, 1]
    assert frame["end_reason"].tolist() == ["length"] * 2 + ["eos"] * 3
    assert told == [(1, 2), (2, 2)]
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
