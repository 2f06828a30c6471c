"""The tables of a run that grow while it is measured: what was decoded end to end, rollouts, and tuned policies.

A file is replaced whole whenever something is added. A block is one batch of prompts under its arms; rounds are written
before requests, and a block counts once its requests are there, so a kill loses at most the block being decoded.

    log = DecodedLog(run.path)
    if not log.has(key, block=0): log.append(key, 0, requests, rounds)
    requests, rounds = read_decoded(run.path)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.configs.reading import PARQUET_BYTES, check_regular
from specgauge.model.arms import DECODED
from specgauge.model.settings import Setting
from specgauge.sweeps.store.rows import (
    START_ANEW,
    arrow_schema,
    plain,
    read_table,
    rows_under,
    write_mapping,
    write_table,
)
from specgauge.sweeps.store.rundir import POLICIES, REQUESTS, ROUNDS
from specgauge.sweeps.store.schema import (
    AcceptanceRow,
    DecodedKey,
    RequestRow,
    RolloutRow,
    RoundRow,
    TunedCell,
    check_arm,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_BLOCK = (*(field.name for field in fields(DecodedKey)), "block")
"""The columns that name a block."""
_LEFT_OUT = "texts_left_out"
"""What an acceptance file's own notes call the texts it lacks."""
_CHAINS_OF = ("pair", "sampling", "draft_sampling", "acceptance_rule")
"""The columns that name a setting: draft chains do not depend on how forwards run."""
_DECODE_AGAIN = f"delete {REQUESTS} and {ROUNDS} to decode again"


class DecodedLog:
    """Requests and rounds of an open run; the run's journal lock keeps other writers away."""

    def __init__(self, path: Path) -> None:
        """Read the tables in the run directory `path`; rounds of a block that was not finished are dropped.

        Raises:
            ValueError: a file is damaged, foreign, of another release or missing beside the other.
        """
        self._path = path
        self._requests, self._rounds = _both(path)
        self._blocks = _blocks(self._requests)

    def has(self, key: DecodedKey, block: int) -> bool:
        """Whether a block is kept already."""
        return (*asdict(key).values(), block) in self._blocks

    def blocks(self, key: DecodedKey) -> int:
        """How many blocks of a key are kept."""
        return sum(found[:-1] == tuple(asdict(key).values()) for found in self._blocks)

    def gammas(self, key: DecodedKey) -> tuple[int, ...]:
        """The γ above 0 that the kept blocks of a key were decoded at, rising."""
        names = list(asdict(key))
        rows = self._requests.select([*names, "gamma"]).group_by([*names, "gamma"]).aggregate([]).to_pylist()
        found = {row["gamma"] for row in rows if all(row[name] == value for name, value in asdict(key).items())}
        return tuple(sorted(gamma for gamma in found if gamma))

    def append(
        self, key: DecodedKey, block: int, requests: Iterable[Mapping[str, Any]], rounds: Iterable[Mapping[str, Any]]
    ) -> None:
        """Keep a block for good: its requests and rounds, without their key.

        Raises:
            StorageError: the disk refused it; the older tables stay.
        """
        assert not self.has(key, block), (key, block)
        where = asdict(key) | {"block": block}
        grown_rounds = _grown(self._rounds, RoundRow, where, rounds)
        grown_requests = _grown(self._requests, RequestRow, where, requests)
        write_table(self._path / ROUNDS, RoundRow, grown_rounds)
        write_table(self._path / REQUESTS, RequestRow, grown_requests)
        self._rounds, self._requests = grown_rounds, grown_requests
        self._blocks.add(tuple(where.values()))

    def take_in(self, other: DecodedLog) -> None:
        """Keep the blocks of another run directory's tables that are not here yet.

        Raises:
            StorageError: the disk refused it; the older tables stay.
        """
        new = other._blocks - self._blocks
        if not new:
            return
        rounds, requests = (
            _joined(own, _where(added, lambda *block: block in new))
            for own, added in ((self._rounds, other._rounds), (self._requests, other._requests))
        )
        write_table(self._path / ROUNDS, RoundRow, rounds)
        write_table(self._path / REQUESTS, RequestRow, requests)
        self._rounds, self._requests = rounds, requests
        self._blocks |= new

    def spent_s(self, pair: str) -> float:
        """Seconds that the kept blocks of a pair took, the batches' prefills and what was taken again included."""
        names = [*_BLOCK, "row", "prefill_s", "decode_s", "retaken_s"]
        table = self._requests.select([name for name in names if name in self._requests.column_names])
        total_s, retaken_s = 0.0, {}
        for request in table.to_pylist():
            if request["pair"] == pair and request["row"] == 0:
                total_s += (request["prefill_s"] or 0.0) + (request["decode_s"] or 0.0)
                retaken_s[tuple(request[name] for name in _BLOCK)] = request.get("retaken_s") or 0.0
        return total_s + sum(retaken_s.values())


def _grown(
    table: pa.Table, row_type: type[Any], where: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> pa.Table:
    import pyarrow as pa

    return _joined(table, pa.Table.from_pylist([{**where, **row} for row in rows], schema=arrow_schema(row_type)))


def _joined(table: pa.Table, added: pa.Table) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([table, added], promote_options="default")  # an older table may lack a column


def _where(table: pa.Table, is_meant: Callable[..., bool]) -> pa.Table:
    """The rows of the blocks that are meant, by their key's fields and number."""
    import pyarrow as pa

    blocks = zip(*(table.column(name).to_pylist() for name in _BLOCK), strict=True)
    return table.filter(pa.array([is_meant(*block) for block in blocks], type=pa.bool_()))


def write_decoded(path: Path, other: Path, *, pair: str, batch_sizes: Collection[int]) -> None:
    """Write what a run directory has of some batch sizes of a pair into another folder.

    Raises:
        ValueError: as `DecodedLog`.
        StorageError: the disk refused it.
    """
    requests, rounds = _both(path)
    of_pair, of_size = _BLOCK.index("pair"), _BLOCK.index("batch_size")
    for name, row_type, table in ((ROUNDS, RoundRow, rounds), (REQUESTS, RequestRow, requests)):
        own = _where(table, lambda *block: block[of_pair] == pair and block[of_size] in batch_sizes)
        write_table(other / name, row_type, own)


def _blocks(table: pa.Table) -> set[tuple[Any, ...]]:
    """The keys and numbers of the blocks in a table."""
    distinct = table.group_by(list(_BLOCK)).aggregate([])
    return set(zip(*(distinct.column(name).to_pylist() for name in _BLOCK), strict=True))


def _both(path: Path) -> tuple[pa.Table, pa.Table]:
    """Requests and rounds in a run directory, empty where nothing was decoded, without rounds of unfinished blocks."""
    if not (path / REQUESTS).exists():
        return arrow_schema(RequestRow).empty_table(), arrow_schema(RoundRow).empty_table()
    requests = read_table(path / REQUESTS, RequestRow, _DECODE_AGAIN)
    if not (path / ROUNDS).exists():
        raise ValueError(f"{path / ROUNDS}: missing beside {REQUESTS}; delete {REQUESTS} to decode again")
    rounds = read_table(path / ROUNDS, RoundRow, _DECODE_AGAIN)
    done = _blocks(requests)
    if _blocks(rounds) <= done:
        return requests, rounds
    return requests, _where(rounds, lambda *block: block in done)


def read_decoded(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Requests and rounds of a run directory, in the order decoded; unknown is NaN or None.

    Both are empty where nothing was decoded; rounds of a block that was not finished are left out.

    Raises:
        ValueError: a file is damaged, foreign, of another release, missing beside the other, or with an arm that does
            not exist.
    """
    requests, rounds = _both(path)
    for name, table in ((REQUESTS, requests), (ROUNDS, rounds)):
        for arm in table.column("arm").unique().to_pylist():
            try:
                check_arm(arm, DECODED)
            except ValueError as error:
                raise ValueError(
                    f"{path / name}, column arm: expected {error}, got {arm!r}; {_DECODE_AGAIN}"
                ) from error
    return requests.to_pandas(), rounds.to_pandas()


def add_acceptance(path: Path, frames: Sequence[pd.DataFrame], *, left_out: int) -> None:
    """Keep recorded positions of texts beside those that are there; `left_out` texts are still to be recorded.

    Raises:
        ValueError: the file that is there is damaged.
        StorageError: the disk refused the write; the older file stays.
    """
    import pandas as pd

    kept = [read_table(path, AcceptanceRow).to_pandas()] if path.exists() else []
    whole = pd.concat([frame for frame in (*kept, *frames) if not frame.empty])
    whole = whole.sort_values(["prompt", "repetition", "position"], kind="stable", ignore_index=True)
    write_table(path, AcceptanceRow, whole, **{_LEFT_OUT: left_out})


def recorded_numbers(path: Path) -> set[tuple[int, int]]:
    """Prompt and repetition of every text in an acceptance file; ValueError where it is damaged."""
    distinct = read_table(path, AcceptanceRow).group_by(["prompt", "repetition"]).aggregate([])
    return set(zip(distinct.column("prompt").to_pylist(), distinct.column("repetition").to_pylist(), strict=True))


def texts_left_out(path: Path) -> int:
    """Texts that an acceptance file lacks, since there was no time for them; 0 where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_regular(path, PARQUET_BYTES)
        return int((pq.read_schema(path).metadata or {}).get(_LEFT_OUT.encode(), b"0"))
    except (OSError, ValueError, pa.ArrowException):  # told by whoever reads what is in it
        return 0


def read_rollouts(path: Path, setting: Setting | None = None) -> pd.DataFrame:
    """The draft chains off the target's text, of a setting or of all, one row per step; none where none is rejected.

    Raises:
        ValueError: missing, truncated, not parquet, of another release, without a column, or with signals that no
            distribution has.
    """
    frame: pd.DataFrame = read_table(path, RolloutRow).to_pandas()
    for name in () if setting is None else _CHAINS_OF:
        frame = frame[frame[name] == getattr(setting, name)]
    return frame


def has_rollouts(path: Path, setting: Setting) -> bool:
    """Whether chains of a setting are kept; ValueError for a damaged file."""
    return path.exists() and not read_rollouts(path, setting).empty


def add_rollouts(path: Path, setting: Setting, chains: pd.DataFrame) -> None:
    """Keep the chains of a setting beside those of others.

    Raises:
        ValueError: the file that is there is damaged.
        StorageError: the disk refused the write; the older file stays.
    """
    import pandas as pd

    added = chains.assign(**{name: getattr(setting, name) for name in _CHAINS_OF})
    kept = [read_rollouts(path)] if path.exists() else []
    write_table(path, RolloutRow, pd.concat([*kept, added], ignore_index=True))


def add_missing_rollouts(path: Path, other: Path) -> None:
    """Keep the chains in another file of settings that this one has none of.

    Raises:
        ValueError: a file is damaged.
        StorageError: the disk refused the write; the older file stays.
    """
    for _, chains in read_rollouts(other).groupby(list(_CHAINS_OF), sort=False):
        first = chains.iloc[0]
        kept = read_rollouts(path) if path.exists() else chains.iloc[:0]
        if not (kept[list(_CHAINS_OF)] == first[list(_CHAINS_OF)]).all(axis=1).any():
            import pandas as pd

            write_table(path, RolloutRow, pd.concat([kept, chains], ignore_index=True))


def half_of(number: int, prompts: int) -> int:
    """Which half a prompt belongs to, 0 or 1; where prompts have several lengths, all of a prompt to the same.

    Each half is decoded under policies that were tuned on the recorded acceptance of the other.
    """
    return number % prompts % 2


def read_tuned(path: Path) -> dict[DecodedKey, TunedCell]:
    """The policies that a run directory has, by where they are decoded; {} where nothing was tuned.

    Raises:
        ValueError: the file is truncated, foreign or of another release.
    """
    file = path / POLICIES
    if not file.exists():
        return {}
    cells = rows_under(file, "cells", TunedCell, START_ANEW)
    return {cell.key: cell for cell in cells}


def keep_tuned(path: Path, cell: TunedCell) -> None:
    """Write a cell's policies down, beside those of others, before anything is decoded under them.

    Raises:
        ValueError: the file is truncated, foreign or of another release.
        StorageError: the disk refused it; the older file stays.
    """
    cells = read_tuned(path) | {cell.key: cell}
    write_mapping(path / POLICIES, {"cells": [plain(one) for one in cells.values()]})
