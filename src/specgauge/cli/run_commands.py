"""The commands that measure, and those that read what a run wrote: each imports its part when it is called."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specgauge.cli.errors import PROGRAM, Interrupted, ended_like_ctrl_c

if TYPE_CHECKING:
    from specgauge.configs.schema import Config
    from specgauge.sweeps.store.rundir import Run


def at_home(path: Path | None) -> Path | None:
    """A path with `~` and `~user` replaced, which shells leave in ``--out=~/x``; ValueError where `~` names nobody."""
    from specgauge.configs.reading import expanded

    return None if path is None else expanded(path)


ConfigArgument = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped one.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, such as grid.gamma=1:8; may be repeated."),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/quickstart.", callback=at_home)
]
PairOption = Annotated[str | None, typer.Option("--pair", metavar="NAME", help="Only this pair.")]
SamplingOption = Annotated[str | None, typer.Option("--sampling", metavar="NAME", help="Only this setting.")]
BatchOption = Annotated[int | None, typer.Option("--batch-size", metavar="N", help="Only this batch size.")]
ContextOption = Annotated[int | None, typer.Option("--context", metavar="N", help="Only this context.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print strict JSON.")]


def run(
    config: ConfigArgument = "quickstart",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Run directory; default runs/<name>.", callback=at_home)
    ] = None,
    overrides: SetOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; an old run there is renamed, not lost.")] = False,
    executor: Annotated[
        str | None,
        typer.Option("--executor", metavar="KIND", help="Where to measure: local, or ray (needs specgauge[ray])."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Send one request to each server that runs, and measure nothing.")
    ] = False,
) -> None:
    """Measure what CONFIG asks for, predict and recommend.

    Takes up an earlier run of the same configuration where it was stopped.
    """
    overrides = [*(overrides or ()), *([] if executor is None else [f"executor.kind={executor}"])]
    loaded = _load(config, overrides)
    if dry_run:
        from specgauge.sweeps.served.dry_run import dry_run as ask_servers

        print(ask_servers(loaded))
        return
    from specgauge.sweeps.store.files import RUNS

    folder = RUNS / loaded.name if out is None else out
    if sys.stderr.isatty():  # a file gets stages and errors alone
        first = "" if loaded.is_served else "; torch and the models are loaded first"
        print(f"{loaded.name}: results go to {folder}{first}", file=sys.stderr)
    from specgauge.sweeps.run.pair_process import started

    try:
        is_here = loaded.executor.kind == "local"
        started_first = started(is_served=loaded.is_served) if is_here else nullcontext()
        with ended_like_ctrl_c(), started_first as worker:  # it imports while this process does
            from specgauge.sweeps.run.runner import run as run_sweep

            code = run_sweep(
                loaded, out=folder, fresh=fresh, report=_write_report, apart=True, first=worker, meanwhile=_load_report
            )
    except KeyboardInterrupt as error:
        again = [PROGRAM, "run", config, *(["--out", str(out)] if out is not None else [])]
        again += [part for override in overrides for part in ("--set", override)]
        kept = f"interrupted; every finished block is kept in {folder}, go on with: {shlex.join(again)}"
        raise Interrupted(kept) from error
    raise typer.Exit(code)


def check(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Validate CONFIG and show what it would cost.

    Prints the cells and the memory and time they should take; measures nothing.
    """
    loaded = _load(config, overrides)
    from specgauge.sweeps.describe import describe

    print(describe(loaded))


def recommend(
    run_dir: RunArgument,
    pair: PairOption = None,
    sampling: SamplingOption = None,
    batch_size: BatchOption = None,
    context: ContextOption = None,
    max_itl: Annotated[
        str | None,
        typer.Option("--max-itl", metavar="T", help="Longest a round may take, such as 50ms."),
    ] = None,
    warnings: Annotated[bool, typer.Option("--warnings", help="Show every warning.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what a run recommends, and how sure it is."""
    from specgauge.cli.parsing import parse_duration_s
    from specgauge.sweeps.answer_table import print_answer
    from specgauge.sweeps.recommend import recommend as recommendations
    from specgauge.sweeps.recommend import recommendations_json
    from specgauge.sweeps.store.rundir import Run

    limit_s = None if max_itl is None else parse_duration_s(max_itl, "--max-itl", needs_unit=True)
    answers = recommendations(
        Run.open(run_dir), pair=pair, sampling=sampling, batch_size=batch_size, context=context, max_itl_s=limit_s
    )
    if as_json:
        print(recommendations_json(answers))
    else:
        print_answer(answers, every_warning=warnings)


def replay(
    run_dir: RunArgument,
    pair: PairOption = None,
    sampling: SamplingOption = None,
    batch_size: BatchOption = None,
    context: ContextOption = None,
    replicates: Annotated[
        int, typer.Option("--replicates", metavar="N", min=1, max=10_000, help="Replays of every text.")
    ] = 100,
    as_json: JsonOption = False,
) -> None:
    """Try adaptive policies on what a run recorded: fixed gamma, heuristics, bandits, stopping rules, their bounds."""
    from specgauge.sweeps.replay import replay_run, replays_json, replays_text
    from specgauge.sweeps.store.rundir import Run

    replays = replay_run(
        trusted(Run.open(run_dir)),
        pair=pair,
        sampling=sampling,
        batch_size=batch_size,
        context=context,
        replicates=replicates,
        progress=lambda cell: print(f"replaying {cell}", file=sys.stderr),
    )
    print(replays_json(replays) if as_json else replays_text(replays))


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/before.", callback=at_home)
    ],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another, such as runs/after.", callback=at_home)],
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="SHARE", help="What still counts as the same, such as 0.01.")
    ] = 0.01,
    as_json: JsonOption = False,
) -> None:
    """Set the cells of two runs side by side: same, faster, slower or undecided, with the ratio's interval."""
    from specgauge.sweeps.compare import compare as compare_runs
    from specgauge.sweeps.compare import comparison_json, comparison_text
    from specgauge.sweeps.store.rundir import Run

    comparison = compare_runs(trusted(Run.open(first)), trusted(Run.open(second)), tolerance=tolerance)
    print(comparison_json(comparison) if as_json else comparison_text(comparison))


def report(
    run_dir: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write it; default RUN/report.html.", callback=at_home),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Also draw the speed-ups: a .png, .svg or .pdf.", callback=at_home),
    ] = None,
) -> None:
    """Write a run's HTML report, one file without links."""
    from specgauge.sweeps.store.rundir import Run

    run = Run.open(run_dir)  # before what draws is loaded
    from specgauge.reports.html import write_report
    from specgauge.reports.plot import plot_format, write_plot

    if plot is not None:
        plot_format(plot)
    trusted(run)
    print(write_report(run_dir, out))
    if plot is not None:
        print(write_plot(run_dir, plot))


def configs(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The one to print, comments included.")] = None,
) -> None:
    """List the shipped configurations, or print one to copy."""
    from specgauge.configs.loader import shipped_configs, shipped_text

    if name is not None:
        print(shipped_text(name), end="")
        return
    for shipped in shipped_configs():
        first_line = shipped_text(shipped).partition("\n")[0]
        print(f"{shipped:<12} {first_line.removeprefix('# ')}")


def schema() -> None:
    """Print the JSON Schema of configurations."""
    import json

    from specgauge.configs.loader import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False, allow_nan=False))


def _load_report() -> None:
    """Import what analyses a run and writes its report, while nothing is timed."""
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import scipy.special  # noqa: F401

    import specgauge.reports.html  # noqa: F401


def _write_report(run_dir: Path) -> Path:
    """The report of a run."""
    from specgauge.reports.html import write_report

    return write_report(run_dir)


def trusted(run: Run) -> Run:
    """The run, after a line on stderr for whatever was altered since it was written."""
    from specgauge.sweeps.store.derived import doubts

    for doubt in doubts(run.path):
        print(f"{run.path}: {doubt.message}; {doubt.remedy}", file=sys.stderr)
    return run


def _load(config: str, overrides: Sequence[str] | None) -> Config:
    from specgauge.configs.loader import load_config

    return load_config(config, overrides or (), require_files=True)
