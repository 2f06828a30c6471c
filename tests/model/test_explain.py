"""Explained positions (paths, tree and document) and sampling settings (stages, orders, greedy in disguise)."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.explain import explain, explanation_document, tree
from specgauge.model.explain_logits import explain_logits, logits_document
from specgauge.model.sampling import SamplingSettings, processed_probs
from tests.model.speculation import Pair, one_round

TARGET, DRAFT = [0.2, 0.4, 0.4], [0.1, 0.1, 0.8]
LOGITS = [2.0, 1.0, 1.0, 0.0]
PENALISED = SamplingSettings(repetition_penalty=2.0, temperature=0.0)


def test_one_position_document() -> None:
    document = explanation_document(explain([TARGET], [DRAFT], names=["A", "B", "C"]))
    position = document["positions"][0]
    assert (position["overlap"], position["rejected"]) == pytest.approx((0.6, 0.4))
    paths = {"accept": 1.0, "accepted": 0.1, "surplus": 0.0, "deficit": 0.3, "residual": 0.75, "replaced": 0.3}
    wanted = {"token": "B", "target_prob": 0.4, "draft_prob": 0.1, **paths, "output": 0.4}
    assert position["tokens"][1] == pytest.approx(wanted)
    assert document["tokens_per_round"] == pytest.approx(1.6)
    json.dumps(document, allow_nan=False)


def test_tree_of_a_chain_with_its_bonus() -> None:
    explanation = explain([TARGET, [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], [DRAFT, [1.0, 0.0, 0.0]])
    leaves = tree(explanation)
    assert [leaf["probability"] for leaf in leaves] == pytest.approx([0.4, 0.3, 0.3])
    assert [leaf["tokens"] for leaf in leaves] == [1, 2, 3]
    assert [leaf["last_token"] for leaf in leaves] == ["residual", "residual", "bonus"]
    assert leaves[1]["last_token_probs"] == pytest.approx({"0": 0.0, "1": 1.0, "2": 0.0})
    assert leaves[2]["last_token_probs"] == {"0": 0.0, "1": 0.0, "2": 1.0}


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.integers(1, 3))
def test_tree_is_the_enumerated_round(weights: list[float], gamma: int) -> None:
    draft = [w / sum(weights) for w in weights]
    leaves = tree(explain([TARGET] * gamma, [draft] * gamma))
    target_rows, draft_rows = (np.tile(probs, (3, 1)) for probs in (TARGET, draft))
    pair = Pair(target=target_rows, draft=draft_rows, rule="ratio", greedy_draft=False)
    branches = list(one_round(pair, 0, gamma))
    for leaf in leaves:
        mass = sum(branch.chance for branch in branches if len(branch.emitted) == leaf["tokens"])
        assert leaf["probability"] == pytest.approx(mass, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: explain([TARGET], [[0.5, 0.5]]), "draft_probs: expected 3, .*got 2 probabilities"),
        (lambda: explain([TARGET], [DRAFT], names=["A"]), "names: expected 3, .* got 1"),
        (lambda: explain([TARGET], [DRAFT], names=["A", "A", "B"]), "names: expected a different one .* got A, A, B"),
        (lambda: explain([TARGET] * 2, [DRAFT, [2, -1, 0]]), r"draft_probs, position 2 \(item 1\): expected .*got 2"),
        (lambda: explain([TARGET] * 3, [DRAFT]), "target_probs: expected .*got 3 positions for 1 in draft_probs"),
        (lambda: explain([TARGET], []), "target_probs: expected .*got 1 positions for 0 in draft_probs"),
        (lambda: explain_logits([[1.0]], SamplingSettings()), r"logits: expected .*got shape \("),
        (lambda: explain_logits([], SamplingSettings()), r"logits: expected .*got shape \("),
        (lambda: explain_logits(LOGITS, PENALISED), "history: expected .*got none"),
        (lambda: explain_logits([1, 2, 3], PENALISED, history=[3]), "history: expected ids from 0 to 2, got token 3$"),
        (lambda: explain_logits([1], PENALISED, history=[10**30]), "history: expected ids .*, got token 1000*$"),
    ],
)
def test_bad_positions_and_logits_are_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


def test_each_processor_in_order_ends_at_the_chain() -> None:
    chosen = SamplingSettings(temperature=0.7, top_k=3, top_p=0.9)
    explanation = explain_logits(LOGITS, chosen)
    assert [s.processor for s in explanation.stages] == ["logits", "temperature", "top_k", "top_p", "draw"]
    assert [s.kept for s in explanation.stages] == [4, 4, 3, 3, 3]
    np.testing.assert_allclose(explanation.probs, processed_probs(LOGITS, chosen), rtol=1e-15)
    assert explanation.other_orders == ()
    assert not explanation.greedy
    assert explanation.greedy_reason == ""


def test_the_order_decides_and_orders_that_agree_are_counted_together() -> None:
    explanation = explain_logits([2.0, 1.0, 0.0], SamplingSettings(temperature=0.5, top_p=0.7))
    assert explanation.probs.tolist() == [1.0, 0.0, 0.0]
    (other,) = explanation.other_orders
    assert (other.order, other.orders) == (("top_p", "temperature"), 1)
    assert other.probs == pytest.approx([0.8808, 0.1192, 0.0], abs=1e-4)
    (other,) = explain_logits([2.0, 1.0, 0.0], SamplingSettings(temperature=0.5, top_k=2, min_p=0.3)).other_orders
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
    logits: list[float], values: dict[str, Any], greedy: bool, reason: str
) -> None:
    explanation = explain_logits(logits, SamplingSettings(**values))
    assert explanation.greedy == greedy
    assert reason in explanation.greedy_reason


def test_the_repetition_penalty_uses_the_history() -> None:
    explanation = explain_logits([2.0, 1.5, 1.0], PENALISED, history=[0])
    assert explanation.probs.tolist() == [0.0, 1.0, 0.0]


def test_document_is_strict_json() -> None:
    explanation = explain_logits(LOGITS, SamplingSettings(temperature=0.7, top_p=0.6), names=["A", "B", "C", "D"])
    document = json.loads(json.dumps(logits_document(explanation), allow_nan=False))
    assert document["chain"] == "temperature+top_p+draw"
    assert document["kept"] == 1
    assert document["greedy_in_disguise"] is True
    stage = {"processor": "temperature", "setting": 0.7, "kept": 4, "probs": explanation.stages[1].probs.tolist()}
    assert document["stages"][1] == stage
    assert document["tokens"] == ["A", "B", "C", "D"]
