"""Read a workload's prompts: JSONL, Spec-Bench ``question.jsonl``, ShareGPT JSON, or those shipped with the pair.

Of a conversation only what comes before the first answer is used: the answers in the file are another model's, and
acceptance is measured on the target's own.  No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgauge.configs.reading import PROMPT_BYTES, expanded, read_text
from specgauge.configs.schema import WorkloadConfig

EMBEDDED_PROMPTS = Path(__file__).parent / "embedded" / "prompts.jsonl"
_ROW_FORMS = 'one JSON object a line, e.g. {"prompt": "…"}, or one JSON list of objects'


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt as the file gives it."""

    messages: tuple[dict[str, str], ...]
    """As chat messages; plain text is one of the user's."""
    category: str | None = None

    @property
    def text(self) -> str:
        """What the messages say, for tokenizers without a chat template."""
        return "\n\n".join(message["content"] for message in self.messages)


def _of_user(text: str, category: str | None) -> Prompt:
    return Prompt(messages=({"role": "user", "content": text},), category=category)


def _text_of(value: Any, where: str, field: str, *, may_be_blank: bool = False) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: '{field}': expected text, got {_kind(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(
            f"{where}: '{field}' holds half of a surrogate pair, which is no character; write the whole pair"
        )
    if not may_be_blank and not value.strip():
        raise ValueError(f"{where}: '{field}' is empty; remove the row or give it text")
    return value


def _kind(value: Any) -> str:
    """What JSON calls a value's type."""
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object", str: "text"}
    return "null" if value is None else names[type(value)]


def _category(row: dict[str, Any], where: str) -> str | None:
    value = row.get("category")
    return None if value is None else _text_of(value, where, "category", may_be_blank=True)


def _from_jsonl(row: dict[str, Any], where: str) -> Prompt:
    category = _category(row, where)
    if "messages" in row:
        return Prompt(messages=_before_answer(row["messages"], where), category=category)
    for field in ("prompt", "text"):
        if field in row:
            return _of_user(_text_of(row[field], where, field), category)
    raise ValueError(
        f"{where}: expected the field 'prompt', 'text' or 'messages', got {', '.join(sorted(row)) or 'none'}"
    )


def _are_objects(value: Any, *keys: str) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and set(keys) <= set(one) for one in value)


def _before_answer(messages: Any, where: str) -> tuple[dict[str, str], ...]:
    """The messages up to the assistant's first, something of the user's among them."""
    if not _are_objects(messages, "role", "content"):
        raise ValueError(f"{where}: 'messages' must be a list of {{role, content}} objects")
    found = []
    for index, message in enumerate(messages):
        role = _text_of(message["role"], where, f"messages[{index}].role")
        if role == "assistant":
            break
        found.append({"role": role, "content": _text_of(message["content"], where, f"messages[{index}].content")})
    if all(message["role"] == "system" for message in found):
        raise ValueError(f"{where}: 'messages' has nothing of the user before the first answer; remove the row")
    return tuple(found)


def _from_spec_bench(row: dict[str, Any], where: str) -> Prompt:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{where}: 'turns' must be a list with at least one text (Spec-Bench question.jsonl)")
    return _of_user(_text_of(turns[0], where, "turns[0]"), _category(row, where))


def _from_sharegpt(row: dict[str, Any], where: str) -> Prompt | None:
    """None for a conversation that does not begin with the user's words: dumps are full of cut-off ones."""
    turns: Any = row.get("conversations")
    if not _are_objects(turns, "from", "value"):
        raise ValueError(f"{where}: 'conversations' must be a list of {{from, value}} objects (ShareGPT)")
    messages = []
    for index, turn in enumerate(turns):
        if turn["from"] not in ("human", "user", "system"):
            break
        content = _text_of(turn["value"], where, f"conversations[{index}].value", may_be_blank=True)
        if content.strip():
            messages.append({"role": "system" if turn["from"] == "system" else "user", "content": content})
    if all(message["role"] == "system" for message in messages):
        return None
    return Prompt(messages=tuple(messages))


def _content(path: Path) -> str:
    try:
        content = read_text(path, PROMPT_BYTES)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}; give a file that can") from error
    except ValueError as error:
        raise ValueError(f"{error}; convert it, or give another") from error
    if not content.strip():
        raise ValueError(f"{path}: the prompt file is empty; expected {_ROW_FORMS}")
    return content


def _parse(text: str, where: str, first_line: int) -> Any:
    """One JSON value; ValueError that names the line for anything else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line, found = first_line + error.lineno - 1, f"not valid JSON: {error.msg}"
    except RecursionError:
        line, found = first_line, "not usable JSON: nested too deeply"
    except ValueError as error:  # a number with thousands of digits
        line, found = first_line, f"not usable JSON: {error}"
    raise ValueError(f"{where}:{line}: {found}; expected {_ROW_FORMS}")


def _rows(path: Path) -> list[tuple[str, Any]]:
    """(where, value) for each row of a JSON Lines file or of one JSON list.

    Lines end at line feeds alone: other separators, such as U+2028, may stand inside a JSON text.
    """
    content = _content(path)
    if content.lstrip().startswith("["):
        return [(f"{path}: row {index}", row) for index, row in enumerate(_parse(content, str(path), 1))]
    return [
        (f"{path}:{number}", _parse(line, str(path), number))
        for number, line in enumerate(content.split("\n"), start=1)
        if line.strip()
    ]


def _prompt(row: Any, where: str, workload: WorkloadConfig) -> Prompt | None:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {_kind(row)}")
    kind = workload.format
    if kind == "auto":
        kind = "spec-bench" if "turns" in row else "sharegpt" if "conversations" in row else "jsonl"
    if kind == "spec-bench":
        return _from_spec_bench(row, where)
    return _from_sharegpt(row, where) if kind == "sharegpt" else _from_jsonl(row, where)


def read_prompts(workload: WorkloadConfig, tell: Callable[[str], None] | None = None) -> list[Prompt]:
    """The workload's prompts, at most ``limit``, in the file's order.

    ``tell`` gets one line when conversations were skipped because they do not start with the user.

    Raises:
        ValueError: a file that is missing, empty or of another form; it says file, row and what is expected.
    """
    path = EMBEDDED_PROMPTS if workload.prompts == "embedded" else expanded(workload.prompts)
    if not path.exists():
        raise ValueError(
            f"workload.prompts: '{workload.prompts}' does not exist; give a file, or 'embedded' for the shipped prompts"
        )
    if path.is_dir():
        raise ValueError(f"workload.prompts: '{workload.prompts}' is a directory; give a .jsonl or .json file")
    prompts: list[Prompt] = []
    skipped = 0
    for where, row in _rows(path):
        prompt = _prompt(row, where, workload)
        if prompt is None:
            skipped += 1
            continue
        prompts.append(prompt)
        if len(prompts) == workload.limit:
            break
    if not prompts:
        found = f"none of its {skipped} conversations starts with the user" if skipped else "it has no row"
        raise ValueError(f"{path}: no usable prompt: {found}; expected {_ROW_FORMS}")
    if skipped and tell is not None:
        tell(f"{path}: skipped {skipped} of {skipped + len(prompts)} conversations, which do not start with the user")
    return prompts


def encode_prompts(prompts: Sequence[Prompt], tokenizer: Any, workload: WorkloadConfig) -> list[list[int]]:
    """Token ids of each prompt, under the chat template where the workload asks for it and the tokenizer has one.

    A prompt is never given a second begin-of-text token: templates write their own, and so may plain text.

    Raises:
        ValueError: a template is demanded and missing, or refuses a prompt, or a prompt has no token.
    """
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if workload.chat_template == "always" and not has_template:
        raise ValueError("workload.chat_template: 'always', but the tokenizer has no chat template; use auto or never")
    use_template = workload.chat_template != "never" and has_template
    encoded = []
    for index, prompt in enumerate(prompts):
        ids = _encode(prompt, tokenizer, use_template, index)
        if not ids:
            raise ValueError(f"workload.prompts: prompt {index} has no token after encoding; remove it")
        encoded.append([int(i) for i in ids])
    return encoded


def prompts_of_length(prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Each prompt brought to exactly ``length`` tokens: its end, after the ends of the prompts before it (cyclic)."""
    rows = []
    for number in range(len(prompts)):
        row: list[int] = []
        back = 0
        while len(row) < length:
            row[:0] = prompts[(number - back) % len(prompts)][len(row) - length :]
            back += 1
        rows.append(row)
    return rows


def _encode(prompt: Prompt, tokenizer: Any, use_template: bool, index: int) -> Any:
    try:
        if use_template:
            return tokenizer.apply_chat_template(
                list(prompt.messages), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        begin = getattr(tokenizer, "bos_token", None)
        has_begin = isinstance(begin, str) and begin != "" and prompt.text.startswith(begin)
        return tokenizer(prompt.text, add_special_tokens=not has_begin)["input_ids"]
    except Exception as error:  # templates and tokenizers raise what they like, e.g. for a system message out of place
        reason = " ".join(str(error).split()) or type(error).__name__
        refuses, remedy = (
            ("the tokenizer's chat template refuses", "change it, or set workload.chat_template: never")
            if use_template
            else ("the tokenizer refuses", "change or remove it")
        )
        raise ValueError(f"workload.prompts: {refuses} prompt {index}: {reason}; {remedy}") from error
