"""`specgauge compare A B`: the same cells of two runs side by side, each ratio with its interval. No torch.

    tokens a second, plain          B / T_decode
    tokens a second, speculative    B · Ω(γ) / T_round(γ), each run at its own recommended γ
    speed-up                        the second over the first

    faster, slower      the whole interval of second over first lies above 1, below 1
    same                it lies within 1 ± the tolerance
    undecided           otherwise

Runs are comparable in the pairs and sampling settings that mean the same in both: the same models, the same chain.
Machines, releases and types of weights may differ, that is what a comparison is for; what differs is told. Acceptance
is comparable over the same prompts only, so without them only plain decoding is compared.

    comparison = compare(Run.open(a), Run.open(b))
    print(comparison_text(comparison))
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from specgauge.model.bootstrap import percentile_interval
from specgauge.model.checks import FloatArray
from specgauge.model.known import finite_or_none
from specgauge.model.text_table import text_table
from specgauge.sweeps.plan import plan_cells, settings_of
from specgauge.sweeps.rounds import answer_cell
from specgauge.sweeps.timings import CellTimings, collect_timings
from specgauge.sweeps.verified import DecodedCells
from specgauge.sweeps.ways import Way, cells_of, ways

if TYPE_CHECKING:
    from specgauge.configs.schema import Config, PairConfig
    from specgauge.sweeps.rundir import Run

TOLERANCE = 0.01
PLAIN, SPECULATIVE, SPEEDUP = "plain", "speculative", "speed-up"
_TOLD = ("device", "cpu", "cuda", "threads", "packages.torch", "packages.transformers", "packages.specgauge")


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
class CellRatios:
    """One cell that both runs have."""

    pair: str
    mode: str
    sampling: str
    draft_sampling: str
    acceptance_rule: str
    batch_size: int
    context: int
    ratios: tuple[Ratio, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs side by side."""

    first: str
    second: str
    tolerance: float
    confidence: float
    differences: tuple[str, ...]
    """What differs between the runs, in words, such as the machine or a version."""
    left_out: tuple[str, ...]
    """What cannot be compared, each with the reason."""
    cells: tuple[CellRatios, ...]


def compare(first: Run, second: Run, *, tolerance: float = TOLERANCE) -> Comparison:
    """Compare the cells that two runs share.

    Raises:
        ValueError: a tolerance outside (0, 1), runs that share nothing comparable (each reason is named), or a damaged
            file.
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance: found {tolerance:g}, allowed: above 0 and below 1, such as 0.01")
    names, left_out = _comparable_pairs(first.config, second.config)
    settings, more = _comparable_settings(first.config, second.config)
    left_out += more
    same_texts, why = _same_texts(first, second)
    if why:
        left_out.append(why)
    figures = [_figures(run, names) for run in (first, second)]
    shared = [key for key in figures[0] if key in figures[1] and key[2] in settings]
    if not shared:
        raise ValueError(
            f"{first.path} and {second.path}: nothing to compare: "
            + ("; ".join(left_out) or "they have no batch size, context and mode in common that both measured")
        )
    confidence = min(run.config.precision.confidence for run in (first, second))
    cells = [
        _cell_ratios(key, figures[0][key], figures[1][key], same_texts, tolerance=tolerance, confidence=confidence)
        for key in shared
    ]
    return Comparison(
        first=str(first.path),
        second=str(second.path),
        tolerance=tolerance,
        confidence=confidence,
        differences=tuple(_differences(first, second)),
        left_out=tuple(left_out),
        cells=tuple(cells),
    )


_Key = tuple[str, str, str, str, str, int, int]


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """One cell of one run: replicates (1 + R,) of its figures, the estimate first; γ is the recommended one."""

    plain: FloatArray
    speculative: FloatArray
    gamma: int


def _figures(run: Run, pairs: Sequence[str]) -> dict[_Key, _Figures]:
    config = run.config
    cells = collect_timings(plan_cells(config), config.grid.gamma, run.journal())
    found = list(ways(run, {}, pairs=pairs))
    decoded = DecodedCells.read(run, cells, found)
    result: dict[_Key, _Figures] = {}
    for way in found:
        for cell in cells_of(way, cells):
            figures = _cell_figures(config, way, cell, decoded)
            if figures is not None:
                result[_key(way, cell)] = figures
    return result


def _key(way: Way, cell: CellTimings) -> _Key:
    place = cell.cell
    return (
        way.pair, place.mode, way.sampling, way.draft_sampling, way.acceptance_rule, place.batch_size, place.context
    )  # fmt: skip


def _cell_figures(config: Config, way: Way, cell: CellTimings, decoded: DecodedCells) -> _Figures | None:
    rounds, overhead = way.rounds_at(cell.cell.context), decoded.overhead(way, cell)
    answer = None
    if rounds is not None:
        overhead_s = None if overhead is None else overhead.t_overhead_s
        answer = answer_cell(config, cell, rounds, t_overhead_s=overhead_s)
    if answer is None:
        return None
    batch_size = cell.cell.batch_size
    plain = batch_size / answer.parts.t_decode_s
    gamma = answer.doubt.recommended_gamma or answer.doubt.best_gamma or answer.gammas[0]
    return _Figures(plain=plain, speculative=plain * answer.speedups[:, answer.gammas.index(gamma)], gamma=gamma)


def _cell_ratios(
    key: _Key, first: _Figures, second: _Figures, same_texts: bool, *, tolerance: float, confidence: float
) -> CellRatios:
    ratios = [_ratio(PLAIN, first.plain, second.plain, None, None, tolerance, confidence)]
    if same_texts:
        gammas = first.gamma, second.gamma
        ratios.append(_ratio(SPECULATIVE, first.speculative, second.speculative, *gammas, tolerance, confidence))
        speedups = first.speculative / first.plain, second.speculative / second.plain
        ratios.append(_ratio(SPEEDUP, *speedups, *gammas, tolerance, confidence))
    pair, mode, sampling, draft_sampling, rule, batch_size, context = key
    return CellRatios(
        pair=pair,
        mode=mode,
        sampling=sampling,
        draft_sampling=draft_sampling,
        acceptance_rule=rule,
        batch_size=batch_size,
        context=context,
        ratios=tuple(ratios),
    )


def _ratio(
    figure: str,
    first: FloatArray,
    second: FloatArray,
    gamma_first: int | None,
    gamma_second: int | None,
    tolerance: float,
    confidence: float,
) -> Ratio:
    count = min(first.size, second.size)
    low, high = percentile_interval(second[1:count] / first[1:count], confidence)
    ends = finite_or_none(low), finite_or_none(high)
    return Ratio(
        figure=figure,
        first=float(first[0]),
        second=float(second[0]),
        ratio=float(second[0] / first[0]),
        low=ends[0],
        high=ends[1],
        verdict=verdict(*ends, tolerance=tolerance),
        gamma_first=gamma_first,
        gamma_second=gamma_second,
    )


def verdict(low: float | None, high: float | None, *, tolerance: float) -> str:
    """same, faster, slower or undecided, from the interval of second over first in something that is better larger."""
    if low is None or high is None:
        return "undecided"
    if 1 - tolerance <= low and high <= 1 + tolerance:
        return "same"
    return "faster" if low > 1 else "slower" if high < 1 else "undecided"


def _comparable_pairs(first: Config, second: Config) -> tuple[list[str], list[str]]:
    """Names of the pairs that mean the same in both, and why others do not."""
    others = {pair.name: pair for pair in second.pairs}
    names, reasons = [], []
    for pair in first.pairs:
        other = others.get(pair.name)
        if other is None:
            reasons.append(f"pair {pair.name} is only in the first")
            continue
        differing = _model_difference(pair, other)
        if differing is None:
            names.append(pair.name)
        else:
            reasons.append(f"pair {pair.name} has another {differing}")
    reasons += [f"pair {name} is only in the second" for name in others if name not in {p.name for p in first.pairs}]
    return names, reasons


def _model_difference(pair: PairConfig, other: PairConfig) -> str | None:
    """The first thing that makes the models of a name different ones; where and how they run may differ."""
    runs = {"device", "device_map", "attention", "dtype", "quantization"}
    for role in ("target", "draft"):
        one, two = getattr(pair, role).model_dump(exclude=runs), getattr(other, role).model_dump(exclude=runs)
        if one != two:
            field = next((name for name in {**one, **two} if one.get(name) != two.get(name)), role)
            return f"{role} ({field}: {one.get(field)!r}, {two.get(field)!r})"
    return None


def _comparable_settings(first: Config, second: Config) -> tuple[set[str], list[str]]:
    others = {sampling.name: settings_of(sampling) for sampling in second.sampling}
    names, reasons = set(), []
    for sampling in first.sampling:
        if sampling.name not in others:
            reasons.append(f"sampling {sampling.name} is only in the first")
        elif others[sampling.name] != settings_of(sampling):
            reasons.append(f"sampling {sampling.name} means another chain in the second")
        else:
            names.add(sampling.name)
    mine = {sampling.name for sampling in first.sampling}
    reasons += [f"sampling {name} is only in the second" for name in others if name not in mine]
    return names, reasons


def _same_texts(first: Run, second: Run) -> tuple[bool, str]:
    """Whether acceptance was read off the same prompts, and why not."""
    for field in ("prompt_tokens", "max_new_tokens", "chat_template"):
        one, two = (getattr(run.config.workload, field) for run in (first, second))
        if one != two:
            return False, f"acceptance and S: workload.{field} was {one}, is {two}; only plain decoding is compared"
    if _prompts(first) != _prompts(second):
        return False, "acceptance and S: the prompts differ; only plain decoding is compared"
    return True, ""


def _prompts(run: Run) -> list[str]:
    path = run.path / "prompts.jsonl"
    return sorted(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else []


def _differences(first: Run, second: Run) -> Iterator[str]:
    for name in _TOLD:
        one, two = (_lookup(run.environment, name) for run in (first, second))
        if one != two:
            yield f"{name}: {one}, {two}"
    for pair in first.config.pairs:
        for other in second.config.pairs:
            if other.name == pair.name:
                for role in ("target", "draft"):
                    one, two = getattr(pair, role).model_dump(), getattr(other, role).model_dump()
                    yield from (
                        f"pair {pair.name}, {role} {field}: {one[field]}, {two[field]}"
                        for field in one
                        if field in two and one[field] != two[field]
                    )


def _lookup(mapping: Mapping[str, Any], dotted: str) -> Any:
    value: Any = mapping
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def comparison_json(comparison: Comparison) -> str:
    """The comparison as one strict-JSON object."""
    return json.dumps(asdict(comparison), indent=2, ensure_ascii=False, allow_nan=False)


def comparison_text(comparison: Comparison) -> str:
    """The cells in a table, what differs and what was left out before it."""
    rows = []
    for cell in comparison.cells:
        place = (
            f"{cell.pair}, {cell.mode}, {cell.sampling}, {cell.draft_sampling}, {cell.acceptance_rule}, "
            f"batch {cell.batch_size}, context {cell.context}"
        )
        for ratio in cell.ratios:
            unit = "×" if ratio.figure == SPEEDUP else "tokens/s"
            interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
            rows.append(
                (
                    place,
                    ratio.figure,
                    f"{ratio.first:.4g} {unit}{_at(ratio.gamma_first)}",
                    f"{ratio.second:.4g} {unit}{_at(ratio.gamma_second)}",
                    f"{ratio.ratio:.3f}{interval}",
                    ratio.verdict,
                )
            )
            place = ""
    lines = [f"first:  {comparison.first}", f"second: {comparison.second}"]
    lines += [f"differs: {words}" for words in comparison.differences]
    lines += [f"left out: {words}" for words in comparison.left_out]
    lines += ["", text_table(("cell", "figure", "first", "second", "second / first", "verdict"), rows)]
    lines += [
        "",
        f"same: within ± {100 * comparison.tolerance:g} %; intervals are of {100 * comparison.confidence:g} %, over "
        f"blocks and prompts",
    ]
    return "\n".join(lines)


def _at(gamma: int | None) -> str:
    return "" if gamma is None else f" (γ = {gamma})"
