"""Loads configurations and writes them out again.

    load_config("quickstart", ["grid.batch_size=[1,2]"])  →  Config, or ConfigError with one line

Everything that is wrong with a configuration is found before anything is said; the line tells the first fault and how
many follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specgauge.configs.canonical import short_hash
from specgauge.configs.faults import ConfigError, Fault, Keys, shown, value_fault
from specgauge.configs.names import EMBEDDED
from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import Config
from specgauge.configs.shipped import read_config_text, shipped_configs
from specgauge.configs.validation import top_level_forms, validate
from specgauge.configs.written import Written, first_of
from specgauge.configs.yaml_reader import Document, Dumper, Source, read_yaml

__all__ = ["EFFORT", "ConfigError", "config_hash", "config_to_yaml", "json_schema", "load_config", "shipped_configs"]

_EXAMPLE = "'specgauge configs quickstart' shows one"
_WIDE = 1 << 20


def load_config(source: str | Path, overrides: Sequence[str] = (), *, require_files: bool = False) -> Config:
    """The configuration in a YAML file or of a shipped name, with ``overrides`` such as ``grid.gamma=1:6`` applied.

    Prompt files and model directories are made absolute where they exist: looked for beside the YAML file, then in the
    working directory (the other way round where an override names them).  ``require_files`` makes prompts that are not
    there, and models written as paths that are not there, faults too.

    Raises ConfigError, a ValueError of one line: where, what was found, what is allowed, the nearest valid name.
    """
    text, label, folder = read_config_text(source)
    origin = Source(label)
    document = read_yaml(text, origin)
    _check_top_level(document, text, label)
    written = Written.from_document(document, origin)
    for option in overrides:
        written.set_option(option)
    config, faults, places = validate(written.value)
    unreadable = {fault.keys for fault in written.faults if not fault.about}
    faults = written.faults + [fault for fault in faults if fault.keys not in unreadable]
    if config is not None:
        config, absent = _resolve_paths(config, places, written, folder)
        faults += absent if require_files else []
    if faults or config is None:
        raise first_of(faults, written)
    return config


def config_to_yaml(config: Config) -> str:
    """YAML with every default written out; loading it gives an equal Config."""
    text: str = yaml.dump(
        config.model_dump(mode="json"),
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=_WIDE,
    )
    return text


EFFORT = {
    "precision": {"relative_ci", "max_blocks", "max_seconds", "max_cell_seconds"},
    "verify": {"max_seconds", "repetitions"},
    "limits": {"run_seconds"},
}
"""Fields that say how much is measured and not what, by section: a run that is there takes new ones and goes on."""


LATER = {"verify": {"baseline_blocks": None}}
"""Fields that earlier releases did not have, by section, with the value that means the same as not having them."""


def without_later(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration without those of `LATER` that say what is so without them."""
    found = dict(fields)
    for section, later in LATER.items():
        if isinstance(own := found.get(section), Mapping):
            found[section] = {name: value for name, value in own.items() if name not in later or value != later[name]}
    return found


def config_hash(config: Config) -> str:
    """12 hexadecimal digits that change with anything a result depends on; the run's name and effort are left out."""
    return short_hash(without_later(config.model_dump(mode="json", exclude={"name": True, **EFFORT})))


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what may be written, shorthands included."""
    schema = Config.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "specgauge configuration"}


def _check_top_level(document: Document, text: str, label: str) -> None:
    if isinstance(document.value, dict):
        return
    if document.lines:
        line = document.lines[()]
        found = f"{label}:{line}: found {shown(document.value)} at the top level"
    else:
        found = f"{label}:1: the file {'holds only comments' if text.strip() else 'is empty'}"
    raise ConfigError(f"{found}, allowed: {top_level_forms()}; {_EXAMPLE}")


def _resolve_paths(config: Config, places: Sequence[int], written: Written, folder: Path) -> tuple[Config, list[Fault]]:
    """The configuration with paths made absolute, and a fault for each path that leads nowhere.

    ``places``: where each pair is written, by index.
    """
    content = config.model_dump()
    absent: list[Fault] = []
    for keys, holder, key, must_exist in _paths(config, places, content):
        text: str = holder[key]
        folders = (Path(), folder) if written.from_option(keys) else (folder, Path())
        path = Path(text).expanduser()
        exists = Path.is_dir if key == "model" else Path.exists
        found = next((base / path for base in folders if exists(base / path)), None)
        if found is not None:
            holder[key] = str(found.resolve())
        elif must_exist:
            where = " or ".join(dict.fromkeys(str((base / path).parent.absolute()) for base in folders))
            absent.append(value_fault(keys, text, f"{EMBEDDED} or one that exists (looked in {where})"))
    return Config.model_validate(content), list(dict.fromkeys(absent))


def _paths(
    config: Config, places: Sequence[int], content: dict[str, Any]
) -> Iterator[tuple[Keys, dict[str, Any], str, bool]]:
    """(place, the mapping in ``content`` that holds it, its key there, whether it can only be a path) of each path."""
    if config.workload.prompts != EMBEDDED:
        yield ("workload", "prompts"), content["workload"], "prompts", True
    for index, pair in enumerate(config.pairs):
        for role in ("target", "draft"):
            model = getattr(pair, role)
            if isinstance(model, ModelConfig) and model.model != EMBEDDED:
                only_a_path = model.model.startswith(("/", "./", "../", "~")) or model.model.count("/") > 1
                yield ("pairs", places[index], role, "model"), content["pairs"][index][role], "model", only_a_path
