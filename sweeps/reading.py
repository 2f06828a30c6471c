"""Read one file of a run directory, whole, or say in one line what is wrong with it and what to do. No torch.

Missing, empty, truncated, foreign and other-release files are `ValueError`s that start with the file's path.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.sweeps.canonical import strict_loads
from specgauge.sweeps.records import SCHEMA

if TYPE_CHECKING:
    import pandas as pd

ACCEPTANCE_COLUMNS = (
    "prompt", "repetition", "position", "context", "token", "target_prob", "draft_prob", "overlap_ratio",
    "overlap_match", "draft_argmax", "draft_argmax_target_prob", "draft_top_prob", "draft_entropy_nats", "end_reason",
)  # fmt: skip
TEXT_COLUMNS = (
    "pair", "mode", "sampling", "draft_sampling", "acceptance_rule", "cost_known", "acceptance_known", "label",
    "status", "reason",
)  # fmt: skip
FLAG_COLUMNS = ("is_best", "is_recommended")
PREDICTION_COLUMNS = (
    "pair", "mode", "sampling", "draft_sampling", "acceptance_rule", "batch_size", "context", "gamma",
    "t_decode_s", "t_draft_total_s", "t_draft_catch_up_s", "t_verify_s", "t_overhead_s", "t_round_s",
    "tokens_per_round", "tokens_per_round_low", "tokens_per_round_high", "accepted_draft_tokens",
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
    """The mapping of an environment.json.

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


def _missing_columns(found: Sequence[str], wanted: Sequence[str]) -> list[str]:
    return [name for name in wanted if name not in found]


def read_acceptance(path: Path) -> pd.DataFrame:
    """The columns of an acceptance file, floats as float64.

    Raises:
        ValueError: missing, truncated, not parquet, of another release, without a column, or without a row.
    """
    import pandas as pd

    if not path.is_file():
        raise ValueError(f"{path}: missing; measure it with `specgauge run`")
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        what = str(error).partition("\n")[0][:200]
        raise ValueError(f"{path}: truncated or not a parquet file: {what}; delete it to measure it again") from error
    _check_release(path, {"schema": frame.attrs.get("schema", SCHEMA)})
    missing = _missing_columns(list(frame.columns), ACCEPTANCE_COLUMNS)
    if missing:
        raise ValueError(f"{path}: no acceptance file: column {missing[0]!r} is missing; delete it to measure it again")
    if frame.empty:
        raise ValueError(f"{path}: holds no position; delete it to measure it again")
    return frame.astype({name: "float64" for name in frame.columns if frame[name].dtype == "float32"})


def read_predictions(path: Path) -> pd.DataFrame:
    """The table of a predictions.csv; see `Run.predictions`.

    Raises:
        ValueError: missing, truncated or foreign.
    """
    import pandas as pd

    text = read_text(path)
    if not text.endswith("\n"):
        raise ValueError(f"{path}: truncated (its last line has no end); make it anew with `specgauge run`")
    found = text.partition("\n")[0].split(",")
    missing = _missing_columns(found, PREDICTION_COLUMNS)
    if missing:
        raise ValueError(f"{path}: not a table of predictions of this release: the column {missing[0]!r} is missing")
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            dtype={name: "str" for name in TEXT_COLUMNS if name in found},
            keep_default_na=False,
            na_values={name: [""] for name in found if name not in (*TEXT_COLUMNS, *FLAG_COLUMNS)},
            true_values=["True"],
            false_values=["False"],
            float_precision="round_trip",
        )
    except (ValueError, pd.errors.ParserError) as error:
        what = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path}: not a table of predictions: {what}; make it anew with `specgauge run`") from error
    numbers = [name for name in PREDICTION_COLUMNS if name not in (*TEXT_COLUMNS, *FLAG_COLUMNS)]
    for name in numbers:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            bad = next(value for value in frame[name] if not _is_number(value))
            raise ValueError(f"{path}: column {name}: found {bad!r}, a number or nothing is expected")
    return frame


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


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
    lists = content.get("recommendations") if isinstance(content, dict) else None
    if not isinstance(lists, list) or not all(isinstance(entry, dict) for entry in lists):
        raise ValueError(f"{path}: a list under `recommendations:` is expected; make it anew with `specgauge run`")
    _check_release(path, content)
    return dict(content)
