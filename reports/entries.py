"""One value of a row of a CSV file or of an entry of a YAML file, as text, as a number or missing, read as what it is.

    whole_of({"gamma": "4"}, "gamma")        # 4

A value that is not there or of another kind is a ValueError that names the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """A value as it stands; None where it is not known.  Raises ValueError where it is not there."""
    if name not in row:
        raise ValueError(f"{name}: not there, allowed: present in every entry")
    value = row[name]
    return None if value is None or value == "" or value != value else value


def text_of(row: Mapping[str, Any], name: str) -> str:
    """Text; empty where there is none."""
    value = value_of(row, name)
    return "" if value is None else str(value)


def number_of(row: Mapping[str, Any], name: str) -> float | None:
    """A number, or None."""
    value = value_of(row, name)
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: found {value!r}, allowed: a number, or nothing when unknown") from error


def whole_or_none_of(row: Mapping[str, Any], name: str) -> int | None:
    """A whole number, or None."""
    value = number_of(row, name)
    if value is not None and not value.is_integer():
        raise ValueError(f"{name}: found {value!r}, allowed: a whole number")
    return None if value is None else int(value)


def whole_of(row: Mapping[str, Any], name: str) -> int:
    """A whole number."""
    value = whole_or_none_of(row, name)
    if value is None:
        raise ValueError(f"{name}: found nothing, allowed: a whole number")
    return value


def flag_of(row: Mapping[str, Any], name: str) -> bool:
    """True or false."""
    value = str(value_of(row, name)).lower()
    if value not in {"true", "false", "1", "0", "none"}:
        raise ValueError(f"{name}: found {value!r}, allowed: true or false")
    return value in {"true", "1"}
