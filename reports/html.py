"""report.html: one file, opens with the network off, made from a run directory alone.

    write_report(Path("runs/quickstart"))        →  runs/quickstart/report.html

The page is a Jinja2 template with every value escaped, one style sheet inside it, and figures as inline SVG; it has no
script and loads nothing. The same run gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from specgauge.reports.acceptance_curves import acceptance_curves
from specgauge.reports.answers import UNKNOWN_ANSWER, answer_groups, headline, strategy_words
from specgauge.reports.blocks import MOST_PANELS
from specgauge.reports.built import built_forwards
from specgauge.reports.data import ReportData, read_report_data
from specgauge.reports.environment import environment_sections
from specgauge.reports.figure_heatmap import colour_key
from specgauge.reports.findings import findings
from specgauge.reports.formatting import duration, percent, sentence
from specgauge.reports.glossary import GLOSSARY
from specgauge.reports.records import Curves, Measured, Place, Strategy, curves, measured
from specgauge.reports.sections import acceptance_blocks, cost_blocks, speedup_blocks, strategy_heat_map
from specgauge.reports.tables import (
    acceptance_table,
    broken_table,
    prediction_table,
    timing_table,
)
from specgauge.reports.timings import part_timings
from specgauge.reports.verification_section import verification_section
from specgauge.sweeps.plan import plan_cells, planned_pairs
from specgauge.sweeps.store.files import write_text_atomically
from specgauge.sweeps.store.rundir import REPORT
from specgauge.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

_TONES = {"speculate": "tone-pays", "do not speculate": "tone-not", "undecided": "tone-open"}
_TONES |= {"none": "tone-open", UNKNOWN_ANSWER: "tone-open"}
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def write_report(run_dir: Path, out: Path | None = None) -> Path:
    """Write the report of the run at `run_dir` to `out` (report.html in the run directory) and return its path.

    Raises:
        ValueError: no run there, one of its files is damaged, or `out` cannot be a file.
        StorageError: the disk refused the write; an older report stays.
    """
    page = render_report(read_report_data(run_dir))
    target = run_dir / REPORT if out is None else out
    if target.is_dir():
        raise ValueError(f"{target}: is a directory, a file name is expected (for example {target / REPORT})")
    if not target.parent.is_dir():
        raise ValueError(f"{target}: the folder {target.parent} does not exist; make it first, or give another --out")
    write_text_atomically(target, page)
    return target


def render_report(data: ReportData) -> str:
    """The page of a run, UTF-8 text without a character HTML has no place for."""
    css = Markup((Path(__file__).parent / "report.css").read_text(encoding="utf-8").strip())
    page = _template().render(css=css, version=__version__, **page_values(data))
    return _NOT_TEXT.sub("\ufffd", page) + "\n"


@cache
def _template() -> Template:
    """The page's template, read and compiled once a process."""
    import jinja2  # late: a run imports this module before it measures

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=False,
    )
    return environment.get_template("report.jinja")


def page_values(data: ReportData) -> dict[str, Any]:
    """Everything the template prints."""
    precision = data.config.precision
    by_strategy = curves(data.predictions)
    timings = part_timings(data.timings, precision.confidence)
    samplings = _sampling_names(data)
    unanswered = _unanswered(data)
    decoded = measured(data.verified)
    strategies = _strategies(data, by_strategy, decoded)
    broken = broken_table(timings)
    gamma_max = max(data.config.grid.gamma)
    acceptance = acceptance_curves(data.acceptance, by_strategy or _configured(data), data.config)
    values = {
        "name": data.config.name,
        "machine": _machine(data.environment),
        "measured": _measured(data),
        "pairs": _pairs(data),
        "tones": _TONES,
        "headline": headline(data.answers, by_strategy, unanswered, precision.confidence, decoded),
        "unanswered": unanswered,
        "strategies": strategies,
        "no_answer": sentence(data.gaps[0].remedy) if data.gaps else "",
        "colour_key": colour_key(key="colour-key"),
        "warnings": findings(data, by_strategy),
        "confidence": percent(precision.confidence),
        "wanted": f"±{percent(precision.relative_ci, 1)}",
        "speedups": speedup_blocks(by_strategy, data.answers, samplings, decoded),
        "is_measured": bool(decoded),
        "verification": verification_section(data, samplings),
        "costs": cost_blocks(by_strategy, samplings),
        "gamma_max": gamma_max,
        "most_panels": MOST_PANELS,
        "summary": acceptance_table(acceptance),
        "acceptances": acceptance_blocks(acceptance, samplings),
        "predictions": prediction_table(by_strategy, data.answers),
        "broken": broken,
        "timings": timing_table(timings),
        "spent": _spent(data),
        "environment": [*environment_sections(data.environment), *built_forwards(data.lines)],
        "config_text": data.config_text,
        "glossary": GLOSSARY,
    }
    return values | {"sections": _sections(values)}


def _sections(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The page's own contents: anchors and words."""
    everything = (
        ("answers", "What to do", True),
        ("warnings", "Warnings", True),
        ("speedup", "Speed-up", bool(values["speedups"])),
        ("verification", "Prediction against measurement", True),
        ("cost", "Cost of a round", bool(values["costs"])),
        ("acceptance", "Acceptance", True),
        ("predictions", "Predictions", True),
        ("broken", "Missing cells", values["broken"] is not None),
        ("timings", "Timings", True),
        ("environment", "Environment", True),
        ("configuration", "Configuration", True),
        ("glossary", "Words and symbols", True),
    )
    return [(anchor, words) for anchor, words, there in everything if there]


def _strategies(data: ReportData, by_strategy: Curves, decoded: Measured) -> list[dict[str, Any]]:
    """One entry a strategy: its name, what its sampling is, its answers and its heat map."""
    grid = data.config.grid
    confidence = data.config.precision.confidence
    groups = answer_groups(data.answers, by_strategy, grid.batch_size, grid.context, confidence, decoded)
    places = sorted({Place(b, c) for b in grid.batch_size for c in grid.context} | {one.place for one in data.answers})
    batch_sizes = sorted({place.batch_size for place in places})
    contexts = sorted({place.context for place in places})
    entries: list[dict[str, Any]] = []
    for strategy in dict.fromkeys([*groups, *by_strategy]):
        answers = {one.place: one for one in data.answers if one.strategy == strategy}
        words = strategy_words(strategy, [*groups, *by_strategy])
        entries.append(
            {
                "words": words[0].upper() + words[1:],
                "settings": _settings(data, strategy),
                "groups": groups.get(strategy, []),
                "heat": strategy_heat_map(
                    by_strategy.get(strategy, {}),
                    answers,
                    batch_sizes,
                    contexts,
                    key=f"heat-{len(entries)}",
                    title=f"Best speed-up by batch size and context, {words}",
                ),
            }
        )
    return entries


def _settings(data: ReportData, strategy: Strategy) -> str:
    """The sampling setting in words; empty where the configuration has none of that name."""
    found = next((one for one in data.config.sampling if one.name == strategy.sampling), None)
    if found is None:
        return ""
    values = found.model_dump(exclude={"name"}, exclude_defaults=True, exclude_none=True)
    words = {"temperature": "greedy, temperature 0" if found.temperature == 0 else f"temperature {found.temperature:g}"}
    words |= {name: f"{name.replace('_', ' ')} {value:g}" for name, value in values.items() if name != "temperature"}
    return ", ".join(words.values())


def _sampling_names(data: ReportData) -> list[str]:
    named = [one.name for one in data.config.sampling]
    predicted = (one.strategy.sampling for one in data.predictions)
    return list(dict.fromkeys([*named, *predicted, *(one.strategy.sampling for one in data.verified)]))


def _configured(data: ReportData) -> list[Strategy]:
    """The strategies that the configuration asks for."""
    config = data.config
    return [
        Strategy(pair.name, config.mode_of(pair), sampling.name, draft_sampling, rule)
        for pair in planned_pairs(config)
        for sampling in config.sampling
        for draft_sampling in config.draft_sampling
        for rule in config.acceptance_rule
    ]


def _unanswered(data: ReportData) -> int:
    """Places to be measured that a strategy of the recommendations has no number for."""
    wanted: dict[str, set[Place]] = {}
    for cell in plan_cells(data.config):
        wanted.setdefault(cell.pair, set()).add(Place(cell.batch_size, cell.context))
    answered: dict[Strategy, set[Place]] = {}
    for one in data.answers:
        answered.setdefault(one.strategy, set()).update([one.place] if one.is_known else [])
    return sum(len(wanted.get(strategy.pair, set()) - places) for strategy, places in answered.items())


def _pairs(data: ReportData) -> list[str]:
    pairs = planned_pairs(data.config)
    return [f"Pair {one.name}: target {one.target.model}, draft {one.draft.label}" for one in pairs]


def _machine(environment: Mapping[str, Any]) -> str:
    """The device's name, and on a CPU the processor's."""
    device = environment.get("device")
    name = device.get("name") if isinstance(device, Mapping) else device
    if name == "cpu" and environment.get("cpu"):
        cores = environment.get("cpu_cores")
        return f"{environment['cpu']}" + (f", {cores} cores" if cores else "")
    return str(name) if name else ""


def _measured(data: ReportData) -> str:
    """The days of the first and the last measurement, as the journal has them."""
    days = sorted({one.at[:10] for one in data.lines if one.at})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""


def _spent(data: ReportData) -> str:
    seconds = sum(one.device_s for one in data.lines if one.device_s is not None)
    return duration(seconds) if seconds > 0 else ""
