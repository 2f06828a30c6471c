"""The run directory, as readers see it: every file by name, read whole or refused in one line. No torch.

runs/<name>/
  config.yaml  environment.json  cells.jsonl  prompts.jsonl  acceptance/<pair>--<sampling>.parquet
  predictions.csv  recommendation.yaml  report.html
  requests.parquet  rounds.parquet  validation.csv         (where texts were decoded end to end)
  policies.json                                            (where some were under adaptive policies)
  outcomes.json                                            (where there is something to say of a pair)
  rollouts.parquet                                         (where `acceptance.rollouts` asks for them)
  counts.jsonl                                             (of a run of a serving engine, imported or measured)
  served.jsonl                                             (of a run that measured servers)

run = Run.open(Path("runs/quickstart"))
run.config, run.environment, run.journal(), run.acceptance_of("p", "greedy"), run.predictions(), run.warnings
run.rows(PredictionRow), run.rows(ValidationRow), run.rows(RecommendationRow), run.rows(WarningRow)     # typed
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specgauge.configs.reading import PROMPT_BYTES
from specgauge.sweeps.plan import begun_config, begun_points
from specgauge.sweeps.store.counts import COUNTS, CountsRow, read_counts
from specgauge.sweeps.store.environment import Environment
from specgauge.sweeps.store.exported import EXPORTS
from specgauge.sweeps.store.files import RUNS, check_output
from specgauge.sweeps.store.journal import read_journal
from specgauge.sweeps.store.rows import (
    MEASURE_AGAIN,
    RUN_AGAIN,
    START_ANEW,
    frame_of,
    plain,
    read_csv,
    read_jsonl,
    read_mapping,
    read_table,
    row_of,
    rows_under,
)
from specgauge.sweeps.store.schema import (
    AcceptanceRow,
    JournalLine,
    PredictionRow,
    PromptRow,
    RecommendationRow,
    ValidationRow,
    WarningRow,
)
from specgauge.sweeps.store.served import SERVED

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.configs.schema import Config

CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
CELLS = "cells.jsonl"
PROMPTS = "prompts.jsonl"
ACCEPTANCE = "acceptance"
PREDICTIONS = "predictions.csv"
RECOMMENDATION = "recommendation.yaml"
VALIDATION = "validation.csv"
ROLLOUTS = "rollouts.parquet"
REQUESTS = "requests.parquet"
ROUNDS = "rounds.parquet"
POLICIES = "policies.json"
OUTCOMES = "outcomes.json"
REPORT = "report.html"
MEASURED = frozenset(
    {
        *(CONFIG, ENVIRONMENT, CELLS, PROMPTS, OUTCOMES, COUNTS, SERVED, EXPORTS),
        *(PREDICTIONS, RECOMMENDATION, VALIDATION, ROLLOUTS, REQUESTS, ROUNDS, POLICIES),
    }
)
"""What a run keeps beside its acceptance and its report; nothing else may be written in their place."""
IMPORTED = "imported"
"""The `provenance` of an environment.json whose run another program measured."""
_RENAMED = "verification.csv"
"""What VALIDATION was called in an earlier release."""
_WRITE_AGAIN = "delete it to have it written anew"

Row = TypeVar("Row", PredictionRow, ValidationRow, RecommendationRow, WarningRow)


def acceptance_path(run: Path, pair: str, sampling: str) -> Path:
    """The acceptance file of one pair and sampling setting in a run directory.

    Names have no `--` in them and no `-` at an end (the configuration sees to it), so no two files share a name.
    """
    return run / ACCEPTANCE / f"{pair}--{sampling}.parquet"


def prompt_rows(run: Path) -> tuple[PromptRow, ...]:
    """The prompts of every pair in a run directory; ValueError where their file is damaged."""
    return read_jsonl(run / PROMPTS, PromptRow, _WRITE_AGAIN, PROMPT_BYTES)


@dataclass(frozen=True, kw_only=True)
class Run:
    """An existing run directory, opened for reading. Files that later steps write are read when asked for."""

    path: Path
    config: Config
    """As in config.yaml; of batch sizes that are searched for those alone that the run has."""
    environment: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Run:
        """Read the configuration and the environment of the run at `path`.

        Raises:
            ValueError: not a run directory, or its configuration or environment, or the journal of searched batch
                sizes, is missing, damaged, foreign or of another release.
        """
        from specgauge.configs.loader import load_config

        _refuse_what_is_no_run(path)
        config = load_config(path / CONFIG)
        if config.grid.are_sizes_searched and (path / CELLS).exists():
            config = begun_config(config, begun_points(read_journal(path / CELLS).lines))
        return cls(path=path, config=config, environment=read_environment(path / ENVIRONMENT))

    def journal(self) -> tuple[JournalLine, ...]:
        """Every whole line of the journal, in the order written; ValueError where it is missing or damaged."""
        return read_journal(self.path / CELLS).lines

    def has_acceptance(self, pair: str, sampling: str) -> bool:
        """Whether the acceptance of this pair and sampling setting has been recorded."""
        return acceptance_path(self.path, pair, sampling).exists()

    def acceptance_of(self, pair: str, sampling: str) -> pd.DataFrame:
        """The recorded teacher-forced pass of one pair and sampling setting, one row per position.

        Raises:
            ValueError: not recorded yet, or the file is damaged or foreign.
        """
        path = acceptance_path(self.path, pair, sampling)
        frame: pd.DataFrame = read_table(path, AcceptanceRow).to_pandas()
        if frame.empty:
            raise ValueError(f"{path}: holds no position; {MEASURE_AGAIN}")
        return frame

    def counts(self, pair: str, sampling: str) -> tuple[CountsRow, ...]:
        """What was counted of rounds decoded elsewhere, of one pair and sampling setting; ValueError where damaged."""
        return tuple(row for row in read_counts(self.path) if (row.pair, row.sampling) == (pair, sampling))

    @property
    def is_imported(self) -> bool:
        """Whether another program measured what is here."""
        return self.environment.get("provenance") == IMPORTED

    @property
    def is_served(self) -> bool:
        """Whether serving engines decoded what is here, measured by `specgauge run`."""
        return self.config.is_served

    @property
    def has_counts(self) -> bool:
        """Whether its rounds were timed whole and counted by an engine, so that no text was recorded."""
        return self.is_imported or self.is_served

    def rows(self, row_type: type[Row]) -> tuple[Row, ...]:
        """The rows of the file that the row type is of; none of validation.csv where nothing was decoded.

        Raises:
            ValueError: the file is missing, truncated, foreign, of another release, or a field holds something else
                than its row type says; file, line and column are named.
        """
        if row_type is PredictionRow:
            return read_csv(self.path / PREDICTIONS, row_type)
        if row_type is ValidationRow:
            path, renamed = self.path / VALIDATION, self.path / _RENAMED
            if renamed.exists() and not path.exists():
                raise ValueError(f"{renamed}: expected its new name, {VALIDATION}; {RUN_AGAIN}")
            return read_csv(path, row_type) if path.exists() else ()
        path = self.path / RECOMMENDATION
        key = "warnings" if row_type is WarningRow else "recommendations"
        return rows_under(path, key, row_type)

    def predictions(self) -> pd.DataFrame:
        """The table of predictions.csv; empty cells are NaN in number columns and '' in text columns."""
        return frame_of(PredictionRow, self.rows(PredictionRow))

    def recommendations(self) -> tuple[dict[str, Any], ...]:
        """The entries of recommendation.yaml, one per (pair, mode, sampling, …, batch_size, context)."""
        return tuple(plain(row) for row in self.rows(RecommendationRow))

    def validation(self) -> tuple[dict[str, Any], ...]:
        """The rows of validation.csv, one for every γ decoded in a cell; empty where nothing was decoded."""
        return tuple(plain(row) for row in self.rows(ValidationRow) if row.gamma is not None)

    @property
    def warnings(self) -> tuple[dict[str, Any], ...]:
        """What a reader must know before believing the numbers: mappings of code, message and remedy."""
        return tuple(plain(row) for row in self.rows(WarningRow))

    @property
    def break_even(self) -> tuple[dict[str, Any], ...]:
        """Of servers, by setting and context: the concurrencies at which speculation pays; () where nothing tells."""
        kept = read_mapping(self.path / RECOMMENDATION, RUN_AGAIN).get("break_even")
        return tuple(one for one in kept if isinstance(one, dict)) if isinstance(kept, list) else ()

    @property
    def parameters(self) -> dict[str, dict[str, int]]:
        """Parameters of target and draft by pair, where recommendation.yaml tells them."""
        found: dict[str, dict[str, int]] = {}
        kept = read_mapping(self.path / RECOMMENDATION, RUN_AGAIN).get("parameters")
        for pair, sizes in kept.items() if isinstance(kept, dict) else ():
            if isinstance(sizes, dict):
                found[str(pair)] = {role: count for role, count in sizes.items() if type(count) is int}
        return found


def check_written(path: Path, example: str) -> None:
    """Look at where a file is to be written, before anything is made for it: nothing that a run keeps is there.

    Raises:
        ValueError: as `check_output`, or what a run measured would be lost.
    """
    check_output(path, example)
    if path.suffix == ".parquet" or (path.name in MEASURED and (path.parent / CONFIG).is_file()):
        raise ValueError(f"{path}: holds what a run measured, another file name is expected (for example {example})")


def read_environment(path: Path) -> dict[str, Any]:
    """The mapping of an environment.json.

    Raises:
        ValueError: missing, truncated, foreign, of another release, or what must not change within a run is of
            another type.
    """
    content = read_mapping(path, START_ANEW)
    row_of(Environment, content, str(path), START_ANEW)
    return content


def _refuse_what_is_no_run(path: Path) -> None:
    if path.is_file():
        raise ValueError(f"{path}: is a file, a run directory is expected (for example {path.parent})")
    if not path.is_dir():
        if (RUNS / path / CONFIG).is_file():
            raise ValueError(f"{path}: no such run; did you mean {RUNS / path}?")
        is_bare = path.parent == Path() and not any(Path().glob(f"*/{CELLS}"))
        folder = RUNS if is_bare else path.parent
        siblings = sorted(entry.parent.name for entry in folder.glob(f"*/{CELLS}"))
        near = difflib.get_close_matches(path.name, siblings, n=1)
        if near:
            raise ValueError(f"{path}: no such run; did you mean {folder / near[0]}?")
        there = f"; runs in {folder}: {', '.join(siblings)}" if siblings else ""
        raise ValueError(f"{path}: no such run{there}; make one with `specgauge run`")
    if (path / CONFIG).exists():
        return
    if (path / CELLS).is_file() and not (path / CELLS).stat().st_size:
        raise ValueError(f"{path}: stopped before anything was measured; run the same command again")
    raise ValueError(f"{path}: not a run directory: it has no {CONFIG}; make one with `specgauge run`")
