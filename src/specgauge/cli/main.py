"""The command line: reads arguments, calls the part that does the work, prints its result.

Results go to stdout, everything else to stderr.  Each command imports its part when it runs, so that ``--help`` answers
at once; torch is only ever imported by ``run``.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from specgauge import __version__
from specgauge.cli.errors import (
    BAD_INPUT,
    PROGRAM,
    Interrupted,
    ReaderLeft,
    debug_for_workers,
    debug_wanted,
    ended_like_ctrl_c,
    tell,
)
from specgauge.cli.model_commands import register

if TYPE_CHECKING:
    from specgauge.configs.schema import Config


ConfigArgument = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped one.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, such as grid.gamma=1:8; may be repeated."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/quickstart.")]


class _Group(TyperGroup):
    """Tells an interruption and a closed output apart from errors, in every command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error
        except BrokenPipeError as error:
            raise ReaderLeft from error


app = typer.Typer(cls=_Group, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[  # noqa: ARG001 (main takes it off the command line, wherever it stands)
        bool, typer.Option("--debug", help="Show tracebacks; also by SPECGAUGE_DEBUG=1. May stand anywhere.")
    ] = False,
) -> None:
    """Does speculative decoding pay for this draft/target pair, on this machine, and with which gamma?"""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(BAD_INPUT)


@app.command()
def run(
    config: ConfigArgument = "quickstart",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Run directory; default runs/<name>.")
    ] = None,
    overrides: SetOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; an old run there is renamed, not lost.")] = False,
) -> None:
    """Measure what CONFIG asks for, predict and recommend.

    Takes up an earlier run of the same configuration where it was stopped.
    """
    loaded = _load(config, overrides)
    from specgauge.reports.html import write_report
    from specgauge.sweeps.run.runner import run as run_sweep
    from specgauge.sweeps.store.files import RUNS

    folder = RUNS / loaded.name if out is None else out

    try:
        with ended_like_ctrl_c():
            code = run_sweep(loaded, out=folder, fresh=fresh, report=write_report, apart=True)
    except KeyboardInterrupt as error:
        again = [PROGRAM, "run", config, *(["--out", str(out)] if out is not None else [])]
        again += [part for override in overrides or () for part in ("--set", override)]
        kept = f"interrupted; every finished block is kept in {folder}, go on with: {shlex.join(again)}"
        raise Interrupted(kept) from error
    raise typer.Exit(code)


@app.command()
def check(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Validate CONFIG and show what it would cost.

    Prints the cells and the memory and time they should take; measures nothing.
    """
    loaded = _load(config, overrides)
    from specgauge.sweeps.describe import describe

    print(describe(loaded))


register(app)


@app.command()
def recommend(
    run_dir: RunArgument,
    pair: Annotated[str | None, typer.Option("--pair", metavar="NAME", help="Only this pair.")] = None,
    sampling: Annotated[str | None, typer.Option("--sampling", metavar="NAME", help="Only this setting.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", metavar="N", help="Only this batch size.")] = None,
    context: Annotated[int | None, typer.Option("--context", metavar="N", help="Only this context.")] = None,
    max_itl: Annotated[
        str | None,
        typer.Option("--max-itl", metavar="T", help="Longest a round may take, such as 50ms or 0.05 (seconds)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """Say what a run recommends, and how sure it is."""
    from specgauge.cli.parsing import parse_duration_s
    from specgauge.sweeps.recommend import recommend as recommendations
    from specgauge.sweeps.recommend import recommendations_json, recommendations_text
    from specgauge.sweeps.store.rundir import Run

    limit_s = None if max_itl is None else parse_duration_s(max_itl, "--max-itl")
    answers = recommendations(
        Run.open(run_dir), pair=pair, sampling=sampling, batch_size=batch_size, context=context, max_itl_s=limit_s
    )
    print(recommendations_json(answers) if as_json else recommendations_text(answers))


@app.command()
def replay(
    run_dir: RunArgument,
    pair: Annotated[str | None, typer.Option("--pair", metavar="NAME", help="Only this pair.")] = None,
    sampling: Annotated[str | None, typer.Option("--sampling", metavar="NAME", help="Only this setting.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", metavar="N", help="Only this batch size.")] = None,
    context: Annotated[int | None, typer.Option("--context", metavar="N", help="Only this context.")] = None,
    replicates: Annotated[
        int, typer.Option("--replicates", metavar="N", min=1, max=10_000, help="Replays of every text.")
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """Try adaptive policies on what a run recorded: fixed gamma, heuristics, bandits, stopping rules, their bounds."""
    from specgauge.sweeps.replay import replay_run, replays_json, replays_text
    from specgauge.sweeps.store.rundir import Run

    replays = replay_run(
        Run.open(run_dir),
        pair=pair,
        sampling=sampling,
        batch_size=batch_size,
        context=context,
        replicates=replicates,
        progress=lambda place: print(f"replaying {place}", file=sys.stderr),
    )
    print(replays_json(replays) if as_json else replays_text(replays))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/before.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another, such as runs/after.")],
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="SHARE", help="What still counts as the same, such as 0.01.")
    ] = 0.01,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """Set the cells of two runs side by side: same, faster, slower or undecided, with the ratio's interval."""
    from specgauge.sweeps.compare import compare as compare_runs
    from specgauge.sweeps.compare import comparison_json, comparison_text
    from specgauge.sweeps.store.rundir import Run

    comparison = compare_runs(Run.open(first), Run.open(second), tolerance=tolerance)
    print(comparison_json(comparison) if as_json else comparison_text(comparison))


@app.command()
def report(
    run_dir: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write it; default RUN/report.html.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the speed-ups: a .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Write a run's HTML report, one file without links."""
    from specgauge.reports.html import write_report
    from specgauge.reports.plot import plot_format, write_plot

    if plot is not None:
        plot_format(plot)
    print(write_report(run_dir, out))
    if plot is not None:
        print(write_plot(run_dir, plot))


@app.command()
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


@app.command()
def schema() -> None:
    """Print the JSON Schema of configurations."""
    import json

    from specgauge.configs.loader import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False, allow_nan=False))


def _load(config: str, overrides: Sequence[str] | None) -> Config:
    from specgauge.configs.loader import load_config

    return load_config(config, overrides or (), require_files=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv`` by default) and return its exit code; nothing escapes as a traceback."""
    debug, kept = debug_wanted(list(sys.argv[1:] if arguments is None else arguments))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this (>&-): nobody reads it, that is no error
            setattr(sys, name, io.StringIO())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a narrow encoding shows γ as an escape, it does not fail
    try:
        with debug_for_workers(debug):
            code = _run(kept)
        sys.stdout.flush()
    except (BrokenPipeError, ReaderLeft) as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains once more
        return tell(error, debug=debug)
    except BaseException as error:  # the one place where every error becomes a line and an exit code
        return tell(error, debug=debug)
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        result = typer.main.get_command(app).main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as error:  # typer leaves so, and only so, when the output is closed while it prints help
        raise ReaderLeft from error
    return result if isinstance(result, int) else 0
