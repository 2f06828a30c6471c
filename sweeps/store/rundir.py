"""The run directory, as readers see it: every file by name, read whole or refused in one line. No torch.

runs/<name>/
  config.yaml  environment.json  cells.jsonl  prompts.jsonl  acceptance/<pair>--<sampling>.parquet
  predictions.csv  recommendation.yaml  report.html
  requests.parquet  rounds.parquet  verification.csv       (where texts were decoded end to end)
  policies.json                                            (where some were under adaptive policies)

run = Run.open(Path("runs/quickstart"))
run.config, run.environment, run.journal(), run.acceptance(), run.predictions(), run.recommendations(), run.warnings
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.sweeps.store.files import RUNS
from specgauge.sweeps.store.journal import JournalLine, read_journal
from specgauge.sweeps.store.readers import read_acceptance, read_environment, read_predictions, read_recommendation

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
VERIFICATION = "verification.csv"
ROLLOUTS = "rollouts.parquet"
POLICIES = "policies.json"
REPORT = "report.html"
RUN_FILES = frozenset(
    {
        CONFIG, ENVIRONMENT, CELLS, PROMPTS, ACCEPTANCE, PREDICTIONS, RECOMMENDATION, VERIFICATION, REPORT,
        ROLLOUTS, POLICIES, "rounds.parquet", "requests.parquet",
    }
)  # fmt: skip


def acceptance_file_name(pair: str, sampling: str) -> str:
    """The name, within `acceptance/`, of the file of one pair and sampling setting.

    Names have no `--` in them and no `-` at an end (the configuration sees to it), so no two files share a name.
    """
    return f"{pair}--{sampling}.parquet"


@dataclass(frozen=True, kw_only=True)
class Run:
    """An existing run directory, opened for reading. Files that later steps write are read when asked for."""

    path: Path
    config: Config
    environment: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Run:
        """Read the configuration and the environment of the run at `path`.

        Raises:
            ValueError: not a run directory, or its configuration or environment is missing, damaged, foreign or of
                another release.
        """
        from specgauge.configs.loader import load_config

        _refuse_what_is_no_run(path)
        config = load_config(path / CONFIG)
        return cls(path=path, config=config, environment=read_environment(path / ENVIRONMENT))

    def journal(self) -> tuple[JournalLine, ...]:
        """Every whole line of the journal, in the order written.

        Raises:
            ValueError: the journal is missing or damaged.
        """
        return read_journal(self.path / CELLS).lines

    def has_acceptance(self, pair: str, sampling: str) -> bool:
        """Whether the acceptance of this pair and sampling setting has been recorded."""
        return (self.path / ACCEPTANCE / acceptance_file_name(pair, sampling)).is_file()

    def acceptance_of(self, pair: str, sampling: str) -> pd.DataFrame:
        """The recorded teacher-forced pass of one pair and sampling setting, one row per position.

        Raises:
            ValueError: not recorded yet, or the file is damaged or foreign.
        """
        return read_acceptance(self.path / ACCEPTANCE / acceptance_file_name(pair, sampling))

    def acceptance(self) -> pd.DataFrame:
        """All recorded positions, with the columns `pair` and `sampling` in front.

        Raises:
            ValueError: nothing is recorded yet, or a file is damaged or foreign.
        """
        import pandas as pd

        frames = []
        for pair in self.config.pairs:
            for sampling in self.config.sampling:
                if self.has_acceptance(pair.name, sampling.name):
                    frame = self.acceptance_of(pair.name, sampling.name)
                    frame.insert(0, "sampling", sampling.name)
                    frame.insert(0, "pair", pair.name)
                    frames.append(frame)
        if not frames:
            raise ValueError(f"{self.path / ACCEPTANCE}: no acceptance recorded yet; finish it with `specgauge run`")
        return pd.concat(frames, ignore_index=True)

    def predictions(self) -> pd.DataFrame:
        """The table of predictions.csv; empty cells are NaN in number columns and '' in text columns.

        Raises:
            ValueError: the file is missing, truncated or foreign.
        """
        return read_predictions(self.path / PREDICTIONS)

    def recommendations(self) -> tuple[dict[str, Any], ...]:
        """The entries of recommendation.yaml, one per (pair, mode, sampling, …, batch_size, context).

        Raises:
            ValueError: the file is missing, truncated, foreign or of another release.
        """
        return tuple(self._answers["recommendations"])

    def verification(self) -> tuple[dict[str, Any], ...]:
        """The rows of verification.csv, one for every γ decoded in a cell; empty where nothing was decoded.

        Raises:
            ValueError: the file is truncated, foreign or of another release.
        """
        return tuple(row for row in self._verified() if row["gamma"] is not None)

    def verified_policies(self) -> tuple[dict[str, Any], ...]:
        """Its rows of adaptive policies, one for every policy decoded in a cell; errors as `verification`."""
        return tuple(row for row in self._verified() if row["gamma"] is None)

    def _verified(self) -> tuple[dict[str, Any], ...]:
        from specgauge.sweeps.store.validation_file import read_verification  # late: it imports numpy

        path = self.path / VERIFICATION
        return read_verification(path) if path.is_file() else ()

    @property
    def warnings(self) -> tuple[dict[str, Any], ...]:
        """What a reader must know before believing the numbers: mappings of code, message and remedy.

        Raises:
            ValueError: recommendation.yaml is missing, truncated, foreign or of another release.
        """
        return tuple(self._answers.get("warnings") or ())

    @cached_property
    def _answers(self) -> Mapping[str, Any]:
        return read_recommendation(self.path / RECOMMENDATION)


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
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path}: not a run directory: it has no {CONFIG}; make one with `specgauge run`")
