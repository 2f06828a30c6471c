"""The command line: reads arguments, calls the part that does the work, prints its result.

Results go to stdout, everything else to stderr.  Each command imports its part when it runs, so that ``--help`` answers
at once; torch is only ever imported by ``run``.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specgauge.cli.errors import PROGRAM, Interrupted, ReaderLeft, debug_for_workers, debug_wanted, tell
from specgauge.cli.export import export
from specgauge.cli.import_ import import_
from specgauge.cli.model_commands import explain, plan, predict
from specgauge.cli.run_commands import check, compare, configs, recommend, replay, report, run, schema
from specgauge.exits import BAD_INPUT
from specgauge.version import __version__

COMMANDS = (run, check, plan, predict, explain, recommend, export, replay, compare, report, configs, schema)


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


for command in COMMANDS:
    app.command()(command)
app.command("import")(import_)


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
