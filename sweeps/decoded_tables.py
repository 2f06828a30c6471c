"""requests.parquet and rounds.parquet: what was decoded end to end, block by block. No torch.

    requests    one row per row of a batch under an arm: token ids, seconds, why it ended, rounds taken and expected
    rounds      one row per row and round: drafted, accepted, emitted, and the batch's phase times; plain steps included

A block is one batch of prompts under every arm; its key says where it was taken. Both files are replaced whole after
every block, rounds first: a block counts once its requests are there, so a kill loses at most the block under way.

    log = DecodedLog.open(run.path)
    if not log.has(key, block=0): log.append(key, 0, requests, rounds)
    read_requests(path / "requests.parquet"), read_rounds(path / "rounds.parquet")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specgauge.model.end_to_end import end_to_end_arms
from specgauge.sweeps.files import atomic_path
from specgauge.sweeps.records import SCHEMA

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

REQUESTS, ROUNDS = "requests.parquet", "rounds.parquet"
_RELEASE = b"specgauge_schema"

KEY_COLUMNS = {
    "pair": "string", "mode": "string", "sampling": "string", "draft_sampling": "string", "acceptance_rule": "string",
    "batch_size": "int32", "start_context": "int32", "block": "int32",
}  # fmt: skip
"""Where a block was taken; `start_context` is the length of every prompt of it."""
REQUEST_COLUMNS = KEY_COLUMNS | {
    "arm": "string", "gamma": "int32", "row": "int32", "prompt": "int32", "repetition": "int32",
    "prompt_tokens": "int32", "tokens": "list<int32>", "finish_reason": "string", "prefill_s": "double",
    "seconds": "double", "decode_s": "double", "rounds": "int32", "expected_rounds": "double", "lossless": "bool",
    "why_not_lossless": "string",
}  # fmt: skip
ROUND_COLUMNS = KEY_COLUMNS | {
    "arm": "string", "round": "int32", "active_rows": "int32", "row": "int32", "prompt": "int32",
    "repetition": "int32", "position": "int32", "context": "int32", "gamma_asked": "int32", "gamma": "int32",
    "gamma_limit": "string", "drafted": "int32", "accepted": "int32", "emitted": "int32", "t_round_s": "double",
    "t_draft_s": "double", "t_verify_s": "double", "t_accept_s": "double", "t_rest_s": "double",
    "top_probs": "list<double>", "entropies_nats": "list<double>", "match_length": "int32",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecodedKey:
    """Where blocks are taken: one cell under one sampling setting and one way of judging."""

    pair: str
    mode: str
    sampling: str
    draft_sampling: str
    acceptance_rule: str
    batch_size: int
    start_context: int


@cache
def _schema(table: str) -> pa.Schema:
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "int32": pa.int32(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "list<int32>": pa.list_(pa.int32()),
        "list<double>": pa.list_(pa.float64()),
    }
    columns = REQUEST_COLUMNS if table == REQUESTS else ROUND_COLUMNS
    return pa.schema(
        [pa.field(name, kinds[kind]) for name, kind in columns.items()], metadata={_RELEASE: str(SCHEMA).encode()}
    )


class DecodedLog:
    """The two tables of an open run; the run's journal lock keeps other writers away."""

    def __init__(self, path: Path, requests: pa.Table, rounds: pa.Table) -> None:
        """Use `DecodedLog.open`."""
        self._path, self._requests, self._rounds = path, requests, rounds
        names = list(KEY_COLUMNS)
        self._blocks: set[tuple[Any, ...]] = set(
            zip(*(requests.column(name).to_pylist() for name in names), strict=True)
        )

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take up the tables in the run directory `path`; rounds of a block that was not finished are dropped.

        Raises:
            ValueError: a file is damaged, foreign or of another release.
        """
        import pyarrow as pa

        tables = [_read(path / name) if (path / name).is_file() else _schema(name).empty_table() for name in _NAMES]
        log = cls(path, *tables)
        keys = list(zip(*(log._rounds.column(name).to_pylist() for name in KEY_COLUMNS), strict=True))
        log._rounds = log._rounds.filter(pa.array([key in log._blocks for key in keys], type=pa.bool_()))
        return log

    def has(self, key: DecodedKey, block: int) -> bool:
        """Whether a block is kept already."""
        return (*asdict(key).values(), block) in self._blocks

    def blocks(self, key: DecodedKey) -> int:
        """How many blocks of a key are kept."""
        return sum(found[:-1] == tuple(asdict(key).values()) for found in self._blocks)

    def append(
        self,
        key: DecodedKey,
        block: int,
        requests: Iterable[Mapping[str, Any]],
        rounds: Iterable[Mapping[str, Any]],
    ) -> None:
        """Keep a block for good: its requests and rounds, without their key.

        Raises:
            StorageError: the disk refused it; the older tables stay.
        """
        import pyarrow as pa

        place = asdict(key) | {"block": block}
        added = {
            name: pa.Table.from_pylist([place | dict(row) for row in rows], schema=_schema(name))
            for name, rows in ((ROUNDS, rounds), (REQUESTS, requests))
        }
        grown_rounds = pa.concat_tables([self._rounds, added[ROUNDS]])
        grown_requests = pa.concat_tables([self._requests, added[REQUESTS]])
        _write(self._path / ROUNDS, grown_rounds)
        _write(self._path / REQUESTS, grown_requests)
        self._rounds, self._requests = grown_rounds, grown_requests
        self._blocks.add(tuple(place.values()))

    def spent_s(self, pair: str) -> float:
        """Seconds that the kept blocks of a pair took, the batches' prefills included."""
        first_rows = [
            (request["prefill_s"] or 0.0) + (request["decode_s"] or 0.0)
            for request in self._requests.select(["pair", "row", "prefill_s", "decode_s"]).to_pylist()
            if request["pair"] == pair and request["row"] == 0
        ]
        return sum(first_rows)


_NAMES = (REQUESTS, ROUNDS)


def _write(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


def _read(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException) as error:
        what = str(error).partition("\n")[0][:200]
        raise ValueError(
            f"{path}: truncated or not a parquet file: {what}; delete {REQUESTS} and {ROUNDS} to decode again"
        ) from error
    wanted = _schema(path.name)
    release = (table.schema.metadata or {}).get(_RELEASE)
    if release != str(SCHEMA).encode():
        found = "no release of specgauge" if release is None else f"schema {release.decode(errors='replace')}"
        raise ValueError(
            f"{path}: found {found}, this one reads schema {SCHEMA}; read it with the release that wrote it"
        )
    missing = [name for name in wanted.names if name not in table.column_names]
    if missing:
        raise ValueError(f"{path}: the column {missing[0]!r} is missing; delete the file to decode again")
    return table.select(wanted.names).cast(wanted)


def read_requests(path: Path) -> pd.DataFrame:
    """The table of requests, in the order decoded; unknown is NaN or None.

    Raises:
        ValueError: damaged, foreign, of another release, or with an arm that does not exist.
    """
    return _frame(path)


def read_rounds(path: Path) -> pd.DataFrame:
    """The table of rounds; errors as `read_requests`."""
    return _frame(path)


def _frame(path: Path) -> pd.DataFrame:
    frame: pd.DataFrame = _read(path).to_pandas()
    known = {*end_to_end_arms(range(1, 65))}
    foreign: Sequence[str] = sorted(set(frame["arm"]) - known)
    if foreign:
        raise ValueError(f"{path}: arm {foreign[0]!r} is unknown; it was written by another release or by hand")
    return frame
