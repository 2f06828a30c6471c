"""llama.cpp's flags in both spellings, as pull request 22397 pairs them."""

from __future__ import annotations

from typing import Any

import pytest

from specgauge.sweeps.exports.answers import DraftSource
from specgauge.sweeps.exports.engine import Request
from specgauge.sweeps.exports.llama_cpp import flags
from tests.sweeps.exports.made_answers import EAGLE, LAYERS, NGRAM, answers, single

NEW = "--spec-draft-model org/draft --spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0"
OLD = "--model-draft org/draft --draft-max 4 --draft-min 0 --draft-p-min 0"
PARSER: dict[str, type | tuple[str, ...]] = {
    "--spec-type": ("ngram-simple", "draft-eagle3"),
    "--spec-draft-model": str,
    "--spec-draft-n-max": int,
    "--spec-draft-n-min": int,
    "--spec-draft-p-min": float,
    "--spec-draft-sampling": ("greedy", "probabilistic"),
    "--spec-ngram-simple-size-n": int,
    "--spec-ngram-simple-size-m": int,
}
"""Flags that the parser of b11549 takes, and what of: read back from its parameters."""
REMOVED = {"--draft-max", "--draft-min", "--spec-ngram-size-n", "--spec-ngram-size-m"}
"""Flags that it knows as removed, and refuses."""
RENAMED = {
    "--draft-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-min",
    "--draft-p-min": "--spec-draft-p-min",
}


@pytest.mark.parametrize(
    ("release", "written", "note"),
    [
        (None, NEW, f"builds before b8962: {OLD}"),
        ("b11549", NEW, f"builds before b8962: {OLD}"),
        ("8962", NEW, f"builds before b8962: {OLD}"),
        ("b8953", OLD, f"builds from b8962 on: {NEW}"),
    ],
)
def test_the_spelling_is_that_of_the_build_and_the_other_stands_beside_it(
    release: str | None, written: str, note: str
) -> None:
    export = flags(single(), Request(release=release))
    assert export.content == f"{written}\n"
    assert note in export.notes


@pytest.mark.parametrize("draft", [DraftSource(kind="model", model="d.gguf"), NGRAM, EAGLE, LAYERS])
@pytest.mark.parametrize("draft_sampling", ["same", "greedy"])
def test_the_parser_takes_what_is_written(draft: DraftSource, draft_sampling: str) -> None:
    words = flags(single(draft=draft, draft_sampling=draft_sampling), Request()).content.split()
    assert words
    for flag, value in zip(words[::2], words[1::2], strict=True):
        known = PARSER[flag]
        assert value in known if isinstance(known, tuple) else known(value) is not None


def test_builds_before_it_take_what_it_refuses() -> None:
    for draft in (DraftSource(kind="model", model="d.gguf"), NGRAM):
        words = flags(single(draft=draft), Request(release="b8953")).content.split()
        assert REMOVED & set(words[::2])


def test_an_eagle_head_is_told_from_a_plain_draft_model() -> None:
    export = flags(single(draft=EAGLE), Request())
    assert export.content == (
        "--spec-type draft-eagle3 --spec-draft-model org/eagle --spec-draft-n-max 4 --spec-draft-n-min 0 "
        "--spec-draft-p-min 0\n"
    )
    assert "--spec-type draft-eagle3 is known of b11549; older builds may not have it" in export.notes


def test_the_spellings_mean_the_same() -> None:
    words = OLD.replace("--model-draft", "--spec-draft-model").split()
    assert [RENAMED.get(word, word) for word in words] == NEW.split()


@pytest.mark.parametrize(
    ("release", "given", "is_drawn"),
    [
        (None, {"draft_sampling": "same"}, True),
        ("b11368", {"draft_sampling": "same"}, True),
        ("b11367", {"draft_sampling": "same"}, False),
        ("b8953", {"draft_sampling": "same"}, False),
        (None, {"draft_sampling": "greedy"}, False),
        (None, {"draft_sampling": "same", "rules_differ": False}, False),
    ],
)
def test_drawn_drafts_are_asked_for_where_there_are_any(
    release: str | None, given: dict[str, Any], is_drawn: bool
) -> None:
    content = flags(single(**given), Request(release=release)).content
    assert ("--spec-draft-sampling probabilistic" in content) is is_drawn


@pytest.mark.parametrize(("model", "is_told"), [("org/draft", True), ("/models/draft.gguf", False), (None, False)])
def test_it_loads_gguf_files(model: str | None, is_told: bool) -> None:
    export = flags(single(draft=DraftSource(kind="model", model=model)), Request())
    assert (f"llama.cpp loads GGUF files: put that of {model} in its place" in export.notes) is is_told


def test_lookups() -> None:
    export = flags(single(draft=NGRAM), Request())
    assert export.content == ("--spec-type ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 4\n")
    assert "builds before b8962: --spec-type ngram-simple --spec-ngram-size-n 4 --spec-ngram-size-m 4" in export.notes


def test_as_many_slots_as_rows() -> None:
    export = flags(answers(), Request(batch_size=8))
    assert "--spec-draft-n-max 2" in export.content
    assert "γ is that of batch size 8, for as many slots (-np)" in export.notes
    assert "timings with -np 8; expect an acceptance length of 2.20" in export.check


@pytest.mark.parametrize("release", ["newest", "b", "1.2", ""])
def test_other_builds_are_refused(release: str) -> None:
    with pytest.raises(ValueError, match=r"release: expected a build of llama\.cpp, such as b11549, got "):
        flags(single(), Request(release=release))
