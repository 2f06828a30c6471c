"""Checks a written configuration against the schema, and puts pydantic's errors into the project's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from specgauge.configs import variants
from specgauge.configs.faults import Fault, Keys, missing_key, nearest, unknown_key, value_fault
from specgauge.configs.pairs import DRAFT_FORMS, MODEL_FORMS, ModelConfig
from specgauge.configs.rules import FAULTS, Rule
from specgauge.configs.schema import Config, repeated_names
from specgauge.configs.section import Section


def validate(written: Mapping[str, Any]) -> tuple[Config | None, list[Fault], tuple[int, ...]]:
    """The configuration, or None and everything wrong with it; and where each of its pairs is written, by index.

    Faults are at the places written, where one pair may stand for several variants.
    """
    spread = variants.spread(written)
    found = list(spread.faults)
    try:
        config = Config.model_validate(spread.value)
    except ValidationError as error:
        details = error.errors(include_url=False)
    else:
        return None if found else config, found, spread.places
    misspelt = {_guess(detail) for detail in details if detail["type"] == "extra_forbidden"}
    for detail in details:
        # pydantic asks for the key that a misspelt one stands for: one mistake is one fault.
        if detail["type"] != "missing" or detail["loc"] not in misspelt:
            found += [spread.written(fault) for fault in _faults(detail)]
    told = {fault.keys for fault in spread.faults}
    found = [fault for fault in found if fault in spread.faults or fault.keys not in told]
    found = list(dict.fromkeys(found))  # what is written once is wrong once, in however many variants
    known = {fault.keys for fault in found}
    found += [fault for fault in repeated_names(written) if fault.keys not in known]
    return None, found, spread.places


def top_level_forms() -> str:
    """What a configuration is, in words that follow "allowed: "."""
    return _keys_of(Config)


def _guess(detail: ErrorDetails) -> Keys | None:
    """The place of the known key that an unknown one most resembles."""
    *parent, key = detail["loc"]
    guess = nearest(str(key), _section(tuple(parent)).model_fields)
    return None if guess is None else (*parent, guess)


def _faults(detail: ErrorDetails) -> list[Fault]:
    keys: Keys = detail["loc"]
    match detail["type"]:
        case "faults":
            return [fault.under(keys) for fault in detail["ctx"][FAULTS]]
        case "extra_forbidden":
            return [unknown_key(keys[:-1], str(keys[-1]), _section(keys[:-1]).model_fields)]
        case "missing":
            field = _section(keys[:-1], keys[-1]).model_fields[str(keys[-1])]
            return [missing_key(keys[:-1], str(keys[-1]), _forms(field))]
        case "too_short":
            # pydantic also counts the entries that are wrong as absent
            return [] if detail["input"] else [value_fault(keys, [], f"{_allowed(keys)}, at least one")]
        case _:
            return [value_fault(keys, detail["input"], _allowed(keys))]


def _allowed(keys: Keys) -> str:
    """What belongs at a place that should hold a section or a list of sections."""
    *parent, key = keys
    if isinstance(key, int):
        return _keys_of(_section(keys))
    return _forms(_section(tuple(parent), key).model_fields[key])


def _forms(field: FieldInfo) -> str:
    for rule in field.metadata:
        if isinstance(rule, Rule):
            return rule.allowed
    section = _section_in(field)
    if section is ModelConfig:
        return MODEL_FORMS if section is field.annotation else DRAFT_FORMS
    if section is field.annotation:
        return _keys_of(section)
    if type(None) in get_args(field.annotation):
        return f"{_keys_of(section)}, or null"
    return f"a list, each {_keys_of(section)}"


def _keys_of(section: type[Section]) -> str:
    return f"a mapping with the keys {', '.join(section.model_fields)}"


def _section(keys: Keys, key: str | int | None = None) -> type[Section]:
    """The section whose keys stand at ``keys``; the one with ``key`` where it may be one of several."""
    section: type[Section] = Config
    for depth, name in enumerate(keys):
        if isinstance(name, str):
            section = _section_in(section.model_fields[name], keys[depth + 1] if depth + 1 < len(keys) else key)
    return section


def _section_in(field: FieldInfo, key: str | int | None = None) -> type[Section]:
    """The section a field holds, or holds a list of; of several the one with ``key``, else the first."""
    kind: Any = field.annotation
    kinds = (kind,) if isinstance(kind, type) and issubclass(kind, Section) else get_args(kind)
    sections = [one for one in kinds if isinstance(one, type) and issubclass(one, Section)]
    assert sections, f"no section: {kind}"
    return next((one for one in sections if key in one.model_fields), sections[0])
