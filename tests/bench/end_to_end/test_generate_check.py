"""A target that is computed otherwise than transformers computes it is noticed in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specgauge.bench.end_to_end import generate_check
from specgauge.bench.end_to_end.generate_check import TOKENS, generate_notes
from specgauge.bench.models.pair import LoadedModel

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


def codes(target: LoadedModel, context: int = 40, new_tokens: int = TOKENS) -> list[str]:
    return [note.code for note in generate_notes(target, PROMPTS, context=context, new_tokens=new_tokens)]


def test_the_same_texts_are_not_told(tiny_model: Callable[..., LoadedModel]) -> None:
    target = tiny_model(vocabulary=50)
    assert (codes(target), codes(target, context=999), codes(target, new_tokens=1)) == ([], [], [])


def test_a_window_that_is_believed_too_late_to_be_checked_is_told(tiny_model: Callable[..., LoadedModel]) -> None:
    target: Any = tiny_model(vocabulary=50)
    target.model.config.sliding_window = 16
    (note,) = generate_notes(target, PROMPTS, context=40, new_tokens=TOKENS)
    assert note.code == "generate_differs"
    assert "tiny: 1 of 2 greedy texts are not those of transformers' generate" in note.message
    assert "after 40 tokens" in note.message
    assert codes(target, context=8, new_tokens=8) == [], "within the window"


def test_a_model_that_cannot_generate_is_told(
    tiny_model: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no\ngenerate")

    monkeypatch.setattr(generate_check, "generate_with_transformers", fails)
    (note,) = generate_notes(tiny_model(), PROMPTS, context=8, new_tokens=2)
    assert (note.code, note.message.rpartition(": ")[2]) == ("generate_unchecked", "no generate")
