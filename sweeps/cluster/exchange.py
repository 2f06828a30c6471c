"""What travels between the run directory and a node that measures a part of it, as files and their bytes.

    files = packed(opened, "p", part)           # what a node has to know: put at once into a folder of its own
    changes = Changes(folder); changes.new()    # there, again and again: what was measured since
    take_in(opened, files, machine="node-7")    # beside the run directory: kept for good

The folder of a node is a run directory itself, with the cells of its part alone. Files are made of rows that are kept
or not: nothing that the run directory has already is written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specgauge.configs.canonical import canonical_json
from specgauge.configs.loader import config_hash, config_to_yaml, load_config
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.environment import environment_on
from specgauge.sweeps.store.files import atomic_path, write_text_atomically
from specgauge.sweeps.store.journal import journal_line, read_journal
from specgauge.sweeps.store.rows import plain, write_jsonl
from specgauge.sweeps.store.rundir import (
    ACCEPTANCE,
    CELLS,
    CONFIG,
    ENVIRONMENT,
    OUTCOMES,
    POLICIES,
    PROMPTS,
    REQUESTS,
    ROLLOUTS,
    ROUNDS,
    acceptance_path,
    prompt_rows,
    read_environment,
)
from specgauge.sweeps.store.schema import SCHEMA
from specgauge.sweeps.store.tables import DecodedLog, add_missing_rollouts, keep_tuned, read_tuned, write_decoded

if TYPE_CHECKING:
    from specgauge.configs.schema import Config
    from specgauge.sweeps.run.session import Part
    from specgauge.sweeps.store.writer import OpenRun

Files = dict[str, bytes]
"""Content by the path within a run directory."""
MACHINE = "machine"
"""The note of a journal line that names the node it was measured on."""
_AS_THEY_ARE = (CONFIG, PROMPTS, OUTCOMES, POLICIES, ROLLOUTS)


def packed(opened: OpenRun, pair: str, part: Part) -> Files:
    """What a process has to know of a run to measure a part of a pair.

    Raises:
        ValueError: a file of the run is damaged.
    """
    path, config = opened.path, opened.config
    names = [name for name in _AS_THEY_ARE if (path / name).exists()]
    kept = [path / name for name in names] + [
        file for one in config.sampling if (file := acceptance_path(path, pair, one.name)).exists()
    ]
    files = {str(file.relative_to(path)): file.read_bytes() for file in kept}
    device = device_of(config, pair)
    environment = environment_on(read_environment(path / ENVIRONMENT), device) if (path / ENVIRONMENT).exists() else {}
    if environment:
        files[ENVIRONMENT] = canonical_json({"schema": SCHEMA, **environment}).encode()
    own = part.cells if part.cells is not None else [cell.id for cell in plan_cells(config, pair)]
    lines = [line for line in opened.journal.latest.values() if line.cell in own]
    files[CELLS] = b"".join(map(journal_line, lines))
    sizes = {cell.batch_size for cell in plan_cells(config, pair) if cell.id in own}
    if sizes and (path / REQUESTS).exists():
        with TemporaryDirectory(prefix="specgauge-") as folder:
            write_decoded(path, Path(folder), pair=pair, batch_sizes=sizes)
            files |= {name: (Path(folder) / name).read_bytes() for name in (ROUNDS, REQUESTS)}
    return files


def device_of(config: Config, pair: str) -> str | None:
    """The `accelerator_type` of a pair."""
    return next(one.accelerator_type for one in config.pairs if one.name == pair)


def unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder, which is made."""
    (folder / ACCEPTANCE).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def settle(folder: Path) -> Config:
    """Let unpacked files be of the configuration as it reads here, where weights may have paths of this node; returns
    it."""
    config = load_config(folder / CONFIG)
    write_text_atomically(folder / CONFIG, config_to_yaml(config))
    own = config_hash(config)
    lines = [replace(line, config=own) for line in read_journal(folder / CELLS).lines]
    (folder / CELLS).write_bytes(b"".join(map(journal_line, lines)))
    return config


class Changes:
    """What is new in a run directory that another process writes."""

    def __init__(self, folder: Path) -> None:
        """Nothing that is there now is new."""
        self._folder = folder
        self._seen = {file: _state(file) for file in self._files()}
        self._journal_bytes = self._journal_size()

    def new(self) -> Files:
        """New whole lines of the journal, and every other file that has changed since the last call."""
        found: Files = {}
        if self._journal_size() > self._journal_bytes:
            with (self._folder / CELLS).open("rb") as journal:
                journal.seek(self._journal_bytes)
                added = journal.read()
            found[CELLS] = added[: added.rfind(b"\n") + 1]
            self._journal_bytes += len(found[CELLS])
        for file in self._files():
            state = _state(file)
            if self._seen.get(file) != state:
                found[str(file.relative_to(self._folder))] = file.read_bytes()
                self._seen[file] = state
        if REQUESTS in found:  # read first: rounds that are newer belong to a block that is not finished
            found[ROUNDS] = (self._folder / ROUNDS).read_bytes()
        return found

    def _files(self) -> list[Path]:
        names = (ENVIRONMENT, PROMPTS, POLICIES, ROLLOUTS, REQUESTS)
        own = [self._folder / name for name in names] + sorted((self._folder / ACCEPTANCE).glob("*.parquet"))
        return [file for file in own if file.exists()]

    def _journal_size(self) -> int:
        path = self._folder / CELLS
        return path.stat().st_size if path.exists() else 0


def _state(file: Path) -> tuple[int, int]:
    """What changes whenever a file is replaced."""
    found = file.stat()
    return found.st_ino, found.st_mtime_ns


def take_in(opened: OpenRun, files: Mapping[str, bytes], *, machine: str) -> int:
    """Keep for good what a node measured, its name noted beside every block; returns the blocks that have a result.

    What the environment says is left to the caller.

    Raises:
        ValueError: a file is damaged.
        StorageError: the disk refused a write; what was kept before stays.
    """
    taken = 0
    with TemporaryDirectory(prefix="specgauge-") as name:
        folder = Path(name)
        unpack(files, folder)
        for line in read_journal(folder / CELLS).lines if CELLS in files else ():
            if line.status == "ok" or not opened.journal.done(*line.key):
                record = {key: value for key, value in plain(line).items() if key not in ("config", "cell")}
                opened.journal.append(record | {"notes": {**line.notes, MACHINE: machine}})
                taken += line.status == "ok"
        for file in sorted((folder / ACCEPTANCE).glob("*.parquet")):
            with atomic_path(opened.path / ACCEPTANCE / file.name) as temporary:
                temporary.write_bytes(file.read_bytes())
        if PROMPTS in files:
            _take_prompts(opened.path, folder)
        if REQUESTS in files:
            DecodedLog(opened.path).take_in(DecodedLog(folder))
        if ROLLOUTS in files:
            add_missing_rollouts(opened.path / ROLLOUTS, folder / ROLLOUTS)
        known = read_tuned(opened.path) if POLICIES in files else {}
        for key, cell in read_tuned(folder).items() if POLICIES in files else ():
            if key not in known:
                keep_tuned(opened.path, cell)
    return taken


def _take_prompts(path: Path, folder: Path) -> None:
    """Keep the prompts of the pairs that a node has encoded; those of other pairs stay."""
    found, kept = prompt_rows(folder), prompt_rows(path)
    pairs = {row.pair for row in found}
    rows = [*(row for row in kept if row.pair not in pairs), *found]
    if rows != list(kept):
        write_jsonl(path / PROMPTS, rows)
