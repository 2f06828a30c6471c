"""Sampling settings explained: stages, orders, and greedy in disguise with its reason."""

import json

import numpy as np
import pytest

from specgauge.cli.explain import logits_text
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


def test_the_order_decides_when_temperature_comes_before_top_p() -> None:
    explanation = explain_logits([2.0, 1.0, 0.0], settings(temperature=0.5, top_p=0.7))
    assert explanation.probs.tolist() == [1.0, 0.0, 0.0]
    (other,) = explanation.other_orders
    assert other.order == ("top_p", "temperature")
    assert other.orders == 1
    assert np.count_nonzero(other.probs) == 2
    assert "top_p, temperature: 0 0.8808, 1 0.1192" in logits_text(explanation)


def test_orders_that_agree_are_counted_together() -> None:
    explanation = explain_logits([2.0, 1.0, 0.0], settings(temperature=0.5, top_k=2, min_p=0.3))
    assert explanation.probs.tolist() == [1.0, 0.0, 0.0]
    (other,) = explanation.other_orders
    assert other.orders == 3
    assert other.order.index("min_p") < other.order.index("temperature")


@pytest.mark.parametrize(
    ("logits", "values", "reason"),
    [
        (LOGITS, {"temperature": 0.0}, "temperature 0 is the convention for greedy"),
        ([1.0, 1.0], {"temperature": 0.0}, "2 tokens tie at the top, the lowest id is taken"),
        (LOGITS, {"top_k": 1}, "greedy in disguise: top_k 1 keeps only the maximum"),
        (LOGITS, {"top_p": 0.3}, "greedy in disguise: top_p 0.3 is at or below the top probability"),
        (
            LOGITS,
            {"temperature": 1e-4},
            "greedy in disguise: temperature 0.0001 leaves the maximum all the probability",
        ),
        (LOGITS, {"min_p": 0.9}, "greedy in disguise: min_p 0.9 removes every token but the maximum"),
    ],
)
def test_greedy_settings_have_their_reason(logits: list[float], values: dict[str, object], reason: str) -> None:
    explanation = explain_logits(logits, settings(**values))
    assert explanation.greedy
    assert reason in explanation.greedy_reason
    assert explanation.greedy_reason in logits_text(explanation)


@pytest.mark.parametrize(
    ("logits", "values", "reason"),
    [
        ([2.0, 2.0, 1.0], {"top_k": 1}, "not greedy: 2 tokens tie at the top, although top_k 1"),
        ([2.0, 2.0, 1.0], {"top_p": 0.1}, "not greedy: 2 tokens tie at the top, although top_p 0.1 is at or below"),
        (
            LOGITS,
            {"top_k": 1, "min_tokens_to_keep": 2},
            "not greedy: top_k 1, but min_tokens_to_keep is 2: 3 tokens stay",
        ),
        (LOGITS, {"top_p": 0.3, "min_tokens_to_keep": 2}, "but min_tokens_to_keep is 2: 2 tokens stay"),
    ],
)
def test_settings_that_look_greedy_say_why_they_are_not(
    logits: list[float], values: dict[str, object], reason: str
) -> None:
    explanation = explain_logits(logits, settings(**values))
    assert not explanation.greedy
    assert reason in explanation.greedy_reason


def test_a_plain_draw_tells_the_top_probability() -> None:
    text = logits_text(explain_logits([0.0, 0.0], settings()))
    assert "chain: draw" in text
    assert "2 of 2 tokens stay: 0 0.5, 1 0.5" in text


def test_the_repetition_penalty_needs_and_uses_the_history() -> None:
    chosen = settings(repetition_penalty=2.0, temperature=0.0)
    explanation = explain_logits([2.0, 1.5, 1.0], chosen, history=[0])
    assert explanation.probs.tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="history: found none"):
        explain_logits([2.0, 1.5, 1.0], chosen)
    with pytest.raises(ValueError, match="history: found token 3, allowed: ids from 0 to 2"):
        explain_logits([2.0, 1.5, 1.0], chosen, history=[3])
    with pytest.raises(ValueError, match="history: found token 1000000000000000000000000000000, allowed: ids from 0"):
        explain_logits([2.0, 1.5, 1.0], chosen, history=[10**30])


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


@pytest.mark.parametrize(
    ("logits", "names", "message"),
    [
        ([[1.0]], None, r"logits: found shape \(1, 1\)"),
        ([], None, r"logits: found shape \(0,\)"),
        ([1.0, float("nan")], None, r"logits \(item 2\): found nan"),
        ([1.0, 2.0], ["A"], "names: found 1 for 2 logits"),
        ([1.0, 2.0], ["A", "A"], "names: found A, A, allowed: a different name"),
    ],
)
def test_bad_logits_are_one_clear_line(logits: list[float], names: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explain_logits(logits, settings(), names=names)
