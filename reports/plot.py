"""One picture of a run for a README or a slide: speed-up over γ with its interval, drawn by matplotlib.

One panel for each batch size and context, one line for each way to speculate. A band is an interval, the dashed line is
plain decoding, a ring marks the γ to use where the answer is to speculate. Open diamonds with bars are what was
measured end to end. The file's ending chooses the format (png, svg, pdf).

    write_plot(Path("runs/quickstart"), Path("speedup.png"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.reports.data import ReportData, read_report_data
from specgauge.reports.figure_speedup import speedup_domain
from specgauge.reports.formatting import percent
from specgauge.reports.records import SPECULATE, Place, Prediction, Strategy, Verified, measured
from specgauge.sweeps.store.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
PANEL_INCHES = (3.4, 2.8)
COLUMNS = 4
"""Panels side by side at most; contexts stand beside each other where they fit."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's palette, told apart by colour-blind readers too."""
MEASURED = "measured end to end"
_RING: Mapping[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
_ASIDE, _ROOM = 0.12, 0.45
"""How far right of its γ a measured point stands, so that it does not hide the predicted one, and the last of them."""


def line_labels(strategies: Sequence[Strategy]) -> dict[Strategy, str]:
    """A name for each strategy that says only what differs among them."""
    varying = [index for index in range(len(Strategy._fields)) if len({s[index] for s in strategies}) > 1]
    shown = varying or [Strategy._fields.index("sampling")]
    return {strategy: ", ".join(strategy[index] for index in shown) for strategy in strategies}


def _draw_place(
    axes: Axes, place: Place, rows: Sequence[Prediction], to_use: Mapping[Strategy, int], labels: dict[Strategy, str]
) -> None:
    axes.axhline(1.0, color="0.35", linewidth=1, linestyle="--", label="plain decoding")
    for strategy, colour in zip(labels, COLOURS * (len(labels) // len(COLOURS) + 1), strict=False):
        known = [row for row in rows if row.strategy == strategy and row.speedup is not None]
        known.sort(key=lambda row: row.gamma)
        gammas = [row.gamma for row in known]
        speedups = [row.speedup for row in known if row.speedup is not None]
        axes.plot(gammas, speedups, color=colour, marker="o", markersize=3.5, linewidth=1.6, label=labels[strategy])
        bounded = [row for row in known if row.speedup_low is not None and row.speedup_high is not None]
        axes.fill_between(
            [row.gamma for row in bounded],
            [row.speedup_low or 0.0 for row in bounded],
            [row.speedup_high or 0.0 for row in bounded],
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
        for row in known:
            if row.speedup is not None and row.gamma == to_use.get(strategy):
                axes.plot(row.gamma, row.speedup, color=colour, **_RING)
    axes.set_title(f"batch {place.batch_size}, context {place.context}", fontsize=9)
    axes.set_xticks(sorted({row.gamma for row in rows}))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_measured(axes: Axes, rows: Sequence[Verified], labels: dict[Strategy, str]) -> None:
    """Open diamonds with their intervals, in the colour of their line."""
    apart = min(_ASIDE, _ROOM / len(labels))
    for order, strategy in enumerate(labels):
        own = sorted((row for row in rows if row.strategy == strategy), key=lambda row: row.gamma)
        for row in own:
            assert row.speedup_measured is not None
            ends = [(value, row.speedup_measured) for value in (row.speedup_measured_low, row.speedup_measured_high)]
            axes.errorbar(
                [row.gamma + apart * (order + 1)],
                [row.speedup_measured],
                yerr=[[abs(value - middle) if value is not None else 0.0] for value, middle in ends],
                color=COLOURS[order % len(COLOURS)],
                marker="D",
                markersize=4,
                markerfacecolor="white",
                linestyle="none",
                elinewidth=1,
                capsize=2,
            )


def speedup_figure(data: ReportData) -> Figure:
    """The picture of a run; raises ValueError where no speed-up has been predicted."""
    from matplotlib.figure import Figure

    decoded = list(measured(data.verified).values())
    rows = [row for row in data.predictions if row.speedup is not None]
    if not rows:
        raise ValueError(f"{data.path}: no speed-up has been predicted yet; run the same `specgauge run` again")
    to_use = {(one.strategy, one.place): one.gamma for one in data.answers if one.decision == SPECULATE and one.gamma}
    places = sorted({row.place for row in rows})
    labels = line_labels(sorted({row.strategy for row in rows}))
    columns = min(COLUMNS, len({place.context for place in places}))
    lines = -(-len(places) // columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * lines + 0.4), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    grid[0][0].set_ylim(*speedup_domain(rows, decoded))
    for index, axes in enumerate(grid.flat):
        if index < len(places):
            place = places[index]
            rings = {strategy: gamma for (strategy, where), gamma in to_use.items() if where == place}
            _draw_place(axes, place, [row for row in rows if row.place == place], rings, labels)
            _draw_measured(axes, [row for row in decoded if row.place == place], labels)
        else:
            axes.set_visible(False)
    samples = grid[0][0]  # for the legend alone, since any panel may have none
    if any(row.speedup_low is not None for row in rows):
        confidence = percent(data.config.precision.confidence)
        samples.fill_between([], [], [], color="0.35", alpha=0.18, linewidth=0, label=f"{confidence} interval")
    if to_use:
        samples.plot([], [], color="0.35", label="γ to use", **_RING)
    if decoded:
        samples.plot([], [], "D", color="0.35", markersize=4, markerfacecolor="white", label=MEASURED)
    handles, names = samples.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 4), fontsize=8, frameon=False)
    figure.supxlabel("γ, draft tokens a round", fontsize=9)
    figure.supylabel("speed-up over plain decoding", fontsize=9)
    return figure


def plot_format(out: Path) -> str:
    """The format that a file's ending asks for; ValueError for one that is not written, or without its folder."""
    kind = out.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ValueError(f"{out}: found ending {out.suffix!r}; allowed: {', '.join(f'.{name}' for name in FORMATS)}")
    if out.is_dir() or not out.parent.is_dir():
        what = f"{out} is a directory" if out.is_dir() else f"there is no directory {out.parent}"
        raise ValueError(f"{out}: cannot be written, {what}; make it, or name another file")
    return kind


def write_plot(run_dir: Path, out: Path) -> Path:
    """Draw the run's speed-ups into ``out`` and return it.

    Raises ValueError for a format matplotlib is not asked to write, or a run without any predicted speed-up;
    StorageError when the file cannot be written.
    """
    kind = plot_format(out)
    data = read_report_data(run_dir)
    import matplotlib

    matplotlib.use("Agg")
    figure = speedup_figure(data)
    with atomic_path(out) as temporary, matplotlib.rc_context({"svg.hashsalt": "specgauge"}):
        figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return out
