"""`specgauge import`: what another program measured, as a run directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specgauge.cli.run_commands import at_home

if TYPE_CHECKING:
    from specgauge.sweeps.analysis.predictions import Predictions
    from specgauge.sweeps.imports.engine_run import Given


def import_(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FORMAT FILE…", help="The format, then files of it; with --guess files alone."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="RUN", help="The run directory to write, a new one.", callback=at_home),
    ] = None,
    guess: Annotated[
        bool, typer.Option("--guess", help="Tell the format by the files; import them where --out is.")
    ] = False,
    batch_size: Annotated[
        str | None,
        typer.Option("--batch-size", metavar="N[,N…]", help="Requests decoded together, of all runs or one each."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="N[,N…]", help="Tokens in the cache as a round starts, of all runs or one each."
        ),
    ] = None,
    gamma: Annotated[
        str | None,
        typer.Option("--gamma", metavar="N[,N…]", help="Gamma where the files do not tell it, 0 for plain decoding."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", min=0, max=100, help="What the requests sampled at.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="MODEL", help="The model that was served.")] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="MODEL", help="What drafted: a model, or ngram.")
    ] = None,
    pair: Annotated[str | None, typer.Option("--pair", metavar="NAME", help="What to call the pair.")] = None,
) -> None:
    """Take up runs that a serving engine measured: FORMAT FILE… --out RUN.

    Formats: table, aiperf, vllm-metrics, vllm-bench, vllm-requests, sglang-bench, sglang-requests, sglang-metrics,
    llama-bench, llama-batched-bench, llama-server, llama-metrics, speed-bench, spec-bench, golden; see docs/engines.md.
    """
    from specgauge.sweeps.imports.engine_run import joined
    from specgauge.sweeps.imports.formats import find_format, read
    from specgauge.sweeps.imports.formats import guess as guessed
    from specgauge.sweeps.imports.write import Names, write_import

    names = list(files or ())
    form = None if guess else find_format(names.pop(0)) if names else None
    paths = [Path(name) for name in names]
    if not paths:
        raise ValueError("import: expected FORMAT FILE… (or --guess FILE…), got no file; see specgauge import --help")
    found = guessed(paths) if form is None else {form: paths}
    if guess:
        print("\n".join(f"{one.name}: {one.about}" for one in found))
        if out is None:
            return
    if out is None:
        raise ValueError("--out: expected the run directory to write, such as runs/served, got none")
    given = _given(batch_size, context, gamma)
    imported = joined([read(one, own, given) for one, own in found.items()])
    chosen = Names(pair=pair, target=target, draft=draft, temperature=temperature)
    predictions = write_import(out, list(found), paths, imported, chosen)
    _tell(", ".join(one.name for one in found), out, predictions)


def _given(batch_size: str | None, context: str | None, gamma: str | None) -> Given:
    from specgauge.cli.parsing import parse_counts
    from specgauge.configs.fields import LARGEST_BATCH_SIZE, LARGEST_CONTEXT, LARGEST_GAMMA
    from specgauge.sweeps.imports.engine_run import Given

    def counts(text: str | None, option: str, least: int, most: int) -> tuple[int, ...]:
        return () if text is None else tuple(parse_counts(text, option, minimum=least, maximum=most))

    return Given(
        batch_size=counts(batch_size, "--batch-size", 1, LARGEST_BATCH_SIZE),
        context=counts(context, "--context", 1, LARGEST_CONTEXT),
        gamma=counts(gamma, "--gamma", 0, LARGEST_GAMMA),
    )


def _tell(formats: str, out: Path, found: Predictions) -> None:
    """What was taken up, by point and γ, and what it leaves unknown."""
    from specgauge.sweeps.text_table import milliseconds, printable, text_table

    def cells(row: Mapping[str, Any]) -> list[object]:
        times = (milliseconds(row[name]) for name in ("t_decode_s", "t_round_s"))
        return [row["batch_size"], row["context"], row["gamma"], *times, row["tokens_per_round"], row["speedup"]]

    headings = ("batch", "context", "gamma", "T_decode, ms", "T_round, ms", "tokens per round", "S")
    names = dict.fromkeys((row["pair"], row["sampling"]) for row in found.rows)
    for pair, sampling in names:
        own = [row for row in found.rows if (row["pair"], row["sampling"]) == (pair, sampling)]
        print(printable(f"{formats}: {pair}, {sampling}"))
        print(text_table(headings, [cells(row) for row in own]))
    for warning in found.warnings:
        print(f"warning: {printable(warning['message'])} → {printable(warning['remedy'])}")
    print(f"next: specgauge recommend {out}")
