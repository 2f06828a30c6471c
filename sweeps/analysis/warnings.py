"""What a reader must know before believing a run's numbers: each warning with its remedy, as plain data.

One warning a kind and pair (or pair and sampling setting): it names the worst point and says how many there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.model.acceptance.recorded import ChainCheck
from specgauge.model.arms import is_prefill, round_arm, verify_arm
from specgauge.model.decision import ratio_text
from specgauge.model.search.candidates import LEFT_OUT
from specgauge.model.settings import Setting
from specgauge.model.stats.disturbance import Disturbance, added_up, shares_text
from specgauge.model.stats.medians import drift, median_interval, worst_half_width
from specgauge.sweeps.analysis.acceptance import RecordedTexts
from specgauge.sweeps.analysis.timings import ArmTimings, CellTimings
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.schema import TunedCell, WarningRow
from specgauge.sweeps.text_table import count

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

LOADED_RATIO, LOADED_GAMMA = 1.1, 4
"""A GPU busy with a batch pays for verified tokens: under this ratio at this gamma, a machine does not show it."""
MOST_DRIFT = 0.05
MOST_DISTURBED = 0.1
"""Share of the samples, and of the blocks decoded end to end."""
MOST_REPEATED = 0.3
FEWEST_PROMPTS = 8
MOST_EXPECTED_LOSS = 0.05
"""Of the speed of the best γ."""
SLOW_BASELINE = 0.95
"""Our plain loop slower than transformers' generate by more than this flatters speculation."""
LARGE_COST_ERROR = 0.08
CLEARLY = 0.02
"""How far from 1 a predicted S says that speculation pays, or does not."""
_IN_FLOAT32 = "load both models in float32; if it stays, report it as a bug with the run directory"

_Row = Mapping[str, Any]
"""Of validation.csv, or an entry of recommendation.yaml."""


def point_text(cell: Cell) -> str:
    """Where a cell is, for messages."""
    return f"batch size {cell.batch_size}, context {cell.context}, {cell.chain}"


def timing_warnings(
    config: Config, pair: str, cells: Sequence[CellTimings], decoded: Sequence[Disturbance] = ()
) -> Iterator[WarningRow]:
    """Warnings about the timings of one pair; decoded: what disturbed each of its blocks decoded end to end."""
    yield from _missing(pair, cells)
    yield from _light_machine(pair, cells)
    if not config.grid.is_searched:  # a search asks for S of the best γ, not for every arm
        yield from _not_converged(config, pair, cells)
    yield from _disturbed(pair, cells, decoded)
    yield from _drifting(pair, cells)
    yield from _falling(config, pair, cells)


def _missing(pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    """Cells with an arm that has no time, or less than it would have, by status; searches that ended early."""
    arms = [(cell, arm) for cell in cells for arm in cell.arms.values()]
    remedies = {
        "oom": "lower grid.batch_size or grid.context, or load the models in a smaller dtype",
        "skipped": "make the smaller cell fit first, or raise limits.memory where that left cells out",
        "failed": "run the same command again; if it fails again, run it with --debug",
        "killed": "run the same command again; if it is killed again, lower grid.batch_size or grid.context",
        "unmeasured": "run the same command again, it goes on where it stopped",
    }
    for status, remedy in remedies.items():
        if hit := [(c, arm) for c, arm in arms if status in (arm.status, arm.ended_by) and not arm.search]:
            cell, arm = hit[0]
            count = len({cell.cell.id for cell, _ in hit})
            yield WarningRow(
                code=status,
                message=f"pair {pair}: {_cells(count, cells)} {status}, first {point_text(cell.cell)}, {arm.arm}: "
                f"{arm.reason}",
                remedy=remedy,
            )
    if hit := [(cell, arm) for cell, arm in arms if arm.search and arm.reason.startswith(LEFT_OUT)]:
        cell, arm = hit[0]
        yield WarningRow(
            code="search_left_open",
            message=f"pair {pair}: in {_cells(len({cell.cell.id for cell, _ in hit}), cells)} the search for γ ended "
            f"while others could still be best; first {point_text(cell.cell)}, {arm.arm}: {arm.reason}",
            remedy="raise precision.max_seconds and max_blocks, and run the same command again, which goes on",
        )


def _light_machine(pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    light: dict[Cell, float] = {}
    for cell in cells:
        verify, decode = cell.arms.get(verify_arm(LOADED_GAMMA)), cell.arms["decode"]
        if verify is not None and verify.status == decode.status == "ok":
            ratio = float(verify.median_s[0] / decode.median_s[0])
            light |= {cell.cell: ratio} if ratio < LOADED_RATIO else {}
    if light:
        point, ratio = min(light.items(), key=lambda item: item[1])
        yield WarningRow(
            code="light_machine",
            message=f"pair {pair}: verifying {LOADED_GAMMA} drafts takes only {ratio:.2f} × a decode step ("
            f"{point_text(point)}; {_cells(len(light), cells)} under {LOADED_RATIO:g} ×): this machine does not show "
            f"what a loaded GPU would",
            remedy="measure on the machine that will serve, at the batch sizes it will serve",
        )


def _not_converged(config: Config, pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    precision = config.precision

    def width_of(cell: CellTimings, arm: ArmTimings) -> float:
        return worst_half_width(arm.samples_s, precision.confidence, round_s=cell.held_against_s(arm.arm))

    if wide := _worst_arms(cells, width_of, precision.relative_ci):
        cell, arm, width = max(wide, key=lambda found: found[2])
        width_text = f"±{100 * width:.1f} %" if np.isfinite(width) else "not at all (too few samples)"
        limits = [name for name in ("max_seconds", "max_cell_seconds") if getattr(precision, name) is not None]
        budget = f"precision.{' and '.join([*limits, 'max_blocks'])}"
        yield WarningRow(
            code="not_converged",
            message=f"pair {pair}: {_cells(len(wide), cells)} not known to ±{100 * precision.relative_ci:g} %; worst "
            f"{point_text(cell)}, {arm}: {width_text}",
            remedy=f"close other programs; raise {budget}, or precision.relative_ci if that is good enough",
        )


def _disturbed(pair: str, cells: Sequence[CellTimings], decoded: Sequence[Disturbance]) -> Iterator[WarningRow]:
    """Samples and decoded blocks that other programs disturbed although they were taken again, in one warning."""

    def of(cell: CellTimings) -> Disturbance:
        return added_up(arm.disturbance for arm in cell.arms.values() if arm.blocks)

    def samples(cell: CellTimings) -> int:
        return sum(len(arm.samples_s) for arm in cell.arms.values())

    timed, ends = added_up(map(of, cells)), added_up(decoded)
    total, blocks = sum(map(samples, cells)), len(decoded)
    where = []
    if total and timed.disturbed > MOST_DISTURBED * total:
        worst = max(cells, key=lambda cell: of(cell).disturbed / max(samples(cell), 1))
        where.append(
            f"during {100 * timed.disturbed / total:.0f} % of {total} samples (worst {point_text(worst.cell)}; "
            f"{_figures(timed)})"
        )
    if blocks and ends.disturbed > MOST_DISTURBED * blocks:
        where.append(f"in {ends.disturbed} of {count(blocks, 'block')} decoded end to end ({_figures(ends)})")
    if where:
        yield WarningRow(
            code="busy_machine",
            message=f"pair {pair}: other programs took the processor {' and '.join(where)}",
            remedy="close other programs, or give the run cores of its own (taskset), and measure again with --fresh",
        )


def _figures(found: Disturbance) -> str:
    """How often it was taken again, and what else the system says."""
    return ", ".join(one for one in (f"{found.retaken} taken again", shares_text(found)) if one)


def _drifting(pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    def share(cell: CellTimings, arm: ArmTimings) -> float:
        """How far an arm drifted, as a share of what it is held against."""
        last, round_s = arm.samples_as_taken_s[:, -1], cell.held_against_s(arm.arm)
        return abs(drift(last) or 0.0) * (1.0 if round_s is None else float(np.median(last)) / round_s)

    if moved := _worst_arms(cells, share, MOST_DRIFT):
        cell, arm, size = max(moved, key=lambda found: found[2])
        yield WarningRow(
            code="drift",
            message=f"pair {pair}: in {_cells(len(moved), cells)} the later half of the samples differs from the "
            f"earlier half by over {100 * MOST_DRIFT:g} %; worst {point_text(cell)}, {arm}: {100 * size:.0f} %",
            remedy="let the machine cool down, fix its clocks, close other programs, and measure again with --fresh",
        )


def _worst_arms(
    cells: Iterable[CellTimings], measure: Callable[[CellTimings, ArmTimings], float], limit: float
) -> list[tuple[Cell, str, float]]:
    """For every cell with an arm of a round on which `measure` is over a limit, the worst of them and its value."""
    found = []
    for cell in cells:
        timed = (arm for arm in cell.arms.values() if arm.status == "ok" and not is_prefill(arm.arm))
        over = [(cell.cell, arm.arm, value) for arm in timed if (value := measure(cell, arm)) > limit]
        found += [max(over, key=lambda one: one[2])] if over else []
    return found


def _falling(config: Config, pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    """T_verify that falls from one gamma to the next, the intervals of the medians apart."""
    falls = []
    for cell in cells:
        arm_of = round_arm if cell.is_served else verify_arm
        measured = [(gamma, cell.arms[arm_of(gamma)]) for gamma in config.grid.gamma]
        known = [(gamma, arm.samples_s[:, 0]) for gamma, arm in measured if arm.status == "ok"]
        for (gamma, before), (larger, after) in itertools.pairwise(known):
            first = median_interval(before, config.precision.confidence)
            second = median_interval(after, config.precision.confidence)
            if first is not None and second is not None and second[1] < first[0]:
                falls.append((cell.cell, gamma, larger, float(np.median(after) / np.median(before))))
    if falls:
        cell_at, gamma, larger, ratio = min(falls, key=lambda fall: fall[3])
        yield WarningRow(
            code="verify_falls",
            message=f"pair {pair}: T_verify falls with γ in {_cells(len({fall[0] for fall in falls}), cells)}; most "
            f"from γ = {gamma} to {larger} at {point_text(cell_at)}: × {ratio:.2f}",
            remedy="nothing where a kernel is faster at that size; else look for other programs and measure again",
        )


def _cells(count: int, cells: Sequence[CellTimings]) -> str:
    return f"{count} of {len(cells)} cell{'' if len(cells) == 1 else 's'}"


def acceptance_warnings(config: Config, pair: str, texts: Mapping[str, RecordedTexts]) -> Iterator[WarningRow]:
    """Warnings about the recorded texts of one pair, given by sampling setting."""
    for sampling, recorded in texts.items():
        yield from _text_warnings(f"pair {pair}, sampling {sampling}", recorded)
    fewest = min((recorded.prompts for recorded in texts.values()), default=FEWEST_PROMPTS)
    if fewest < FEWEST_PROMPTS:
        yield WarningRow(
            code="few_prompts",
            message=f"pair {pair}: acceptance comes from {fewest} prompts; its interval is hardly known",
            remedy=f"give at least {FEWEST_PROMPTS} prompts, better 30",
        )
    if outside := [at for at in config.grid.context if not all(recorded.covers(at) for recorded in texts.values())]:
        low = max(recorded.context_low for recorded in texts.values())
        high = min(recorded.context_high for recorded in texts.values())
        yield WarningRow(
            code="acceptance_extrapolated",
            message=f"pair {pair}: acceptance was recorded at contexts {low} to {high}; at "
            f"{', '.join(map(str, outside))} it is taken from there",
            remedy="use prompts about as long as the contexts in grid.context",
        )


def _text_warnings(where: str, texts: RecordedTexts) -> Iterator[WarningRow]:
    repeated = texts.repeated_share()
    if repeated is not None and repeated > MOST_REPEATED:
        yield WarningRow(
            code="degenerate_text",
            message=f"{where}: {100 * repeated:.0f} % of the 4-grams repeat earlier ones; a text that loops is easily "
            f"drafted",
            remedy="use prompts of real traffic, the chat template, a smaller workload.max_new_tokens, or sampling",
        )
    if texts.null_share > 0:
        yield WarningRow(
            code="null_target_prob",
            message=f"{where}: {100 * texts.null_share:.2g} % of {texts.positions} tokens lie outside the recomputed "
            f"support of the target; there acceptance is filled in",
            remedy="load the target in float32, or widen top_k and top_p, if the share matters",
        )


def setting_warnings(setting: Setting, *, draft_is_timed: bool, check: ChainCheck) -> Iterator[WarningRow]:
    """Warnings about one setting; `draft_is_timed`: drawing as it would in use."""
    where = (
        f"pair {setting.pair}, sampling {setting.sampling}, rule {setting.acceptance_rule}, draft sampling "
        f"{setting.draft_sampling}"
    )
    if not check.consistent:
        errors = "" if check.standard_errors is None else f", {abs(check.standard_errors):.1f} standard errors"
        yield WarningRow(
            code="chain_inconsistent",
            message=f"{where}: acceptance differs from its own mean by {check.deviation_per_position:+.3f} a token"
            f"{errors}: these texts come from another chain",
            remedy="load both models in float32; if it stays, report it as a bug with the run directory",
        )
    if not draft_is_timed:
        yield WarningRow(
            code="draft_timed_drawing",
            message=f"{where}: the draft was timed drawing its tokens; taking the likeliest one costs less",
            remedy="put a greedy setting (temperature 0) beside this one in sampling: its draft times are used then",
        )


def decision_warnings(decisions: Sequence[_Row]) -> Iterator[WarningRow]:
    """Warnings about recommendations that the data do not decide, and about γ that may well be the wrong ones."""
    measured = [entry for entry in decisions if entry["best_gamma"] is not None]
    if open_ones := [entry for entry in measured if entry["decision"] == "undecided"]:
        yield WarningRow(
            code="undecided",
            message=f"{len(open_ones)} of {len(measured)} recommendations are undecided, first {_point(open_ones[0])}",
            remedy="give more prompts or workload.repetitions, and raise precision.min_blocks and max_blocks",
        )
    speculating = [entry for entry in measured if entry["decision"] == "speculate"]
    if risky := [entry for entry in speculating if (entry["expected_loss"] or 0.0) > MOST_EXPECTED_LOSS]:
        worst = max(risky, key=lambda entry: entry["expected_loss"])
        yield WarningRow(
            code="gamma_uncertain",
            message=f"{len(risky)} of {len(measured)} recommended γ should lose over {100 * MOST_EXPECTED_LOSS:g} % "
            f"against the best one, which the data do not tell; worst {_point(worst)}: γ = {worst['gamma']}, "
            f"{100 * worst['expected_loss']:.0f} % expected",
            remedy="give more prompts or workload.repetitions, and raise precision.max_seconds and max_blocks",
        )


def met_warnings(outcomes: Mapping[str, PairOutcome]) -> Iterator[WarningRow]:
    """Pairs that were given up for good, then what was met in models and prompts, each once."""
    for one in outcomes.values():
        if one.bad_input is not None:
            yield WarningRow(
                code="pair_refused",
                message=f"not measured: {one.bad_input}",
                remedy="put that right, or take the pair out; the same command would end alike",
            )
    yield from dict.fromkeys(row for one in outcomes.values() for row in one.warnings)


def impossible_figures(names: Sequence[str]) -> Iterator[WarningRow]:
    """Figures that came out as none can be, by the names of their fields, one for each time."""
    if names:
        yield WarningRow(
            code="impossible_figure",
            message=f"{count(len(names), 'figure')} came out as none can be and left unknown: "
            f"{', '.join(dict.fromkeys(names))}",
            remedy="report it as a bug with the run directory; the other figures do not follow from it",
        )


def decoding_warnings(rows: Sequence[_Row], reasons: Mapping[tuple[str, str], str]) -> Iterator[WarningRow]:
    """rows: those of validation.csv; reasons: why cells were not decoded, by (pair, label)."""
    for pair in dict.fromkeys(pair for pair, _ in reasons):
        own = {label: reason for (one, label), reason in reasons.items() if one == pair}
        label, reason = next(iter(own.items()))
        cells = "1 cell was" if len(own) == 1 else f"{len(own)} cells were"
        yield WarningRow(
            code="not_decoded",
            message=f"pair {pair}: {cells} decoded in part or not at all, first {label}: {reason}",
            remedy="see to the reason, then run the same command again, which goes on",
        )
    for pair in dict.fromkeys(row["pair"] for row in rows):
        yield from _pair_warnings([row for row in rows if row["pair"] == pair])


def _pair_warnings(rows: Sequence[_Row]) -> Iterator[WarningRow]:
    if slow := [row for row in rows if (row["plain_over_generate"] or 1.0) < SLOW_BASELINE]:
        row = min(slow, key=lambda row: row["plain_over_generate"])
        yield WarningRow(
            code="slow_baseline",
            message=f"{_point(row)}: the plain loop has {row['plain_over_generate']:.2f} × the tokens a second of "
            f"transformers' generate; against a slow baseline speculation looks better than it is",
            remedy="compare with generate's own speed in validation.csv (plain_over_generate)",
        )
    if unexpected := [row for row in rows if row["rounds_agree"] is False]:
        row = max(
            unexpected,
            key=lambda row: abs(row["rounds_counted"] - row["rounds_expected"]) / max(row["rounds_expected"], 1.0),
        )
        yield WarningRow(
            code="rounds_unexpected",
            message=f"{_point(row)}, γ = {row['gamma']}: the decoder took {row['rounds_counted']} rounds where "
            f"its own texts' acceptance says {row['rounds_expected']:.1f}: one of the two is wrong",
            remedy=_IN_FLOAT32,
        )
    if missed := [row for row in rows if abs(row["cost_error"] or 0.0) > LARGE_COST_ERROR]:
        row = max(missed, key=lambda row: abs(row["cost_error"]))
        yield WarningRow(
            code="cost_error",
            message=f"{_point(row)}, γ = {row['gamma']}: the measured costs give S = {row['speedup_from_counts']:.2f} "
            f"for the rounds counted, measured was {row['speedup_measured']:.2f} ({100 * row['cost_error']:+.1f} %)",
            remedy="close other programs, let the machine cool down, and measure again with --fresh",
        )
    if contradicted := [row for row in rows if _is_contradicted(row)]:
        row = max(contradicted, key=lambda row: abs(math.log(row["speedup_predicted"] / row["speedup_measured"])))
        low, high = row["speedup_measured_low"], row["speedup_measured_high"]
        verb = "pays" if row["speedup_predicted"] > 1 else "does not pay"
        yield WarningRow(
            code="prediction_contradicted",
            message=f"{_point(row)}, γ = {row['gamma']}: the measured costs predict that it {verb} (S = "
            f"{row['speedup_predicted']:.2f}), decoding says otherwise ({row['speedup_measured']:.2f}, interval "
            f"{ratio_text(low)}–{ratio_text(high)})",
            remedy="rely on neither until it is known which is wrong: cost_error and acceptance_error in "
            "validation.csv tell",
        )
    if lossy := [row for row in rows if not row["lossless"]]:
        row = lossy[0]
        yield WarningRow(
            code="not_lossless",
            message=f"{_point(row)}: {row['why_not_lossless']}, so the texts decoded are not the target's and say "
            "nothing about the draft",
            remedy="set validate.acceptance to null to decode as the models decide",
        )


def _is_contradicted(row: _Row) -> bool:
    """Whether the prediction and the whole interval measured are on two sides of 1, the prediction not just so."""
    predicted, low, high = row["speedup_predicted"], row["speedup_measured_low"], row["speedup_measured_high"]
    if predicted is None or low is None:
        return False
    return bool(high < 1 <= predicted - CLEARLY or predicted + CLEARLY <= 1 < low)


def policy_warnings(tuned: Iterable[TunedCell]) -> Iterator[WarningRow]:
    """Policies that were asked for and not decoded, once for every pair and reason."""
    found: dict[tuple[str, str], list[TunedCell]] = {}
    for cell in tuned:
        for reason in dict.fromkeys(cell.left_out.values()):
            found.setdefault((cell.key.pair, reason), []).append(cell)
    for (pair, reason), cells in found.items():
        key, count = cells[0].key, "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        names = [name for name, why in cells[0].left_out.items() if why == reason]
        yield WarningRow(
            code="policy_left_out",
            message=f"pair {pair}: {', '.join(names)} left out of {count}, first sampling {key.sampling}, batch size "
            f"{key.batch_size}, context {key.start_context}: {reason}",
            remedy="see to what is missing, or ask for fewer in validate.policies; then start anew with --fresh",
        )


def text_warnings(rows: Sequence[_Row]) -> Iterator[WarningRow]:
    """Greedy texts that are not plain decoding's, for every pair once; rows: of fixed γ and of adaptive policies."""
    for pair in dict.fromkeys(row["pair"] for row in rows):
        found = [row for row in rows if row["pair"] == pair and row["texts_differ"]]
        if found:
            row = max(found, key=lambda row: int(row["texts_differ"]))
            texts = row["texts_same"] + row["texts_tied"] + row["texts_differ"]
            drafts = f"γ = {row['gamma']}" if row["gamma"] is not None else f"policy {row['policy']}"
            yield WarningRow(
                code="texts_differ",
                message=f"{_point(row)}, {drafts}: {row['texts_differ']} of {texts} greedy texts leave plain "
                "decoding's where rounding does not explain it: they are not the target's",
                remedy=f"{_IN_FLOAT32} (requests.parquet, against_plain)",
            )


def _point(row: _Row) -> str:
    return f"pair {row['pair']}, sampling {row['sampling']}, batch size {row['batch_size']}, context {row['context']}"
