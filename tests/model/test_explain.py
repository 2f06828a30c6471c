"""Explained positions: paths, tree and document."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.explain import explain, explanation_document, tree
from tests.model.speculation import round_distribution

TARGET, DRAFT = [0.2, 0.4, 0.4], [0.1, 0.1, 0.8]


def test_one_position_document() -> None:
    document = explanation_document(explain([TARGET], [DRAFT], names=["A", "B", "C"]))
    position = document["positions"][0]
    assert position["overlap"] == pytest.approx(0.6)
    assert position["rejected"] == pytest.approx(0.4)
    wanted = {
        "token": "B",
        "target_prob": 0.4,
        "draft_prob": 0.1,
        "accept": 1.0,
        "accepted": 0.1,
        "surplus": 0.0,
        "deficit": 0.3,
        "residual": 0.75,
        "replaced": 0.3,
        "output": 0.4,
    }
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
    rounds = round_distribution(TARGET, draft, gamma)
    for leaf in leaves:
        mass = sum(p for tokens, p in rounds.items() if len(tokens) == leaf["tokens"])
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
    ],
)
def test_bad_positions_are_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
