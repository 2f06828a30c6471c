"""Sampling settings explained: stages, orders, and greedy in disguise with its reason."""

import json
from typing import Any

import numpy as np
import pytest

from specgauge.model.explain_logits import explain_logits, logits_document
from specgauge.model.sampling import SamplingSettings, processed_probs

LOGITS = [2.0, 1.0, 1.0, 0.0]


def settings(**values: object) -> SamplingSettings:
    return SamplingSettings(**values)  # type: ignore[arg-type]


def test_each_processor_in_order_ends_at_the_chain() -> None:
    chosen = settings(temperature=0.7, top_k=3, top_p=0.9)
    explanation = explain_logits(LOGITS, chosen)
    assert [s.processor for s in explanation.stages] == ["logits", "temperature", "top_k", "top_p", "draw"]
    assert [s.kept for s in explanation.stages] == [4, 4, 3, 3, 3]
    np.testing.assert_allclose(explanation.probs, processed_probs(LOGITS, chosen), rtol=1e-15)
    assert explanation.other_orders == ()
    assert not explanation.greedy
    assert explanation.greedy_reason == ""


def test_the_order_decides_and_orders_that_agree_are_counted_together() -> None:
    explanation = explain_logits([2.0, 1.0, 0.0], settings(temperature=0.5, top_p=0.7))
    assert explanation.probs.tolist() == [1.0, 0.0, 0.0]
    (other,) = explanation.other_orders
    assert (other.order, other.orders) == (("top_p", "temperature"), 1)
    assert other.probs == pytest.approx([0.8808, 0.1192, 0.0], abs=1e-4)
    (other,) = explain_logits([2.0, 1.0, 0.0], settings(temperature=0.5, top_k=2, min_p=0.3)).other_orders
    assert other.orders == 3
    assert other.order.index("min_p") < other.order.index("temperature")


@pytest.mark.parametrize(
    ("logits", "values", "greedy", "reason"),
    [
        (LOGITS, {"temperature": 0.0}, True, "temperature 0 is the convention for greedy"),
        ([1.0, 1.0], {"temperature": 0.0}, True, "2 tokens tie at the top, the lowest id is taken"),
        (LOGITS, {"top_k": 1}, True, "greedy in disguise: top_k 1"),
        ([2.0, 2.0, 1.0], {"top_k": 1}, False, "not greedy: 2 tokens tie at the top, although top_k 1"),
        ([2.0, 2.0, 1.0], {"top_p": 0.1}, False, "2 tokens tie at the top, although top_p 0.1 is at or below"),
        (LOGITS, {"top_k": 1, "min_tokens_to_keep": 2}, False, "min_tokens_to_keep is 2: 3 tokens stay"),
        (LOGITS, {"top_p": 0.3, "min_tokens_to_keep": 2}, False, "but min_tokens_to_keep is 2: 2 tokens stay"),
    ],
)
def test_whether_it_is_greedy_has_its_reason(
    logits: list[float], values: dict[str, object], greedy: bool, reason: str
) -> None:
    explanation = explain_logits(logits, settings(**values))
    assert explanation.greedy == greedy
    assert reason in explanation.greedy_reason


def test_the_repetition_penalty_needs_and_uses_the_history() -> None:
    chosen = settings(repetition_penalty=2.0, temperature=0.0)
    explanation = explain_logits([2.0, 1.5, 1.0], chosen, history=[0])
    assert explanation.probs.tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match=r"history: expected .*got none"):
        explain_logits([2.0, 1.5, 1.0], chosen)
    for token in (3, 10**30):
        with pytest.raises(ValueError, match=f"history: expected ids from 0 to 2, got token {token}$"):
            explain_logits([2.0, 1.5, 1.0], chosen, history=[token])


def test_document_is_strict_json() -> None:
    explanation = explain_logits(LOGITS, settings(temperature=0.7, top_p=0.6), names=["A", "B", "C", "D"])
    document = json.loads(json.dumps(logits_document(explanation), allow_nan=False))
    assert document["chain"] == "temperature+top_p+draw"
    assert document["kept"] == 1
    assert document["greedy_in_disguise"] is True
    assert document["stages"][1] == {
        "processor": "temperature",
        "setting": 0.7,
        "kept": 4,
        "probs": explanation.stages[1].probs.tolist(),
    }
    assert document["tokens"] == ["A", "B", "C", "D"]


@pytest.mark.parametrize("logits", [[[1.0]], []])
def test_logits_are_one_list(logits: Any) -> None:
    with pytest.raises(ValueError, match=r"logits: expected .*got shape \("):
        explain_logits(logits, settings())
