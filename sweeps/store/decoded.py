"""requests.parquet and rounds.parquet: what was decoded end to end, block by block. No torch.

    requests    one row per row of a batch under an arm: token ids, seconds, why it ended, rounds taken and expected
    rounds      one row per row and round: drafted, accepted, emitted, and the batch's phase times; plain steps included

A block is one batch of prompts under its arms; its key says where it was taken. Both files are replaced whole after
every block, rounds first: a block counts once its requests are there, so a kill loses at most the block under way.

    log = DecodedLog.open(run.path)
    if not log.has(key, block=0): log.append(key, 0, requests, rounds)
    requests, rounds = read_decoded(run.path)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specgauge.model.arms import Arm
from specgauge.sweeps.store.files import atomic_path
from specgauge.sweeps.store.journal import SCHEMA

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
    "seconds": "double", "decode_s": "double", "rounds": "int32", "expected_rounds": "double",
    "expected_starts": "list<double>", "expected_committed": "list<double>", "lossless": "bool",
    "why_not_lossless": "string", "against_plain": "string", "leaves_plain_at": "int32",
    "leaves_plain_margin": "double",
}  # fmt: skip
LATER_COLUMNS = frozenset(
    {"expected_starts", "expected_committed", "against_plain", "leaves_plain_at", "leaves_plain_margin"}
)
"""What tables of earlier releases may lack; unknown there."""
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
        self._blocks = _blocks(requests)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take up the tables in the run directory `path`; rounds of a block that was not finished are dropped.

        Raises:
            ValueError: a file is damaged, foreign, of another release or missing beside the other.
        """
        return cls(path, *_both(path))

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

        assert not self.has(key, block), (key, block)
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


def _write(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


_AGAIN = f"delete {REQUESTS} and {ROUNDS} to decode again"


def _read(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    refusals = (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException)
    try:
        table = pq.read_table(path)
    except refusals as error:
        raise ValueError(f"{path}: truncated or not a parquet file: {_words(error)}; {_AGAIN}") from error
    wanted = _schema(path.name)
    release = (table.schema.metadata or {}).get(_RELEASE)
    if release is None:
        raise ValueError(f"{path}: no table of specgauge; {_AGAIN}")
    if release != str(SCHEMA).encode():
        raise ValueError(
            f"{path}: found schema {release.decode(errors='replace')}, this release reads schema {SCHEMA}; read it "
            f"with the release that wrote it"
        )
    for name in LATER_COLUMNS & (set(wanted.names) - set(table.column_names)):
        table = table.append_column(wanted.field(name), pa.nulls(table.num_rows, wanted.field(name).type))
    missing = [name for name in wanted.names if name not in table.column_names]
    if missing:
        raise ValueError(f"{path}: the column {missing[0]!r} is missing; {_AGAIN}")
    try:
        return table.select(wanted.names).cast(wanted)
    except refusals as error:
        raise ValueError(f"{path}: a column has another type: {_words(error)}; {_AGAIN}") from error


def _words(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _blocks(table: pa.Table) -> set[tuple[Any, ...]]:
    """The keys and numbers of the blocks in a table."""
    distinct = table.group_by(list(KEY_COLUMNS)).aggregate([])
    return set(zip(*(distinct.column(name).to_pylist() for name in KEY_COLUMNS), strict=True))


def _both(path: Path) -> tuple[pa.Table, pa.Table]:
    """Requests and rounds in a run directory, empty where nothing was decoded, without rounds of unfinished blocks."""
    import pyarrow as pa

    if not (path / REQUESTS).is_file():
        return _schema(REQUESTS).empty_table(), _schema(ROUNDS).empty_table()
    requests = _read(path / REQUESTS)
    if not (path / ROUNDS).is_file():
        raise ValueError(f"{path / ROUNDS}: missing beside {REQUESTS}; delete {REQUESTS} to decode again")
    rounds = _read(path / ROUNDS)
    done = _blocks(requests)
    if _blocks(rounds) <= done:
        return requests, rounds
    keys = zip(*(rounds.column(name).to_pylist() for name in KEY_COLUMNS), strict=True)
    return requests, rounds.filter(pa.array([key in done for key in keys], type=pa.bool_()))


def read_decoded(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Requests and rounds of a run directory, in the order decoded; unknown is NaN or None.

    Both are empty where nothing was decoded; rounds of a block that was not finished are left out.

    Raises:
        ValueError: a file is damaged, foreign, of another release, missing beside the other, or with an arm that does
            not exist.
    """
    requests, rounds = _both(path)
    return _frame(path / REQUESTS, requests), _frame(path / ROUNDS, rounds)


def _frame(path: Path, table: pa.Table) -> pd.DataFrame:
    for arm in table.column("arm").unique().to_pylist():
        try:
            Arm.parse(str(arm))
        except ValueError as error:
            raise ValueError(f"{path}: {error}; {_AGAIN}") from error
    frame: pd.DataFrame = table.to_pandas()
    return frame
