"""`specgauge explain`: positions, the tree of a round, rows of logits, and the bars."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex

from specgauge.cli.explain import ACCEPTED, DEFICIT, SURPLUS, draw_explanation
from specgauge.model.explain import explain
from tests.cli.conftest import Document, Run

PROBS = ("--target-probs", ".2,.4,.4", "--draft-probs", ".1,.1,.8")
SVG = "{http://www.w3.org/2000/svg}"


def test_a_chain_rows_of_probabilities_and_the_match_rule(document: Document) -> None:
    chain = document("explain", *PROBS, "--gamma", "2")
    assert [leaf["probability"] for leaf in chain["tree"]] == pytest.approx([0.4, 0.24, 0.36])
    apart = document("explain", "--target-probs", "1,0;.5,.5", "--draft-probs", ".5,.5; 1,0")
    assert [position["overlap"] for position in apart["positions"]] == [0.5, 0.5]
    match = document("explain", *PROBS, "--acceptance-rule", "match")
    assert match["positions"][0]["overlap"] == pytest.approx(0.02 + 0.04 + 0.32)


def test_logits(document: Document) -> None:
    found = document("explain", "--logits", "2,1,1,0", "--temperature", ".7", "--top-k", "3", "--top-p", ".9")
    assert [stage["kept"] for stage in found["stages"]] == [4, 4, 3, 3, 3]
    assert document("explain", "--logits", "2,1", "--top-k", "1")["greedy_in_disguise"] is True


def test_bars_are_drawn_into_a_file_with_names_as_text(command: Run) -> None:
    names = "<b>A</b>,$B$,a very long token name"
    assert command("explain", *PROBS, "--gamma", "2", "--names", names, "--svg", "bars.svg")[0] == 0
    root = ElementTree.parse("bars.svg").getroot()
    assert root.tag == f"{SVG}svg"
    texts = "".join("".join(node.itertext()) for node in root.iter(f"{SVG}text"))
    for name in ("<b>A</b>", "$B$", "a very long…"):
        assert texts.count(name) == 2


def test_bars_have_the_height_of_their_probability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: dict[str, list[float]] = {ACCEPTED: [], DEFICIT: [], SURPLUS: []}
    bar = Axes.bar

    def kept(self: Axes, x: object, height: list[float], *arguments: object, color: str, **options: object) -> object:
        drawn[to_hex(color)] += list(height)
        return bar(self, x, height, *arguments, color=color, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Axes, "bar", kept)
    draw_explanation(explain([[0.2, 0.4, 0.4]], [[0.1, 0.1, 0.8]]), tmp_path / "bars.svg")
    assert drawn[ACCEPTED] == pytest.approx([0.1, 0.1, 0.4] * 2)
    assert drawn[DEFICIT] == pytest.approx([0.1, 0.3, 0.0])
    assert drawn[SURPLUS] == pytest.approx([0.0, 0.0, 0.4])
