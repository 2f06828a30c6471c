"""Hardware entries and model shapes that ship with specgauge: numbers with their sources, as frozen data.

An entry is a YAML file in `configs/hardware/`, each number a value and its source, null where nobody says; a shape is a
config.json's fields in `configs/shapes/`.  Both come out as plain data that the model takes as it is:

    Hardware(**load_hardware("a100-80gb-sxm").plain())
    architecture_from_config(load_shape("llama-3.1-8b"), name="llama-3.1-8b")

A user's own entry (such as `python -m specgauge.bench.probe` prints) or config.json is named by its path instead, a
model of the hub by its id where its config.json is in the local cache.  An entry may carry a calibration: what measured
times say of its peaks, and how far the times so predicted are off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from specgauge.configs.errors import ConfigError, did_you_mean, explain, refused, shown
from specgauge.configs.fields import Section
from specgauge.configs.overrides import Written
from specgauge.configs.yaml_reader import config_text, dump_yaml

_FOLDER = Path(__file__).parent
HARDWARE = {path.stem: path for path in sorted(_FOLDER.glob("hardware/*.yaml"))}
SHAPES = {path.stem: path for path in sorted(_FOLDER.glob("shapes/*.json"))}
"""The shipped hardware entries and model shapes: files by name."""


class Quantity(Section):
    """A number and the document or measurement that says so."""

    value: Annotated[float, Field(ge=1, le=1e30)]
    source: Annotated[str, Field(min_length=1)]


class Count(Section):
    """A whole number and its source."""

    value: Annotated[int, Field(ge=1, le=1_000_000)]
    source: Annotated[str, Field(min_length=1)]


class Peaks(Section):
    """Dense peak rates in FLOPs (or integer operations) per second, by dtype; null is unknown or not there."""

    float64: Quantity | None = None
    float32: Quantity | None = None
    tfloat32: Quantity | None = None
    bfloat16: Quantity | None = None
    float16: Quantity | None = None
    float8: Quantity | None = None
    int8: Quantity | None = None
    int4: Quantity | None = None


_Error = Annotated[float, Field(ge=0, le=1e30)]
_LogError = Annotated[float, Field(ge=0, le=100)]
_Seconds = Annotated[float, Field(ge=0, le=1e6)]
_Fraction = Annotated[float, Field(ge=1e-6, le=1e6)]
_Names = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
_Positive = Annotated[int, Field(gt=0)]


def _rising(values: list[int]) -> list[int]:
    if len(values) != 2 or values[1] < values[0]:
        raise refused(values, "two numbers, the smallest and the largest")
    return values


_Span = Annotated[list[_Positive], AfterValidator(_rising)]


class CalibrationError(Section):
    """How far times are predicted by fits that had not seen them."""

    held_out: Literal["batch_size", "context", "tokens", "target", "row"]
    """What was left out of the fit together, each value of it in turn."""
    mean: _Error
    """Mean absolute relative error of a time, a fraction."""
    worst: _Error
    decode: _LogError
    """Root mean square of log(predicted / measured) of T_decode."""
    verify: _LogError
    """The same of T_verify."""
    ratio: _LogError
    """The same of T_verify / T_decode."""


class DraftError(Section):
    """How far times of drafts are predicted by fits that had not seen them."""

    held_out: Literal["batch_size", "context", "row", "draft"]
    """What was left out of the fit together, each value of it in turn."""
    mean: _Error
    """Mean absolute relative error of C(gamma), a fraction."""
    worst: _Error
    rms: _LogError
    """Root mean square of log(predicted / measured)."""


class DraftCalibration(Section):
    """What measured times of drafts say beyond their targets' steps, whose two fractions they keep."""

    launch_s: _Seconds
    """Fixed seconds of one layer."""
    token_s: _Seconds
    """Fixed seconds for each token drawn: a draft step has one for each sequence."""
    steps: _Positive
    """Measured times it was fitted to."""
    drafts: _Names
    """Shapes whose times they are."""
    same_draft: DraftError
    """For the shapes above."""
    other_draft: DraftError | None = None
    """For other shapes; null where there is one shape only."""


class CalibrationEntry(Section):
    """What measured steps say of a device and its software (`specgauge plan --calibrate … --out FILE` writes it)."""

    bandwidth_fraction: _Fraction
    """Share of the memory bandwidth that is reached."""
    flops_fraction: _Fraction
    """Share of the peak FLOP rates that is reached."""
    launch_s: _Seconds
    """Fixed seconds of one layer."""
    t_overhead_s: Annotated[float, Field(ge=-1e6, le=1e6)] | None = None
    """Epsilon, the rest of a round; null where a table has no measured speed-ups, or a run has not measured it."""
    not_identified: list[str]
    """Fitted numbers that the steps hardly depend on, or that are at their bound."""
    steps: _Positive
    """Measured times it was fitted to."""
    targets: _Names
    """Shapes whose steps they are."""
    tensor_parallel: Annotated[list[_Positive], Field(min_length=1)]
    batch_sizes: _Span
    """Smallest and largest."""
    contexts: Annotated[list[Annotated[int, Field(ge=0)]], AfterValidator(_rising)]
    """Smallest and largest."""
    tokens: _Span
    """Smallest and largest number fed to a sequence."""
    same_target: CalibrationError | None = None
    """For the shapes above; null where there is nothing to leave out."""
    other_target: CalibrationError | None = None
    """For other shapes; null where there is one shape only."""
    draft_error: _LogError | None = None
    """Root mean square of log(predicted / measured) of C(gamma), drafts' times, by the numbers above; null where there
    is none of a known shape."""
    draft: DraftCalibration | None = None
    """Null: drafts take the numbers above, as times of theirs are few or no fit predicts those left out better."""
    source: Annotated[str, Field(min_length=1)]
    """Where the times are from."""
    command: Annotated[str, Field(min_length=1)]
    """What fitted it."""


class HardwareEntry(Section):
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
    calibration: CalibrationEntry | None = None
    """Null: nothing is known but the data sheet."""

    @property
    def is_probed(self) -> bool:
        """Whether its peaks were measured here instead of read in a data sheet."""
        bandwidth = self.memory_bandwidth_bytes_per_s
        return bandwidth is not None and bandwidth.source.startswith("specgauge.bench.probe")

    def plain(self) -> dict[str, Any]:
        """Values without their sources, by the field names of `specgauge.model.roofline.deployment.Hardware`."""
        others = ("name", "description", "calibration")
        numbers = {name: getattr(self, name) for name in type(self).model_fields if name not in others}
        peaks: Peaks = numbers.pop("peak_flops_per_s")
        return {
            "name": self.name,
            **{name: number and number.value for name, number in numbers.items()},
            "peak_flops_per_s": {dtype: peak.value for dtype, peak in peaks if peak is not None},
        }

    def to_yaml(self) -> str:
        """The text of the entry's file; `load_hardware` reads it back equal."""
        return dump_yaml(self.model_dump(mode="json"))


def load_hardware(source: str | Path) -> HardwareEntry:
    """A shipped entry by name, or a YAML file by path.

    Raises:
        ConfigError: an unknown name (and the nearest), or the file, line and field that is wrong.
    """
    path = _find(source, HARDWARE, "hardware entry")
    written = Written.of_file(config_text(path), str(path), HardwareEntry)
    faults = written.faults
    try:
        entry = HardwareEntry.model_validate(written.value)
    except ValidationError as error:
        faults = faults or explain(error, HardwareEntry, written.value)
    if faults:
        raise written.error(faults)
    return entry


def load_shape(source: str | Path, *, what: str = "model shape", kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Fields of a config.json: a shipped shape by name, a JSON file, a folder that holds a config.json, or the id of a
    model whose config.json is in the local hub cache; nothing is downloaded.  kinds: what else could have been given
    in its place, for the message about an unknown name.

    Raises:
        ConfigError: an unknown name (and the nearest), or a file that is not a JSON mapping.
    """
    path = _cached(source) or _find(source, SHAPES, what, kinds)
    if path.is_dir():
        path = _find(path / "config.json", SHAPES, what)
    text = config_text(path)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        found = "a number of thousands of digits" if isinstance(error, ValueError) else "one nested too deep"
        raise ConfigError(f"{path}: expected the mapping of a transformers config.json, got {found}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected the mapping of a transformers config.json, got {shown(value)}")
    return value


def _cached(source: str | Path) -> Path | None:
    """The config.json of a hub id that is no path here; ConfigError where the cache does not have it."""
    name = str(source)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name, flags=re.ASCII) or Path(name).exists():
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    if isinstance(found, str):
        return Path(found)
    near = did_you_mean(name.rpartition("/")[2], SHAPES)
    raise ConfigError(
        f"model shape: expected a file that exists or a hub id with its config.json in the local cache, got "
        f"{name!r}{near}; download it with `hf download {name} config.json`"
    )


def _find(source: str | Path, shipped: dict[str, Path], what: str, kinds: Sequence[str] = ()) -> Path:
    """The file of a shipped name, in upper or lower case, or the path given."""
    name = str(source)
    if name.lower() in shipped:
        return shipped[name.lower()]
    if name and Path(name).exists():
        return Path(name)
    named = [*kinds, *shipped]
    raise ConfigError(
        f"{what}: expected a file that exists, or {', '.join(named)}, got {name!r}{did_you_mean(name, named)}"
    )
