"""The section that holds predictions against what was decoded end to end: its sentences, figures and tables.

The error of a predicted speed-up is split in two: S from the rounds that were counted is wrong by the costs alone, Ω
predicted against counted is the acceptance alone. Output: a `VerificationSection` for the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specgauge.reports.blocks import Block, LegendEntry, Panel, block_swatch, caption, icon, line_swatch, rule_titles
from specgauge.reports.data import ReportData
from specgauge.reports.figure_scatter import ScatterPoint, marker_class, scatter_panel
from specgauge.reports.formatting import PER_CENT, TIMES, change, count, number, sentence, speedup
from specgauge.reports.panel import SeriesStyle, series_styles
from specgauge.reports.records import Answer, Verified
from specgauge.reports.svg import error_bar, marker
from specgauge.reports.tables import Table
from specgauge.reports.verification_tables import baseline_table, policy_table, verification_table
from specgauge.sweeps.analysis.validation import OTHER_CONTEXTS, VerificationSummary

NOT_ASKED = (
    "Nothing was decoded end to end: a new run with validate: {} in its configuration decodes the γ it recommends and "
    "their neighbours, and holds these predictions against them."
)
NOT_YET = (
    "The configuration asks for texts decoded end to end (verify), but none has been held against these predictions "
    "yet: run the same `specgauge run` again, it goes on where it stopped."
)
_NEUTRAL = "c5"


@dataclass(frozen=True, kw_only=True)
class VerificationSection:
    """What the template prints; empty but for `missing` where nothing was decoded."""

    missing: str
    """One sentence on how to have texts decoded; empty where some were."""
    found: str
    """The outcome in one sentence."""
    forced: str
    """Why the texts are not the target's; empty where they are."""
    facts: Sequence[tuple[str, str]]
    blocks: Sequence[Block]
    table: Table | None
    policies: Table | None
    """None where none was decoded."""
    baselines: Table | None


def verification_section(data: ReportData, samplings: Sequence[str]) -> VerificationSection:
    """The section of a run; `samplings` names every sampling setting, in the order that gives them their colours."""
    summary = data.verification
    if summary is None:
        missing = NOT_ASKED if data.config.validation is None else NOT_YET
        return VerificationSection(
            missing=missing, found="", forced="", facts=(), blocks=(), table=None, policies=None, baselines=None
        )
    return VerificationSection(
        missing="",
        found=_joined(sentence(summary.text())),
        forced=_forced(data.verified),
        facts=[(what, _joined(words)) for what, words in _facts(summary, data.verified)],
        blocks=scatter_blocks(data.verified, samplings),
        table=verification_table(data.verified, _chosen(data.answers)),
        policies=policy_table(data.policies),
        baselines=baseline_table(data.verified),
    )


def _joined(words: str) -> str:
    """Text in which no line breaks between a number and its per-cent sign, or before the number of a γ."""
    return words.replace(" %", PER_CENT).replace("γ = ", "γ\u00a0=\u00a0")


def _chosen(answers: Iterable[Answer]) -> set[tuple[object, ...]]:
    return {(one.strategy, one.place, one.gamma) for one in answers if one.gamma is not None}


def _forced(rows: Sequence[Verified]) -> str:
    """A notice on the rows whose texts are not the target's, with the reasons."""
    forced = [one for one in rows if not one.lossless]
    if not forced:
        return ""
    which = "None of these texts is" if len(forced) == len(rows) else f"{len(forced)} of {len(rows)} rows are not"
    reasons = sorted({one.why_not_lossless for one in forced if one.why_not_lossless})
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return (
        f"{which} lossless{why}: such texts do not follow the target's distribution and say nothing about the draft. "
        "They check the cost model alone."
    )


def _facts(summary: VerificationSummary, rows: Sequence[Verified]) -> Iterator[tuple[str, str]]:
    """(what, finding) of all rows together; a row is a cell at one gamma."""
    decoded = f"{count(summary.cells, 'cell')}, {count(summary.rows, 'row')} of the table below (a cell at one γ each)"
    yield "decoded", decoded
    if summary.speedup is not None:
        yield "S predicted", f"{summary.speedup.text()}{_worst(rows, 'error')}"
    if summary.cost is not None:
        yield "cost error", f"S from the rounds counted {summary.cost.text()}{_worst(rows, 'cost_error')}"
    if summary.acceptance_known:
        holds = _of(summary.acceptance_agrees, summary.acceptance_known)
        yield "acceptance error", f"its 95 % interval holds 0 in {holds}"
    if summary.rounds_known:
        agree = _of(summary.rounds_agree, summary.rounds_known)
        yield "rounds counted", f"as many as expected on the very texts, chance aside, in {agree}"
    elsewhere = sum(one.overhead_from == OTHER_CONTEXTS for one in rows)
    known = sum(one.t_overhead_s is not None for one in rows)
    if known:
        yield "overhead ε", f"fitted at other contexts than the one it is judged at in {_of(elsewhere, known)}"
    lossless = _of(summary.rows - summary.forced, summary.rows)
    yield "lossless", f"{lossless}{'' if summary.forced else ': the texts follow the distribution of the target alone'}"
    texts = summary.texts_same + summary.texts_tied + summary.texts_differ
    if texts:
        yield (
            "greedy texts",
            f"of {texts}, {summary.texts_same} are plain decoding's token for token, {summary.texts_tied} leave it "
            f"where rounding decides between two tokens, {summary.texts_differ} elsewhere",
        )
    if summary.whole_low is not None and summary.whole_high is not None:
        low, high = speedup(summary.whole_low), speedup(summary.whole_high)
        span = high if low == high else f"{low.removesuffix(TIMES)} to {high}"
        yield "whole requests", f"{span} plain decoding, prefills and ragged ends included"


def _of(some: int, total: int) -> str:
    return f"all {total} rows" if some == total > 1 else f"{some} of {count(total, 'row')}"


def _worst(rows: Sequence[Verified], name: str) -> str:
    """Where an error is largest and which way; empty with a single row."""
    known = [(value, one) for one in rows if (value := getattr(one, name)) is not None]
    if len(known) < 2:
        return ""
    value, one = max(known, key=lambda pair: abs(pair[0]))
    return f" (too {'high' if value > 0 else 'low'}: {_where(one)})"


def _where(one: Verified) -> str:
    return f"{one.strategy.sampling}, {caption(one.place)}, γ = {one.gamma}"


def scatter_blocks(rows: Sequence[Verified], samplings: Sequence[str]) -> list[Block]:
    """Three panels for every pair, mode, draft sampling and rule: S predicted, S from counts, and Ω."""
    styles = series_styles(samplings)
    titles = rule_titles(one.strategy for one in rows)
    shapes = {size: order for order, size in enumerate(sorted({one.place.batch_size for one in rows}))}
    grouped: dict[str, list[Verified]] = {}
    for one in rows:
        grouped.setdefault(titles[one.strategy], []).append(one)
    blocks = []
    for number_, (title, members) in enumerate(grouped.items()):
        panels = list(_panels(members, styles, shapes, f"verification-{number_}"))
        if panels:
            blocks.append(Block(title=title, legend=_legend(members, styles, shapes), panels=panels, columns=3))
    return blocks


def _panels(
    rows: Sequence[Verified], styles: Mapping[str, SeriesStyle], shapes: Mapping[int, int], key: str
) -> Iterator[Panel]:
    speedups = (
        ("Whole error: S predicted", "predicted S", "speedup_predicted"),
        (
            "Cost error: S from counts",
            "S from the rounds counted",
            "speedup_from_counts",
        ),
    )
    for order, (words, y_title, name) in enumerate(speedups):
        points = [point for one in rows if (point := _speedup_point(one, name, styles, shapes)) is not None]
        if points:
            svg = scatter_panel(points, "measured S", y_title, key=f"{key}-{order}", title=words)
            yield Panel(caption=words, marks=[], svg=svg)
    points = [point for one in rows if (point := _acceptance_point(one, styles, shapes)) is not None]
    if points:
        words = "Acceptance error: Ω predicted"
        yield Panel(
            caption=words,
            marks=[],
            svg=scatter_panel(points, "counted Ω", "predicted Ω", key=f"{key}-acceptance", title=words),
        )


def _speedup_point(
    one: Verified, name: str, styles: Mapping[str, SeriesStyle], shapes: Mapping[int, int]
) -> ScatterPoint | None:
    value, found = getattr(one, name), one.speedup_measured
    if value is None or found is None:
        return None
    low, high = one.speedup_measured_low, one.speedup_measured_high
    return ScatterPoint(
        x=found,
        y=value,
        x_ends=None if low is None or high is None else (low, high),
        y_ends=None,
        colour=styles[one.strategy.sampling].css,
        shape=shapes[one.place.batch_size],
        words=f"{_where(one)}: {number(value)} against {number(found)} measured ({change(value / found - 1)})",
    )


def _acceptance_point(
    one: Verified, styles: Mapping[str, SeriesStyle], shapes: Mapping[int, int]
) -> ScatterPoint | None:
    value, found = one.tokens_per_round_predicted, one.tokens_per_round_counted
    if value is None or found is None:
        return None
    low, high = one.acceptance_error_low, one.acceptance_error_high
    return ScatterPoint(
        x=found,
        y=value,
        x_ends=None,
        y_ends=None if low is None or high is None else (found * (1.0 + low), found * (1.0 + high)),
        colour=styles[one.strategy.sampling].css,
        shape=shapes[one.place.batch_size],
        words=f"{_where(one)}: {number(value)} against {number(found)} counted ({change(one.acceptance_error)})",
    )


def _legend(
    rows: Sequence[Verified], styles: Mapping[str, SeriesStyle], shapes: Mapping[int, int]
) -> list[LegendEntry]:
    names = dict.fromkeys(name for name in styles if any(one.strategy.sampling == name for one in rows))
    sizes = sorted({one.place.batch_size for one in rows})
    legend = [LegendEntry(swatch=block_swatch(f"patch {styles[name].css}"), words=name) for name in names]
    legend += [
        LegendEntry(
            swatch=icon(marker((14, 8), shapes[size], css=f"{marker_class(shapes[size])} {_NEUTRAL}", radius=4)),
            words=f"batch {size}",
        )
        for size in sizes
    ]
    bar = error_bar((2, 8), (26, 8), css=f"measured-bar {_NEUTRAL}")
    legend.append(LegendEntry(swatch=icon(bar), words="interval"))
    legend.append(LegendEntry(swatch=line_swatch("plain"), words="as predicted"))
    return legend
