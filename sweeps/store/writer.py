"""Open a run directory for writing: made new, resumed where it stopped, or refused in one line.

A directory belongs to one configuration on one machine. A second writer, a changed configuration, another device or
package version, a file in its place and a folder that holds something else are refused before anything is written;
`fresh` renames the old run to `<name>.old-<n>` first.

    with OpenRun.open(path, config, fresh=False) as run:
        run.check_environment(collect_environment())
        run.journal.append({...})
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import yaml

from specgauge.sweeps.store.files import StorageError, write_text_atomically
from specgauge.sweeps.store.journal import Journal, lock_for_writing, read_journal
from specgauge.sweeps.store.rows import read_text, write_mapping
from specgauge.sweeps.store.rundir import ACCEPTANCE, CELLS, CONFIG, ENVIRONMENT, RUN_FILES, read_environment
from specgauge.sweeps.store.schema import machine_of

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

_ANEW = "start anew with --fresh (the old run is renamed), or give another --out"


class OpenRun:
    """A run directory this process alone may write to."""

    def __init__(self, path: Path, config: Config, journal: Journal) -> None:
        """Use `OpenRun.open`."""
        self.path = path
        self.config = config
        self.journal = journal

    @classmethod
    def open(cls, path: Path, config: Config, *, fresh: bool) -> Self:
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
        return cls(path, config, Journal.open(path / CELLS, config=config_hash(config), locked=locked))

    def check_environment(self, environment: Mapping[str, Any]) -> None:
        """Record the machine and the packages of a new run, or refuse to go on with an old one on others.

        Raises:
            ValueError: the run has results of another device, thread count or package version, which is named.
            StorageError: the disk is full.
        """
        path = self.path / ENVIRONMENT
        if not (path.exists() and self.has_results):
            write_mapping(path, environment)
            return
        now = machine_of(environment)
        for name, before in machine_of(read_environment(path)).items():
            if before != now[name]:
                raise ValueError(f"{self.path}: measured with {name} {before!r}, here it is {now[name]!r}; {_ANEW}")

    @property
    def has_results(self) -> bool:
        """Whether anything has been measured, in this run or before."""
        return bool(self.journal.lines) or _has_acceptance(self.path)

    def close(self) -> None:
        """Let go of the directory."""
        self.journal.close()

    def __enter__(self) -> Self:
        """The open run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


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
        shown = ", ".join(sorted(names - RUN_FILES)[:3] or sorted(names)[:3])
        raise ValueError(f"{path}: holds files that are no run of specgauge ({shown}); give another --out")
    return bool(names)


def has_results(path: Path) -> bool:
    """Whether anything has been measured in the run directory `path`."""
    return bool(read_journal(path / CELLS).lines) or _has_acceptance(path)


def _has_acceptance(path: Path) -> bool:
    return any((path / ACCEPTANCE).glob("*.parquet"))


def _write_config(path: Path, text: str) -> None:
    """Write config.yaml; where there are results, only with other effort, and ValueError for another configuration."""
    if not has_results(path):
        write_text_atomically(path / CONFIG, text)
    elif (path / CONFIG).exists():
        if _takes_other_effort(path / CONFIG, text):
            write_text_atomically(path / CONFIG, text)
    else:
        raise ValueError(f"{path}: there are results but {CONFIG} is missing; {_ANEW}")


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

    old_text = read_text(path)
    if old_text == text:
        return False
    try:
        old = yaml.safe_load(old_text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: damaged, not YAML ({' '.join(str(error).split())[:120]}); {_ANEW}") from error
    effort = {f"{section}.{field}" for section, fields in EFFORT.items() for field in fields}
    takes = False
    for field, before, now in _differences(old, yaml.safe_load(text)):
        if field not in effort and field != "name":
            raise ValueError(
                f"{path.parent}: holds a run of another config: {field} was {before}, is now {now}; {_ANEW}"
            )
        takes |= field in effort
    return takes


def _differences(old: Any, new: Any, field: str = "") -> Iterator[tuple[str, str, str]]:
    """(field, old value, new value) for every leaf that differs, in the order of the new value, then of the old."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            name = f"{field}.{key}" if field else str(key)
            if key not in old or key not in new:
                yield name, _shown(old, key), _shown(new, key)
            else:
                yield from _differences(old[key], new[key], name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and _are_mappings(old, new):
        for index, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, now, f"{field}[{index}]")
    elif old != new:
        yield field or "the whole file", _short(old), _short(new)


def _are_mappings(*lists: list[Any]) -> bool:
    return all(isinstance(entry, dict) for entries in lists for entry in entries)


def _shown(mapping: Mapping[str, Any], key: str) -> str:
    return _short(mapping[key]) if key in mapping else "absent"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}…"
