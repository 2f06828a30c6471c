"""What a checkpoint asks of whoever generates with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specgauge.bench.models.generation import generation_notes
from specgauge.model.sampling import SamplingSettings
from tests.bench.models.conftest import change_json, load

GREEDY, DRAWN = SamplingSettings(temperature=0.0), SamplingSettings(temperature=0.7, top_p=0.8, top_k=20)


@pytest.mark.parametrize(
    ("generation", "config", "of_tokenizer", "expected"),
    [
        (1, 1, "</s>", (1,)),
        ([1, 7], 1, "w4", (1, 7)),
        ([7, 9], 1, "w4", (7, 9)),
        (None, [4, 2], ..., (4, 2)),
        (None, None, "</s>", (1,)),
        (None, None, ..., ()),
    ],
)
def test_what_ends_a_text(
    copied: Path, generation: Any, config: Any, of_tokenizer: Any, expected: tuple[int, ...]
) -> None:
    change_json(copied / "generation_config.json", eos_token_id=generation)
    change_json(copied / "config.json", eos_token_id=config)
    change_json(copied / "tokenizer_config.json", eos_token=of_tokenizer)
    loaded = load(copied)
    assert (loaded.eos_token_ids, loaded.notes) == (expected, ())


@pytest.mark.parametrize(("generation", "expected"), [(1, (1, 7)), ([9, 1], (9, 1, 7)), (None, (4, 7))])
def test_end_tokens_that_differ_are_united_and_told(copied: Path, generation: Any, expected: tuple[int, ...]) -> None:
    change_json(copied / "generation_config.json", eos_token_id=generation)
    change_json(copied / "config.json", eos_token_id=4)
    change_json(copied / "tokenizer_config.json", eos_token="w4")
    loaded = load(copied)
    assert (loaded.eos_token_ids, [note.code for note in loaded.notes]) == (expected, ["end_tokens_differ"])


@pytest.mark.parametrize(
    ("asked", "settings", "shown"),
    [
        ({}, GREEDY, None),
        ({"temperature": 0.7, "top_p": 0.8}, GREEDY, None),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}, DRAWN, None),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
            GREEDY,
            "do_sample True, temperature 0.7, ",
        ),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.8, "top_k": 20},
            DRAWN,
            "do_sample True, temperature 0.6, ",
        ),
        ({"repetition_penalty": 1.05}, GREEDY, "repetition_penalty 1.05,"),
        ({"repetition_penalty": 1.05}, SamplingSettings(temperature=0.0, repetition_penalty=1.05), None),
        ({"no_repeat_ngram_size": 3}, GREEDY, "no_repeat_ngram_size 3,"),
    ],
)
def test_sampling_that_a_checkpoint_asks_for_and_no_setting_has(
    copied: Path, asked: dict[str, Any], settings: SamplingSettings, shown: str | None
) -> None:
    change_json(copied / "generation_config.json", **asked)
    notes = list(generation_notes(load(copied).model, "target", [settings]))
    assert [note.code for note in notes] == ([] if shown is None else ["generation_settings"])
    assert shown is None or f"asks for {shown}" in notes[0].message
