"""Blocks decoded end to end, rollouts and tuned policies: kept one by one, found again, whole after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specgauge.model.settings import Setting
from specgauge.sweeps.store import tables
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.rows import columns, write_table
from specgauge.sweeps.store.rundir import REQUESTS, ROUNDS
from specgauge.sweeps.store.schema import DecodedKey, RequestRow, RoundRow, TunedCell, TunedHalf
from specgauge.sweeps.store.tables import (
    DecodedLog,
    add_rollouts,
    has_rollouts,
    keep_tuned,
    read_decoded,
    read_rollouts,
    read_tuned,
)
from tests.model.policy_cases import POLICIES as EVERY_KIND
from tests.sweeps.decoded import PREFILL_S, Batch, key

SHORT = Batch(prompts=(7, 8), max_new_tokens=5, overhead_s=0.0625)
GREEDY = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")
DRAWN = replace(GREEDY, sampling="t1")


def keep(log: DecodedLog, block: int, where: DecodedKey | None = None, arms: Sequence[str] = ("plain",)) -> None:
    requests = [row for arm in arms for row in SHORT.requests(arm)]
    log.append(where or key(), block, requests, [row for arm in arms for row in SHORT.rounds(arm)])


def content(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    requests, rounds = (pq.read_table(path / name).to_pylist() for name in (REQUESTS, ROUNDS))
    return requests, rounds


def test_what_is_kept_comes_back_with_its_types(tmp_path: Path) -> None:
    arms = ("generate", "speculate:3")
    log = DecodedLog(tmp_path)
    keep(log, 0, arms=arms)
    keep(log, 1, arms=arms)
    where = {**vars(key()), "block": 1}
    requests, rounds = content(tmp_path)
    assert requests[4:] == [where | row for arm in arms for row in SHORT.requests(arm)]
    assert rounds[len(rounds) // 2 :] == [where | row for row in SHORT.rounds("speculate:3")]
    types = {
        (REQUESTS, "pair"): "string", (REQUESTS, "block"): "int32", (REQUESTS, "tokens"): "list<element: int32>",
        (REQUESTS, "lossless"): "bool", (ROUNDS, "t_round_s"): "double", (ROUNDS, "top_probs"): "list<element: double>",
    }  # fmt: skip
    assert {(file, name): str(pq.read_schema(tmp_path / file).field(name).type) for file, name in types} == types
    frames = read_decoded(tmp_path)
    assert [len(frame) for frame in frames] == [8, len(rounds)]
    assert frames[0]["rounds"].isna().tolist() == [True, True, False, False] * 2


def test_a_kept_block_is_found_again_with_its_gammas_and_seconds(tmp_path: Path) -> None:
    """Two rows of 5 tokens under plain (4 steps of 1 s) and generate (the same), with a prefill of 1/2 s each."""
    third = key(pair="q", batch_size=4, start_context=128, sampling="t1")
    log = DecodedLog(tmp_path)
    assert log.spent_s("p") == 0.0
    keep(log, 0, arms=("plain", "generate"))
    keep(log, 2, arms=("speculate:3", "speculate:1"))
    speculating_s = sum(SHORT.requests(f"speculate:{gamma}")[0]["seconds"] for gamma in (1, 3))
    keep(log, 0, third)
    for found in (log, DecodedLog(tmp_path)):
        assert [found.has(key(), block) for block in range(4)] == [True, False, True, False]
        assert [found.blocks(place) for place in (key(), third, key(pair="r"))] == [2, 1, 0]
        assert (found.gammas(key()), found.gammas(third), found.gammas(key(pair="r"))) == ((1, 3), (), ())
        assert (found.spent_s("q"), found.spent_s("r")) == (4 + PREFILL_S, 0.0)
        assert found.spent_s("p") == 2 * (4 + PREFILL_S) + speculating_s
    with pytest.raises(AssertionError):
        keep(log, 2)


def test_without_rounds_the_tables_have_their_columns(tmp_path: Path) -> None:
    """Nothing is decoded; then texts of one token, which have no round."""
    requests, rounds = read_decoded(tmp_path)
    assert (list(requests.columns), list(rounds.columns)) == (list(columns(RequestRow)), list(columns(RoundRow)))
    assert (requests.empty, rounds.empty, list(tmp_path.iterdir())) == (True, True, [])
    one = Batch(max_new_tokens=1)
    DecodedLog(tmp_path).append(key(), 0, one.requests("plain"), one.rounds("plain"))
    requests, rounds = read_decoded(tmp_path)
    assert (requests["tokens"].map(len).tolist(), rounds.empty) == ([1], True)
    assert list(rounds.columns) == list(columns(RoundRow))


@pytest.mark.parametrize("error", [KeyboardInterrupt, StorageError])
def test_stopped_between_the_two_writes_the_block_is_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    log = DecodedLog(tmp_path)
    keep(log, 0)

    def killed(path: Path, row_type: type[Any], table: pa.Table) -> None:
        if path.name == REQUESTS:
            raise error
        write_table(path, row_type, table)

    monkeypatch.setattr(tables, "write_table", killed)
    with pytest.raises(error):
        keep(log, 1, arms=("speculate:2",))
    monkeypatch.undo()
    requests, rounds = content(tmp_path)
    assert ({row["block"] for row in requests}, {row["block"] for row in rounds}) == ({0}, {0, 1})
    assert set(read_decoded(tmp_path)[1]["block"]) == {0}
    for found in (log, DecodedLog(tmp_path)):
        assert [found.has(key(), block) for block in (0, 1)] == [True, False]
    keep(log, 1)
    requests, rounds = content(tmp_path)
    assert [(row["block"], row["arm"]) for row in requests] == [(0, "plain")] * 2 + [(1, "plain")] * 2
    assert {(row["block"], row["arm"]) for row in rounds} == {(0, "plain"), (1, "plain")}
    (tmp_path / REQUESTS).unlink()  # as if killed before the first
    assert not DecodedLog(tmp_path).has(key(), 0)
    assert all(frame.empty for frame in read_decoded(tmp_path))


def chains(start: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "prompt": [0, 0], "repetition": [0, 0], "start": [start, start], "depth": [1, 2], "token": [5, 6],
            "top_prob": [0.5, 0.25], "entropy_nats": [0.75, 1.5],
        }
    )  # fmt: skip


def test_chains_of_several_settings_stand_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    assert not has_rollouts(path, GREEDY)
    add_rollouts(path, GREEDY, chains(3).iloc[:0])
    assert read_rollouts(path).empty
    add_rollouts(path, GREEDY, chains(3))
    add_rollouts(path, DRAWN, chains(7))
    assert (has_rollouts(path, GREEDY), has_rollouts(path, DRAWN)) == (True, True)
    assert not has_rollouts(path, replace(GREEDY, acceptance_rule="match"))
    frame = read_rollouts(path)
    assert frame["sampling"].tolist() == ["greedy", "greedy", "t1", "t1"]
    assert frame["start"].tolist() == [3, 3, 7, 7]
    assert frame["top_prob"].tolist() == [0.5, 0.25, 0.5, 0.25]


def tuned_cell(**changes: Any) -> TunedCell:
    halves = (
        TunedHalf(tuned_on=(1, 3), policies=dict(EVERY_KIND)),
        TunedHalf(tuned_on=(0, 2), policies=dict(reversed(EVERY_KIND.items()))),
    )
    cell = TunedCell(
        key=key(),
        prompts=4,
        gamma_max=6,
        t_overhead_s=0.1 + 0.2,
        t_early_stop_check_s=0.1,
        halves=halves,
        left_out={"x": "why"},
    )
    return replace(cell, **changes)


def test_tuned_policies_come_back_as_they_were(tmp_path: Path) -> None:
    assert read_tuned(tmp_path) == {}
    other = tuned_cell(key=key(batch_size=4), left_out={})
    keep_tuned(tmp_path, tuned_cell())
    keep_tuned(tmp_path, other)
    assert read_tuned(tmp_path) == {key(): tuned_cell(), key(batch_size=4): other}
    assert list(read_tuned(tmp_path)[key()].names) == list(EVERY_KIND)
    keep_tuned(tmp_path, tuned_cell(t_early_stop_check_s=0.5))
    assert read_tuned(tmp_path)[key()].t_early_stop_check_s == 0.5
