"""policies.json: the adaptive policies that a run decodes with, as they were tuned, cell by cell. No torch.

A cell's prompts are dealt into two halves by their number, even and odd; each half is decoded under policies that were
tuned on the recorded acceptance of the other. They are written down before the first text is decoded under them, so
that an interrupted run goes on with the very same, and what they are can be read and replayed later.

    cells = read_tuned(run.path)                      # {} where nothing was tuned
    keep_tuned(run.path, TunedCell(key=key, …))

All times in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specgauge.model.policies.policy import RoundPolicy
from specgauge.model.policies.tuning import policy_of, policy_record
from specgauge.sweeps.store.decoded import DecodedKey
from specgauge.sweeps.store.files import write_text_atomically
from specgauge.sweeps.store.journal import SCHEMA
from specgauge.sweeps.store.readers import read_json
from specgauge.sweeps.store.rundir import POLICIES


@dataclass(frozen=True, kw_only=True)
class TunedHalf:
    """The policies that one half of the prompts is decoded under."""

    tuned_on: tuple[int, ...]
    """Numbers of the prompts that taught them; none of this half."""
    policies: Mapping[str, RoundPolicy]


@dataclass(frozen=True, kw_only=True)
class TunedCell:
    """The policies of one cell."""

    key: DecodedKey
    prompts: int
    """Prompts of the workload; each may have been recorded at several lengths."""
    gamma_max: int
    """The most drafts that any of them may ask for."""
    t_overhead_s: float
    """ε that they were tuned with: of the decoder's phases, before anything was decoded under them."""
    t_look_s: float
    """What one look at a draft's signals costs."""
    halves: tuple[TunedHalf, TunedHalf]
    """For even prompts, for odd ones."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a policy that was asked for is not decoded, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The policies that are decoded."""
        return tuple(self.halves[0].policies)


def half_of(number: int, prompts: int) -> int:
    """Which half a prompt belongs to; where prompts have several lengths, all of a prompt belong to the same."""
    return number % prompts % 2


def read_tuned(path: Path) -> dict[DecodedKey, TunedCell]:
    """What a run directory has of them.

    Raises:
        ValueError: the file is truncated, foreign or of another release.
    """
    file = path / POLICIES
    if not file.is_file():
        return {}
    content = read_json(file)
    try:
        cells = [_cell(cell) for cell in content["cells"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{file}: no policies of specgauge: {_words(error)}; start anew with `specgauge run --fresh`"
        ) from error
    return {cell.key: cell for cell in cells}


def _words(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _cell(record: Mapping[str, Any]) -> TunedCell:
    even, odd = (
        TunedHalf(
            tuned_on=tuple(half["tuned_on"]),
            policies={name: policy_of(policy) for name, policy in half["policies"].items()},
        )
        for half in record["halves"]
    )
    return TunedCell(
        key=DecodedKey(**record["key"]),
        prompts=int(record["prompts"]),
        gamma_max=int(record["gamma_max"]),
        t_overhead_s=float(record["t_overhead_s"]),
        t_look_s=float(record["t_look_s"]),
        halves=(even, odd),
        left_out=dict(record["left_out"]),
    )


def keep_tuned(path: Path, cell: TunedCell) -> None:
    """Write a cell's policies down, beside those of others.

    Raises:
        ValueError: the file is truncated, foreign or of another release.
        StorageError: the disk refused it; the older file stays.
    """
    cells = read_tuned(path) | {cell.key: cell}
    content = {"schema": SCHEMA, "cells": [_record(one) for one in cells.values()]}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_text_atomically(path / POLICIES, f"{text}\n")


def _record(cell: TunedCell) -> dict[str, Any]:
    return {
        "key": asdict(cell.key),
        "prompts": cell.prompts,
        "gamma_max": cell.gamma_max,
        "t_overhead_s": cell.t_overhead_s,
        "t_look_s": cell.t_look_s,
        "halves": [
            {
                "tuned_on": list(half.tuned_on),
                "policies": {name: policy_record(policy) for name, policy in half.policies.items()},
            }
            for half in cell.halves
        ],
        "left_out": dict(cell.left_out),
    }
