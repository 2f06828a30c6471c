"""A configuration as it was written: plain values, where each came from, and the options that change it.

``--set grid.batch_size=[1,2]`` replaces what the file says at ``grid.batch_size``; places are mapping keys joined by
dots and list indices in brackets, ``pairs[0].draft.dtype``, and values are YAML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specgauge.configs.drafts import NGRAM
from specgauge.configs.faults import ConfigError, Fault, Keys, place_name, shown
from specgauge.configs.yaml_reader import Document, Source, read_yaml

_OPTION = "--set"
_PLACE = re.compile(r"[^\s.\[\]]+(?:\.[^\s.\[\]]+|\[[0-9]{1,6}\])*")
_PART = re.compile(r"\[([0-9]+)\]|([^.\[\]]+)")
_LONGEST_LABEL = 100


@dataclass(frozen=True, kw_only=True, order=True)
class _Origin:
    rank: int  # 0 the file, then the options in their order
    line: int
    source: Source = field(compare=False)


@dataclass(kw_only=True)
class Written:
    """Plain values with their origins; options change both, and faults of form are kept."""

    value: dict[str, Any]
    faults: list[Fault]
    origins: dict[Keys, _Origin]
    options: int = 0

    @classmethod
    def from_document(cls, document: Document, source: Source) -> Written:
        """What a file holds; ``document.value`` is a mapping."""
        assert isinstance(document.value, dict), "the loader has checked the top level"
        origins = {keys: _Origin(rank=0, line=line, source=source) for keys, line in document.lines.items()}
        return cls(value=document.value, faults=list(document.faults), origins=origins)

    def set_option(self, option: str) -> None:
        """Apply one ``KEY=VALUE``; raises ConfigError where it is not of that form or its place cannot exist."""
        source = Source(_label(option), has_lines=False)
        place, equals, text = option.partition("=")
        place = place.strip()
        if not equals or not _PLACE.fullmatch(place):
            raise ConfigError(f"{source.label}: found {shown(option)}, allowed: KEY=VALUE, such as grid.gamma=1:6")
        keys: Keys = tuple(int(index) if index else key for index, key in _PART.findall(place))
        document = read_yaml(text, source)
        self._put(keys, document.value, source)
        self.options += 1
        self.origins = {known: origin for known, origin in self.origins.items() if known[: len(keys)] != keys}
        origin = _Origin(rank=self.options, line=0, source=source)
        for length in range(1, len(keys)):
            self.origins.setdefault(keys[:length], origin)
        self.origins |= {keys + inner: origin for inner in document.lines} | {keys: origin}
        self.faults = [fault for fault in self.faults if fault.keys[: len(keys)] != keys]
        self.faults += [replace(fault.under(keys), line=None) for fault in document.faults]

    def _put(self, keys: Keys, value: object, source: Source) -> None:
        container: Any = self.value
        last = len(keys) - 1
        key: Any
        for depth, key in enumerate(keys):
            _check_key(container, key, keys[:depth], source)
            if depth == last:
                container[key] = value
                return
            inner = container[key] if isinstance(container, list) else container.get(key)
            if inner is None:
                inner = {}
            elif isinstance(inner, str) and key in ("target", "draft"):  # the shorthand, so that one field can be set
                full, inner = (NGRAM, {}) if key == "draft" and inner == NGRAM else ("model", inner)
                inner = {full: inner}
                named = self.origins[keys[: depth + 1]]
                self.origins[(*keys[: depth + 1], full)] = named
            container[key] = inner
            container = inner

    def from_option(self, keys: Keys) -> bool:
        """Whether the value at ``keys`` was set on the command line."""
        return self._nearest(keys)[0].rank > 0

    def line_of(self, fault: Fault) -> tuple[tuple[int, int], str]:
        """A sort key, and the fault's one line with its file and line before it."""
        origin, known = self._nearest(fault.keys)
        if fault.line is not None:
            origin = replace(origin, line=fault.line)
        if len(known) < len(fault.subject) and not isinstance(self._at(known), (dict, list)):
            fault = replace(fault, subject=known)  # a shorthand: what is written has no such inner place
        return (origin.rank, origin.line), f"{origin.source.at(origin.line)}: {fault.words}"

    def _nearest(self, keys: Keys) -> tuple[_Origin, Keys]:
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.origins:
                return self.origins[keys[:length]], keys[:length]
        raise AssertionError("the top level has an origin")

    def _at(self, keys: Keys) -> object:
        value: Any = self.value
        for key in keys:
            value = value[key]
        return value


def first_of(faults: Sequence[Fault], written: Written) -> ConfigError:
    """The error that tells the first fault by line and how many follow it."""
    _, first = min((written.line_of(fault) for fault in faults), key=lambda line: line[0])
    more = len(faults) - 1
    also = "" if more == 0 else f" (and {more} more fault{'s' if more > 1 else ''})"
    return ConfigError(first + also)


def _check_key(container: object, key: str | int, parent: Keys, source: Source) -> None:
    """Whether ``container``, found at ``parent``, can have ``key``."""
    if isinstance(key, int):
        if not isinstance(container, list):
            raise ConfigError(f"{source.label}: {place_name(parent)} is no list, so it has no entry [{key}]")
        if key >= len(container):
            indices = "[0]" if len(container) == 1 else f"[0] to [{len(container) - 1}]"
            allowed = indices if container else "none"
            raise ConfigError(f"{source.label}: found {place_name((*parent, key))}, allowed: {allowed}")
    elif isinstance(container, list):
        example = place_name((*parent, 0, key))
        raise ConfigError(f"{source.label}: {place_name(parent)} is a list; name an entry of it, such as {example}")
    elif not isinstance(container, dict):
        found = f"{place_name(parent)} is {shown(container)}, so it has no key {key!r}"
        raise ConfigError(f"{source.label}: {found}")


def _label(option: str) -> str:
    one_line = " ".join(option.split())
    cut = one_line if len(one_line) <= _LONGEST_LABEL else one_line[:_LONGEST_LABEL] + "…"
    return f"{_OPTION} {cut}"
