"""Open a run directory for writing: made new, resumed where it stopped, or refused in one line before it is touched.

A directory belongs to one configuration on one machine, and to one writer; `fresh` renames the old run to
`<name>.old-<n>` first.

    with OpenRun(path, config, fresh=False) as run:
        run.check_environment(collect_environment())
        run.journal.append({...})
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specgauge.configs.errors import short
from specgauge.sweeps.store.environment import MODELS, machine_of
from specgauge.sweeps.store.files import StorageError, write_text_atomically
from specgauge.sweeps.store.journal import Journal, lock_for_writing, read_journal
from specgauge.sweeps.store.rows import read_mapping, write_mapping
from specgauge.sweeps.store.rundir import ACCEPTANCE, CELLS, CONFIG, ENVIRONMENT, MEASURED, read_environment

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

_ANEW = "start anew with --fresh (the old run is renamed), or give another --out"


class OpenRun(AbstractContextManager["OpenRun"]):
    """A run directory this process alone may write to."""

    def __init__(self, path: Path, config: Config, *, fresh: bool) -> None:
        """Make the run directory at `path` for `config`, or resume the one that is there.

        Raises:
            ValueError: `path` is a file, cannot be written, holds something else, another configuration's run (the
                first field that differs is named) or a damaged one, or another process is writing it.
            StorageError: the disk is full.
        """
        from specgauge.configs.loader import config_hash, config_to_yaml

        try:
            is_run = _prepare_folder(path)
            locked = lock_for_writing(path / CELLS)
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            if fresh and is_run:
                locked = _put_aside(path, locked)
            _write_config(path, config_to_yaml(config))
            (path / ACCEPTANCE).mkdir(exist_ok=True)
        except BaseException as error:
            os.close(locked)
            if isinstance(error, OSError) and not isinstance(error, StorageError):
                raise _cannot_write(path, error) from error
            raise
        self.path, self.config = path, config
        self.journal = Journal(path / CELLS, config=config_hash(config), locked=locked)

    def check_environment(self, environment: Mapping[str, Any]) -> None:
        """Record the machine and the packages of a new run, or refuse to go on with an old one on others.

        Raises:
            ValueError: the run has results of another device, thread count or package version, which is named.
            StorageError: the disk is full.
        """
        path = self.path / ENVIRONMENT
        if not (path.exists() and has_results(self.path)):
            write_mapping(path, environment)
            return
        now = machine_of(environment)
        for name, before in machine_of(read_environment(path)).items():
            if before != now[name]:
                raise ValueError(f"{self.path}: measured with {name} {before!r}, here it is {now[name]!r}; {_ANEW}")

    def keep_placement(self, pair: str, placement: str) -> None:
        """Record how the models of a pair lie, or refuse to go on where they lay otherwise.

        Raises:
            ValueError: the run has results of the pair with its models elsewhere.
            StorageError: the disk is full.
        """
        path = self.path / ENVIRONMENT
        environment = read_environment(path) if path.exists() else {}
        models = environment.get(MODELS) or {}
        before = models.get(pair)
        if before == placement:
            return
        if before is not None and any(line.axes["pair"] == pair for line in self.journal.latest.values()):
            raise ValueError(
                f"{self.path}: measured with the models of pair {pair!r} {before}, here {placement}; {_ANEW}"
            )
        write_mapping(path, {**environment, MODELS: {**models, pair: placement}})

    def close(self) -> None:
        """Let go of the directory."""
        self.journal.close()

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


@dataclass(frozen=True, kw_only=True)
class Before:
    """What was at the path of a run before it was opened, so that it can be had again where nothing was begun."""

    path: Path
    folders: tuple[Path, ...]
    """Those to be made, the innermost first."""
    old_runs: frozenset[Path]
    """Those that `fresh` renamed before."""
    was_run: bool

    @classmethod
    def of(cls, path: Path) -> Self:
        """What is there now; ValueError where the system does not say."""
        whole = path.resolve()
        try:
            return cls(
                path=whole,
                folders=tuple(folder for folder in (whole, *whole.parents) if not folder.exists()),
                old_runs=frozenset(_old_runs(whole)),
                was_run=(whole / CELLS).exists(),
            )
        except OSError as error:
            raise _cannot_write(path, error) from error

    def restore(self) -> None:
        """Remove what this run wrote and have back the one that `fresh` renamed; a run that goes on stays."""
        renamed = _old_runs(self.path) - self.old_runs
        if self.was_run and not renamed:
            return
        for name in MEASURED:
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # other files are there, which are not ours
            (self.path / ACCEPTANCE).rmdir()
            for folder in self.folders or ([self.path] if renamed else []):
                folder.rmdir()
        if renamed and not self.path.exists():
            renamed.pop().rename(self.path)


def _old_runs(path: Path) -> set[Path]:
    return (
        {old for old in path.parent.iterdir() if old.name.startswith(f"{path.name}.old-")}
        if path.parent.exists()
        else set()
    )


def _cannot_write(path: Path, error: OSError) -> ValueError:
    return ValueError(f"{path}: cannot write there: {error.strerror or error}; give another --out")


def _prepare_folder(path: Path) -> bool:
    """Make the folder; whether it holds a run, whole or begun (False: it is empty).

    A run has a journal; a few more files beside it (notes, a copy of the report) do no harm.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path}: is a file, a run needs a directory; give another --out")
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"{path}: this directory is not writable; change its permissions, or give another --out")
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    if names and CELLS not in names:
        shown = ", ".join(sorted(names)[:3])
        raise ValueError(f"{path}: holds files that are no run of specgauge ({shown}); give another --out")
    return bool(names)


def has_results(path: Path, pairs: Collection[str] | None = None) -> bool:
    """Whether anything has been measured in the run directory `path`: of these pairs, where any are named."""
    journal = read_journal(path / CELLS)
    if pairs is None:
        return bool(journal.lines or journal.altered) or any((path / ACCEPTANCE).glob("*.parquet"))
    lines = {line.axes["pair"] for line in journal.lines}
    return any(name in lines or any((path / ACCEPTANCE).glob(f"{name}--*.parquet")) for name in pairs)


def _write_config(path: Path, text: str) -> None:
    """Write config.yaml; where there are results, only with other effort, and ValueError for another configuration."""
    is_kept = has_results(path)
    if is_kept and not (path / CONFIG).exists():
        raise ValueError(f"{path}: there are results but {CONFIG} is missing; {_ANEW}")
    if not is_kept or _takes_other_effort(path / CONFIG, text):
        write_text_atomically(path / CONFIG, text)


def _put_aside(path: Path, locked: int) -> int:
    """Rename the run at `path` to `<name>.old-<n>`, make an empty one, and return the lock of the new journal."""
    whole = path.resolve()
    number = 1
    while (old := whole.with_name(f"{whole.name}.old-{number}")).exists():
        number += 1
    whole.rename(old)
    whole.mkdir()
    new = lock_for_writing(path / CELLS)
    os.close(locked)
    return new


def _takes_other_effort(path: Path, text: str) -> bool:
    """Whether a configuration asks for more or less of the same; ValueError where it asks for something else."""
    from specgauge.configs.loader import EFFORT
    from specgauge.configs.yaml_reader import Source, read_yaml

    effort = {f"{section}.{field}" for section, fields in EFFORT.items() for field in fields}
    old, new = dict(_leaves(read_mapping(path, _ANEW))), dict(_leaves(read_yaml(text, Source(CONFIG)).value))
    changed = [name for name in {**new, **old} if old.get(name) != new.get(name) and name != "name"]
    for name in changed:
        if name not in effort:
            was, now = short(old.get(name)), short(new.get(name))
            raise ValueError(f"{path.parent}: holds a run of another config: {name} was {was}, is now {now}; {_ANEW}")
    return bool(changed)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a configuration and their values, `pairs[0].draft.model` for instance; None is as good as none."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for index, one in enumerate(value):
            yield from _leaves(one, f"{name}[{index}]")
    else:
        yield name, value
