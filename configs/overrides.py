"""A configuration as it was written: plain values, where each came from, and the options that change it.

``--set grid.batch_size=[1,2]`` replaces what the file says at ``grid.batch_size``; places are mapping keys joined by
dots and list indices in brackets, ``pairs[0].draft.dtype``, and values are YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from specgauge.configs.engines import NGRAM
from specgauge.configs.errors import ConfigError, Fault, Keys, place_name, shown, words_for
from specgauge.configs.yaml_reader import Source, read_yaml

_PLACE = re.compile(r"[^\s.\[\]]+(?:\.[^\s.\[\]]+|\[[0-9]{1,6}\])*")
_PART = re.compile(r"\[([0-9]+)\]|([^.\[\]]+)")
_LONGEST_LABEL = 100


@dataclass(kw_only=True)
class Written:
    """Plain values with their origins; options change both, and faults of form are kept."""

    value: Any
    faults: list[Fault]
    _origins: dict[Keys, tuple[Source, int]]
    _options: int = 0

    @classmethod
    def of_file(cls, text: str, label: str, model: type[BaseModel], hint: str = "") -> Written:
        """What a file of that text holds, read as a ``model``.

        Raises:
            ConfigError: it is not YAML, or no mapping.
        """
        source = Source(label)
        document = read_yaml(text, source)
        if not isinstance(document.value, dict):
            got = "only comments" if text.strip() else "an empty file"
            got = f"{shown(document.value)} at the top level" if document.lines else got
            where = source.at(document.lines.get((), 1))
            raise ConfigError(f"{where}: expected {words_for(model)}, got {got}{hint}")
        origins = {keys: (source, line) for keys, line in document.lines.items()}
        return cls(value=document.value, faults=document.faults, _origins=origins)

    @classmethod
    def of_value(cls, value: Mapping[str, Any], label: str) -> Written:
        """Plain values that no file holds; ``label`` is what errors call them."""
        source = Source(label, option=1)
        return cls(value=dict(value), faults=[], _origins=dict.fromkeys(_places(value), (source, 0)))

    def set_option(self, option: str) -> None:
        """Apply one ``KEY=VALUE``.

        Raises:
            ConfigError: it is not of that form, its value is not YAML, or its place cannot exist.
        """
        one_line = " ".join(option.split())
        label = one_line if len(one_line) <= _LONGEST_LABEL else one_line[:_LONGEST_LABEL] + "…"
        self._options += 1
        source = Source(f"--set {label}", option=self._options)
        place, equals, text = option.partition("=")
        if not equals or not _PLACE.fullmatch(place.strip()):
            raise ConfigError(f"{source.label}: expected KEY=VALUE, such as grid.gamma=1:6, got {shown(option)}")
        keys: Keys = tuple(int(index) if index else key for index, key in _PART.findall(place.strip()))
        document = read_yaml(text, source, under=keys)
        self._put(keys, document.value, source)
        self._origins = {known: origin for known, origin in self._origins.items() if known[: len(keys)] != keys}
        for length in range(1, len(keys)):
            self._origins.setdefault(keys[:length], (source, 0))
        self._origins |= dict.fromkeys((*document.lines, keys), (source, 0))
        self.faults = [fault for fault in self.faults if fault.keys[: len(keys)] != keys] + document.faults

    def _put(self, keys: Keys, value: object, source: Source) -> None:
        container: Any = self.value
        key: Any
        for depth, key in enumerate(keys):
            _check_key(container, key, keys[:depth], source)
            if depth == len(keys) - 1:
                container[key] = value
                return
            inner = container[key] if isinstance(container, list) else container.get(key)
            if inner is None:
                inner = {}
            elif isinstance(inner, str) and key in ("target", "draft"):  # the shorthand, so that one field can be set
                full, inner = (NGRAM, {}) if key == "draft" and inner == NGRAM else ("model", inner)
                inner = {full: inner}
                self._origins[(*keys[: depth + 1], full)] = self._origins[keys[: depth + 1]]
            container[key] = inner
            container = inner

    def place(self, keys: Keys) -> Keys:
        """``keys``, or those around them that are written; a shorthand has none within it."""
        return next(keys[:n] for n in range(len(keys), -1, -1) if keys[:n] in self._origins)

    def from_option(self, keys: Keys) -> bool:
        """Whether the value at ``keys`` was set on the command line."""
        return self._origins[self.place(keys)][0].option > 0

    def error(self, faults: Sequence[Fault]) -> ConfigError:
        """The error that tells the first of some faults by its line and how many follow it."""
        located = sorted(map(self._located, faults), key=lambda one: (one[0].option, one[1].line or 0))
        source, first = located[0]
        others = len(located) - 1
        more = f" (and {others} more fault{'s' if others > 1 else ''})" if others else ""
        return ConfigError(f"{source.at(first.line)}: {first.words}{more}", tuple(fault for _, fault in located))

    def _located(self, fault: Fault) -> tuple[Source, Fault]:
        source, line = self._origins[self.place(fault.keys)]
        return source, replace(fault, line=None if source.option else fault.line or line)


def _places(value: object, keys: Keys = ()) -> Iterator[Keys]:
    """The place of a value, and of everything in it."""
    yield keys
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _places(one, (*keys, key))


def _check_key(container: object, key: str | int, parent: Keys, source: Source) -> None:
    """Refuse a ``key`` that ``container``, found at ``parent``, cannot have."""
    if isinstance(container, list):
        if isinstance(key, int) and key < len(container):
            return
        expected = f"an index from 0 to {len(container) - 1}, such as {place_name((*parent, 0))}"
        expected = expected if container else "no index, since the list is empty"
    elif isinstance(container, dict):
        if isinstance(key, str):
            return
        expected = "a key, since it is a mapping"
    else:
        expected = f"nothing within {shown(container)}"
    raise ConfigError(f"{source.label}: {place_name(parent)}: expected {expected}, got {place_name((key,))}")
