"""`specgauge compare A B`: the same cells of two runs side by side, each ratio with its interval. No torch.

    tokens a second, plain          B / T_decode
    tokens a second, speculative    B · Ω(γ) / T_round(γ), each run at its own recommended γ
    speed-up                        the second over the first

    faster, slower      the whole interval of second over first lies above 1, below 1
    same                it lies within 1 ± the tolerance
    undecided           otherwise

Runs are comparable in the pairs and sampling settings that mean the same in both: the same target, the same chain.
Drafts, machines, releases and types of weights may differ, and are told. Acceptance is comparable over the same prompts
only; without them only plain decoding is compared. Each replicate of a ratio draws the same prompts in both runs, and
the blocks of each run by themselves: block 2 of one run has nothing to do with block 2 of another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from specgauge.model.checks import FloatArray, finite_or_none
from specgauge.model.settings import SettingPoint
from specgauge.model.stats.bootstrap import draw_blocks, median_replicates, percentile_interval
from specgauge.sweeps.analysis.predictions import TOO_SHORT, AnalysedRun
from specgauge.sweeps.analysis.settings import RunSetting
from specgauge.sweeps.analysis.timings import CellTimings
from specgauge.sweeps.plan import settings_of, target_identity
from specgauge.sweeps.store.environment import environment_on, machine_of
from specgauge.sweeps.store.rundir import Run, prompt_rows
from specgauge.sweeps.text_table import count, text_table

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config

TOLERANCE = 0.01
PLAIN, SPECULATIVE, SPEEDUP = "plain", "speculative", "speed-up"
T = TypeVar("T")


def comparable_pairs(first: Config, second: Config) -> tuple[dict[str, str], list[str]]:
    """Pairs with the same target in both, the first's name to the second's, and why others have no partner.

    Pairs of one name belong together; so do those of two names that are the only ones left of their target and mode.
    """
    own, others = ({pair.name: pair for pair in config.pairs} for config in (first, second))
    left, left_too = (
        [pair for pair in config.pairs if pair.name not in own.keys() & others] for config in (first, second)
    )
    for pair in left:
        alike, partners = (
            [one for one in pairs if config.mode_of(one) == first.mode_of(pair) and not _target_difference(pair, one)]
            for config, pairs in ((first, left), (second, left_too))
        )
        if len(alike) == len(partners) == 1:
            others[pair.name] = others.pop(partners[0].name)
    names, reasons = _comparable("pair", own, others, _target_difference)
    return {name: others[name].name for name in names}, reasons


def comparable_settings(first: Config, second: Config) -> tuple[list[str], list[str]]:
    """Names of the sampling settings that mean the same in both, and why others do not."""
    own, others = ({one.name: settings_of(one) for one in config.sampling} for config in (first, second))
    return _comparable(
        "sampling", own, others, lambda one, two: None if one == two else "means another chain in the second"
    )


def _comparable(
    what: str, own: Mapping[str, T], others: Mapping[str, T], difference: Callable[[T, T], str | None]
) -> tuple[list[str], list[str]]:
    names, reasons = [], []
    for name, one in own.items():
        differing = difference(one, others[name]) if name in others else "is only in the first"
        if differing is None:
            names.append(name)
        else:
            reasons.append(f"{what} {name} {differing}")
    return names, reasons + [f"{what} {name} is only in the second" for name in others if name not in own]


def _target_difference(pair: PairConfig, other: PairConfig) -> str | None:
    """The first thing that makes two targets different models; where and how they run may differ."""
    one, two = target_identity(pair), target_identity(other)
    field = next((name for name in one if one[name] != two[name]), None)
    return None if field is None else f"has another target ({field}: {one[field]!r}, {two[field]!r})"


def other_texts_of(first: Run, second: Run, pair: str, other: str) -> str:
    """Why acceptance of a pair and its partner was read off other texts; empty where it was not."""
    for field in ("prompt_tokens", "max_new_tokens", "chat_template"):
        one, two = (getattr(run.config.workload, field) for run in (first, second))
        if one != two:
            return f"workload.{field} was {one}, is {two}"
    prompts, others = (
        {replace(row, pair="") for row in prompt_rows(run.path) if row.pair == name}
        for run, name in ((first, pair), (second, other))
    )
    if not prompts or not others:
        return "" if prompts == others else f"{(second if prompts else first).path} keeps no prompts"
    return "" if prompts == others else "the prompts differ"


def differences(first: Run, second: Run, partners: Mapping[str, str]) -> Iterator[str]:
    """What differs in machine, versions, drafts, and how the models of pairs that belong together are loaded."""
    for name, run in (("first", first), ("second", second)):
        if run.is_imported:
            yield f"{name}: imported, as another program measured it; its prompts are not known"
    others = {pair.name: pair for pair in second.config.pairs}
    yield from dict.fromkeys(
        line
        for pair in first.config.pairs
        if (other := others.get(partners.get(pair.name, pair.name))) is not None
        for line in _machine_differences(first, second, pair.accelerator_type, other.accelerator_type)
    )
    for pair in first.config.pairs:
        other = others.get(partners.get(pair.name, pair.name))
        if other is None:
            continue
        if pair.name != other.name:
            yield f"pair {pair.name}: called {other.name} in the second"
        if pair.threads != other.threads:
            yield f"pair {pair.name}, threads: {first.config.threads_of(pair)}, {second.config.threads_of(other)}"
        if type(pair.draft) is not type(other.draft):
            yield f"pair {pair.name}, draft: {pair.draft.label}, {other.draft.label}"
        for role in ("target", "draft"):
            one, two = getattr(pair, role).model_dump(), getattr(other, role).model_dump()
            for field in one:
                if field in two and one[field] != two[field]:
                    yield f"pair {pair.name}, {role} {field}: {one[field]}, {two[field]}"


def _machine_differences(first: Run, second: Run, device: str | None, other: str | None) -> Iterator[str]:
    """What differs between the machines of two pairs, by the `accelerator_type` of each."""
    now = machine_of(environment_on(second.environment, other))
    for name, one in machine_of(environment_on(first.environment, device)).items():
        if one != now[name]:
            yield f"{f'{device}, ' if device else ''}{name}: {one}, {now[name]}"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The second run over the first in one figure of one cell."""

    figure: str
    first: float
    second: float
    ratio: float
    low: float | None
    high: float | None
    verdict: str
    gamma_first: int | None
    """γ that the speculative figure is taken at; None for plain decoding."""
    gamma_second: int | None


@dataclass(frozen=True, kw_only=True)
class CellRatios(SettingPoint):
    """One cell that both runs have."""

    ratios: tuple[Ratio, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs side by side."""

    first: str
    second: str
    tolerance: float
    confidence: float
    differences: tuple[str, ...]
    left_out: tuple[str, ...]
    """What cannot be compared, each with the reason."""
    cells: tuple[CellRatios, ...]


def compare(first: Run, second: Run, *, tolerance: float = TOLERANCE) -> Comparison:
    """Compare the cells that two runs share.

    Raises:
        ValueError: the same run twice, a tolerance outside (0, 1), runs that share nothing comparable (each reason is
            named), or a damaged file.
    """
    if first.path.resolve() == second.path.resolve():
        raise ValueError(f"{second.path}: expected two runs, such as before and after a change, got the same run twice")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected above 0 and below 1, such as 0.01, got {tolerance:g}")
    names, left_out = comparable_pairs(first.config, second.config)
    settings, more = comparable_settings(first.config, second.config)
    left_out += more
    other_texts = {
        name: why for name, partner in names.items() if (why := other_texts_of(first, second, name, partner))
    }
    left_out += [f"pair {name}: {why}; only plain decoding is compared" for name, why in other_texts.items()]
    seed = first.config.seed
    called = ({name: name for name in names}, {partner: name for name, partner in names.items()})
    figures = [
        {key: found for key, found in _figures(run, own, seed, seed + number).items() if key.sampling in settings}
        for number, (run, own) in enumerate(zip((first, second), called, strict=True))
    ]
    shared = [key for key in figures[0] if key in figures[1]]
    left_out += _alone("first", figures[0], figures[1]) + _alone("second", figures[1], figures[0])
    same_texts = [key for key in shared if key.pair not in other_texts]
    left_out += _without_rounds("first", same_texts, figures[0]) + _without_rounds("second", same_texts, figures[1])
    one_sided = {key: why for key in shared if (why := _one_sided(figures[0][key], figures[1][key]))}
    left_out += [f"{key.label}: {why}; only plain decoding is compared" for key, why in one_sided.items()]
    if not shared:
        raise ValueError(
            f"{first.path} and {second.path}: nothing to compare: "
            + ("; ".join(left_out) or "they have no batch size, context and mode in common that both measured")
        )
    confidence = min(run.config.precision.confidence for run in (first, second))
    cells = []
    for key in shared:
        first_own, second_own = (own[key] for own in figures)
        is_plain_alone = key.pair in other_texts or key in one_sided
        ratios = _ratios(first_own, second_own, tolerance, confidence, is_plain_alone=is_plain_alone)
        cells.append(CellRatios(**asdict(key), ratios=tuple(ratios)))
    return Comparison(
        first=str(first.path),
        second=str(second.path),
        tolerance=tolerance,
        confidence=confidence,
        differences=tuple(differences(first, second, names)),
        left_out=tuple(left_out),
        cells=tuple(cells),
    )


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """One cell of one run: replicates (1 + R,) of its tokens a second, the estimate first."""

    plain: FloatArray
    speculative: FloatArray | None
    """At the recommended γ; None where no γ is known."""
    gamma: int | None
    trouble: str
    """Why no γ is known."""
    is_optimistic: bool = False
    """Whether ε is unknown."""


def _figures(run: Run, called: Mapping[str, str], prompt_seed: int, block_seed: int) -> dict[SettingPoint, _Figures]:
    """The cells whose plain step was timed, `called`: the pairs wanted and what they are called in the comparison.

    Estimates are those of the run's own answers. For the replicates prompts are drawn by one seed, blocks by the other.
    """
    answers = drawn = AnalysedRun.read(run, pairs=called)
    if {prompt_seed, block_seed} != {run.config.seed}:
        seeded = replace(run, config=run.config.model_copy(update={"seed": prompt_seed}))
        drawn = AnalysedRun.read(seeded, pairs=called, seed=block_seed)
    return {
        SettingPoint(**setting.columns(cell.cell) | {"pair": called[setting.key.pair]}): _cell_figures(
            answers, drawn, (setting, cell), as_drawn
        )
        for (setting, cell), as_drawn in zip(answers.points(), drawn.points(), strict=True)
        if cell.arms["decode"].status == "ok"
    }


def _cell_figures(
    answers: AnalysedRun,
    drawn: AnalysedRun,
    point: tuple[RunSetting, CellTimings],
    as_drawn: tuple[RunSetting, CellTimings],
) -> _Figures:
    """Of one cell: the estimates of `answers`, with replicates about them that are spread as those of `drawn` are."""
    (setting, cell), config = point, drawn.run.config
    blocks = [block[:, 0] for block in cell.arms["decode"].blocks_as_taken_s.values()]  # its pace is uncertain too
    seed = (config.seed, int(cell.cell.id, 16))
    draws = draw_blocks(len(blocks), config.precision.replicates, seed)
    taken_s = median_replicates(blocks, draws)
    plain = cell.cell.batch_size / float(cell.costs.t_decode_s) * (taken_s[0] / taken_s)  # as the answers have it
    estimate, replicates = answers.estimate(*point), drawn.estimate(*as_drawn)
    if estimate is None or replicates is None:
        status, reason = cell.trouble(config.grid.gamma[0])
        trouble = f"{status}: {reason}" if status != "ok" else setting.reason or TOO_SHORT
        return _Figures(plain=plain, speculative=None, gamma=None, trouble=trouble)
    found, spread = estimate.speedup, replicates.speedup
    gamma = found.recommended_gamma
    index = found.gammas.tolist().index(gamma)
    around = spread.replicates[:, index] / spread.speedup[index]
    speculative = plain * found.speedup[index] * np.concatenate([[1.0], around])
    return _Figures(
        plain=plain, speculative=speculative, gamma=gamma, trouble="", is_optimistic=estimate.costs.is_optimistic
    )


def _one_sided(first: _Figures, second: _Figures) -> str:
    """Why a cell's speeds with speculation are not of one kind in both runs; empty where they are or one is unknown."""
    if first.speculative is None or second.speculative is None or first.is_optimistic == second.is_optimistic:
        return ""
    return f"overhead was measured in the {'second' if first.is_optimistic else 'first'} only"


def _alone(which: str, own: Mapping[SettingPoint, _Figures], other: Mapping[SettingPoint, _Figures]) -> list[str]:
    alone = [key for key in own if key not in other]
    return [f"{count(len(alone), 'cell')} timed only in the {which}, such as {alone[0].label}"] if alone else []


def _without_rounds(which: str, shared: Sequence[SettingPoint], own: Mapping[SettingPoint, _Figures]) -> list[str]:
    missing = [key for key in shared if own[key].speculative is None]
    known = f"speculative decoding of {count(len(missing), 'cell')}, not known in the {which}"
    return [f"{known}, such as {missing[0].label}: {own[missing[0]].trouble}"] if missing else []


def _ratios(
    first: _Figures, second: _Figures, tolerance: float, confidence: float, *, is_plain_alone: bool
) -> Iterator[Ratio]:
    def ratio(figure: str, one: FloatArray, two: FloatArray, gammas: tuple[int | None, int | None]) -> Ratio:
        drawn = slice(1, min(one.size, two.size))
        low, high = map(finite_or_none, percentile_interval(two[drawn] / one[drawn], confidence))
        return Ratio(
            figure=figure,
            first=float(one[0]),
            second=float(two[0]),
            ratio=float(two[0] / one[0]),
            low=low,
            high=high,
            verdict=verdict(low, high, tolerance=tolerance),
            gamma_first=gammas[0],
            gamma_second=gammas[1],
        )

    yield ratio(PLAIN, first.plain, second.plain, (None, None))
    if not is_plain_alone and first.speculative is not None and second.speculative is not None:
        gammas = first.gamma, second.gamma
        yield ratio(SPECULATIVE, first.speculative, second.speculative, gammas)
        yield ratio(SPEEDUP, first.speculative / first.plain, second.speculative / second.plain, gammas)


def verdict(low: float | None, high: float | None, *, tolerance: float) -> str:
    """same, faster, slower or undecided, from the interval of second over first in something that is better larger."""
    if low is None or high is None:
        return "undecided"
    if 1 - tolerance <= low and high <= 1 + tolerance:
        return "same"
    return "faster" if low > 1 else "slower" if high < 1 else "undecided"


def comparison_json(comparison: Comparison) -> str:
    """The comparison as one strict-JSON object."""
    return json.dumps(asdict(comparison), indent=2, ensure_ascii=False, allow_nan=False)


def comparison_text(comparison: Comparison) -> str:
    """The cells in a table, what differs and what was left out before it."""
    rows = []
    for cell in comparison.cells:
        for ratio in cell.ratios:
            unit = "×" if ratio.figure == SPEEDUP else "tokens/s"
            sides = (ratio.first, ratio.gamma_first), (ratio.second, ratio.gamma_second)
            shown = [f"{value:.4g} {unit}{'' if gamma is None else f' (γ = {gamma})'}" for value, gamma in sides]
            interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
            label = cell.label if ratio.figure == PLAIN else ""
            rows.append((label, ratio.figure, *shown, f"{ratio.ratio:.3f}{interval}", ratio.verdict))
    lines = [f"first:  {comparison.first}", f"second: {comparison.second}"]
    lines += [f"differs: {one}" for one in comparison.differences]
    lines += [f"left out: {one}" for one in comparison.left_out]
    lines += [
        "",
        text_table(("cell", "figure", "first", "second", "second / first", "verdict"), rows),
        "",
        f"same: within ± {100 * comparison.tolerance:g} %; intervals are of {100 * comparison.confidence:g} %, over "
        f"blocks and prompts",
    ]
    return "\n".join(lines)
