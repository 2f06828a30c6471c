"""The configuration of `specgauge.run`: a path, a shipped name, a mapping or a Config, with keywords put into it.

A keyword is a field at the top of the configuration or one of `workload`, `grid`, `precision` and `limits`, whose names
do not meet; the fields of other sections are written as a mapping, as in YAML:

    config_of_keywords(None, target="org/8b", draft="org/1b", fields={"batch_size": [1, 8], "validate": {}})
    config_of_keywords("mine.yaml", fields={"gamma": "1:8"})
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from specgauge.configs.errors import did_you_mean, shown
from specgauge.configs.fields import LONGEST_NAME
from specgauge.configs.loader import config_of, load_config
from specgauge.configs.schema import Config, GridConfig, LimitsConfig, PrecisionConfig, WorkloadConfig
from specgauge.configs.variants import part_of_name

LABEL = "run"
"""What errors call a configuration made in Python."""
SHORT_SECTIONS: Mapping[str, type[BaseModel]] = {
    "workload": WorkloadConfig,
    "grid": GridConfig,
    "precision": PrecisionConfig,
    "limits": LimitsConfig,
}
OPTIONS = ("target", "draft", "out", "fresh")


def places() -> dict[str, tuple[str, ...]]:
    """Where each keyword stands in the configuration."""
    top: dict[str, tuple[str, ...]] = {
        field.alias or name: (field.alias or name,) for name, field in Config.model_fields.items()
    }
    return top | {name: (key, name) for key, section in SHORT_SECTIONS.items() for name in section.model_fields}


def config_of_keywords(
    source: str | Path | Mapping[str, Any] | Config | None,
    *,
    target: str | Path | Mapping[str, Any] | None = None,
    draft: str | Path | Mapping[str, Any] | None = None,
    fields: Mapping[str, object],
) -> Config:
    """The Config that YAML with the same values would give; without a source or a target it is that of quickstart.

    Raises:
        ValueError: one line: an unknown keyword (with the nearest), a value that its field does not take, a target
            without a draft, or either of them beside several pairs.
    """
    known = places()
    for name in fields:
        if name not in known:
            hint = did_you_mean(name, [*known, *OPTIONS])
            raise ValueError(f"{LABEL}: expected a field of the configuration, got {name}={hint}")
    content = _content("quickstart" if source is None and target is None and draft is None else source)
    for name, value in fields.items():
        *section, key = known[name]
        holder = content
        for part in section:
            holder = holder.setdefault(part, {})
            if not isinstance(holder, dict):
                config_of(content, LABEL)  # which says what is wrong with it
        if section and section[0] in fields and key in holder:
            raise ValueError(f"{LABEL}: expected {section[0]}.{key} once, got it in {section[0]}= and as {name}=")
        holder[key] = plain_value(value)
    given = {role: plain_value(model) for role, model in (("target", target), ("draft", draft)) if model is not None}
    if given:
        _put_pair(content, given)
    return config_of(content, LABEL)


def _content(source: str | Path | Mapping[str, Any] | Config | None) -> dict[str, Any]:
    if isinstance(source, (str, Path)):
        source = load_config(source, require_files=True)
    if not (source is None or isinstance(source, (Mapping, Config))):
        expected = "a path, the name of a shipped configuration, a mapping or a Config"
        raise ValueError(f"{LABEL}: expected {expected}, got {shown(source)}")
    content: dict[str, Any] = {} if source is None else plain_value(source)
    return content


def _put_pair(content: dict[str, Any], given: Mapping[str, Any]) -> None:
    """The target and draft as the only pair, or into the one that is there."""
    pairs = content.get("pairs")
    if pairs is None:
        for role in ("target", "draft"):
            if role not in given:
                raise ValueError(f"{LABEL}: expected target= and draft=, or a configuration with pairs, got no {role}")
        name = _pair_name(**given)
        content["pairs"] = [{"name": name, **given}]
        content.setdefault("name", name)
    elif isinstance(pairs, list) and len(pairs) == 1 and isinstance(pairs[0], dict):
        pairs[0].update(given)
    else:
        got = f"{len(pairs)} pairs" if isinstance(pairs, list) else "no list of pairs"
        raise ValueError(f"{LABEL}: expected one pair to put {' and '.join(given)} into, got {got}")


def _pair_name(target: object, draft: object) -> str:
    """``Llama-8B-Llama-1B`` of org/Llama-8B and org/Llama-1B."""
    parts = []
    for model in (target, draft):
        if isinstance(model, dict) and "model" not in model:
            parts.append("-".join(f"{key}-{value}" if isinstance(value, int) else key for key, value in model.items()))
        else:
            name = model["model"] if isinstance(model, dict) else model
            parts.append(str(name).rstrip("/").rpartition("/")[2])
    return part_of_name("-".join(dict.fromkeys(map(part_of_name, parts))))[:LONGEST_NAME].strip(".-")


def plain_value(value: object) -> Any:
    """A value as YAML would hold it: tuples, ranges and arrays are lists, numpy's numbers plain, paths text."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain_value(one) for one in value]
    return value
