"""rollouts.parquet: draft chains that start with a rejected draft, of every pair and sampling setting. No torch.

    if not has_rollouts(path, key): add_rollouts(path, key, frame)

A row says which pair, sampling, draft sampling and acceptance rule it belongs to; the file is replaced whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specgauge.sweeps.store.files import atomic_path
from specgauge.sweeps.store.journal import SCHEMA
from specgauge.sweeps.store.readers import read_rollouts

if TYPE_CHECKING:
    import pandas as pd


class RolloutKey(NamedTuple):
    """Whose chains they are."""

    pair: str
    sampling: str
    draft_sampling: str
    acceptance_rule: str


def has_rollouts(path: Path, key: RolloutKey) -> bool:
    """Whether chains of `key` are kept; ValueError for a damaged file."""
    if not path.is_file():
        return False
    frame = read_rollouts(path)
    return bool((frame[list(RolloutKey._fields)] == list(key)).all(axis=1).any())


def add_rollouts(path: Path, key: RolloutKey, chains: pd.DataFrame) -> None:
    """Keep the chains of `key` beside those of others.

    Raises:
        ValueError: the file that is there is damaged.
        StorageError: the disk refused the write; the older file stays.
    """
    import pandas as pd

    added = chains.assign(**key._asdict())[[*RolloutKey._fields, *chains.columns]]
    frame = added
    if path.is_file():
        frame = pd.concat([read_rollouts(path), added], ignore_index=True)
    frame.attrs["schema"] = SCHEMA
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)
