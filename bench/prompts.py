"""Read a workload's prompts: JSONL, Spec-Bench ``question.jsonl``, ShareGPT JSON, or those shipped with the pair.

A prompt is either plain text or a list of chat messages.  Of a conversation only what comes before the first answer
is used: the answers in the file are another model's, and acceptance is measured on the target's own.  No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgauge.configs.schema import WorkloadConfig

EMBEDDED_PROMPTS = Path(__file__).parent / "embedded" / "prompts.jsonl"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt as the file gives it."""

    text: str
    """The user's words, or the text to continue."""
    messages: tuple[dict[str, str], ...]
    """The same as chat messages, for tokenizers with a chat template."""
    is_chat: bool
    """True where the file holds turns or messages (then plain text is only a fallback)."""
    category: str | None = None


def _chat(messages: list[dict[str, str]], category: str | None) -> Prompt:
    text = "\n\n".join(message["content"] for message in messages)
    return Prompt(text=text, messages=tuple(messages), is_chat=True, category=category)


def _plain(text: str, category: str | None) -> Prompt:
    return Prompt(text=text, messages=({"role": "user", "content": text},), is_chat=False, category=category)


def _text_of(value: Any, where: str, field: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: '{field}' must be text, found {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{where}: '{field}' is empty; remove the row or give it text")
    return value


def _from_jsonl(row: Any, where: str) -> Prompt:
    category = row.get("category")
    if "messages" in row:
        messages = row["messages"]
        if not isinstance(messages, list) or not all(
            isinstance(m, dict) and {"role", "content"} <= set(m) for m in messages
        ):
            raise ValueError(f"{where}: 'messages' must be a list of {{role, content}} objects")
        before_answer = []
        for message in messages:
            if message["role"] == "assistant":
                break
            content = _text_of(message["content"], where, "content")
            before_answer.append({"role": str(message["role"]), "content": content})
        if not before_answer:
            raise ValueError(f"{where}: 'messages' has nothing before the first answer")
        return _chat(before_answer, category)
    for field in ("prompt", "text"):
        if field in row:
            return _plain(_text_of(row[field], where, field), category)
    raise ValueError(
        f"{where}: found fields {', '.join(sorted(row)) or 'none'}; needed: 'prompt', 'text' or 'messages'"
    )


def _from_spec_bench(row: Any, where: str) -> Prompt:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{where}: 'turns' must be a list with at least one text (Spec-Bench question.jsonl)")
    return _chat([{"role": "user", "content": _text_of(turns[0], where, "turns[0]")}], row.get("category"))


def _from_sharegpt(row: Any, where: str) -> Prompt | None:
    turns = row.get("conversations")
    if not isinstance(turns, list):
        raise ValueError(f"{where}: 'conversations' must be a list (ShareGPT)")
    messages = []
    for turn in turns:
        speaker = turn.get("from") if isinstance(turn, dict) else None
        if speaker not in ("human", "user", "system"):
            break
        role = "system" if speaker == "system" else "user"
        messages.append({"role": role, "content": str(turn.get("value", ""))})
    if not any(m["role"] == "user" and m["content"].strip() for m in messages):
        return None
    return _chat(messages, None)


def _rows(path: Path) -> list[tuple[str, Any]]:
    """(where, object) for each row of a JSON Lines file or of one JSON list."""
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start}); convert the file") from error
    if not content.strip():
        raise ValueError(f'{path}: the prompt file is empty; give at least one row, e.g. {{"prompt": "…"}}')
    if content.lstrip().startswith("["):
        try:
            rows = json.loads(content)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from error
        return [(f"{path}: row {index}", row) for index, row in enumerate(rows)]
    found = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append((f"{path}:{number}", json.loads(line)))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not valid JSON: {error.msg}") from error
    return found


def read_prompts(workload: WorkloadConfig) -> list[Prompt]:
    """The workload's prompts, at most ``limit``, in the file's order.

    Raises ValueError (file, row, what was found, what is needed) for a file that is missing, empty or of another form.
    """
    path = EMBEDDED_PROMPTS if workload.prompts == "embedded" else Path(workload.prompts).expanduser()
    if not path.exists():
        raise ValueError(
            f"workload.prompts: '{workload.prompts}' does not exist; give a file, or 'embedded' for the shipped prompts"
        )
    if path.is_dir():
        raise ValueError(f"workload.prompts: '{workload.prompts}' is a directory; give a .jsonl or .json file")
    prompts: list[Prompt] = []
    for where, row in _rows(path):
        if not isinstance(row, dict):
            raise ValueError(f"{where}: found {type(row).__name__}, needed a JSON object")
        kind = workload.format
        if kind == "auto":
            kind = "spec-bench" if "turns" in row else "sharegpt" if "conversations" in row else "jsonl"
        prompt = (
            _from_spec_bench(row, where) if kind == "spec-bench"
            else _from_sharegpt(row, where) if kind == "sharegpt"
            else _from_jsonl(row, where)
        )  # fmt: skip
        if prompt is not None:
            prompts.append(prompt)
        if workload.limit is not None and len(prompts) == workload.limit:
            break
    if not prompts:
        raise ValueError(f"{path}: no usable prompt in it (conversations must start with the user)")
    return prompts


def encode_prompts(prompts: Sequence[Prompt], tokenizer: Any, workload: WorkloadConfig) -> list[list[int]]:
    """Token ids of each prompt, under the chat template where the workload asks for it and the tokenizer has one.

    Raises ValueError where a template is demanded and missing, or a prompt has no token.
    """
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if workload.chat_template == "always" and not has_template:
        raise ValueError("workload.chat_template: 'always', but the tokenizer has no chat template; use auto or never")
    use_template = workload.chat_template != "never" and has_template
    encoded = []
    for index, prompt in enumerate(prompts):
        if use_template:
            ids = tokenizer.apply_chat_template(
                list(prompt.messages), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        else:
            ids = tokenizer(prompt.text)["input_ids"]
        if not ids:
            raise ValueError(f"workload.prompts: prompt {index} has no token after encoding; remove it")
        encoded.append([int(i) for i in ids])
    return encoded
