"""YAML to plain values, with the line of every key and item.

Differs from PyYAML's safe loader where that surprises people: ``1e-3`` is a number, ``1:6`` is text (not 66, base 60),
``010`` is 10, ``yes`` and dates are text, a repeated key is a fault that names both lines, and only text may be a key.
Anchors, aliases and merge keys work.

    read_yaml("grid:\\n  gamma: 1:6\\n", Source("file.yaml")).lines[("grid", "gamma")]  →  2
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specgauge.configs.errors import ConfigError, Fault, Keys, place_name, shown, value_fault
from specgauge.configs.reading import CONFIG_BYTES, read_text

MOST_VALUES = 100_000
_LONGEST_NUMBER = 100
_CORE = "tag:yaml.org,2002:"


class _Resolving(yaml.resolver.BaseResolver):
    """The plain scalars that are not text, shared by what reads and what writes."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own name and type)


class Loader(_Resolving, yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2 scalars; used for its parser, values are built here."""


class Dumper(_Resolving, yaml.SafeDumper):
    """PyYAML's safe dumper that quotes exactly the text that Loader would take for something else."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Characters that YAML folds like line ends are escaped, which only double quotes allow."""
    style = '"' if any(character in text for character in "\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar(_CORE + "str", text, style=style)


Dumper.add_representer(str, _text)

_SCALARS = [
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|[0-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", "~|null|Null|NULL", "~nN"),
    ("null", "", [""]),
    ("merge", "<<", "<"),
]
"""Kind, pattern and first characters of each."""
for _kind, _pattern, _first in _SCALARS:
    _Resolving.add_implicit_resolver(_CORE + _kind, re.compile(rf"^(?:{_pattern})$"), list(_first))


def dump_yaml(value: object) -> str:
    """Plain data as YAML that `read_yaml` reads back equal, inner lists on one line each."""
    text: str = yaml.dump(
        value, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1 << 20
    )
    return text


class _DumperForAnyone(yaml.SafeDumper):
    """PyYAML's safe dumper that also quotes the text that Loader alone would take for something else."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is yaml.ScalarNode and tag == _CORE + "str" and implicit[0]:
            tag = _Resolving().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return tag


_DumperForAnyone.add_representer(str, _text)


def dump_for_anyone(value: object) -> str:
    """Plain data as YAML that `read_yaml` and other readers of YAML 1.1 and 1.2 read back equal."""
    text: str = yaml.dump(value, Dumper=_DumperForAnyone, sort_keys=False, allow_unicode=True, width=120)
    return text


@dataclass(frozen=True)
class Source:
    """Where a text comes from: a file, whose lines are counted, or an option, which has none."""

    label: str
    option: int = 0
    """Which option, from 1; 0 is the file."""

    def at(self, line: int | None) -> str:
        """``file.yaml:12``, or the label alone."""
        return self.label if line is None or self.option else f"{self.label}:{line}"


def config_text(path: Path) -> str:
    """The text of a configuration, a hardware entry or a model's shape.

    Raises:
        ConfigError: no regular file, too large, or not UTF-8 (with the line).
        OSError: it cannot be read.
    """
    try:
        return read_text(path, CONFIG_BYTES)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def read_yaml(text: str, source: Source, under: Keys = (), *, most_values: int = MOST_VALUES) -> Document:
    """Parse one YAML document; ``source`` names it in errors, and ``under`` is where its value stands.

    A text without any value has the value None and no lines.

    Raises:
        ConfigError: it is not YAML, holds several documents, or expands to more than ``most_values`` values.
    """
    document = Document(source, most_values)
    try:
        loader = Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        if root is not None:
            document.value = document.build(root, under)
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_line(error, text, source)) from error
    except RecursionError as error:
        expected = "expected lists and mappings nested some hundred levels deep at most, got more"
        raise ConfigError(f"{source.label}: {expected}") from error
    return document


class Document:
    """What a YAML text holds: its plain value, the line of each key and list item, and what is wrong with its form."""

    def __init__(self, source: Source, most_values: int) -> None:
        self.value: object = None
        self.lines: dict[Keys, int] = {}
        self.faults: list[Fault] = []
        self._source, self._most_values = source, most_values
        self._open: set[int] = set()
        self._built = 0

    def build(self, node: yaml.Node, keys: Keys, into: dict[str, object] | None = None) -> object:
        """The value of a node, or ``into`` with the keys of a mapping that it does not have already."""
        line = node.start_mark.line + 1
        self.lines.setdefault(keys, line)
        self._built += 1
        if self._built > self._most_values:
            got = "more once its aliases are expanded"
            raise ConfigError(f"{self._source.at(line)}: expected at most {self._most_values} values, got {got}")
        if id(node) in self._open:
            got = "an anchor that contains itself"
            raise ConfigError(f"{self._source.at(line)}: expected aliases of others, got {got}")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == _CORE + "map":
                return self._mapping(node, keys, {} if into is None else into)
            if isinstance(node, yaml.SequenceNode) and node.tag == _CORE + "seq":
                return [self.build(item, (*keys, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, keys)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, keys: Keys, result: dict[str, object]) -> dict[str, object]:
        overriding = set(result)
        first_line: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if key_node.tag == _CORE + "merge":  # one mapping or a list of them
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            elif not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _CORE + "str":
                self._fault(keys, line, f"the key {_key_text(key_node)}", "text (put it in quotes)")
            elif key in first_line:
                where = f" in {place_name(keys)}" if keys else ""
                words = f"key {shown(key)}{where} is given twice, first at line {first_line[key]}; remove one of them"
                self.faults.append(Fault(code="repeated_key", keys=(*keys, key), words=words, line=line))
            else:
                first_line[key] = line
                if key not in overriding:
                    self.lines[(*keys, key)] = line
                    result[key] = self.build(value_node, (*keys, key))
        for source in merged:
            if isinstance(source, yaml.MappingNode):
                self.build(source, keys, into=result)
            else:
                line = source.start_mark.line + 1
                self._fault(keys, line, "the merge key << without a mapping", "an alias of a mapping, <<: *name")
        return result

    def _scalar(self, node: yaml.Node, keys: Keys) -> object:
        kind = node.tag.removeprefix(_CORE)
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode) or kind not in ("str", "null", "bool", "int", "float"):
            self._fault(keys, line, f"the tag {shown(node.tag.replace(_CORE, '!!'))}", "plain YAML values")
            return None
        text: str = node.value
        try:
            match kind:
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.casefold()]
                case "int":
                    return _integer(text)
                case "float":
                    return _number(text)
        except (KeyError, ValueError):
            self._fault(keys, line, shown(text), f"a value that fits the tag !!{kind}")
            return None
        return text

    def _fault(self, keys: Keys, line: int, got: str, expected: str) -> None:
        self.faults.append(value_fault("unreadable", keys, got, expected, line))


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError("too long a number")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits.lstrip("+-")[:2], 10)
    return int(digits, base)


def _number(text: str) -> float:
    plain = text.replace("_", "").casefold()
    return float(plain.replace(".inf", "inf").replace(".nan", "nan"))


def _key_text(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value) or "nothing"
    return "(a mapping)" if isinstance(node, yaml.MappingNode) else "(a list)"


def _syntax_line(error: yaml.YAMLError, text: str, source: Source) -> str:
    """One line for PyYAML's multi-line complaints."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"{source.at(line)}: expected printable text, got the character {chr(int(error.character))!r}"
    marked: Any = error
    mark = marked.problem_mark or marked.context_mark
    problem = ", ".join(part for part in (marked.context, marked.problem) if part)
    if "'\\t'" in problem:
        problem = "expected spaces as indentation, got a tab"
    elif marked.problem == "mapping values are not allowed here":
        problem = "expected no key here, got ': '; check the indentation, and put text with ': ' in quotes"
    elif "block" in problem:
        problem += "; check the indentation"
    begun = marked.context_mark
    if not source.option and begun is not None and begun.line != mark.line:
        problem += f" (begun at line {begun.line + 1})"
    return f"{source.at(mark.line + 1)}: not valid YAML: {problem}"
