"""An import as an ordinary run directory: written beside its place, and moved there once it is whole.

    cells.jsonl     decode (γ = 0), round:γ, and parts where the files tell them apart; a block a run
    counts.jsonl    what rounds yielded: counts by request or run
    config.yaml     the pair, the grid that was measured; environment.json: provenance `imported`, files with checksums

Contexts that lie near each other are one point: γ = 0 and γ = 3 of one workload end at different lengths.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specgauge.configs.fields import LARGEST_CONTEXT, LONGEST_NAME
from specgauge.configs.loader import config_of
from specgauge.configs.schema import Config
from specgauge.model.arms import APART, round_arm, verify_arm
from specgauge.model.checks import positive_times_s
from specgauge.sweeps.analysis.imported_warnings import NOTES
from specgauge.sweeps.analysis.predictions import Predictions, predict_run
from specgauge.sweeps.imports.engine_run import Counted, EngineRun, Format, Imported, digest
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.store.counts import CountsRow, write_counts
from specgauge.sweeps.store.rows import plain, row_of
from specgauge.sweeps.store.rundir import IMPORTED, Run
from specgauge.sweeps.store.schema import WarningRow
from specgauge.sweeps.store.writer import OpenRun
from specgauge.version import __version__

ONE_POINT, ONE_POINT_TOKENS = 0.1, 64
"""How far contexts of one point may lie apart: as a share of the shortest, and in tokens whatever the share."""
UNKNOWN = "unknown"
SAMPLING = "as-served"
"""The sampling setting of requests, which no engine writes down."""
MOST_NOTES = 3
"""Notes of one kind that are told one by one."""
MOST_UNITS = 2000
"""Units of counts that are kept apart of one γ and batch size; requests beyond them are added together."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a person calls things; None as the files do."""

    pair: str | None = None
    target: str | None = None
    draft: str | None = None
    temperature: float | None = None


def write_import(
    out: Path, forms: Sequence[Format], files: Sequence[Path], imported: Imported, names: Names
) -> Predictions:
    """Write the run directory `out`, which must not exist or be empty, and what follows from it.

    forms: those of the files, the first of which names the pair where nothing else does.

    Raises:
        ValueError: `out` holds something or has no name, a run twice, or counts that no chain of drafts can have.
        StorageError: the disk refused a write.
    """
    if out.name in ("", ".."):
        raise ValueError(f"{out}: expected the name of a new directory, such as runs/served; give another --out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: expected a new directory, got one that holds something; give another --out")
    _refuse_twice(imported.runs)
    runs, notes = _placed(imported)
    engine = forms[0].engine
    runs = [replace(run, pair=_name(run.pair or names.pair or engine), sampling=_sampling(run, names)) for run in runs]
    config = _config(out, runs, imported, names)
    rows = [row for run in runs for row in _count_rows(run)]
    place = out.resolve()
    unfinished = place.with_name(f".{place.name}.import-{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with OpenRun(unfinished, config, fresh=False) as run:
            run.check_environment(_environment(forms, files, imported, names, _few(notes)))
            for line in _lines(config, runs):
                run.journal.append(line)
            if rows:
                write_counts(unfinished, rows)
        found = predict_run(Run.open(unfinished))
        if place.exists():
            place.rmdir()
        unfinished.rename(place)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return found


def _refuse_twice(runs: Iterable[EngineRun]) -> None:
    first: dict[EngineRun, str] = {}
    for run in runs:
        figures = replace(run, source="", counts=tuple(replace(one, source="") for one in run.counts))
        earlier = first.get(figures)
        first[figures] = run.source
        if earlier is not None and run.is_timed:
            at = "" if run.batch_size is None else f", batch size {run.batch_size}"
            raise ValueError(
                f"{run.source}: expected every run once, got the same figures as {earlier} (gamma {run.gamma}{at})"
            )


def _placed(imported: Imported) -> tuple[list[EngineRun], list[WarningRow]]:
    """The runs with a batch size and a context each, and what had to be taken for them."""
    runs, notes = list(imported.runs), list(imported.notes)
    if any(run.batch_size is None for run in runs):
        notes.append(
            WarningRow(
                code="batch_size_unknown",
                message="the files do not say how many requests were decoded together: taken as 1",
                remedy="import again with --batch-size N, or one for each run: --batch-size 1,4,16",
            )
        )
    points = _points((run.context for run in runs if run.context is not None), at_least=ONE_POINT_TOKENS)
    sizes = _points((run.batch_size for run in runs if run.batch_size and run.is_mean_batch), at_least=1)
    only = next(iter(set(points.values()))) if len(set(points.values())) == 1 else None
    if any(run.context is None for run in runs) and only is None:
        notes.append(
            WarningRow(
                code="context_unknown",
                message="the files do not say how long the texts were: their context is shown as 1",
                remedy="import again with --context N, the tokens in the cache as a round starts",
            )
        )
    if any(one.rounds is None for run in runs for one in run.counts):
        notes.append(
            WarningRow(
                code="counts_unknown",
                message="tokens per round are given without counts: no interval covers how far they may be off",
                remedy="import counts of the engine's own, such as its per-request metrics",
            )
        )
    placed = [
        replace(
            run,
            batch_size=sizes.get(run.batch_size or 1, 1) if run.is_mean_batch else run.batch_size or 1,
            context=(only or 1) if run.context is None else points[run.context],
        )
        for run in runs
    ]
    return placed, notes


def _few(notes: Iterable[WarningRow]) -> Iterator[WarningRow]:
    """The notes, those of many runs as one: the first of its kind, and how many more there are."""
    kinds: dict[tuple[str, str], list[WarningRow]] = {}
    for note in notes:
        kinds.setdefault((note.code, note.remedy), []).append(note)
    for own in kinds.values():
        if len(own) <= MOST_NOTES:
            yield from own
        else:
            yield replace(own[0], message=f"{own[0].message}; and {len(own) - 1} more runs like it")


def _points(values: Iterable[int], *, at_least: int) -> dict[int, int]:
    """The value that stands for each: the middle of those that lie within a tenth, or `at_least`, of the first."""
    groups: list[list[int]] = []
    for value in sorted(values):
        if groups and value <= groups[-1][0] + max(ONE_POINT * groups[-1][0], at_least):
            groups[-1].append(value)
        else:
            groups.append([value])
    return {value: min(max(1, own[len(own) // 2]), LARGEST_CONTEXT) for own in groups for value in own}


def _name(text: str) -> str:
    """A name for files from whatever a file calls something."""
    kept = re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9._-]+", "-", text)).strip("-.")
    return kept[-LONGEST_NAME:].strip("-.") or UNKNOWN


def _sampling(run: EngineRun, names: Names) -> str:
    if run.sampling:
        return _name(run.sampling)
    return SAMPLING if names.temperature is None else f"temperature-{names.temperature:g}"


def _config(out: Path, runs: Sequence[EngineRun], imported: Imported, names: Names) -> Config:
    target, draft = names.target or imported.target or UNKNOWN, names.draft or imported.draft or UNKNOWN
    drafting: Any = draft if draft == "ngram" else {"model": draft}
    places = sorted({(run.batch_size, run.context) for run in runs})
    batch_sizes, contexts = (sorted(set(axis)) for axis in zip(*places, strict=True))
    gammas = sorted({run.gamma for run in runs if run.gamma}) or [1]
    grid: dict[str, Any] = {"batch_size": batch_sizes, "context": contexts, "gamma": gammas}
    if len(places) < len(batch_sizes) * len(contexts):
        grid["include"] = [{"batch_size": batch_size, "context": context} for batch_size, context in places]
    temperature = 1.0 if names.temperature is None else names.temperature
    content = {
        "name": _name(out.name),
        "pairs": [{"name": pair, "target": {"model": target}, "draft": drafting} for pair in _of(runs, "pair")],
        "sampling": [{"name": name, "temperature": temperature} for name in _of(runs, "sampling")],
        "draft_sampling": ["greedy"],
        "grid": grid,
        "workload": {"max_new_tokens": max(64, *(gamma + 1 for gamma in gammas))},
    }
    return config_of(content, f"the configuration of {out}")


def _of(runs: Sequence[EngineRun], name: str) -> list[str]:
    return list(dict.fromkeys(getattr(run, name) for run in runs))


def _count_rows(run: EngineRun) -> Iterator[CountsRow]:
    where = {"pair": run.pair, "sampling": run.sampling, "gamma": run.gamma}
    point = {"batch_size": run.batch_size, "context": run.context}
    for one in _merged(run.counts):
        yield row_of(CountsRow, {**where, **point, **vars(one)}, one.source, "nothing is written")


def _merged(counts: Sequence[Counted]) -> Sequence[Counted]:
    """Counts of at most `MOST_UNITS` units, each request in one of them."""
    if len(counts) <= MOST_UNITS or any(one.rounds is None for one in counts):
        return counts
    return [_sum(counts[unit::MOST_UNITS]) for unit in range(MOST_UNITS)]


def _sum(counts: Sequence[Counted]) -> Counted:
    def added(name: str) -> Any:
        values = [getattr(one, name) for one in counts]
        return None if None in values else sum(values)

    rows = [one.accepted_by_position for one in counts]
    known = [row for row in rows if row is not None]
    return Counted(
        source=f"{counts[0].source} and {len(counts) - 1} more",
        **{name: added(name) for name in ("rounds", "tokens", "drafted", "accepted")},
        accepted_by_position=tuple(map(sum, zip(*known, strict=True))) if len(known) == len(rows) else None,
    )


def _lines(config: Config, runs: Sequence[EngineRun]) -> Iterator[dict[str, Any]]:
    """The journal: every run is a block of its arms, timed apart from all others."""
    blocks: dict[tuple[str, str], int] = {}
    cells = {(cell.pair, cell.batch_size, cell.context): cell for cell in plan_cells(config)}
    for run in runs:
        for name in ("t_round_s", "t_draft_total_s", "t_verify_s"):
            positive_times_s(f"{run.source}, {name}", 1.0 if getattr(run, name) is None else getattr(run, name))
        cell = cells[str(run.pair), run.batch_size or 1, run.context or 1]
        for arm, marks in _times(run).items():
            block = blocks.get((cell.id, arm), 0)
            blocks[cell.id, arm] = block + 1
            yield {
                "axes": cell.axes,
                "arm": arm,
                "block": block,
                "status": "ok",
                "samples_s": [marks],
                "notes": {APART: True, "source": run.source},
            }
    yield from _chains(cells.values(), runs)


def _times(run: EngineRun) -> dict[str, list[float]]:
    """Seconds by arm; the draft chain, which takes several γ, left out."""
    found = {
        ("decode" if run.gamma == 0 else round_arm(run.gamma)): run.t_round_s,
        **({verify_arm(run.gamma): run.t_verify_s} if run.gamma else {}),
    }
    return {arm: [seconds] for arm, seconds in found.items() if seconds is not None}


def _chains(cells: Iterable[Cell], runs: Sequence[EngineRun]) -> Iterator[dict[str, Any]]:
    """C(1), C(2), … of the cells where the files tell all of them up to the largest told."""
    for cell in cells:
        own = [
            run for run in runs if (run.pair, run.batch_size, run.context) == (cell.pair, cell.batch_size, cell.context)
        ]
        known = {run.gamma: run.t_draft_total_s for run in own if run.t_draft_total_s is not None}
        if known and sorted(known) == list(range(1, max(known) + 1)):
            yield {
                "axes": cell.axes,
                "arm": "draft",
                "block": 0,
                "status": "ok",
                "samples_s": [[known[gamma] for gamma in sorted(known)]],
                "notes": {APART: True, "source": own[0].source},
            }


def _environment(
    forms: Sequence[Format], files: Sequence[Path], imported: Imported, names: Names, notes: Iterable[WarningRow]
) -> Mapping[str, Any]:
    return {
        "provenance": IMPORTED,
        "format": ", ".join(form.name for form in forms),
        "engine": ", ".join(dict.fromkeys(form.engine for form in forms)),
        "release": imported.release,
        "temperature": names.temperature,
        "files": [
            {"file": str(file), "bytes": file.stat().st_size, "sha256": digest(file)}
            for given in files
            for file in (sorted(one for one in given.rglob("*") if one.is_file()) if given.is_dir() else [given])
        ],
        NOTES: [plain(one) for one in notes],
        "device": None,
        "cpu": None,
        "cuda": None,
        "threads": None,
        "packages": {"specgauge": __version__},
    }
