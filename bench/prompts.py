"""Read a workload's prompts: JSONL, Spec-Bench ``question.jsonl``, ShareGPT JSON, or those shipped with the pair.

Of a conversation only what comes before the first answer is used: the answers in the file are another model's, and
acceptance is measured on the target's own.  What a chat template takes beside messages is passed on to it, and every
other field of a row is named.  No torch here.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgauge.bench.notes import Note
from specgauge.configs.reading import PROMPT_BYTES, expanded, read_text
from specgauge.configs.schema import WorkloadConfig

EMBEDDED_PROMPTS = Path(__file__).parent / "embedded" / "prompts.jsonl"
_SYSTEM = ("system", "system_prompt")
"""Fields with the system message."""
_LISTS = ("tools", "documents")
"""Fields that a chat template may take, each a list."""
_KEYWORDS = "chat_template_kwargs"
_IDENTIFIERS = frozenset({"id", "question_id", "category"})
_ROW_FORMS = 'one JSON object a line, e.g. {"prompt": "…"}, or one JSON list of objects'


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt as the file gives it."""

    messages: tuple[dict[str, Any], ...]
    """As chat messages; plain text is one of the user's."""
    category: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given beside the messages, such as tools."""
    is_chat: bool = field(default=False, compare=False)
    """Whether the file gives it as messages."""

    @property
    def text(self) -> str:
        """What the messages say, for tokenizers without a chat template."""
        return "\n\n".join(message["content"] for message in self.messages)


Messages = tuple[dict[str, Any], ...]


def _of_user(text: str) -> Messages:
    return ({"role": "user", "content": text},)


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


def _from_jsonl(row: dict[str, Any], where: str) -> tuple[str, Messages]:
    if "messages" in row:
        return "messages", _before_answer(row["messages"], where)
    for name in ("prompt", "text"):
        if name in row:
            return name, _of_user(_text_of(row[name], where, name))
    raise ValueError(
        f"{where}: expected the field 'prompt', 'text' or 'messages', got {', '.join(sorted(row)) or 'none'}"
    )


def _are_objects(value: Any, *keys: str) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and set(keys) <= set(one) for one in value)


def _before_answer(messages: Any, where: str) -> Messages:
    """The messages up to the assistant's first, something of the user's among them."""
    if not _are_objects(messages, "role", "content"):
        raise ValueError(f"{where}: 'messages' must be a list of {{role, content}} objects")
    found = []
    for index, message in enumerate(messages):
        role = _text_of(message["role"], where, f"messages[{index}].role")
        if role == "assistant":
            break
        content = _text_of(message["content"], where, f"messages[{index}].content")
        found.append({**message, "role": role, "content": content})
    if all(message["role"] == "system" for message in found):
        raise ValueError(f"{where}: 'messages' has nothing of the user before the first answer; remove the row")
    return tuple(found)


def _from_spec_bench(row: dict[str, Any], where: str) -> tuple[str, Messages]:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{where}: 'turns' must be a list with at least one text (Spec-Bench question.jsonl)")
    return "turns", _of_user(_text_of(turns[0], where, "turns[0]"))


def _from_sharegpt(row: dict[str, Any], where: str) -> tuple[str, Messages] | None:
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
    return "conversations", tuple(messages)


def _system_of(row: dict[str, Any], where: str, messages: Messages) -> Iterator[tuple[str, Messages]]:
    """The field with the system message, and the message, where the row has one and the messages have none."""
    for name in _SYSTEM:
        if row.get(name) and not any(message["role"] == "system" for message in messages):
            yield name, ({"role": "system", "content": _text_of(row[name], where, name)},)
            return


def _for_template(row: dict[str, Any], where: str) -> dict[str, Any]:
    """What the row gives the chat template beside messages; lists may be JSON in a text, as dumps have them."""
    found: dict[str, Any] = {}
    for name in _LISTS:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{where}: '{name}': expected a list, or one as JSON text, got text: {error}"
                ) from None
        if value and not isinstance(value, list):
            raise ValueError(f"{where}: '{name}': expected a list, or one as JSON text, got {_kind(value)}")
        found |= {name: value} if value else {}
    keywords = row.get(_KEYWORDS) or {}
    if not isinstance(keywords, dict):
        raise ValueError(f"{where}: '{_KEYWORDS}': expected an object, got {_kind(keywords)}")
    return {**found, **keywords}


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


def _prompt(row: Any, where: str, workload: WorkloadConfig, unused: Counter[str]) -> Prompt | None:
    """The prompt of a row, None for one that is skipped; fields that nothing takes are counted."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {_kind(row)}")
    kind = workload.format
    if kind == "auto":
        kind = "spec-bench" if "turns" in row else "sharegpt" if "conversations" in row else "jsonl"
    read = {"spec-bench": _from_spec_bench, "sharegpt": _from_sharegpt, "jsonl": _from_jsonl}[kind]
    found = read(row, where)
    if found is None:
        return None
    name, messages = found
    taken = {name, *_LISTS, _KEYWORDS, *_IDENTIFIERS}
    for system, message in _system_of(row, where, messages):
        taken.add(system)
        messages = message + messages
    unused.update(one for one in row if one not in taken and row[one] not in (None, "", [], {}))
    if name == "conversations":
        keys = {key for turn in row[name] for key in turn} - {"from", "value"}
        unused.update(f"{name}[].{key}" for key in keys)
    return Prompt(
        messages=messages,
        category=_category(row, where),
        template=_for_template(row, where),
        is_chat=name in ("messages", "conversations"),
    )


def read_prompts(
    workload: WorkloadConfig, tell: Callable[[Note], object] | None = None, *, seed: int = 0
) -> list[Prompt]:
    """The workload's prompts, at most ``limit``: in the file's order, or drawn evenly by category where there are any.

    ``tell`` gets what a reader must know: conversations that were skipped, fields that nothing takes.

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
    skipped, unused = 0, Counter[str]()
    for where, row in _rows(path):
        prompt = _prompt(row, where, workload, unused)
        if prompt is None:
            skipped += 1
            continue
        prompts.append(prompt)
        if len(prompts) == workload.limit and all(one.category is None for one in prompts):
            break
    if not prompts:
        found = f"none of its {skipped} conversations starts with the user" if skipped else "it has no row"
        raise ValueError(f"{path}: no usable prompt: {found}; expected {_ROW_FORMS}")
    if tell is not None and unused and path != EMBEDDED_PROMPTS:
        tell(_fields_unused("no prompt takes", unused, len(prompts)))
    if tell is not None and skipped:
        tell(
            Note(
                code="rows_skipped",
                message=f"{path}: skipped {skipped} of {skipped + len(prompts)} conversations, which do not start with "
                "the user",
                remedy="nothing where they are the cut-off ones of a dump; else begin each with the user's words",
            )
        )
    return _evenly(prompts, seed)[: workload.limit]


def _fields_unused(who: str, counts: Counter[str], rows: int) -> Note:
    names = ", ".join(
        f"'{name}' ({count})" for name, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    )
    return Note(
        code="fields_unused",
        message=f"workload.prompts: {who} these fields, with rows of {rows} that have them: {names}",
        remedy="move what the model should see into the prompt or its messages; sampling is set in the configuration",
    )


def _evenly(prompts: list[Prompt], seed: int) -> list[Prompt]:
    """The prompts so ordered that the first N, for every N, and every other one are drawn evenly from all categories.

    Each round has a prompt of every category that is left, in an order that lets each alternate between even and odd
    places.  A file without categories stays as it is.
    """
    drawn, groups = random.Random(seed), dict[str | None, list[Prompt]]()
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    if len(groups) < 2:
        return prompts
    left = list(groups.values())
    drawn.shuffle(left)
    for group in left:
        drawn.shuffle(group)
    found: list[Prompt] = []
    for number in range(max(map(len, left))):
        nexts = [group[number] for group in left if number < len(group)]
        turn = number % len(nexts) if len(nexts) % 2 == 0 else 0
        found += nexts[turn:] + nexts[:turn]
    return found


def encode_prompts(
    prompts: Sequence[Prompt],
    tokenizer: Any,
    workload: WorkloadConfig,
    tell: Callable[[Note], object] | None = None,
) -> list[list[int]]:
    """Token ids of each prompt, under the chat template where the workload asks for it and the tokenizer has one.

    A prompt is never given a second begin-of-text token: templates write their own, and so may plain text.  ``tell``
    gets what a reader must know: a chat without a template, fields that the template does not take.

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
    if tell is not None:
        for note in _template_notes(prompts, tokenizer.chat_template if use_template else None, workload):
            tell(note)
    return encoded


def _template_notes(prompts: Sequence[Prompt], template: Any, workload: WorkloadConfig) -> Iterator[Note]:
    """Chats that no template was there for, and what was given for a template that does not take it."""
    given = Counter(
        name
        for prompt in prompts
        for name in {*prompt.template, *(f"messages.{key}" for message in prompt.messages for key in message)}
    )
    words = {"messages", "role", "content", *re.findall(r"\w+", str(template or ""))}
    unused = Counter({name: count for name, count in given.items() if not set(name.split(".")) <= words})
    if unused:
        yield _fields_unused(
            "the chat template takes none of" if template else "no chat template takes", unused, len(prompts)
        )
    chats = sum(prompt.is_chat for prompt in prompts)
    if chats and template is None and workload.chat_template == "auto":
        yield Note(
            code="no_chat_template",
            message=f"workload.prompts: {chats} of {len(prompts)} prompts are chat messages and the tokenizer has no "
            "chat template; their texts were joined by blank lines",
            remedy="use a model with a chat template, or give plain prompts; workload.chat_template: never accepts it",
        )


def fitting_prompts(
    prompts: Sequence[Sequence[int]], limits: Mapping[str, int | None], ends: Sequence[int], new_tokens: int
) -> tuple[list[int], list[Note]]:
    """Numbers of the prompts after which ``new_tokens`` fit in every model, and what a reader must know of the prompts.

    limits: tokens that each model takes, by its name, None where unknown; ends: the target's end tokens.

    Raises:
        ValueError: no prompt fits.
    """
    name, limit = min(limits.items(), key=lambda one: (one[1] is None, one[1]), default=("", None))
    fitting = [number for number, row in enumerate(prompts) if limit is None or len(row) + new_tokens <= limit]
    longest, notes = max(map(len, prompts)), []
    if len(fitting) < len(prompts):
        found = f"{name} takes {limit} tokens, and {new_tokens} are to be written: "
        if not fitting:
            raise ValueError(
                f"{found}no prompt leaves room, the shortest has {min(map(len, prompts))} tokens; give shorter "
                "prompts, or lower workload.max_new_tokens"
            )
        notes.append(
            Note(
                code="rows_too_long",
                message=f"{found}{len(prompts) - len(fitting)} of {len(prompts)} prompts were left out, the longest "
                f"has {longest} tokens",
                remedy="give shorter prompts, lower workload.max_new_tokens, or use models that take more",
            )
        )
    ended = sum(prompts[number][-1] in ends for number in fitting)
    if ended:
        notes.append(
            Note(
                code="prompt_ends",
                message=f"workload.prompts: {ended} of {len(fitting)} prompts end in an end token, after which nothing "
                "is to be written",
                remedy="see to the tokenizer's add_eos_token, the chat template's add_generation_prompt, or the texts",
            )
        )
    return fitting, notes


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
            options = {"add_generation_prompt": True, **prompt.template, "tokenize": True, "return_dict": False}
            return tokenizer.apply_chat_template(list(prompt.messages), **options)
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
