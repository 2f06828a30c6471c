"""specgauge from Python: measure a pair, open a run, look at its answers, predict with other times, compare runs.

    import specgauge as sg

    run = sg.run(target="embedded", draft="embedded", batch_size=[1, 4], gamma="1:4")
    run = sg.open("runs/quickstart")
    run.recommend(batch_size=4, max_itl_s=0.05)
    sg.compare({"before": "runs/a", "after": run})

Tables are pandas DataFrames; what is unknown is None or NaN. Bad input is a ValueError of one line. Only `run` needs
torch; pandas and matplotlib are loaded by what returns a table or a figure.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.api.keywords import config_of_keywords
from specgauge.api.tables import (
    answer_row,
    comparison_rows,
    html_text,
    shown_answers,
    table_of,
)
from specgauge.configs.errors import did_you_mean
from specgauge.configs.reading import expanded
from specgauge.model.checks import finite_or_none, whole_numbers
from specgauge.reports.copying import latex_text
from specgauge.sweeps.analysis.cell_estimate import acceptance_by_group
from specgauge.sweeps.analysis.predictions import standing
from specgauge.sweeps.analysis.settings import NO_ACCEPTANCE, run_settings
from specgauge.sweeps.answer_table import answer_text
from specgauge.sweeps.compare import TOLERANCE
from specgauge.sweeps.compare import compare as compare_runs
from specgauge.sweeps.recommend import recommend as recommend_run
from specgauge.sweeps.store.derived import doubts
from specgauge.sweeps.store.files import RUNS
from specgauge.sweeps.store.rows import frame_of, row_of
from specgauge.sweeps.store.rundir import PROMPTS, prompt_rows
from specgauge.sweeps.store.rundir import Run as RunDirectory
from specgauge.sweeps.store.schema import PredictionRow, ValidationRow

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from specgauge.configs.schema import Config

Model = str | Path | Mapping[str, Any]
"""A model as YAML takes it: `embedded`, a hub id, a folder, `ngram` (a draft), or a mapping."""
GROUPS = ("category", "prompt")
PLOTS = ("speedup",)


def run(
    config: str | Path | Mapping[str, Any] | Config | None = None,
    *,
    target: Model | None = None,
    draft: Model | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    **fields: object,
) -> Run:
    """Measure what a configuration asks for, predict and recommend; resumes a run that was stopped there.

    Progress, and whatever fails, is told on stderr; what could not be measured stands in the run's `warnings`.

    Args:
        config: a YAML file, the name of a shipped configuration, a mapping as YAML would hold it, or a Config; without
            one, the pair of `target` and `draft`, or else `quickstart`.
        target: the model whose text is wanted; replaces that of the configuration's one pair.
        draft: what proposes tokens, likewise.
        out: the run directory; default runs/<name>.
        fresh: start anew; an old run there is renamed.
        fields: fields of the configuration (`sampling=[…]`, `validate={…}`) and of its sections workload, grid,
            precision and limits (`batch_size=[1, 4]`, `gamma="1:6"`, `run_seconds=60`).

    Raises:
        ValueError: an unknown field (with the nearest), a value that it does not take, or nothing that can be run.
        OSError: the disk refused a write; what was measured before is kept.
        ModuleNotFoundError: torch or transformers is not installed.
    """
    made = config_of_keywords(config, target=target, draft=draft, fields=fields)
    from specgauge.sweeps.run.pair_process import started

    folder = RUNS / made.name if out is None else expanded(out)
    with started(is_served=made.is_served) as worker, redirect_stdout(io.StringIO()):  # the answer, which the Run shows
        from specgauge.reports.html import write_report
        from specgauge.sweeps.run.runner import run as run_sweep

        run_sweep(made, out=folder, fresh=fresh, report=write_report, apart=True, first=worker)
    return Run(folder)


def open(path: str | Path) -> Run:
    """The run in a directory, opened for reading; its repr is what `specgauge recommend` prints.

    Raises:
        ValueError: not a run directory, or its configuration or environment is damaged.
    """
    return Run(path)


class Run:
    """A run directory, opened for reading."""

    def __init__(self, path: str | Path) -> None:
        """Errors as `open`."""
        self._directory = RunDirectory.open(expanded(path))

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._directory.path

    @property
    def config(self) -> Config:
        """What was asked for, defaults included."""
        return self._directory.config

    @property
    def environment(self) -> Mapping[str, Any]:
        """The machine and the packages."""
        return self._directory.environment

    @property
    def warnings(self) -> tuple[dict[str, Any], ...]:
        """What to know before believing the numbers: mappings of code, message and remedy."""
        return (*map(asdict, doubts(self.path)), *standing(self._directory).warnings)

    @property
    def predictions(self) -> pd.DataFrame:
        """predictions.csv: a row for each setting, batch size, context and γ, with the costs of a round, Ω and S."""
        return _frame_of(PredictionRow, standing(self._directory).rows)

    @property
    def validation(self) -> pd.DataFrame:
        """validation.csv: a row for each γ decoded end to end, prediction beside measurement; empty where none was."""
        return _frame_of(ValidationRow, standing(self._directory).validation)

    def table(self) -> pd.DataFrame:
        """The answers: a row for each setting, batch size and context, with decision, γ and S from all evidence."""
        return self.recommend()

    def recommend(
        self,
        *,
        pair: str | None = None,
        sampling: str | None = None,
        batch_size: int | None = None,
        context: int | None = None,
        max_itl_s: float | None = None,
    ) -> pd.DataFrame:
        """The answers that match, taken again among rounds of at most `max_itl_s` seconds where that is given.

        Raises:
            ValueError: a name or number that the run does not have, a limit that is no time, or a damaged file.
        """
        answers = recommend_run(
            self._directory,
            pair=pair,
            sampling=sampling,
            batch_size=batch_size,
            context=context,
            max_itl_s=max_itl_s,
        )
        return table_of([answer_row(answers, entry) for entry in answers.entries])

    def acceptance_by(self, by: str = "category") -> pd.DataFrame:
        """Ω(γ) of each setting by the prompts' category (or by prompt), with its interval over prompts.

        A category of one prompt has no interval; settings whose acceptance was not recorded have no rows.

        Raises:
            ValueError: another grouping, no prompts or recorded acceptance, or a damaged file of them.
        """
        if by not in GROUPS:
            raise ValueError(f"by: expected {' or '.join(GROUPS)}, got {by!r}{did_you_mean(str(by), GROUPS)}")
        path = self.path / PROMPTS
        if not path.exists():
            raise ValueError(f"{path}: expected the prompts of the run, got no such file; run the same command again")
        prompts = prompt_rows(self.path)
        rows: list[dict[str, Any]] = []
        for setting in run_settings(self._directory, {}):
            if setting.rounds is None or setting.rounds.by_prompt is None:
                continue
            key = {name: value for name, value in asdict(setting.key).items() if name != "mode"}
            groups = {one.prompt: getattr(one, by) for one in prompts if one.pair == setting.key.pair}
            for one in acceptance_by_group(self.config, setting.rounds, groups):
                rows += [key | {by: one.group, **figures} for figures in one.rows()]
        if not rows:
            raise ValueError(f"{self.path}: {NO_ACCEPTANCE}")
        return table_of(rows)

    def plot(self, kind: str = "speedup") -> Figure:
        """S(γ) with its interval and what was measured, a panel for each batch size and context.

        Raises:
            ValueError: another kind, a run that has predicted nothing, or a damaged file.
        """
        if kind not in PLOTS:
            raise ValueError(f"plot: expected {' or '.join(PLOTS)}, got {kind!r}{did_you_mean(str(kind), PLOTS)}")
        import matplotlib as mpl

        from specgauge.reports.inline_svg import COLOURS, STYLE
        from specgauge.reports.plot import speedup_figure
        from specgauge.reports.records import read_report_data

        with mpl.rc_context(STYLE):
            figure = speedup_figure(read_report_data(self.path))
        figure.set_facecolor(COLOURS["page"])
        return figure

    def to_latex(self) -> str:
        """The answers as a LaTeX tabular (booktabs); what LaTeX would obey is escaped."""
        return latex_text(shown_answers(recommend_run(self._directory)))

    def predict(
        self,
        *,
        t_decode_s: float,
        t_verify_s: float | Sequence[float],
        t_draft_s: float | Sequence[float] | None = None,
        t_draft_total_s: Sequence[float] | None = None,
        t_draft_catch_up_s: float = 0.0,
        t_overhead_s: float | None = None,
        gamma: int | Sequence[int] | None = None,
        pair: str | None = None,
        sampling: str | None = None,
        batch_size: int = 1,
        context: int | None = None,
        max_itl_s: float | None = None,
    ) -> pd.DataFrame:
        """S(γ) from the acceptance that the run recorded and times (seconds) from elsewhere, by sampling and γ.

        Intervals are over prompts; the times count as exact. `attrs["warnings"]` of the table says where the largest γ
        recorded is the best.

        Args:
            t_decode_s: a plain decoding step of the batch.
            t_verify_s: verification, one for all γ or one for each.
            t_draft_s: a draft step (of lookups: all of them), or steps 1, 2, …; or else `t_draft_total_s`, C by γ.
            t_draft_total_s: all drafts of a round, one for each γ.
            t_draft_catch_up_s: the excess of a draft step that feeds two tokens.
            t_overhead_s: the rest of a round; without it S is optimistic.
            gamma: drafts a round, of the run's grid; default all of it.
            pair: needed where the run has several.
            sampling: one of the run's; default all.
            batch_size: rows decoded together; the times are those of that batch.
            context: acceptance of the texts that start there, where the run has some; default all texts.
            max_itl_s: bounds T_round of what may win.

        Raises:
            ValueError: a name or γ that the run does not have, times that no machine has, or acceptance not recorded.
        """
        from specgauge.cli.costs import given_costs
        from specgauge.cli.predict import predict_rows
        from specgauge.cli.recorded import acceptance_of, drawn_interval, recorded_settings, with_mean_verification

        gammas = None if gamma is None else np.atleast_1d(whole_numbers("gamma", gamma, minimum=1)).tolist()
        batch_size = int(whole_numbers("batch_size", batch_size, minimum=1))
        drafts_with_model = {one.name: one.drafts_with_model for one in self.config.pairs}
        rows: list[dict[str, Any]] = []
        told: list[str] = []
        for setting in recorded_settings(self._directory, pair=pair, sampling=sampling, context=context):
            acceptance = acceptance_of(self._directory, setting, gammas, context=context)
            given = given_costs(
                acceptance.gammas,
                t_decode_s=t_decode_s,
                t_verify_s=t_verify_s,
                t_draft_s=t_draft_s,
                t_draft_total_s=t_draft_total_s,
                t_draft_catch_up_s=t_draft_catch_up_s,
                t_overhead_s=t_overhead_s,
                draft_kind_name="autoregressive" if drafts_with_model[setting.key.pair] else "lookup",
            )
            costs = with_mean_verification(given, acceptance, batch_size=batch_size)
            document = predict_rows(acceptance, costs, batch_size=batch_size, max_itl_s=max_itl_s)
            told += [f"{setting.key.sampling}: {words}" for words in document["warnings"]]
            confidence = self.config.precision.confidence
            low, high = drawn_interval(given.costs, acceptance, batch_size=batch_size, confidence=confidence)
            for index, row in enumerate(document["rows"]):
                ends = {"speedup_low": finite_or_none(low[index]), "speedup_high": finite_or_none(high[index])}
                rows.append(acceptance.inputs | row | ends | {"label": document["label"]})
        frame = table_of(rows)
        frame.attrs["warnings"] = tuple(told)
        return frame

    def export(
        self,
        engine: str,
        *,
        form: str | None = None,
        release: str | None = None,
        pair: str | None = None,
        sampling: str | None = None,
        context: int | None = None,
        batch_size: int | None = None,
        undecided: str | int = "off",
        draft_sampling: str | None = None,
        out: str | Path | None = None,
    ) -> str:
        """A serving engine's settings, as `specgauge export` prints them; the options are those of the command.

        What they hold for and how to check them stands above them, or beside `out` where they take no comments.

        Args:
            engine: `vllm`, `sglang`, `tensorrt-llm`, `llama.cpp` or `transformers`.
            form: one of the engine's, its first by default.
            release: of the engine, the newest known by default.
            pair: needed where the run has several.
            sampling: the run's first by default.
            context: the longest by default.
            batch_size: for one γ, of this batch size, instead of a schedule.
            undecided: what open decisions export: `off`, `gamma` or a γ.
            draft_sampling: `same` or `greedy`; by default the engine's, where the run has it.
            out: a file to write as well, and one beside it, FILE.txt, where it takes no comments.

        Raises:
            ValueError: an unknown name, release or number, nothing that pays, or a damaged file.
            OSError: the disk refused a write.
        """
        from specgauge.sweeps.exports.registry import export_settings
        from specgauge.sweeps.exports.written import write_settings

        settings = export_settings(
            self._directory,
            engine,
            form=form,
            release=release,
            pair=pair,
            sampling=sampling,
            context=context,
            batch_size=batch_size,
            undecided=undecided,
            draft_sampling=draft_sampling,
        )
        if out is not None:
            write_settings(settings, expanded(out))
        return settings.text

    def __repr__(self) -> str:
        """What `specgauge recommend` prints, or why there is none."""
        try:
            return answer_text(recommend_run(self._directory))
        except ValueError as error:
            return f"Run({str(self.path)!r}): {error}"

    def _repr_html_(self) -> str:
        """The answers as an HTML table, for notebooks."""
        try:
            return html_text(shown_answers(recommend_run(self._directory)))
        except ValueError as error:
            return html_text([[str(error)]])

    def __dir__(self) -> list[str]:
        """The public names."""
        return [name for name in super().__dir__() if not name.startswith("_")]


def compare(runs: Mapping[str, Run | str | Path], *, tolerance: float = TOLERANCE) -> pd.DataFrame:
    """The cells that runs share: each later run over the first in tokens a second (plain, speculative) and speed-up.

    Runs with different drafts of one target are compared too. `attrs` of the table has, by name, the `differences` of
    machine, versions and models, and what was `left_out`, with the reasons.

    Args:
        runs: two or more, by the names that the table calls them; the first is the baseline.
        tolerance: what still counts as the same, as a share.

    Raises:
        ValueError: fewer than two runs, the same run twice, runs that share nothing comparable, or a damaged file.
    """
    if not isinstance(runs, Mapping) or len(runs) < 2:
        raise ValueError('compare: expected two or more runs by name, such as {"a": run, "b": "runs/b"}, got fewer')
    opened = {name: one if isinstance(one, Run) else Run(one) for name, one in runs.items()}
    (baseline, first), *others = opened.items()
    rows: list[dict[str, Any]] = []
    told: dict[str, dict[str, tuple[str, ...]]] = {"differences": {}, "left_out": {}}
    for name, other in others:
        found = compare_runs(first._directory, other._directory, tolerance=tolerance)
        told["differences"][name], told["left_out"][name] = found.differences, found.left_out
        rows += comparison_rows(found, baseline, name)
    frame = table_of(rows)
    frame.attrs.update(told)
    return frame


def _frame_of(row_type: type[Any], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return frame_of(row_type, [row_of(row_type, row, row_type.__name__) for row in rows])
