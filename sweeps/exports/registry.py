"""The engines by name, and the one way from a run or a plan to what one of them reads.

    found = export_settings(Path("runs/quickstart"), "vllm", context=256)
    found.text, found.header, found.warnings

A new engine is one file with an `Engine`, and one line in `ENGINES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specgauge.configs.errors import did_you_mean
from specgauge.sweeps.exports import llama_cpp, sglang, tensorrt_llm, transformers_config, vllm
from specgauge.sweeps.exports.answers import ServingAnswers
from specgauge.sweeps.exports.engine import Engine, Request, header_lines, warnings_of
from specgauge.sweeps.exports.plan_answers import plan_answers
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.exports.schedule import OFF, RECOMMENDED, Undecided
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.text_table import printable

T = TypeVar("T")

ENGINES: Mapping[str, Engine] = {
    "vllm": vllm.ENGINE,
    "sglang": sglang.ENGINE,
    "tensorrt-llm": tensorrt_llm.ENGINE,
    "llama.cpp": llama_cpp.ENGINE,
    "transformers": transformers_config.ENGINE,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an engine reads, and what to know of it."""

    content: str
    header: str
    """Lines, each ending in a line feed."""
    warnings: tuple[str, ...]
    """What of the header calls for attention."""
    comment: str | None
    """What begins a comment in the content; None where it takes none."""

    @property
    def text(self) -> str:
        """The content, under its header where it takes comments."""
        if self.comment is None:
            return self.content
        return "".join(f"{self.comment} {line}\n" for line in self.header.splitlines()) + self.content


def export_settings(
    source: Path | Run,
    engine: str,
    *,
    form: str | None = None,
    release: str | None = None,
    pair: str | None = None,
    sampling: str | None = None,
    context: int | None = None,
    batch_size: int | None = None,
    undecided: str | int | None = None,
    draft_sampling: str | None = None,
) -> Settings:
    """The settings of an engine from a run directory or the document of a plan.

    Args:
        source: a run, its directory, or the file that `specgauge plan --json` wrote.
        engine: one of `ENGINES`.
        form: one of the engine's, its first by default.
        release: of the engine, the newest known here by default.
        pair: where the run has several.
        sampling: the first of the run by default.
        context: the longest of the run or plan by default.
        batch_size: for a single γ instead of a schedule, or in a form that takes but one.
        undecided: what is written where nothing is decided: `off` (the default), `gamma`, or a γ that is known.
        draft_sampling: `same` or `greedy`; that of the engine where the run has it by default.

    Raises:
        ValueError: an unknown name, release or number, an option that a plan does not take, nothing that pays or is
            known, or a damaged file.
        OSError: a file cannot be read.
    """
    found = _named("engine", engine, ENGINES)
    make = next(iter(found.forms.values())) if form is None else _named("form", form, found.forms)
    if isinstance(source, Path) and source.is_file():
        for_runs = {"pair": pair, "sampling": sampling, "draft sampling": draft_sampling}
        given = next((name for name, value in for_runs.items() if value is not None), None)
        if given is not None:
            raise ValueError(f"{given}: expected a run directory, since a plan has but one answer, got {source}")
        answers: ServingAnswers = plan_answers(source, context=context, undecided=undecided_of(undecided))
    else:
        answers = run_answers(
            Run.open(source) if isinstance(source, Path) else source,
            found.rules,
            pair=pair,
            sampling=sampling,
            context=context,
            undecided=undecided_of(undecided),
            draft_sampling=draft_sampling,
        )
    export = make(answers, Request(release=release, batch_size=batch_size))
    return Settings(
        content=export.content,
        header="".join(f"{printable(line)}\n" for line in header_lines(answers, found, export)),
        warnings=tuple(map(printable, warnings_of(answers, found))),
        comment=export.comment,
    )


def _named(what: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ValueError(f"{what}: expected one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}")
    return known[name]


def undecided_of(written: str | int | None) -> Undecided:
    """How undecided batch sizes are exported, from `off`, `gamma` (or `γ`) or a γ.

    Raises:
        ValueError: other text, or a γ below 1.
    """
    text = OFF if written is None else str(written).strip()
    if text in (OFF, RECOMMENDED, "γ"):
        return OFF if text == OFF else RECOMMENDED
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"undecided: expected {OFF}, {RECOMMENDED} or a gamma such as 2, got {written!r}")
    return int(text)
