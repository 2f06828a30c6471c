"""Prompts from files of every form, the line that each fault gets, and what the tokenizer makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from specgauge.bench import prompts as prompts_module
from specgauge.bench.notes import Note
from specgauge.bench.prompts import Prompt, encode_prompts, prompts_of_length, read_prompts
from specgauge.configs.schema import WorkloadConfig
from tests.bench.tiny_checkpoints import word_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    " {{ m.content }}{% endfor %}{% if add_generation_prompt %} w96{% endif %}"
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes a prompts file: bytes, text, or rows as JSON lines."""

    def make(content: bytes | str | list[Any], name: str = "prompts.jsonl") -> Path:
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return make


def workload(path: Path | str, **settings: Any) -> WorkloadConfig:
    return WorkloadConfig(prompts=str(path), **settings)


def chat(*messages: tuple[str, str], category: str | None = None) -> Prompt:
    return Prompt(messages=tuple({"role": role, "content": content} for role, content in messages), category=category)


def message(role: Any, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def plain(text: str, category: str | None = None) -> Prompt:
    return chat(("user", text), category=category)


HUMAN = {"from": "human", "value": "Hi"}
ANSWER = {"from": "gpt", "value": "Hello"}
SYSTEM = {"from": "system", "value": "Be brief"}
SKIPPED: list[list[dict[str, str]]] = [[ANSWER, HUMAN], [], [SYSTEM], [{"from": "human", "value": " "}]]


FORMS: dict[str, list[tuple[dict[str, Any], Prompt]]] = {
    "jsonl": [
        ({"prompt": "Say it"}, plain("Say it")),
        ({"text": "Once upon"}, plain("Once upon")),
        ({"prompt": "a", "text": "b", "category": "qa"}, plain("a", "qa")),
        ({"prompt": " kept as it is\n"}, plain(" kept as it is\n")),
        ({"messages": [{"role": "user", "content": "Hi"}]}, plain("Hi")),
        (
            {
                "messages": [
                    {"role": "system", "content": "Be brief"},
                    {"role": "user", "content": "Hi", "name": "A"},
                    {"role": "assistant", "content": None},
                    {"role": "user", "content": "More"},
                ],
                "prompt": "not this",
            },
            Prompt(messages=(message("system", "Be brief"), message("user", "Hi") | {"name": "A"})),
        ),
    ],
    "spec-bench": [
        (
            {"question_id": 81, "category": "writing", "turns": ["First", "Second"], "reference": []},
            plain("First", "writing"),
        ),
    ],
    "sharegpt": [
        ({"id": "x", "conversations": [HUMAN, ANSWER, HUMAN]}, plain("Hi")),
        ({"conversations": [SYSTEM, HUMAN, ANSWER]}, chat(("system", "Be brief"), ("user", "Hi"))),
        ({"conversations": [{"from": "user", "value": "Hi"}, HUMAN]}, chat(("user", "Hi"), ("user", "Hi"))),
        ({"conversations": [{"from": "human", "value": "  "}, HUMAN]}, plain("Hi")),
    ],
}


@pytest.mark.parametrize(("form", "row", "expected"), [(form, *case) for form in FORMS for case in FORMS[form]])
@pytest.mark.parametrize("as_list", [False, True], ids=["lines", "list"])
def test_every_form_is_told_by_its_content_or_asked_for(
    write: Write, form: Any, row: Any, expected: Prompt, as_list: bool
) -> None:
    path = write(json.dumps([row]) if as_list else [row])
    assert read_prompts(workload(path)) == read_prompts(workload(path, format=form)) == [expected]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (3, 3), (9, 3), (None, 3)])
def test_forms_may_mix_and_the_limit_takes_the_first(write: Write, limit: int | None, count: int) -> None:
    """What lies past the limit is not read."""
    rows: list[Any] = [{"prompt": "1"}, {"turns": ["2"]}, {"conversations": [SYSTEM, HUMAN]}]
    path = write([*rows, {"prompt": 4}] if limit == count else rows)
    assert [p.text for p in read_prompts(workload(path, limit=limit))] == ["1", "2", "Be brief\n\nHi"][:count]


def under(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


ROWS: list[Any] = [
    *("just text", ["a"], None, True, 1.5, {"question": "a", "answer": "b"}),
    *under("prompt", 3, None, ["a"], ""),
    *under("text", {"a": 1}, " \n\t"),
    {"prompt": "a", "category": 7},
    *under("messages", "Hi", ["Hi"], [{"role": "user"}], [], [message("assistant", "a"), message("user", "b")]),
    *under("messages", [message("system", "a")], [message("system", "a"), message("user", [3])]),
    *under("messages", [message("user", None)], [message(1, "a")], [message("user", " ")]),
    *under("turns", [], "a", [1], [""]),
    *under("conversations", {}, ["Hi"], [{"from": "human"}], [{"from": "human", "value": None}]),
]
OTHER_FORMS: list[tuple[Any, Any]] = [
    ("jsonl", {"turns": ["a"]}),
    ("jsonl", {}),
    ("spec-bench", {"prompt": "a"}),
    ("sharegpt", {"prompt": "a"}),
]
FILES = [
    *(b"", b" \n\n\t\n", b"\xef\xbb\xbf", b"[]"),
    b'{"prompt": "a"}\n\n{"prompt": "b"\n',
    b'{"prompt": "a"}\nplain words\n',
    b'{\n  "prompt": "a"\n}\n',
    b'[{"prompt": "a"},\n {"prompt": }]',
    b'{"prompt": "a"} {"prompt": "b"}',
    b'{"prompt": "a"}\n{"prompt": "\xe9"}',
    '{"prompt": "a"}'.encode("utf-16"),
    b"\n" + b"[" * 200_000,
    b'{"prompt": ' + b"9" * 5000 + b"}",
    b'{"prompt": "\\ud83d half"}',
]


def test_every_fault_of_a_file_gets_its_line(
    write: Write, tmp_path: Path, snapshot: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place, what is expected there, what was found."""
    shown = []

    def refuse(what: str, path: Path, **settings: Any) -> str:
        with pytest.raises(ValueError, match=rf"^(workload\.prompts: ')?{re.escape(str(path))}") as caught:
            read_prompts(workload(path, **settings))
        line = str(caught.value).replace(str(path.parent), "FOLDER")
        assert "\n" not in line
        shown.append(f"{what}: {line}\n")
        return line

    for row in ROWS:
        line = refuse(json.dumps(row), write([{"prompt": "fine"}, row]))
        listed = write(json.dumps([{"prompt": "fine"}, row]), "prompts.json")
        assert refuse("", listed) == line.replace("prompts.jsonl:2", "prompts.json: row 1")
        del shown[-1]
    for form, row in OTHER_FORMS:
        refuse(f"{json.dumps(row)} as {form}", write([row]), format=form)
    for content in FILES:
        refuse(repr(content[:40]), write(content))
    refuse("only conversations to skip", write([{"conversations": turns} for turns in SKIPPED]))
    refuse("no file", tmp_path / "none.jsonl")
    (tmp_path / "folder").mkdir()
    refuse("a directory", tmp_path / "folder")

    unreadable = write([{"prompt": "a"}])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
        refuse("a file that cannot be read", unreadable)
    snapshot("bench_prompt_errors", "".join(shown))


def test_prompts_at_home_and_those_of_the_package_are_found(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write([{"prompt": "shipped", "category": "story"}])
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.setattr(prompts_module, "EMBEDDED_PROMPTS", path)
    for named in (workload("~/prompts.jsonl"), WorkloadConfig()):
        assert read_prompts(named) == [plain("shipped", "story")]


def test_conversations_that_do_not_start_with_the_user_are_skipped_and_told(write: Write) -> None:
    for conversations, limit, count, skipped in (
        ([*SKIPPED, [HUMAN, ANSWER]], None, 1, ["4 of 5"]),
        ([[ANSWER], [HUMAN], [ANSWER], [HUMAN], [HUMAN]], 2, 2, ["2 of 4"]),
        ([[HUMAN]], None, 1, []),
    ):
        path, told = write([{"conversations": turns} for turns in conversations]), list[Note]()
        assert read_prompts(workload(path, limit=limit), told.append) == [plain("Hi")] * count
        expected = [f"{path}: skipped {n} conversations, which do not start with the user" for n in skipped]
        assert [note.message for note in told] == expected


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n', ["a", "b"]),
        (b'\xef\xbb\xbf\r\n [{"prompt": "a"}]', ["a"]),
        (b'{"prompt": "\\ud83d\\ude42"}', ["🙂"]),
        (json.dumps({"prompt": "word " * 400_000}), ["word " * 400_000]),
    ],
    ids=["Windows lines", "a Windows list", "a whole surrogate pair", "a huge line"],
)
def test_files_of_other_systems_and_sizes(write: Write, content: bytes | str, texts: list[str]) -> None:
    assert read_prompts(workload(write(content))) == [plain(text) for text in texts]


@example(texts=[f"one{inside}two" for inside in "\u2028\u2029\u0085\x7f\u00a0\ufeff\u0301🙂"])
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"])).filter(lambda t: t.strip()), min_size=1, max_size=5
    )
)
def test_any_text_comes_back_as_it_was_written(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    for escaped in (True, False):
        path.write_bytes("\n".join(json.dumps({"prompt": t}, ensure_ascii=escaped) for t in texts).encode())
        assert [prompt.text for prompt in read_prompts(workload(path))] == texts


PIECES = [
    b'{"prompt": "a"}',
    b'{"turns": [',
    b'"conversations":',
    b"1",
    b"\xff",
    *(bytes([one]) for one in b'{}[]",\n'),
]


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8))
def test_any_bytes_are_prompts_or_one_line(pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.jsonl"
    path.write_bytes(b"".join(pieces))
    try:
        assert read_prompts(workload(path))
    except ValueError as error:
        assert re.fullmatch(rf"{re.escape(str(path))}:.+", str(error))  # noqa: PT017 (both outcomes are right)


def encode(prompt: Prompt, tokenizer: Any, when: str = "auto") -> list[int]:
    (ids,) = encode_prompts([prompt], tokenizer, WorkloadConfig(chat_template=when))  # type: ignore[arg-type]
    assert all(type(token) is int for token in ids)
    return ids


def test_the_chat_template_is_applied_where_there_is_one() -> None:
    """Under a template that writes <s> itself and a tokenizer that would put another before, there is exactly one."""
    for template, when, expected in (
        (TEMPLATE, ("auto", "always"), [2, 4, 5, 99]),
        (TEMPLATE, ("never",), [2, 4, 5]),
        (None, ("auto", "never"), [2, 4, 5]),
    ):
        tokenizer = word_tokenizer(template=template, begins=True)
        assert [encode(plain("w1 w2"), tokenizer, one) for one in when] == [expected] * len(when)


SYSTEM_FIRST = [plain("w1"), chat(("system", "w1"), ("user", "w2"))]
LETTERS = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0, "b": 1}, [])))
TWO_TEMPLATES = {"tool_use": TEMPLATE, "rag": TEMPLATE}


@pytest.mark.parametrize(
    ("prompts", "tokenizer", "when", "words"),
    [
        ([plain("w1")], word_tokenizer(), "always", r"chat_template: 'always', but the tokenizer has no chat template"),
        (SYSTEM_FIRST, word_tokenizer(template=TEMPLATE), "auto", "prompts: .* refuses prompt 1: System role not"),
        ([plain("w1")], word_tokenizer(template="{% for %}"), "auto", "prompts: .* template refuses prompt 0: "),
        ([plain("w1")], word_tokenizer(template=TWO_TEMPLATES), "auto", "prompts: .* template refuses prompt 0: "),
        (
            [plain("new")],
            word_tokenizer(["w1", "w2"]),
            "auto",
            "prompts: the tokenizer refuses prompt 0: Word",
        ),
        ([plain("a"), plain("xyz")], LETTERS, "auto", "prompts: prompt 1 has no token after encoding"),
    ],
    ids=["no template", "refused", "broken", "several templates", "an unknown word", "no token"],
)
def test_what_cannot_be_encoded_is_one_line(prompts: list[Prompt], tokenizer: Any, when: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^workload\.{words}[^\n]*$"):
        encode_prompts(prompts, tokenizer, WorkloadConfig(chat_template=when))


def test_all_messages_pass_through_the_template() -> None:
    prompt = chat(("user", "w1"), ("user", "w2 w3"))
    assert encode(prompt, word_tokenizer(template=TEMPLATE)) == [2, 4, 5, 6, 99]
    assert encode(prompt, word_tokenizer(template=TEMPLATE), "never") == [4, 5, 6]
    assert encode(plain("ab"), LETTERS) == [0, 1]


@pytest.mark.parametrize(
    ("text", "begins", "expected"),
    [("w1 w2", True, [2, 4, 5]), ("<s> w1", True, [2, 4]), ("<s> w1", False, [2, 4]), ("w1 <s>", True, [2, 4, 2])],
)
def test_a_text_that_brings_its_own_begin_token_gets_no_second(text: str, begins: bool, expected: list[int]) -> None:
    assert encode(plain(text), word_tokenizer(begins=begins)) == expected


@pytest.mark.parametrize(
    ("length", "wanted"),
    [
        (2, [[2, 3], [4, 5], [8, 9]]),
        (3, [[1, 2, 3], [3, 4, 5], [7, 8, 9]]),
        (4, [[9, 1, 2, 3], [2, 3, 4, 5], [6, 7, 8, 9]]),
        (10, [[3, 4, 5, 6, 7, 8, 9, 1, 2, 3], [5, 6, 7, 8, 9, 1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5, 6, 7, 8, 9]]),
    ],
)
def test_prompts_end_as_they_did_at_exactly_the_length(length: int, wanted: list[list[int]]) -> None:
    assert prompts_of_length([[1, 2, 3], [4, 5], [6, 7, 8, 9]], length) == wanted
    assert prompts_of_length([[1, 2]], 5) == [[2, 1, 2, 1, 2]]
