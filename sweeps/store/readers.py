"""Read one file of a run directory, whole, or say in one line what is wrong with it and what to do. No torch.

Missing, empty, truncated, foreign and other-release files are `ValueError`s that start with the file's path.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.configs.canonical import strict_loads
from specgauge.sweeps.store.journal import SCHEMA

if TYPE_CHECKING:
    import pandas as pd

ACCEPTANCE_COLUMNS = (
    "prompt", "repetition", "position", "context", "token", "target_prob", "draft_prob", "overlap_ratio",
    "overlap_match", "draft_argmax", "draft_argmax_target_prob", "draft_top_prob", "draft_entropy_nats", "end_reason",
)  # fmt: skip
ROLLOUT_COLUMNS = ("prompt", "repetition", "start", "depth", "token", "top_prob", "entropy_nats")
TEXT_COLUMNS = (
    "pair", "mode", "sampling", "draft_sampling", "acceptance_rule", "cost_known", "acceptance_known", "label",
    "status", "reason",
)  # fmt: skip
FLAG_COLUMNS = ("is_best", "is_recommended")
WHOLE_COLUMNS = ("batch_size", "context", "gamma")
PREDICTION_COLUMNS = (
    "pair", "mode", "sampling", "draft_sampling", "acceptance_rule", "batch_size", "context", "gamma",
    "t_decode_s", "t_draft_total_s", "t_draft_catch_up_s", "t_verify_s", "t_verify_mean_s", "t_overhead_s",
    "t_round_s",
    "tokens_per_round", "tokens_per_round_low", "tokens_per_round_high", "accepted_draft_tokens", "drafts_per_round",
    "speedup", "speedup_low", "speedup_high", "p_best", "is_best", "is_recommended", "full_acceptance",
    "cost_known", "acceptance_known", "label",
)  # fmt: skip
"""What every predictions.csv has; `status` and `reason` follow for the cells that gave no number."""


def read_text(path: Path, maker: str = "specgauge run") -> str:
    """The UTF-8 text of a run's file.

    Raises:
        ValueError: missing (the line names the command that makes it), unreadable, empty or not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{path}: missing; make it with `{maker}`") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start}); make it anew with `{maker}`") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot read it: {error.strerror or error}") from error
    if not text.strip():
        raise ValueError(f"{path}: empty; make it anew with `{maker}`")
    return text


def _check_release(path: Path, content: Mapping[str, Any]) -> None:
    if content.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(
            f"{path}: schema {content['schema']!r} was written by another release (this one reads schema {SCHEMA}); "
            f"read it with that release"
        )


def read_environment(path: Path) -> dict[str, Any]:
    """The mapping of an environment.json; ValueError as `read_json`."""
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file of a run.

    Raises:
        ValueError: missing, truncated, not strict JSON, not a mapping, or of another release.
    """
    text = read_text(path)
    try:
        content = strict_loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: truncated or not JSON: {error}; start anew with --fresh") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path}: a JSON object is expected, found {type(content).__name__}; measure anew with --fresh"
        )
    _check_release(path, content)
    return content


def environment_value(environment: Mapping[str, Any], dotted: str) -> Any:
    """What an environment says under a name such as `packages.torch`; None where it says nothing."""
    value: Any = environment
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _missing_columns(found: Sequence[str], wanted: Sequence[str]) -> list[str]:
    return [name for name in wanted if name not in found]


def read_acceptance(path: Path) -> pd.DataFrame:
    """The columns of an acceptance file, floats as float64.

    Raises:
        ValueError: missing, truncated, not parquet, of another release, without a column, or without a row.
    """
    frame = _read_parquet(path, ACCEPTANCE_COLUMNS, "acceptance file")
    if frame.empty:
        raise ValueError(f"{path}: holds no position; delete it to measure it again")
    return frame


def read_rollouts(path: Path) -> pd.DataFrame:
    """The draft chains off the target's path, one row per step, floats as float64; no row where no draft is rejected.

    Raises:
        ValueError: missing, truncated, not parquet, of another release, without a column, or with signals that no
            distribution has.
    """
    frame = _read_parquet(path, ROLLOUT_COLUMNS, "table of rollouts")
    tops, entropies = frame["top_prob"], frame["entropy_nats"]
    if not (tops.between(0.0, 1.0) & (tops > 0.0) & (entropies >= 0.0) & (frame["depth"] >= 1)).all():
        raise ValueError(
            f"{path}: found a top_prob outside (0, 1], a negative entropy_nats or a depth below 1; "
            "delete it to measure again"
        )
    return frame


def _read_parquet(path: Path, wanted: Sequence[str], what: str) -> pd.DataFrame:
    """A parquet file with at least the wanted columns, floats as float64."""
    import pandas as pd

    if not path.is_file():
        raise ValueError(f"{path}: missing; measure it with `specgauge run`")
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        cause = str(error).partition("\n")[0][:200]
        raise ValueError(f"{path}: truncated or not a parquet file: {cause}; delete it to measure it again") from error
    _check_release(path, {"schema": frame.attrs.get("schema", SCHEMA)})
    missing = _missing_columns(list(frame.columns), wanted)
    if missing:
        raise ValueError(f"{path}: no {what}: column {missing[0]!r} is missing; delete it to measure it again")
    return frame.astype({name: "float64" for name in frame.columns if frame[name].dtype == "float32"})


def read_csv_rows(path: Path, wanted: Sequence[str], what: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a run's CSV file, which holds the columns `wanted`; `what` names its rows (`predictions`).

    Raises:
        ValueError: missing, truncated, foreign, or a row with more or fewer fields than the header.
    """
    text = read_text(path)
    if not text.endswith("\n"):
        raise ValueError(f"{path}: truncated (its last line has no end); make it anew with `specgauge run`")
    try:
        header, *rows = csv.reader(io.StringIO(text), strict=True)
    except csv.Error as error:
        raise ValueError(f"{path}: not a CSV file: {error}; make it anew with `specgauge run`") from error
    missing = _missing_columns(header, wanted)
    if missing:
        raise ValueError(f"{path}: not a table of {what} of this release: the column {missing[0]!r} is missing")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(f"{path}, line {number}: found {len(row)} fields, {len(header)} are expected")
    return header, rows


def read_predictions(path: Path) -> pd.DataFrame:
    """The table of a predictions.csv: whole numbers, floats (nothing is NaN), booleans, text (nothing is '').

    Raises:
        ValueError: missing, truncated or foreign.
    """
    import pandas as pd

    header, rows = read_csv_rows(path, PREDICTION_COLUMNS, "predictions")
    columns = zip(*rows, strict=True) if rows else ((),) * len(header)
    return pd.DataFrame(
        {name: _column(path, name, values) for name, values in zip(header, columns, strict=True)}, columns=header
    )


def _column(path: Path, name: str, values: Sequence[str]) -> list[Any]:
    if name in TEXT_COLUMNS or name not in PREDICTION_COLUMNS:
        return list(values)
    return [_cell(path, name, value) for value in values]


def _cell(path: Path, name: str, value: str) -> float | int | bool:
    try:
        if name in FLAG_COLUMNS:
            return {"True": True, "False": False}[value]
        if name in WHOLE_COLUMNS:
            return int(value)
        number = float(value) if value else math.nan
        if value and not math.isfinite(number):
            raise ValueError(value)
    except (KeyError, ValueError) as error:
        allowed = "True or False" if name in FLAG_COLUMNS else "a number" if name in WHOLE_COLUMNS else "a number or ''"
        raise ValueError(f"{path}: column {name}: found {value!r}, allowed: {allowed}") from error
    return number


_ENTRY_KEYS = (
    "pair", "mode", "sampling", "draft_sampling", "acceptance_rule", "batch_size", "context", "decision", "best_gamma",
    "recommended_gamma", "speedup", "speedup.value", "speedup.low", "speedup.high", "expected_loss", "reason",
)  # fmt: skip
_WARNING_KEYS = ("message", "remedy")


def read_recommendation(path: Path) -> dict[str, Any]:
    """The mapping of a recommendation.yaml, with the lists `recommendations` and `warnings`.

    Raises:
        ValueError: missing, truncated, not YAML, foreign or of another release.
    """
    import yaml

    text = read_text(path)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: truncated or not YAML: {what}; make it anew with `specgauge run`") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: truncated or no recommendation; make it anew with `specgauge run`")
    _check_release(path, content)
    if not text.endswith("\n"):
        raise ValueError(f"{path}: truncated: its last line is not whole; make it anew with `specgauge run`")
    for name, keys in (("recommendations", _ENTRY_KEYS), ("warnings", _WARNING_KEYS)):
        if not isinstance(content.get(name), list):
            raise ValueError(f"{path}: a list under `{name}:` is expected; make it anew with `specgauge run`")
        for number, entry in enumerate(content[name], start=1):
            lacking = next((key for key in keys if not _has(entry, key)), None)
            if lacking is not None:
                raise ValueError(
                    f"{path}: truncated or damaged: entry {number} of `{name}:` lacks {lacking!r}; make it anew with "
                    "`specgauge run`"
                )
    return dict(content)


def _has(entry: Any, key: str) -> bool:
    """Whether a mapping has a key; one with a dot is a key inside another mapping."""
    name, dot, inner = key.partition(".")
    return isinstance(entry, dict) and name in entry and (not dot or _has(entry[name], inner))
