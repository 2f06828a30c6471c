"""What a format's reader finds in the files of another program: runs of one γ at one batch size, and what is unknown.

    EngineRun(source="g2.json", gamma=2, batch_size=4, context=512, t_round_s=.012, counts=(Counted(…),))

A run of γ = 0 is plain decoding: its round is a step, T_decode. Seconds; what a file does not tell is None.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specgauge.configs.fields import LARGEST_GAMMA
from specgauge.sweeps.store.schema import WarningRow


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Rounds of one request, or of a whole run, at a γ above 0; the fields are those of `CountsRow`."""

    source: str
    rounds: int | None = None
    tokens: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] | None = None
    tokens_per_round: float | None = None


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """One γ at one batch size and context, once."""

    source: str
    """The file, and where in it."""
    gamma: int
    batch_size: int | None = None
    is_mean_batch: bool = False
    """Whether the batch size is a mean over steps or time, which two runs under one load do not share exactly."""
    context: int | None = None
    """Tokens in the cache of a sequence as a round starts, on average."""
    t_round_s: float | None = None
    t_draft_total_s: float | None = None
    """C(γ), where the file tells it apart."""
    t_verify_s: float | None = None
    counts: tuple[Counted, ...] = ()
    pair: str | None = None
    """Of a file with several pairs of models."""
    sampling: str | None = None
    """Of a file with several sampling settings."""

    @property
    def is_timed(self) -> bool:
        """Whether it tells any time."""
        return any(value is not None for value in (self.t_round_s, self.t_draft_total_s, self.t_verify_s))


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Everything that the files of one import hold."""

    runs: tuple[EngineRun, ...]
    target: str | None = None
    draft: str | None = None
    """`ngram` where lookups draft."""
    release: str | None = None
    """Of the engine."""
    notes: tuple[WarningRow, ...] = ()


def joined(parts: Sequence[Imported]) -> Imported:
    """What files of several formats hold of one pair; names are those of the first that has any."""
    return Imported(
        runs=tuple(run for part in parts for run in part.runs),
        target=next((part.target for part in parts if part.target), None),
        draft=next((part.draft for part in parts if part.draft), None),
        release=next((part.release for part in parts if part.release), None),
        notes=tuple(note for part in parts for note in part.notes),
    )


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a person says beside the files: one value for all their runs, or one for each run in order; () is unsaid."""

    gamma: tuple[int, ...] = ()
    batch_size: tuple[int, ...] = ()
    context: tuple[int, ...] = ()

    def of(self, name: str, index: int, runs: int) -> int | None:
        """The value for one of some runs.

        Raises:
            ValueError: neither one value nor one for each.
        """
        values: Sequence[int] = getattr(self, name)
        if len(values) not in (0, 1, runs):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option}: expected one value, or one for each of {runs} runs, got {len(values)}")
        return None if not values else values[0 if len(values) == 1 else index]


Read = Callable[[Sequence[Path], Given], Imported]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A kind of file."""

    name: str
    engine: str
    """Whose: also the name of the pair, where the files have none."""
    about: str
    """What it is, in a line."""
    read: Read
    matches: Callable[[str], bool]
    """Whether the beginning of a file is one."""
    takes_folders: bool = False
    shares_files: bool = False
    """Whether a file may belong to two runs: a scrape that is after one and before the next."""


def located(runs: Iterable[EngineRun], given: Given) -> tuple[EngineRun, ...]:
    """The runs with the batch sizes and contexts that a person gave in the place of the files'."""
    found = list(runs)

    def said(run: EngineRun, index: int) -> EngineRun:
        names = ("batch_size", "context")
        values: dict[str, Any] = {name: given.of(name, index, len(found)) for name in names}
        known = {name: value for name, value in values.items() if value is not None}
        return replace(run, **known, is_mean_batch=run.is_mean_batch and "batch_size" not in known)

    return tuple(said(run, index) for index, run in enumerate(found))


def by_position(histogram: Sequence[int], gamma: int, where: str) -> tuple[int, ...]:
    """Rounds that accepted at least 1, 2, … γ drafts, from those that accepted exactly 0, 1, 2, … .

    Raises:
        ValueError: rounds that accepted more than γ.
    """
    longest = max((accepted for accepted, rounds in enumerate(histogram) if rounds), default=0)
    if longest > gamma:
        raise ValueError(
            f"{where}: expected at most {gamma} drafts accepted in a round of gamma {gamma}, got {longest}; the bonus "
            "token is left out of a histogram, and draft trees are not covered"
        )
    return tuple(sum(histogram[accepted:]) for accepted in range(1, gamma + 1))


def checked_gamma(gamma: float, where: str) -> int:
    """A γ that a file tells.

    Raises:
        ValueError: it is not whole, or larger than any engine's.
    """
    if gamma != int(gamma) or not 0 <= gamma <= LARGEST_GAMMA:
        raise ValueError(f"{where}: expected a whole gamma from 0 to {LARGEST_GAMMA}, got {gamma:g}; give --gamma")
    return int(gamma)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
