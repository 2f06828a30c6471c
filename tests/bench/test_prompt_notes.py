"""What of a row reaches the model, what is told of the rest, and which prompts are taken where not all are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specgauge.bench.notes import Note
from specgauge.bench.prompts import encode_prompts, fitting_prompts, read_prompts
from specgauge.configs.schema import WorkloadConfig
from tests.bench.tiny_checkpoints import word_tokenizer

TEMPLATE = (
    "{% if tools %}w95 {% endif %}{% for m in messages %}{% if m.role == 'system' %}w96 {% endif %}{{ m.content }} "
    "{% endfor %}{% if deep %}w94 {% endif %}{% if add_generation_prompt %}w90{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
P = [{"role": "user", "content": "w1"}]


def read(folder: Path, rows: list[Any], **settings: Any) -> tuple[list[str], list[Note], Any]:
    """(text as encoded under the template, notes, prompts)."""
    path, notes = folder / "rows.jsonl", list[Note]()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload, tokenizer = WorkloadConfig(prompts=str(path), **settings), word_tokenizer(template=TEMPLATE)
    prompts = read_prompts(workload, notes.append)
    encoded = encode_prompts(prompts, tokenizer, workload, notes.append)
    return [tokenizer.decode(row) for row in encoded], notes, prompts


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"messages": P, "tools": TOOLS}, "w95 w1 w90"),
        ({"messages": P, "tools": json.dumps(TOOLS)}, "w95 w1 w90"),
        ({"prompt": "w1", "tools": "[]"}, "w1 w90"),
        ({"prompt": "w1", "system_prompt": "w2"}, "w96 w2 w1 w90"),
        ({"turns": ["w1"], "system": "w2"}, "w96 w2 w1 w90"),
        ({"conversations": [{"from": "human", "value": "w1"}], "system": "w2", "tools": ""}, "w96 w2 w1 w90"),
        ({"messages": P, "chat_template_kwargs": {"deep": True}}, "w1 w94 w90"),
        ({"messages": P, "chat_template_kwargs": {"add_generation_prompt": False}}, "w1"),
    ],
)
def test_what_the_template_takes_is_passed_on(tmp_path: Path, row: dict[str, Any], text: str) -> None:
    found, notes, _ = read(tmp_path, [row])
    unused = [name for note in notes for name in ("system", "tools", "deep") if name in note.message]
    assert (found, unused) == ([text], [])


def test_every_other_field_is_named_with_its_number_of_rows(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"id": 1, "category": "a", "instruction": "w9", "prompt": "w1", "input": "w2", "temperature": 0.9},
        {"prompt": "w1", "input": "w3", "documents": [{"text": "w4"}]},
        {"messages": [{"role": "system", "content": "w2"}, {**P[0], "name": "A"}], "system": "w5"},
        {"conversations": [{"from": "human", "value": "w1", "weight": 1}], "empty": None},
    ]
    _, notes, _ = read(tmp_path, rows)
    names = [[part.split("'")[1] for part in note.message.split(": ")[2].split(", ")] for note in notes]
    assert [note.code for note in notes] == ["fields_unused"] * 2
    assert names == [
        ["input", "conversations[].weight", "instruction", "system", "temperature"],
        ["documents", "messages.name"],
    ]
    assert "'input' (2)" in notes[0].message


@pytest.mark.parametrize("row", [{"tools": "none"}, {"tools": {"a": 1}}, {"chat_template_kwargs": [1]}])
def test_what_no_template_can_take_is_one_line(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"rows\.jsonl:1: '{next(iter(row))}': expected a.*, got ") as caught:
        read(tmp_path, [{"prompt": "w1", **row}])
    assert "\n" not in str(caught.value)


def test_a_chat_without_a_template_is_told() -> None:
    told = list[Note]()
    prompts = [*read_prompts(WorkloadConfig(limit=1)), *read_prompts(WorkloadConfig(limit=1))]
    object.__setattr__(prompts[0], "is_chat", True)
    for when in ("auto", "never"):
        encode_prompts(prompts, word_tokenizer(), WorkloadConfig(chat_template=when), told.append)
    assert [(note.code, note.message.split(" prompts")[0]) for note in told] == [
        ("no_chat_template", "workload.prompts: 1 of 2")
    ]


def of(*categories: str | None) -> list[Any]:
    return [{"prompt": f"w{number}", "category": one} for number, one in enumerate(categories)]


def test_every_first_prompts_are_drawn_evenly_by_category_with_the_seed(tmp_path: Path) -> None:
    rows = of(*["math"] * 6, *["code"] * 6, *["chat"] * 2)
    path = tmp_path / "sorted.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def drawn(limit: int | None, seed: int = 0) -> list[tuple[str, str | None]]:
        found = read_prompts(WorkloadConfig(prompts=str(path), limit=limit), seed=seed)
        return [(prompt.text, prompt.category) for prompt in found]

    every = drawn(None)
    assert sorted(every) == sorted((row["prompt"], row["category"]) for row in rows)
    for limit in range(1, len(rows) + 1):
        counts = Counter(category for _, category in every[:limit])
        assert drawn(limit) == every[:limit]
        assert counts["chat"] in (2, limit // 3, limit // 3 + 1)
        assert abs(counts["math"] - counts["code"]) <= 1
    assert drawn(6) != drawn(6, seed=1)


@pytest.mark.parametrize("rows", [of(None, None, None), of("a", "a")])
def test_a_file_without_categories_keeps_its_order(tmp_path: Path, rows: list[Any]) -> None:
    _, _, prompts = read(tmp_path, rows)
    assert [prompt.text for prompt in prompts] == [row["prompt"] for row in rows]


@pytest.mark.parametrize("categories", ["ab", "abc", "abcd"])
def test_every_other_prompt_is_drawn_evenly_too(tmp_path: Path, categories: str) -> None:
    _, _, prompts = read(tmp_path, of(*categories * 6))
    assert [Counter(prompt.category for prompt in prompts[half::2]) for half in (0, 1)] == [
        dict.fromkeys(categories, 3)
    ] * 2


PROMPTS = [[5] * 10, [5] * 20, [5, 1]]


@pytest.mark.parametrize(
    ("limits", "fitting", "codes"),
    [
        ({"target": 30, "draft": None}, [0, 1, 2], ["prompt_ends"]),
        ({"target": 30, "draft": 29}, [0, 2], ["rows_too_long", "prompt_ends"]),
        ({}, [0, 1, 2], ["prompt_ends"]),
    ],
)
def test_prompts_too_long_for_the_smaller_model_are_left_out_and_told(
    limits: dict[str, int | None], fitting: list[int], codes: list[str]
) -> None:
    found, notes = fitting_prompts(PROMPTS, limits, [1], 10)
    assert (found, [note.code for note in notes]) == (fitting, codes)
    assert notes[-1].message.startswith(f"workload.prompts: 1 of {len(fitting)} prompts end")
    if "draft" in limits and len(fitting) == 2:
        assert notes[0].message.startswith("draft takes 29 tokens, and 10 are to be written: 1 of 3 prompts")


def test_prompts_of_which_none_fits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^target takes 11 tokens, and 10 .* the shortest has 2 tokens; [^\n]*$"):
        fitting_prompts(PROMPTS, {"target": 11}, [], 10)
