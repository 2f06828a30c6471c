"""One picture of a run for a README or a slide: S(γ) with its interval, as in the report, in a file of its own.

One panel for each batch size and context, one line for each setting. A band is an interval, the dashed line is plain
decoding, a ring marks the γ to use where the answer is to speculate. Open markers with bars are what was measured end
to end. The file's ending chooses the format (png, svg, pdf).

    write_plot(Path("runs/quickstart"), Path("speedup.png"))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specgauge.model.settings import Setting
from specgauge.reports import figures
from specgauge.reports.figures import BAND_ALPHA, DASHED, SeriesStyle
from specgauge.reports.formatting import percent
from specgauge.reports.inline_svg import COLOURS, STYLE
from specgauge.reports.records import SPECULATE, ReportData, curves, known_rows, read_report_data, validated
from specgauge.sweeps.store.files import atomic_path, check_output
from specgauge.sweeps.store.schema import PredictionRow

FORMATS = ("png", "svg", "pdf")
PANEL_INCHES = (4.4, 3.4)
COLUMNS = 4
"""Panels side by side at most; contexts stand beside each other where they fit."""
MEASURED = "measured end to end"


def line_labels(settings: Sequence[Setting]) -> dict[Setting, str]:
    """A name for each setting that says only what differs among them."""
    names = [part.name for part in fields(Setting)]
    shown = [name for name in names if len({getattr(one, name) for one in settings}) > 1] or ["sampling"]
    return {one: ", ".join(getattr(one, name) for name in shown) for one in settings}


def speedup_figure(data: ReportData) -> Figure:
    """The picture of a run; raises ValueError where no speed-up has been predicted."""
    by_setting = curves(data.predictions)
    rows = known_rows(by_setting)
    if not rows:
        raise ValueError(f"{data.path}: no speed-up has been predicted yet; run the same `specgauge run` again")
    decoded = validated(data.validation).values()
    to_use = {(o.setting, o.point): o.gamma for o in data.recommendations if o.decision == SPECULATE and o.gamma}
    points = sorted({row.point for row in rows})
    labels = line_labels([setting for setting in by_setting if any(row.setting == setting for row in rows)])
    styles = figures.series_styles(labels.values())
    columns = min(COLUMNS, len({point.context for point in points}))
    lines = -(-len(points) // columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * lines + 0.5), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axes, point in zip(grid.flat, points, strict=False):
        here = {label: by_setting[one][point] for one, label in labels.items() if point in by_setting[one]}
        figures.draw_speedup(
            axes,
            here,
            styles,
            {label: to_use[one, point] for one, label in labels.items() if (one, point) in to_use},
            {label: [r for r in decoded if (r.setting, r.point) == (one, point)] for one, label in labels.items()},
            figures.speedup_domain(rows, decoded),
        )
        axes.set_title(f"batch {point.batch_size}, context {point.context}")
    for axes in grid.flat[len(points) :]:
        axes.set_visible(False)
    handles = _legend(data, styles, rows, {"γ to use": (to_use, 12, 2.0), MEASURED: (decoded, 6.5, 1.6)})
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 4), frameon=False)
    figure.supxlabel("γ, draft tokens a round")
    figure.supylabel("speed-up over plain decoding")
    return figure


def _legend(
    data: ReportData,
    styles: Mapping[str, SeriesStyle],
    rows: Sequence[PredictionRow],
    rings: Mapping[str, tuple[Collection[object], float, float]],
) -> list[Artist]:
    """What stands for the lines, bands and rings that are drawn; `rings`: what has them, their size and line width."""
    ink = COLOURS["ink"]
    handles: list[Artist] = [Line2D([], [], color=ink, linestyle=DASHED, linewidth=1.5, label="plain decoding")]
    handles += [
        Line2D([], [], color=style.colour, linestyle=style.line, linewidth=2, marker=style.marker, label=name)
        for name, style in styles.items()
    ]
    if any(row.speedup_low is not None for row in rows):
        words = f"{percent(data.config.precision.confidence)} interval"
        handles.append(Patch(color=ink, alpha=BAND_ALPHA, linewidth=0, label=words))
    look: dict[str, Any] = {"color": ink, "linestyle": "none", "marker": "o", "mfc": "none"}
    handles += [
        Line2D([], [], ms=size, mew=edge, label=words, **look) for words, (drawn, size, edge) in rings.items() if drawn
    ]
    return handles


def plot_format(out: Path) -> str:
    """The format that a file's ending asks for.

    Raises:
        ValueError: matplotlib is not asked to write that one, or there is no place for the file.
    """
    kind = out.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ValueError(f"{out}: expected ending {', '.join(f'.{name}' for name in FORMATS)}, got {out.suffix!r}")
    check_output(out, "speedup.png")
    return kind


def write_plot(run_dir: Path, out: Path) -> Path:
    """Draw the run's speed-ups into ``out`` and return it.

    Raises:
        ValueError: a format matplotlib is not asked to write, `out` cannot be a file, or a run without a speed-up.
        StorageError: the file cannot be written.
    """
    kind = plot_format(out)
    data = read_report_data(run_dir)
    with mpl.rc_context({**STYLE, "svg.hashsalt": "specgauge"}), atomic_path(out) as temporary:
        figure = speedup_figure(data)
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(temporary, format=kind, dpi=150, metadata=metadata, facecolor=COLOURS["page"])
    return out
