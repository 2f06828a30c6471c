"""Hardware entries and model shapes that ship with specgauge: numbers with their sources, as frozen data.

An entry is a YAML file in `configs/hardware/`, each number a value and its source, null where nobody says; a shape is a
config.json's fields in `configs/shapes/`.  Both come out as plain data that the model takes as it is:

    Hardware(**load_hardware("a100-80gb-sxm").plain())
    architecture_from_config(load_shape("llama-3.1-8b"), name="llama-3.1-8b")

A user's own entry (such as `python -m specgauge.bench.probe` prints) or config.json is named by its path instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specgauge.configs.faults import ConfigError, Keys, nearest, place_name, shown, unknown_key
from specgauge.configs.yaml_reader import Dumper, Source, read_yaml

_HARDWARE = Path(__file__).parent / "hardware"
_SHAPES = Path(__file__).parent / "shapes"
_WIDE = 1 << 20


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Quantity(_Frozen):
    """A number and the document or measurement that says so."""

    value: Annotated[float, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]


class Count(_Frozen):
    """A whole number and its source."""

    value: Annotated[int, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]


class Peaks(_Frozen):
    """Dense peak rates in FLOPs (or integer operations) per second, by dtype; null is unknown or not there."""

    float64: Quantity | None = None
    float32: Quantity | None = None
    tfloat32: Quantity | None = None
    bfloat16: Quantity | None = None
    float16: Quantity | None = None
    float8: Quantity | None = None
    int8: Quantity | None = None
    int4: Quantity | None = None


class HardwareEntry(_Frozen):
    """One device; null is unknown."""

    name: Annotated[str, Field(min_length=1)]
    description: str
    memory_bytes: Quantity | None
    memory_bandwidth_bytes_per_s: Quantity | None
    link_bandwidth_bytes_per_s: Quantity | None
    """To the other devices of a tensor-parallel group, one direction."""
    multiprocessors: Count | None
    """Streaming multiprocessors or compute units; null on a CPU."""
    peak_flops_per_s: Peaks

    def plain(self) -> dict[str, Any]:
        """Values without their sources, by the field names of `specgauge.model.roofline.deployment.Hardware`."""
        peaks = {name: getattr(self.peak_flops_per_s, name) for name in Peaks.model_fields}
        return {
            "name": self.name,
            "memory_bytes": _value(self.memory_bytes),
            "memory_bandwidth_bytes_per_s": _value(self.memory_bandwidth_bytes_per_s),
            "link_bandwidth_bytes_per_s": _value(self.link_bandwidth_bytes_per_s),
            "multiprocessors": _value(self.multiprocessors),
            "peak_flops_per_s": {name: quantity.value for name, quantity in peaks.items() if quantity is not None},
        }

    def to_yaml(self) -> str:
        """The text of the entry's file; `load_hardware` reads it back equal."""
        text: str = yaml.dump(
            self.model_dump(mode="json"), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=_WIDE
        )
        return text


def _value(quantity: Quantity | Count | None) -> float | int | None:
    return None if quantity is None else quantity.value


def hardware_names() -> list[str]:
    """Names of the shipped hardware entries."""
    return sorted(path.stem for path in _HARDWARE.glob("*.yaml"))


def shape_names() -> list[str]:
    """Names of the shipped model shapes."""
    return sorted(path.stem for path in _SHAPES.glob("*.json"))


def load_hardware(source: str | Path) -> HardwareEntry:
    """A shipped entry by name, or a YAML file by path.

    Raises ConfigError with one line: an unknown name (and the nearest), or the file, line and field that is wrong.
    """
    path = _find(source, _HARDWARE, ".yaml", "hardware entry", hardware_names())
    document = read_yaml(_text(path), Source(str(path)))
    for fault in document.faults:
        line = fault.line or document.lines.get(fault.keys, 1)
        raise ConfigError(f"{path}:{line}: {fault.words}")
    if not isinstance(document.value, dict):
        raise ConfigError(f"{path}: found {shown(document.value)}, allowed: a mapping with the fields of an entry")
    try:
        return HardwareEntry.model_validate(document.value)
    except ValidationError as error:
        raise ConfigError(_first_fault(error, document.lines, path)) from None


def load_shape(source: str | Path) -> dict[str, Any]:
    """Fields of a config.json: a shipped shape by name, a JSON file, or a folder that holds a config.json.

    Raises ConfigError with one line for an unknown name (and the nearest) and for a file that is not a JSON mapping.
    """
    path = _find(source, _SHAPES, ".json", "model shape", shape_names())
    if path.is_dir():
        path = path / "config.json"
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: found {shown(value)}, allowed: the mapping of a transformers config.json")
    return value


def _find(source: str | Path, folder: Path, suffix: str, what: str, names: list[str]) -> Path:
    name = str(source).lower()
    if name in names:
        return folder / f"{name}{suffix}"
    path = Path(source)
    if str(source) and path.exists():
        return path
    guess = nearest(str(source), names)
    hint = f" (nearest: {guess!r})" if guess else ""
    raise ConfigError(f"{what}: found {str(source)!r}{hint}, allowed: a file that exists, or {', '.join(names)}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error


def _first_fault(error: ValidationError, lines: dict[Keys, int], path: Path) -> str:
    """pydantic's first complaint as one line: file, line, field, what was found, what is allowed."""
    order = {"extra_forbidden": 0, "missing": 2}
    first = min(error.errors(), key=lambda each: order.get(each["type"], 1))
    keys: Keys = tuple(first["loc"])
    line = next((lines[keys[:n]] for n in range(len(keys), -1, -1) if keys[:n] in lines), 1)
    if first["type"] == "extra_forbidden":
        known = _fields_at(keys[:-1])
        return f"{path}:{line}: {unknown_key(keys[:-1], str(keys[-1]), known).words}"
    if first["type"] == "missing":
        place = place_name(keys[:-1]) or "the entry"
        return f"{path}:{line}: missing key {str(keys[-1])!r} in {place}; write null where it is unknown"
    message = first["msg"].removeprefix("Input should be ")
    return f"{path}:{line}: {place_name(keys)}: found {shown(first['input'])}, allowed: {message}"


def _fields_at(keys: Keys) -> list[str]:
    """The keys that a mapping of an entry may have."""
    if not keys:
        return list(HardwareEntry.model_fields)
    return list(Peaks.model_fields if keys == ("peak_flops_per_s",) else Quantity.model_fields)
