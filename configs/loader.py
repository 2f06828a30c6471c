"""Loads configurations, a person's own by path and the shipped ones by name, and writes them out again.

    load_config("quickstart", ["grid.batch_size=[1,2]"])  →  Config, or ConfigError with one line

Everything that is wrong with a configuration is found before anything is said; the line tells the first fault and how
many follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specgauge.configs.canonical import short_hash
from specgauge.configs.errors import ConfigError, Fault, Keys, explain, fail, nearest, shown, value_fault, words_for
from specgauge.configs.fields import EMBEDDED
from specgauge.configs.overrides import Written
from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import SPREAD, Config, sampling_name_errors
from specgauge.configs.variants import Spread, spread
from specgauge.configs.yaml_reader import Source, dump_yaml, read_yaml

__all__ = ["EFFORT", "ConfigError", "config_hash", "config_to_yaml", "json_schema", "load_config", "shipped_configs"]

LARGEST_FILE_BYTES = 1 << 20
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
    origin = Source(label)
    document = read_yaml(text, origin)
    if not isinstance(document.value, dict):
        got = "only comments" if text.strip() else "an empty file"
        got = f"{shown(document.value)} at the top level" if document.lines else got
        example = "'specgauge configs quickstart' shows one"
        where = origin.at(document.lines.get((), 1))
        raise ConfigError(f"{where}: expected {words_for(Config)}, got {got}; {example}")
    written = Written.from_document(document, origin)
    for option in overrides:
        written.set_option(option)
    pairs = spread(written.value)
    config, faults = _validate(written.value, pairs)
    unreadable = {fault.keys for fault in written.faults if fault.code == "unreadable"}
    faults = written.faults + [fault for fault in faults if fault.keys not in unreadable]
    if config is not None:
        config, absent = _resolve_paths(config, pairs, written, folder)
        faults += absent if require_files else []
    if faults or config is None:
        raise written.error(faults)
    return config


def _validate(written: Mapping[str, Any], pairs: Spread) -> tuple[Config | None, list[Fault]]:
    """The configuration, or None and everything wrong with it, at the places written."""
    config, faults, errors = None, [], pairs.errors
    try:
        config = Config.model_validate(pairs.value, context=SPREAD)
    except ValidationError as error:
        faults = explain(error, Config, pairs.value, pairs.place)
        settings = written.get("sampling")
        errors = errors + sampling_name_errors(settings if isinstance(settings, list) else [])
    try:
        fail(errors)
    except ValidationError as error:
        names = {fault.keys: fault for fault in explain(error, Config, pairs.value, pairs.place)}
        return None, [*names.values(), *(fault for fault in faults if fault.keys not in names)]
    return config, faults


def config_to_yaml(config: Config) -> str:
    """YAML with every default written out; loading it gives an equal Config."""
    return dump_yaml(config.model_dump(mode="json"))


EFFORT = {
    "precision": {"relative_ci", "max_blocks", "max_seconds", "max_cell_seconds"},
    "validate": {"max_seconds", "repetitions"},
    "limits": {"run_seconds"},
}
"""Fields that say how much is measured and not what, by section: a run that is there takes new ones and is resumed."""

LATER = {"validate": {"baseline_blocks": None}}
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
    fields = without_later(config.model_dump(mode="json", exclude={"name"}))
    for section, effort in EFFORT.items():
        if fields[section] is not None:
            fields[section] = {name: value for name, value in fields[section].items() if name not in effort}
    return short_hash(fields)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what may be written, shorthands included; its ``x-`` keys are words of errors."""
    schema = Config.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "specgauge configuration"}


def _resolve_paths(config: Config, pairs: Spread, written: Written, folder: Path) -> tuple[Config, list[Fault]]:
    """The configuration with paths made absolute, and a fault for each path that leads nowhere."""
    content = config.model_dump()
    absent: list[Fault] = []
    for keys, holder, key, must_exist in _paths(config, content):
        place, text = written.place(pairs.place(keys)), holder[key]
        folders = (Path(), folder) if written.from_option(place) else (folder, Path())
        path = Path(text).expanduser()
        exists = Path.is_dir if key == "model" else Path.exists
        at = next((base / path for base in folders if exists(base / path)), None)
        if at is not None:
            holder[key] = str(at.resolve())
        elif must_exist:
            where = " or ".join(dict.fromkeys(str((base / path).parent.absolute()) for base in folders))
            expected = f"{EMBEDDED} or one that exists (looked in {where})"
            absent.append(value_fault("no_file", place, shown(text), expected))
    return Config.model_validate(content), list(dict.fromkeys(absent))


def _paths(config: Config, content: dict[str, Any]) -> Iterator[tuple[Keys, dict[str, Any], str, bool]]:
    """(place, the mapping in ``content`` that holds it, its key there, whether it can only be a path) of each path."""
    if config.workload.prompts != EMBEDDED:
        yield ("workload", "prompts"), content["workload"], "prompts", True
    for index, pair in enumerate(config.pairs):
        for role in ("target", "draft"):
            model = getattr(pair, role)
            if isinstance(model, ModelConfig) and model.model != EMBEDDED:
                only_a_path = model.model.startswith(("/", "./", "../", "~")) or model.model.count("/") > 1
                yield ("pairs", index, role, "model"), content["pairs"][index][role], "model", only_a_path


def shipped_configs() -> list[str]:
    """Names of the configurations that ship with specgauge, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def shipped_text(name: str) -> str:
    """The YAML text of a shipped configuration, comments included.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in shipped_configs():
        hint = _did_you_mean(nearest(Path(name).stem, shipped_configs()))
        raise ConfigError(f"no shipped config {name!r}{hint} shipped: {', '.join(shipped_configs())}")
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def _read(source: str | Path) -> tuple[str, str, Path]:
    """(text, label for errors, folder that relative paths start from) of a file, or else of a shipped name."""
    path = Path(source).expanduser()
    if path.is_dir() or not path.exists():
        if str(source) in shipped_configs():
            return shipped_text(str(source)), f"{source}.yaml", _FOLDER
        raise ConfigError(_not_a_file(source, path))
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise ConfigError(f"{source}: expected a YAML config, got a file of over {LARGEST_FILE_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8-sig"), str(source), path.parent
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: expected a UTF-8 text file, got bytes that are not UTF-8") from error


def _not_a_file(source: str | Path, path: Path) -> str:
    expected = f"expected the path of a YAML file, or a shipped name: {', '.join(shipped_configs())}"
    if path.is_dir():
        inside = path / "config.yaml"
        return f"{source}: is a directory{_did_you_mean(str(inside) if inside.is_file() else None)} {expected}"
    beside = {file.name: str(file) for file in path.parent.glob("*.y*ml")} if path.parent.is_dir() else {}
    close = nearest(path.name, beside)
    guess = nearest(Path(source).stem, shipped_configs()) if close is None else beside[close]
    return f"{source}: no such file{_did_you_mean(guess)} {expected}"


def _did_you_mean(guess: str | None) -> str:
    return f"; did you mean {guess!r}?" if guess else ","
