"""Faults in a configuration, and the one line that tells a person what to do about them.

A fault says where it is, what was found there and what is allowed: ``grid.batch_size[1]: found 0, allowed: an integer
of at least 1``.  The reader and the rules make faults; the loader puts the file and the line before the first of them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

Keys = tuple[str | int, ...]
"""A place in a configuration: mapping keys and list indices, outermost first; () is the top level."""

_LONGEST_SHOWN = 60


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one line: where, what was found, what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing wrong, in words: ``subject: text``, or ``about in subject text`` for a key of the subject.

    ``keys`` is the place that the line number is looked up by, unless the reader already knows ``line``.
    """

    keys: Keys
    subject: Keys
    about: str = ""
    text: str
    line: int | None = None

    @property
    def words(self) -> str:
        """What is wrong and where in the configuration."""
        if self.about:
            place = f"in {place_name(self.subject)}" if self.subject else "at the top level"
            return f"{self.about} {place}{self.text}"
        return f"{place_name(self.subject)}: {self.text}" if self.subject else self.text

    def under(self, prefix: Keys) -> Fault:
        """The same fault seen from ``prefix`` levels further out."""
        return replace(self, keys=prefix + self.keys, subject=prefix + self.subject)


def value_fault(keys: Keys, found: object, allowed: str) -> Fault:
    """``place: found …, allowed: …``."""
    return Fault(keys=keys, subject=keys, text=f"found {shown(found)}, allowed: {allowed}")


def unknown_key(parent: Keys, key: str, known: Iterable[str]) -> Fault:
    """``unknown key 'gama' in grid; did you mean 'gamma'? allowed: …``."""
    names = list(known)
    guess = nearest(key, names)
    hint = f"; did you mean {guess!r}?" if guess else ","
    text = f"{hint} allowed: {', '.join(names)}"
    return Fault(keys=(*parent, key), subject=parent, about=f"unknown key {shown(key)}", text=text)


def missing_key(parent: Keys, key: str, needed: str) -> Fault:
    """``missing key 'draft' in pairs[0]; it takes …``."""
    return Fault(keys=parent, subject=parent, about=f"missing key {key!r}", text=f"; it takes {needed}")


def place_name(keys: Keys) -> str:
    """``pairs[0].target`` for ("pairs", 0, "target"); the top level has the empty name."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if text else key
    return text


def shown(value: object) -> str:
    """A value as a person wrote it: 'text' in quotes, true, null, 0.5; collections by their kind; long text cut."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            cut = value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "…"
            return repr(cut)
        case float() if not math.isfinite(value):
            return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
        case int() | float():
            return str(value)
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return f"a value of type {type(value).__name__}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or the only one it begins, upper and lower case alike; None without any."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    folded = name.casefold()
    matches = difflib.get_close_matches(folded, by_folded, n=1)
    if not matches and folded:
        begun = [candidate for candidate in by_folded if candidate.startswith(folded)]
        matches = begun if len(begun) == 1 else []
    return by_folded[matches[0]] if matches else None
