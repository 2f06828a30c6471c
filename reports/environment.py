"""environment.json as facts for a reader: names in words, values with their units scaled, unknown as a dash.

Whatever the mapping holds is shown; nothing is known here about what should be in it. Output: headings with pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from specgauge.reports.formatting import UNKNOWN

_UNITS = (
    ("_bytes", 2**30, "GiB"),
    ("_hz", 1e6, "MHz"),
    ("_w", 1.0, "W"),
    ("_c", 1.0, "°C"),
)  # fmt: skip


def environment_sections(environment: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(heading, [(name, value)]) of environment.json: plain values first, then every mapping under its own heading."""
    plain: list[tuple[str, str]] = []
    sections = [("General", plain)]
    for name, value in environment.items():
        flat = list(_flat(str(name), value))
        if len(flat) > 1 or (flat and isinstance(value, Mapping)):
            prefix = f"{_words(str(name))}: "
            sections.append((_words(str(name)), [(label.removeprefix(prefix), text) for label, text in flat]))
        else:
            plain.extend(flat or [(_words(str(name)), UNKNOWN)])
    return [section for section in sections if section[1]]


def _flat(name: str, value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Leaves of a nested value, each with the path to it in words."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(str(key), inner, f"{prefix}{_words(name)}: ")
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for index, inner in enumerate(value):
            yield from _flat(str(index), inner, f"{prefix}{_words(name)}: ")
    else:
        label, text = _with_unit(name, value)
        yield f"{prefix}{label}", text


def _with_unit(name: str, value: Any) -> tuple[str, str]:
    """A leaf's name without its unit suffix, and its value with the unit."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for suffix, scale, unit in _UNITS:
            if name.endswith(suffix):
                return _words(name.removesuffix(suffix)), f"{value / scale:.4g} {unit}"
    return _words(name), _plain(value)


def _words(name: str) -> str:
    return name.replace("_", " ") if name.islower() else name


def _plain(value: Any) -> str:
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(one) for one in value) or UNKNOWN
    return str(value)
