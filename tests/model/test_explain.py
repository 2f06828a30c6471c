"""Explained positions: paths, tree, document and drawing."""

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.cli.explain_svg import ACCEPTED, DEFICIT, SURPLUS, explanation_svg
from specgauge.model.explain import explain, explanation_document, explanation_text, tree
from tests.model.enumeration import round_distribution

TARGET, DRAFT = [0.2, 0.4, 0.4], [0.1, 0.1, 0.8]
SVG = "{http://www.w3.org/2000/svg}"


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
    law = round_distribution(lambda _: TARGET, lambda _: draft, gamma)
    for leaf in leaves:
        mass = sum(p for tokens, p in law.items() if len(tokens) == leaf["tokens"])
        assert leaf["probability"] == pytest.approx(mass, abs=1e-12)


def test_text_shows_both_paths_and_the_tree() -> None:
    text = explanation_text(explain([TARGET] * 3, [DRAFT] * 2, names=["A", "B", "C"]))
    assert "  B: 0.1 + 0.4 x 0.75 = 0.4" in text
    assert "overlap (accepted mass) 0.6, rejected mass 0.4" in text
    assert "├─ draft 1 rejected (0.4): 0.4, commits 1 token from the residual (A 0.25, B 0.75)" in text
    assert "   └─ draft 2 accepted (0.6): 0.36" in text
    assert "      └─ bonus: 0.36, commits 3 tokens, the last from the target (A 0.2, B 0.4, C 0.4)" in text
    assert text.endswith("tokens per round 1.96, bonus or replacement included")


def test_nothing_to_reject_and_a_token_never_proposed() -> None:
    text = explanation_text(explain([[0.5, 0.5, 0.0]], [[0.5, 0.5, 0.0]]))
    assert "draft 1 rejected (0): 0, commits 1 token from the residual\n" in text
    assert text.splitlines()[6].split() == ["2", "0", "0", "-", "0", "0", "0", "0"]


def test_a_greedy_draft_is_shown_as_its_argmax() -> None:
    document = explanation_document(explain([[0.6, 0.4]], [[0.8, 0.2]], draft_sampling="greedy"))
    assert [t["draft_prob"] for t in document["positions"][0]["tokens"]] == [1.0, 0.0]
    assert [t["output"] for t in document["positions"][0]["tokens"]] == pytest.approx([0.6, 0.4])


def test_svg_draws_every_part_to_scale_and_keeps_names_text() -> None:
    explanation = explain([TARGET, TARGET], [DRAFT, DRAFT], names=["<b>A</b>", "B&B", "a very long token name"])
    root = ElementTree.fromstring(explanation_svg(explanation))
    groups = root.findall(f"{SVG}g")
    assert len(groups) == 6
    heights = [{r.get("fill"): float(r.get("height") or 0) for r in g.findall(f"{SVG}rect")} for g in groups[:3]]
    assert heights[0] == pytest.approx({ACCEPTED: 25, DEFICIT: 25})
    assert heights[1] == pytest.approx({ACCEPTED: 25, DEFICIT: 75})
    assert heights[2] == pytest.approx({ACCEPTED: 100, SURPLUS: 100})
    texts = [node.text for node in root.findall(f"{SVG}text")]
    assert {"<b>A</b>", "B&B", "a very long…"} <= set(texts)
    assert "http" not in explanation_svg(explanation).replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: explain([TARGET], [[0.5, 0.5]]), "draft_probs: found 2 probabilities, allowed: 3"),
        (lambda: explain([TARGET], [DRAFT], names=["A"]), "names: found 1 for 3 probabilities"),
        (lambda: explain([TARGET], [DRAFT], names=["A", "A", "B"]), "names: found A, A, B, allowed: a different name"),
        (lambda: explain([TARGET], [[0.1, 0.1, 0.7]]), "sum of draft_probs: found 0.9, allowed: 1"),
        (lambda: explain([TARGET] * 2, [DRAFT, [2, -1, 0]]), r"draft_probs, position 2 \(item 1\): found 2"),
        (lambda: explain([TARGET] * 3, [DRAFT]), "target_probs: found 3 positions for 1 in draft_probs"),
        (lambda: explain([TARGET], []), "target_probs: found 1 positions for 0 in draft_probs"),
    ],
)
def test_bad_positions_are_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
