from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from specgauge.sweeps.store.readers import read_rollouts
from specgauge.sweeps.store.rollouts import RolloutKey, add_rollouts, has_rollouts

GREEDY, DRAWN = RolloutKey("p", "greedy", "same", "ratio"), RolloutKey("p", "t1", "same", "ratio")


def chains(start: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "prompt": [0, 0],
            "repetition": [0, 0],
            "start": [start, start],
            "depth": [1, 2],
            "token": [5, 6],
            "top_prob": [0.5, 0.25],
            "entropy_nats": [0.75, 1.5],
        }
    )


def test_chains_of_several_settings_stand_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    assert not has_rollouts(path, GREEDY)
    add_rollouts(path, GREEDY, chains(3))
    add_rollouts(path, DRAWN, chains(7))
    assert has_rollouts(path, GREEDY)
    assert has_rollouts(path, DRAWN)
    assert not has_rollouts(path, GREEDY._replace(acceptance_rule="match"))
    frame = read_rollouts(path)
    assert frame["sampling"].tolist() == ["greedy", "greedy", "t1", "t1"]
    assert frame["start"].tolist() == [3, 3, 7, 7]
    assert frame["top_prob"].tolist() == [0.5, 0.25, 0.5, 0.25]


def test_a_damaged_table_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"rollouts\.parquet: truncated or not a parquet file: .*; delete it"):
        has_rollouts(path, GREEDY)
