"""The command `export`: a run's or a plan's answers in the words of a serving engine, which no torch is needed for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specgauge.cli.run_commands import at_home


def export(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUN|PLAN", help="A run directory, or the file of `plan --json`.", callback=at_home),
    ],
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="vllm, sglang, tensorrt-llm, llama.cpp or transformers.")
    ],
    form: Annotated[
        str | None, typer.Option("--form", metavar="NAME", help="Of sglang: flags, adaptive or dspark.")
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", metavar="R", help="Of the engine, such as 1.2.1 or b11549.")
    ] = None,
    pair: Annotated[str | None, typer.Option("--pair", metavar="NAME", help="Of a run that has several.")] = None,
    sampling: Annotated[
        str | None, typer.Option("--sampling", metavar="NAME", help="Of the run; default: its first.")
    ] = None,
    context: Annotated[int | None, typer.Option("--context", metavar="N", help="Default: the longest.")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="One γ, of this batch size, and no schedule.")
    ] = None,
    undecided: Annotated[
        str | None, typer.Option("--undecided", metavar="γ|off", help="What open decisions export: off, gamma or a γ.")
    ] = None,
    draft_sampling: Annotated[
        str | None, typer.Option("--draft-sampling", metavar="HOW", help="same, or greedy as most engines draft.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write FILE, and FILE.txt where it takes no comments.", callback=at_home
        ),
    ] = None,
) -> None:
    """Write a serving engine's settings: γ, and by batch size where it takes a schedule.

    What they hold for and how to check them stands above them, or beside them where they take no comments.
    """
    from specgauge.cli.run_commands import trusted
    from specgauge.sweeps.exports.registry import export_settings
    from specgauge.sweeps.exports.written import write_settings
    from specgauge.sweeps.store.rundir import Run

    settings = export_settings(
        source if source.is_file() else trusted(Run.open(source)),
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
        for path in write_settings(settings, out):
            print(path)
    else:
        print(settings.text, end="")
    beside = out is None and settings.comment is None
    for line in settings.header.splitlines() if beside else settings.warnings:
        print(line if beside else f"warning: {line}", file=sys.stderr)
