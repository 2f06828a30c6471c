"""The page of a plan: the map of γ and S over batch size and context with its break-even line, and what it means.

    write_plan_page(plan_document(plan), Path("plan.html"))

One file that opens with the network off, like the report of a run; every number on it is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from specgauge.model.settings import Point
from specgauge.reports import sections
from specgauge.reports.figures import BAND_ALPHA, DASHED, HeatCell, series_style
from specgauge.reports.formatting import TimeUnit, interval, number, speedup, time_unit
from specgauge.reports.html import write_page
from specgauge.reports.inline_svg import COLOURS, Hover, Size, inline_figure
from specgauge.reports.tables import Row, RowGroup, Table
from specgauge.sweeps.foretell.words import PART_WORDS, acceptance_words, context_sentence, trust_words
from specgauge.sweeps.store.rundir import check_written

MOST_CELLS = 1000
"""Points that a page shows; as many are drawn in seconds."""
_GENERATOR, _HEAD_BYTES = b'<meta name="generator" content="specgauge', 1000
"""How the head of a page of this program is known."""


def write_plan_page(document: Mapping[str, Any], out: Path) -> Path:
    """Write the page of the document of `specgauge.sweeps.foretell.document.plan_document` to `out` and return it.

    Raises:
        ValueError: `out` is no file, in no folder, holds what a run measured or anything but a page of this program,
            or there are too many points.
        StorageError: the disk refused the write; an older page stays.
    """
    check_written(out, "plan.html")
    count = len(document["points"])
    if count > MOST_CELLS:
        raise ValueError(f"{out}: expected at most {MOST_CELLS} points on a page, got {count}; give fewer, or no page")
    if out.exists() and _GENERATOR not in out.read_bytes()[:_HEAD_BYTES]:
        raise ValueError(f"{out}: expected a new file, or a page that specgauge wrote, got another, which is kept")
    write_page(out, "plan.jinja", page_values(document))
    return out


def page_values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the template prints."""
    card, draft = document["hardware"], document["draft"]
    devices = f"{card['tensor_parallel']} × {card['name']}" if card["tensor_parallel"] > 1 else card["name"]
    contexts = [one["context"] for one in document["contexts"]]
    cells = {Point(batch_size=one["batch_size"], context=one["context"]): _cell(one) for one in document["points"]}
    return {
        "name": f"{document['target']['name']} with {draft['name'] or draft['kind']} on {devices}",
        "provenance": document["provenance"],
        "label": document["label"],
        "acceptance": acceptance_words(document),
        "sentences": [context_sentence(one, document) for one in document["contexts"]],
        "map": sections.heat_map_figure(
            cells, document["batch_sizes"], contexts, key="map", title="Best γ and its speed-up, predicted"
        ),
        "colour_key": sections.colour_key(),
        "curves": _curves(document) if len(document["batch_sizes"]) > 1 else None,
        "table": _table(document),
        "trust": list(trust_words(document)),
    }


def _cell(point: Mapping[str, Any]) -> HeatCell:
    if point["fits"] is False:
        return HeatCell(speedup=None, gamma=None, note="no room")
    if not point["recommended_gamma"]:
        return HeatCell(speedup=None, gamma=None, note="over limit")
    verdict = "" if point["low"] is None else point["decision"]["verdict"]
    return HeatCell(speedup=point["speedup"], gamma=point["recommended_gamma"], note=verdict)


def _curves(document: Mapping[str, Any]) -> Markup:
    size = Size(width=640, height=300, right=52, bottom=44)
    draw = partial(_draw_curves, document=document)
    title = "S of the γ to use by batch size, a line for each context"
    return inline_figure(draw, size, key="curves", title=title, x_title="batch size", y_title="speed-up S", fixed=True)


def _draw_curves(axes: Axes, document: Mapping[str, Any]) -> Hover:
    """S of the γ to use over batch size for every context, with its interval; what does not fit is left out."""
    words = []
    for index, context in enumerate(one["context"] for one in document["contexts"]):
        own = [one for one in document["points"] if one["context"] == context and one["fits"] is not False]
        known = [one for one in own if one["recommended_gamma"]]
        if not known:
            continue
        style, x = series_style(index), [one["batch_size"] for one in known]
        y = [one["speedup"] for one in known]
        axes.plot(x, y, color=style.colour, gid="curve")
        axes.plot(x, y, color=style.colour, linestyle="none", marker=style.marker, markersize=5, gid="point")
        if known[0]["low"] is not None:
            low, high = ([one[end] for one in known] for end in ("low", "high"))
            axes.fill_between(x, low, high, color=style.colour, alpha=BAND_ALPHA, linewidth=0, gid="band")
        axes.annotate(f"{context}", (x[-1], y[-1]), xytext=(6, 0), textcoords="offset points")
        words += [f"batch {one['batch_size']}, context {context}: {speedup(one['speedup'])}" for one in known]
    axes.axhline(1.0, color=COLOURS["muted"], linewidth=1, linestyle=DASHED, gid="break-even")
    axes.set_xscale("log", base=2)
    sizes: Sequence[int] = document["batch_sizes"]
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    return {"point": words}


_TIMES = ("T_decode", "C(γ)", "T_verify", "T_round")


def _table(document: Mapping[str, Any]) -> Table:
    """A row for every point; times of a column in one unit, so that copies have plain numbers."""
    points = document["points"]
    units = [time_unit(column) for column in zip(*map(_times_s, points), strict=True)]
    times = [f"{name}, {unit.name}" for name, unit in zip(_TIMES, units, strict=True)]
    columns = ["batch", "γ", "S", "interval", "decision", *times, "bound by (decode, draft, verify)"]
    groups = []
    for one in document["contexts"]:
        own = [point for point in points if point["context"] == one["context"]]
        rows = [Row(cells=_cells(point, units)) for point in own]
        groups.append(RowGroup(heading=f"context {one['context']}", rows=rows))
    return Table(columns=columns, groups=groups, words=frozenset({4, 9}))


def _decision(point: Mapping[str, Any]) -> str:
    if point["fits"] is False:
        return "does not fit"
    verdict: str = point["decision"]["verdict"]
    return verdict if point["recommended_gamma"] else "over the limit"


def _shown(point: Mapping[str, Any]) -> Mapping[str, Any]:
    """The γ that a row is about."""
    found: Mapping[str, Any] = next(
        (one for one in point["by_gamma"] if one["gamma"] == point["recommended_gamma"]), point["by_gamma"][0]
    )
    return found


def _times_s(point: Mapping[str, Any]) -> tuple[float, ...]:
    at = _shown(point)
    return (point["t_decode_s"], at["t_draft_total_s"], at["t_verify_s"], at["t_round_s"])


def _cells(point: Mapping[str, Any], units: Sequence[TimeUnit]) -> list[str]:
    at = _shown(point)
    bounds = [PART_WORDS[part["bound"]] for part in point["parts"].values() if part is not None]
    return [
        str(point["batch_size"]),
        str(at["gamma"]),
        number(at["speedup"]),
        interval(at["low"], at["high"]),
        _decision(point),
        *(unit.text(seconds) for unit, seconds in zip(units, _times_s(point), strict=True)),
        ", ".join(bounds),
    ]
