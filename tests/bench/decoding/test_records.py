"""Logits that are not numbers are told from those that are, and named by text and token."""

from __future__ import annotations

import pytest
import torch

from specgauge.bench.decoding.records import NonFiniteLogitsError, broken_logits, refuse_places
from tests.bench.scripted import written

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
