"""Loads configurations, a person's own by path and the shipped ones by name, and writes them out again.

    load_config("quickstart", ["grid.batch_size=[1,2]"])  →  Config, or ConfigError with one line

Everything that is wrong with a configuration is found before anything is said; the line tells the first fault and how
many follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specgauge.configs.canonical import short_hash
from specgauge.configs.errors import (
    ConfigError,
    Fault,
    Keys,
    did_you_mean,
    error_fault,
    explain,
    nearest,
    shown,
    value_fault,
)
from specgauge.configs.executor import ExecutorConfig
from specgauge.configs.fields import EMBEDDED
from specgauge.configs.overrides import Written
from specgauge.configs.reading import expanded
from specgauge.configs.schema import SPREAD, Config
from specgauge.configs.variants import ExpandedPairs, spread
from specgauge.configs.yaml_reader import config_text, dump_yaml

_FOLDER = Path(__file__).parent


def load_config(source: str | Path, overrides: Sequence[str] = (), *, require_files: bool = False) -> Config:
    """The configuration in a YAML file or of a shipped name, with ``overrides`` such as ``grid.gamma=1:6`` applied.

    Prompt files and model directories are made absolute where they exist: looked for beside the YAML file, then in the
    working directory (the other way round where an override names them).  ``require_files`` makes prompts that are not
    there, and models written as paths that are not there, faults too.

    Raises:
        ConfigError: one line: where, what is expected, what was got, the nearest valid name.
    """
    text, label, folder = _read(source)
    written = Written.of_file(text, label, Config, hint="; 'specgauge configs quickstart' shows one")
    for option in overrides:
        written.set_option(option)
    return _checked(written, folder, require_files=require_files)


def config_of(content: Mapping[str, Any], label: str) -> Config:
    """The configuration of plain values as YAML would hold them; ``label`` names them in errors.

    Paths are taken from the working directory, and must exist.

    Raises:
        ConfigError: as `load_config`.
    """
    return _checked(Written.of_value(content, label), Path(), require_files=True)


def _checked(written: Written, folder: Path, *, require_files: bool) -> Config:
    pairs = spread(written.value)
    faults = [error_fault(error, pairs.place(keys)) for keys, error in pairs.errors]
    config = None
    try:
        config = Config.model_validate(pairs.value, context=SPREAD)
    except ValidationError as error:
        told = {fault.keys for fault in faults}
        told |= {fault.keys for fault in written.faults if fault.code == "unreadable"}
        found = explain(error, Config, pairs.value, pairs.place)
        faults += [fault for fault in found if fault.keys not in told]
    if written.faults or faults or config is None:
        raise written.error(written.faults + faults)
    config, absent = _resolve_paths(config, pairs, written, folder)
    if absent and require_files:
        raise written.error(absent)
    return config


def config_to_yaml(config: Config) -> str:
    """YAML with every default written out; loading it gives an equal Config."""
    return dump_yaml(config.model_dump(mode="json"))


EFFORT = {
    "precision": {"relative_ci", "max_blocks", "max_seconds", "max_cell_seconds"},
    "validate": {"max_seconds", "repetitions"},
    "limits": {"run_seconds"},
    "executor": set(ExecutorConfig.model_fields),
}
"""Fields that say how much is measured, or where, and not what, by section: a run that is there takes new ones and is
resumed."""


def config_hash(config: Config) -> str:
    """12 hexadecimal digits that change with anything a result depends on; the run's name and effort are left out."""
    fields = config.model_dump(mode="json", exclude={"name", "executor"})
    for section, effort in EFFORT.items():
        for field in effort & (fields.get(section) or {}).keys():
            del fields[section][field]
    return short_hash(fields)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what may be written, shorthands included; its ``x-`` keys are words of errors."""
    schema = Config.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "specgauge configuration"}


def _resolve_paths(config: Config, pairs: ExpandedPairs, written: Written, folder: Path) -> tuple[Config, list[Fault]]:
    """The configuration with paths made absolute, and a fault for each path that leads nowhere."""
    content = config.model_dump()
    absent: list[Fault] = []
    holders: dict[Keys, dict[str, Any]] = {("workload", "prompts"): content["workload"]}
    for index, pair in enumerate(content["pairs"]):
        if pair["engine"]:  # whose models are names
            continue
        holders |= {
            ("pairs", index, role, "model"): pair[role] for role in ("target", "draft") if "model" in pair[role]
        }
    for keys, holder in holders.items():
        key = str(keys[-1])
        text = holder[key]
        if text == EMBEDDED:
            continue
        place = written.place(pairs.place(keys))
        folders = (Path(), folder) if written.from_option(place) else (folder, Path())
        path = _home_replaced(text)
        exists = Path.is_dir if key == "model" else Path.exists
        at = next((base / path for base in folders if exists(base / path)), None)
        if at is not None:
            holder[key] = str(at.resolve())
        elif key == "prompts" or text.startswith(("/", "./", "../", "~")) or text.count("/") > 1:  # no hub id
            where = " or ".join(dict.fromkeys(str((base / path).parent.absolute()) for base in folders))
            expected = f"{EMBEDDED} or one that exists (looked in {where})"
            absent.append(value_fault("no_file", place, shown(text), expected))
    return Config.model_validate(content), list(dict.fromkeys(absent))


def shipped_configs() -> list[str]:
    """Names of the configurations that ship with specgauge, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def shipped_text(name: str) -> str:
    """The YAML text of a shipped configuration, comments included.

    Raises:
        ConfigError: there is none of that name.
    """
    names = shipped_configs()
    if name not in names:
        hint = did_you_mean(Path(name).stem, names)
        raise ConfigError(f"expected a shipped config ({', '.join(names)}), got {name!r}{hint}")
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def _read(source: str | Path) -> tuple[str, str, Path]:
    """(text, label for errors, folder that relative paths start from) of a file, or else of a shipped name."""
    path = _home_replaced(source)
    if path.is_dir() or not path.exists():
        if str(source) in shipped_configs():
            return shipped_text(str(source)), f"{source}.yaml", _FOLDER
        raise ConfigError(_not_a_file(source, path))
    return config_text(path), str(source), path.parent


def _home_replaced(path: str | Path) -> Path:
    try:
        return expanded(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _not_a_file(source: str | Path, path: Path) -> str:
    """What is wrong with a source that names no file, and the file or shipped name nearest to it."""
    guess: str | Path | None
    if path.is_dir():
        got, guess = "a directory", path / "config.yaml" if (path / "config.yaml").is_file() else None
    else:
        beside = {file.name: file for file in path.parent.glob("*.y*ml")}
        close = nearest(path.name, beside)
        got, guess = "no such file", beside[close] if close else nearest(path.stem, shipped_configs())
    hint = f"; did you mean '{guess}'?" if guess else ""
    names = ", ".join(shipped_configs())
    return f"{source}: expected the path of a YAML file, or a shipped name: {names}, got {got}{hint}"
