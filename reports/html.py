"""report.html: one file, opens with the network off, made from a run directory alone.

    write_report(Path("runs/quickstart"))        →  runs/quickstart/report.html

The page is a Jinja2 template with every value escaped, one style sheet inside it, and figures as inline SVG; it loads
nothing. Its one script copies tables, and without it the page is the same but for those buttons. The same run gives the
same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import jinja2
from markupsafe import Markup, escape

from specgauge.configs.pairs import PairConfig
from specgauge.model.settings import Point, Setting
from specgauge.reports import sections
from specgauge.reports.answers import NO_ANSWER, Answers, setting_words
from specgauge.reports.copying import copies
from specgauge.reports.formatting import UNKNOWN, count, duration, percent, printable, sentence, unbroken
from specgauge.reports.records import DO_NOT, ReportData, curves, findings, read_report_data, validated
from specgauge.reports.summaries import acceptance_curves
from specgauge.reports.tables import (
    Table,
    acceptance_table,
    answer_table,
    broken_table,
    category_table,
    chosen_gammas,
    prediction_table,
    side_table,
    timing_table,
)
from specgauge.reports.validation import validation_section
from specgauge.sweeps.analysis.answers import Recommendations
from specgauge.sweeps.answer_table import rank
from specgauge.sweeps.plan import plan_cells, planned_pairs
from specgauge.sweeps.store.environment import DEVICES
from specgauge.sweeps.store.files import write_text_atomically
from specgauge.sweeps.store.rows import plain
from specgauge.sweeps.store.rundir import REPORT, check_written
from specgauge.sweeps.store.schema import JournalLine
from specgauge.version import __version__

_TONES = {"speculate": "tone-pays", "do not speculate": "tone-not", "undecided": "tone-open"}
_TONES |= {"none": "tone-open", NO_ANSWER: "tone-open"}
_UNITS = (("_bytes", 2**30, "GiB"), ("_hz", 1e6, "MHz"), ("_w", 1.0, "W"), ("_c", 1.0, "°C"))
_OPTION = re.compile(r"--[a-z][\w-]*( [\w.]+=[\w.]+)?")
CAVEATS = 3
"""Warnings on the first page, the heaviest; the others have a section of their own."""
FEW_ROWS, MOST_ROWS, MAP_ROWS = 8, 31, 4
"""Of the table of answers: with so many the map is on the first screen under it, and with so many map, table and
caveats are on the first printed page; each further map takes the place of some."""
Facts = list[tuple[str, list[tuple[str, str]]]]
"""Headings with pairs of name and value."""


def write_report(run_dir: Path, out: Path | None = None) -> Path:
    """Write the report of the run at `run_dir` to `out` (report.html in the run directory) and return its path.

    Raises:
        ValueError: no run there, one of its files is damaged, or `out` cannot be a file.
        StorageError: the disk refused the write; an older report stays.
    """
    target = run_dir / REPORT if out is None else out
    check_written(target, REPORT)
    values = page_values(read_report_data(run_dir))
    write_page(target, "report.jinja", values)
    return target


def write_page(out: Path, template: str, values: Mapping[str, Any]) -> None:
    """Write the page of a template of this folder, style sheet and script in it; StorageError as `write_report`."""
    parts = {name: Markup(_part(f"report.{name}")) for name in ("css", "js")}
    page = _templates().get_template(template).render(**parts, copies=copies, version=__version__, **values)
    write_text_atomically(out, printable(page) + "\n")


def _part(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8").strip()


@cache
def _templates() -> jinja2.Environment:
    files = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=files, autoescape=True, undefined=jinja2.StrictUndefined)


def page_values(data: ReportData) -> dict[str, Any]:
    """Everything the template prints."""
    config = data.config
    by_setting, decoded = curves(data.predictions), validated(data.validation)
    confidence = config.precision.confidence
    samplings, unanswered = _sampling_names(data), _unanswered(data)
    acceptance = acceptance_curves(data.acceptance, config, data.categories)
    spent_s = sum(one.device_s for one in data.lines if one.device_s is not None)
    warnings = sorted(findings(data, by_setting), key=lambda one: rank(one.code))
    told = Recommendations(
        entries=tuple(map(plain, data.recommendations)),
        confidence=confidence,
        warnings=tuple(map(plain, data.warnings)),
        validation=tuple(map(plain, data.validation)),
        pairs={pair.name: pair for pair in planned_pairs(config)},
        is_served=data.is_served,
        break_even=tuple(data.break_even),
    )
    answers = Answers(
        recommendations=data.recommendations,
        curves=by_setting,
        validated=decoded,
        confidence=confidence,
        lookups=frozenset(pair.name for pair in planned_pairs(config) if not pair.drafts_with_model),
        more_time=told.more_time,
    )
    losing = {(one.setting, one.point) for one in data.recommendations if one.decision == DO_NOT}
    everything = list(dict.fromkeys(one.setting for one in data.recommendations))
    answered = answer_table(told, lambda setting: setting_words(setting, everything))
    return {
        "name": config.name,
        "trust": told.trust if data.recommendations else None,
        "next_step": sentence(told.next_step) if data.recommendations else "",
        "breaks_even": told.breaks_even,
        "whole_requests": told.whole_requests_lose,
        "unbroken": unbroken_html,
        "answers": answered,
        "machine": _machine(data.environment),
        "measured": _measured(data),
        "pairs": [_pair_words(pair, data.parameters.get(pair.name, {})) for pair in planned_pairs(config)],
        "alternatives": side_table(told),
        "tones": _TONES,
        "headline": answers.headline(unanswered),
        "unanswered": unanswered,
        "settings": _settings(data, answers),
        "no_answer": sentence(data.gaps[0].remedy) if data.gaps else "",
        "colour_key": sections.colour_key(),
        "caveats": warnings[:CAVEATS],
        "warnings": warnings[CAVEATS:],
        "rows": _rows(answered),
        "confidence": percent(confidence),
        "wanted": f"±{percent(config.precision.relative_ci, 1)}",
        "speedups": sections.speedup_blocks(by_setting, data.recommendations, samplings, decoded),
        "is_measured": bool(decoded),
        "validation": validation_section(data, samplings),
        "costs": sections.cost_blocks(by_setting, samplings),
        "gamma_max": max(config.grid.gamma),
        "most_panels": sections.MOST_PANELS,
        "summary": acceptance_table(acceptance),
        "categories": category_table(acceptance, (gamma for _, _, gamma in chosen_gammas(data.recommendations))),
        "is_imported": data.is_imported,
        "has_counts": data.has_counts,
        "acceptances": sections.acceptance_blocks(acceptance, samplings),
        "predictions": prediction_table(by_setting, chosen_gammas(data.recommendations), losing),
        "broken": broken_table(data.timings),
        "timings": timing_table(data.timings, confidence),
        "spent": duration(spent_s) if spent_s > 0 else "",
        "environment": [
            *environment_facts(data.environment),
            *compilation_facts(data.lines),
        ],
        "config_text": data.config_text,
    }


def unbroken_html(text: str) -> Markup:
    """Text in which no number is parted from its unit at the end of a line, and no option from its dashes."""
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(unbroken(text)))))


def _settings(data: ReportData, answers: Answers) -> list[dict[str, Any]]:
    grid = data.config.grid
    groups = answers.groups(grid.batch_size, grid.context)
    everything = list(dict.fromkeys([*groups, *answers.curves]))
    entries: list[dict[str, Any]] = []
    for setting in everything:
        words = setting_words(setting, everything)
        entries.append(
            {
                "words": words[0].upper() + words[1:],
                "sampling": _sampling_words(data, setting),
                "groups": groups.get(setting, []),
                "heat": sections.heat_map(
                    answers.curves.get(setting, {}),
                    {one.point: one for one in data.recommendations if one.setting == setting},
                    grid.batch_size,
                    grid.context,
                    key=f"heat-{len(entries)}",
                    title=f"Speed-up by batch size and context, {words}",
                ),
            }
        )
    return entries


def _sampling_words(data: ReportData, setting: Setting) -> str:
    """The sampling of a setting in words; empty where the configuration has none of that name."""
    found = next((one for one in data.config.sampling if one.name == setting.sampling), None)
    if found is None:
        return ""
    values = found.model_dump(exclude={"name"}, exclude_defaults=True, exclude_none=True)
    words = {"temperature": "greedy, temperature 0" if found.temperature == 0 else f"temperature {found.temperature:g}"}
    words |= {name: f"{name.replace('_', ' ')} {value:g}" for name, value in values.items() if name != "temperature"}
    return ", ".join(words.values())


def _sampling_names(data: ReportData) -> list[str]:
    named = [one.name for one in data.config.sampling]
    predicted = (one.sampling for one in data.predictions)
    return list(dict.fromkeys([*named, *predicted, *(one.sampling for one in data.validation)]))


def _unanswered(data: ReportData) -> int:
    wanted: dict[str, set[Point]] = {}
    for cell in plan_cells(data.config):
        wanted.setdefault(cell.pair, set()).add(Point(batch_size=cell.batch_size, context=cell.context))
    answered: dict[Setting, set[Point]] = {}
    for one in data.recommendations:
        answered.setdefault(one.setting, set()).update([one.point] if one.speedup.value is not None else [])
    return sum(len(wanted.get(setting.pair, set()) - points) for setting, points in answered.items())


def _rows(answers: Table | None) -> str:
    """Whether the table of answers stands first, after the map, or after the caveats too."""
    rows = sum(len(group.rows) + bool(group.heading) for group in answers.groups) if answers else 0
    rows += MAP_ROWS * max(0, len(answers.groups) - 1) if answers else 0
    return "few" if rows <= FEW_ROWS else "many" if rows <= MOST_ROWS else "long"


def _pair_words(pair: PairConfig, parameters: Mapping[str, int]) -> str:
    """Both models of a pair, with their parameters where the run knew them; lookups have none."""
    sizes = {role: f" ({_many(count)}\u00a0parameters)" for role, count in parameters.items() if count}
    target, draft = (sizes.get(role, "") for role in ("target", "draft"))
    return f"Pair {pair.name}: target {pair.target.model}{target}, draft {pair.draft.label}{draft}"


def _many(count: int) -> str:
    return f"{count / 1e9:.3g}\u00a0B" if count >= 1e9 else f"{count / 1e6:.3g}\u00a0M"


def _machine(environment: Mapping[str, Any]) -> str:
    """What measured, in a few words; of several kinds of device each under its name."""
    if environment.get(DEVICES):
        return "; ".join(f"{device}: {_machine(own)}" for device, own in environment[DEVICES].items())
    name = environment.get("device")
    if name == "cpu" and environment.get("cpu"):
        cores = environment.get("cpu_cores")
        return f"{environment['cpu']}" + (f", {cores} cores" if cores else "")
    return str(name) if name else ""


def _measured(data: ReportData) -> str:
    """The days of the first and the last measurement, as the journal has them."""
    days = sorted({one.at[:10] for one in data.lines if one.at})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""


def environment_facts(environment: Mapping[str, Any]) -> Facts:
    """Headings with (name, value) of environment.json: plain values first, every mapping under its own heading."""
    facts: dict[str, list[tuple[str, str]]] = {"General": []}
    for (first, *path), value in _leaves(environment):
        heading = _words(first) if path else "General"
        names = path or [first]
        name, text = _with_unit(names[-1], value)
        facts.setdefault(heading, []).append((": ".join([*map(_words, names[:-1]), name]), text))
    return [(heading, pairs) for heading, pairs in facts.items() if pairs]


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every plain value with the path to it; lists of plain values are values."""
    if isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, str(name)))
    elif path:
        yield path, value


def _with_unit(name: str, value: Any) -> tuple[str, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for suffix, scale, unit in _UNITS:
            if name.endswith(suffix):
                return _words(name.removesuffix(suffix)), f"{value / scale:.4g} {unit}"
    return _words(name), _plain(value)


def _words(name: str) -> str:
    return name.replace("_", " ") if name.islower() else name


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value)) or UNKNOWN
    return UNKNOWN if value in (None, "", {}) else str(value)


def compilation_facts(lines: Iterable[JournalLine]) -> Facts:
    """A heading with (pair and mode, how many forwards in how many seconds); empty where all ran eagerly."""
    found: dict[str, tuple[int, float]] = {}
    for line in lines:
        compiled, took_s = line.notes.get("graphs_built"), line.notes.get("build_s")
        if _is_number(compiled) and _is_number(took_s) and compiled > 0:
            name = f"{line.axes['pair']}, {line.axes['mode']}"
            number, seconds = found.get(name, (0, 0.0))
            found[name] = number + int(compiled), seconds + took_s
    facts = [(name, f"{count(number, 'forward')} in {seconds:.3g} s") for name, (number, seconds) in found.items()]
    return [("compiled or captured, outside what is timed", facts)] if facts else []


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
