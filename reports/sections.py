"""The figure sections of the report: which panels there are, what stands over each, and what its legend says.

A block holds the panels of one pair, mode, draft sampling and rule, a series for every sampling setting. Output:
`Block`s for the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from specgauge.reports.acceptance_curves import AcceptanceCurve
from specgauge.reports.blocks import (
    Block,
    LegendEntry,
    Panel,
    block_swatch,
    caption,
    icon,
    line_swatch,
    rule_titles,
    series_swatch,
)
from specgauge.reports.figure_acceptance import acceptance_panel, conditional
from specgauge.reports.figure_cost import cost_bars, cost_domain, cost_panel
from specgauge.reports.figure_heatmap import HeatCell, heat_map
from specgauge.reports.figure_speedup import speedup_domain, speedup_panel
from specgauge.reports.formatting import speedup
from specgauge.reports.panel import SMALL, WIDE, SeriesStyle, series_styles
from specgauge.reports.records import (
    DO_NOT,
    NOTHING_MEASURED,
    SPECULATE,
    UNDECIDED,
    Answer,
    Curves,
    Measured,
    Place,
    Prediction,
    Strategy,
    best_of,
)
from specgauge.reports.svg import error_bar, marker

Series = Mapping[str, Sequence[Prediction]]

_SIZES = {2: WIDE, 3: SMALL}
_SHORT = {DO_NOT: "do not", UNDECIDED: "undecided"}


def speedup_blocks(
    curves: Curves, answers: Iterable[Answer], samplings: Sequence[str], measured: Measured = NOTHING_MEASURED
) -> list[Block]:
    """S(gamma) of every place, a block for every pair, mode, draft sampling and rule, with what was measured."""
    styles = series_styles(samplings)
    decided = {(one.strategy, one.place): one for one in answers if one.is_known}
    blocks = []
    for number, (title, members) in enumerate(_by_rule(curves).items()):
        decoded = [one for one in measured.values() if one.strategy in members]
        y_range = speedup_domain(
            (one for places in members.values() for curve in places.values() for one in curve), decoded
        )
        shown = [place for place in _places(members) if any(map(best_of, _series(members, place).values()))]
        if not shown:
            continue
        panels = []
        columns = _columns(shown)
        for place in shown:
            series = _series(members, place)
            verdicts = {s.sampling: decided[s, place] for s in members if (s, place) in decided}
            marked = {
                name: one.gamma for name, one in verdicts.items() if one.decision == SPECULATE and one.gamma is not None
            }
            panels.append(
                Panel(
                    caption=caption(place),
                    marks=[
                        LegendEntry(swatch=series_swatch(styles[name], dot_only=True), words=f"{name}: {_verdict(one)}")
                        for name, one in verdicts.items()
                    ],
                    svg=speedup_panel(
                        series,
                        styles,
                        marked,
                        y_range,
                        [one for one in decoded if one.place == place],
                        size=_SIZES[columns],
                        key=f"speedup-{number}-{place.batch_size}-{place.context}",
                        title=f"Speed-up by γ, {caption(place)}",
                    ),
                )
            )
        legend = _series_legend(styles, members)
        legend.append(LegendEntry(swatch=line_swatch("plain"), words="plain decoding, S = 1"))
        legend.append(LegendEntry(swatch=icon(marker((14, 8), 0, css="ring c5", radius=6)), words="γ to use"))
        legend.append(LegendEntry(swatch=block_swatch("band c5"), words="interval"))
        if decoded:
            parts = (error_bar((14, 1), (14, 15), css="measured-bar c5"), marker((14, 8), 0, css="measured c5"))
            legend.append(LegendEntry(swatch=icon(*parts), words="measured end to end, with its interval"))
        blocks.append(Block(title=title, legend=legend, panels=panels, columns=columns))
    return blocks


def cost_blocks(curves: Curves, samplings: Sequence[str]) -> list[Block]:
    """The cost of a round at every place; settings with equal costs (one timing chain) share a block."""
    styles = series_styles(samplings)
    blocks: list[Block] = []
    for title, members in _by_cost(curves).items():
        places = [place for place in _places(members) if cost_bars(_series(members, place))]
        domain = cost_domain(_series(members, place) for place in places)
        if domain is None:
            continue
        panels = [
            Panel(
                caption=caption(place),
                marks=[],
                svg=cost_panel(
                    _series(members, place),
                    styles,
                    domain,
                    size=_SIZES[_columns(places)],
                    key=f"cost-{len(blocks)}-{place.batch_size}-{place.context}",
                    title=f"Cost of a round by γ, {caption(place)}",
                ),
            )
            for place in places
        ]
        legend = [
            LegendEntry(swatch=block_swatch("bar draft"), words="C(γ), drafts"),
            LegendEntry(swatch=block_swatch("bar verify"), words="T_verify(γ)"),
            LegendEntry(swatch=block_swatch("bar rest"), words="π·Δ₂, catching up"),
        ]
        if any(bar.overhead_s is not None for place in places for bar in cost_bars(_series(members, place))):
            legend.append(LegendEntry(swatch=block_swatch("bar overhead"), words="ε, overhead"))
        legend.append(LegendEntry(swatch=line_swatch("plain"), words="T_decode"))
        legend += [
            LegendEntry(swatch=series_swatch(styles[name], dot_only=True), words=f"Ω(γ)·T_decode, {name}")
            for name in dict.fromkeys(strategy.sampling for strategy in members)
        ]
        blocks.append(Block(title=title, legend=legend, panels=panels, columns=_columns(places)))
    return blocks


def acceptance_blocks(acceptance: Sequence[AcceptanceCurve], samplings: Sequence[str]) -> list[Block]:
    """Survival and conditional acceptance by position, a block for every pair, draft sampling and rule."""
    styles = series_styles(samplings)
    grouped: dict[str, list[AcceptanceCurve]] = {}
    pairs = {one.pair for one in acceptance}
    variants = {(one.draft_sampling, one.acceptance_rule) for one in acceptance}
    for one in acceptance:
        words = [f"pair {one.pair}"] if len(pairs) > 1 else []
        if len(variants) > 1:
            words.append(f"draft sampling {one.draft_sampling}, {one.acceptance_rule} rule")
        grouped.setdefault(", ".join(words), []).append(one)
    blocks = []
    for number, (title, members) in enumerate(grouped.items()):
        survival = {one.sampling: one.survival for one in members}
        steps = {name: conditional(values) for name, values in survival.items()}
        bands = {one.sampling: _ends(one) for one in members}
        plots: list[tuple[str, Mapping[str, Sequence[float | None]], Mapping[str, list[tuple[int, float, float]]]]] = [
            ("Survival: drafts 1 to i are all accepted", survival, bands),
            ("Acceptance of draft i, given all before it", steps, {}),
        ]
        panels = [
            Panel(
                caption=words,
                marks=[],
                svg=acceptance_panel(
                    series,
                    ends,
                    styles,
                    size=_SIZES[2],
                    key=f"acceptance-{number}-{order}",
                    title=words,
                    y_title="probability",
                ),
            )
            for order, (words, series, ends) in enumerate(plots)
        ]
        legend = [LegendEntry(swatch=series_swatch(styles[name]), words=name) for name in survival]
        legend.append(LegendEntry(swatch=block_swatch("band c5"), words="interval"))
        blocks.append(Block(title=title, legend=legend, panels=panels, columns=2))
    return blocks


def strategy_heat_map(
    places: Mapping[Place, Sequence[Prediction]],
    answers: Mapping[Place, Answer],
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    *,
    key: str,
    title: str,
) -> Markup:
    """The heat map of one strategy; cells without a number say why (`oom`, `skipped`, …)."""
    cells = {}
    for batch_size in batch_sizes:
        for context in contexts:
            place = Place(batch_size, context)
            curve = places.get(place, ())
            best = best_of(curve)
            if best is not None:
                note = answers[place].decision if place in answers else ""
                cells[place] = HeatCell(speedup=best.speedup, gamma=best.gamma, note=note)
            else:
                note = next((one.status for one in curve if one.status != "ok"), "no data")
                cells[place] = HeatCell(speedup=None, gamma=None, note=note)
    return heat_map(cells, batch_sizes, contexts, key=key, title=title)


def _by_rule(curves: Curves) -> dict[str, dict[Strategy, Mapping[Place, Sequence[Prediction]]]]:
    """Strategies that differ by sampling only, under a title that tells them from the others."""
    grouped: dict[str, dict[Strategy, Mapping[Place, Sequence[Prediction]]]] = {}
    for strategy, title in rule_titles(curves).items():
        grouped.setdefault(title, {})[strategy] = curves[strategy]
    return grouped


def _by_cost(curves: Curves) -> dict[str, dict[Strategy, Mapping[Place, Sequence[Prediction]]]]:
    """Strategies of one pair and mode whose costs are equal everywhere, under a title that tells them apart."""
    grouped: dict[tuple[str, object], dict[Strategy, Mapping[Place, Sequence[Prediction]]]] = {}
    for title, members in _by_rule(curves).items():
        for strategy, places in members.items():
            costs = tuple(
                (place, one.gamma, one.t_decode_s, one.t_draft_total_s, one.round_verify_s)
                for place, curve in places.items()
                for one in curve
            )
            grouped.setdefault((title, costs), {})[strategy] = places
    split = len(grouped) > len({title for title, _ in grouped})
    titled: dict[str, dict[Strategy, Mapping[Place, Sequence[Prediction]]]] = {}
    for (title, _), members in grouped.items():
        names = "sampling " + ", ".join(dict.fromkeys(strategy.sampling for strategy in members))
        titled[", ".join(words for words in (title, names if split else "") if words)] = members
    return titled


def _columns(places: Sequence[Place]) -> int:
    """Two columns for one or two contexts or panels, else three."""
    contexts = len({place.context for place in places})
    return 2 if contexts == 2 or len(places) <= 2 else 3


def _ends(one: AcceptanceCurve) -> list[tuple[int, float, float]]:
    """(position, low, high) where both ends are known."""
    return [
        (position, low, high)
        for position, (low, high) in enumerate(zip(one.low, one.high, strict=True), start=1)
        if low is not None and high is not None
    ]


def _places(members: Mapping[Strategy, Mapping[Place, Sequence[Prediction]]]) -> list[Place]:
    return sorted({place for places in members.values() for place in places})


def _series(members: Mapping[Strategy, Mapping[Place, Sequence[Prediction]]], place: Place) -> Series:
    return {strategy.sampling: places[place] for strategy, places in members.items() if place in places}


def _verdict(one: Answer) -> str:
    if one.decision == SPECULATE:
        return f"γ = {one.gamma}, {speedup(one.speedup)}"
    return f"{_SHORT[one.decision]}, {speedup(one.speedup)}"


def _series_legend(styles: Mapping[str, SeriesStyle], members: Iterable[Strategy]) -> list[LegendEntry]:
    names = dict.fromkeys(strategy.sampling for strategy in members)
    return [LegendEntry(swatch=series_swatch(styles[name]), words=name) for name in names]
