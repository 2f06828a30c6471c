"""What a run decoded end to end, cell by cell: ε for its predictions, and the rows of validation.csv. No torch.

    decoded = DecodedCells.read(run, cells, settings)
    decoded.overhead_s(setting, cell)            # ε of a cell, from other contexts where there are any
    decoded.rows()                               # prediction against measurement, one row for every γ decoded
    request_figures(requests)[4]["speedup_whole"]    # of whole requests of a cell: prefills and ragged ends included

Unknown is None. Times in seconds; those of a batch stand in each of its rows and count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.arms import DIFFERS, GENERATE, LOOP, PLAIN, SAME, TIE, Arm, speculate_arm
from specgauge.model.checks import FloatArray, IntArray, finite_or_none
from specgauge.model.costs import CostSource
from specgauge.model.speedup import measured_speedup
from specgauge.model.stats.bootstrap import batch_numbers, interval_around
from specgauge.model.stats.disturbance import Disturbance, added_up, disturbance_of
from specgauge.model.validate import round_check
from specgauge.sweeps.analysis.cell_estimate import RecordedRounds
from specgauge.sweeps.analysis.counted_rounds import CountedBlock, costs_of_cells, counted_blocks
from specgauge.sweeps.analysis.settings import RunSetting, cells_of
from specgauge.sweeps.analysis.timings import CellTimings
from specgauge.sweeps.analysis.validation import (
    SINGLE_BATCH_SPREAD,
    Overhead,
    acceptance_error,
    batch_spread,
    measured_replicates,
    overheads,
)
from specgauge.sweeps.plan import decoded_tokens
from specgauge.sweeps.store.rows import columns
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey, ValidationRow
from specgauge.sweeps.store.tables import read_decoded

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.configs.schema import Config


@dataclass(kw_only=True)
class BatchTotal:
    """One block under one arm, all rows together."""

    prefill_s: float
    decode_s: float
    tokens: int = 0
    rows: int = 0

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first ones; None where there is none."""
        return (self.tokens - self.rows) / self.decode_s if self.decode_s > 0 else None


Totals = Mapping[str, Mapping[int, BatchTotal]]
"""By arm, by block."""


def gammas_of(requests: pd.DataFrame) -> list[int]:
    """The γ above 0 that a cell was decoded at."""
    return sorted(gamma for arm in requests["arm"].unique() if (gamma := Arm.parse(arm).gamma))


def request_figures(requests: pd.DataFrame) -> dict[int, dict[str, Any]]:
    """By γ: tokens, losslessness, speed-up of whole requests, baselines, and rounds against those expected."""
    totals = block_totals(requests)
    return {gamma: arm_figures(requests, totals, speculate_arm(gamma)) for gamma in gammas_of(requests)}


def arm_figures(requests: pd.DataFrame, totals: Totals, arm: str) -> dict[str, Any]:
    """The same figures of one arm; the rounds of an adaptive one are counted only."""
    own = requests[requests["arm"] == arm]
    return {
        "tokens": sum(total.tokens for total in totals[arm].values()),
        "lossless": bool(own["lossless"].all()),
        "why_not_lossless": next(iter(own["why_not_lossless"].dropna()), None),
        "speedup_whole": _whole(totals, arm),
        "plain_over_generate": _median_ratio(totals, PLAIN, GENERATE),
        "plain_over_loop": _median_ratio(totals, PLAIN, LOOP),
        **_rounds(own),
        **_texts(own),
    }


def block_totals(requests: pd.DataFrame) -> Totals:
    """Tokens, rows and seconds of every block under every arm."""
    columns = ("arm", "block", "prefill_s", "decode_s", "tokens")
    found: dict[str, dict[int, BatchTotal]] = {}
    for arm, block, prefill_s, decode_s, tokens in zip(*(requests[name].tolist() for name in columns), strict=True):
        total = found.setdefault(arm, {}).setdefault(block, BatchTotal(prefill_s=prefill_s, decode_s=decode_s))
        total.tokens += len(tokens)
        total.rows += 1
    return found


def _median_ratio(totals: Totals, arm: str, other: str) -> float | None:
    """Median over blocks of tokens a second of `arm` over those of `other`, after the first tokens."""
    beside = totals.get(other, {})
    rates = [(total.rate, beside[block].rate) for block, total in totals.get(arm, {}).items() if block in beside]
    ratios = [own / its for own, its in rates if own is not None and its]
    return float(np.median(ratios)) if ratios else None


def _whole(totals: Totals, arm: str) -> float | None:
    """Tokens a second over those of the plain loop, prefills and ragged ends included, in blocks that have both."""
    own, plain = totals[arm], totals.get(PLAIN, {})
    shared = [block for block in own if block in plain]
    if not shared:
        return None
    tokens, plain_tokens = (sum(batches[block].tokens for block in shared) for batches in (own, plain))
    seconds, plain_seconds = (
        sum(batches[block].prefill_s + batches[block].decode_s for block in shared) for batches in (own, plain)
    )
    return finite_or_none(measured_speedup(tokens, seconds, plain_tokens=plain_tokens, plain_seconds=plain_seconds))


def _rounds(arm: pd.DataFrame) -> dict[str, Any]:
    """Rounds counted, and where a text's own acceptance says how many to expect, whether the two agree."""
    rounds = arm["rounds"].to_numpy(dtype=np.int64)
    expected = arm["expected_rounds"].to_numpy(dtype=np.float64)
    known = np.isfinite(expected)
    if not known.any():
        return {"rounds_counted": int(rounds.sum())}
    _, of_prompt = np.unique(arm["prompt"].to_numpy()[known], return_inverse=True)
    counted = np.bincount(of_prompt, rounds[known])
    check = round_check(counted.astype(np.int64), np.bincount(of_prompt, expected[known]))
    return {
        "rounds_counted": check.counted,
        "rounds_expected": check.expected,
        "rounds_standard_errors": check.standard_errors,
        "rounds_agree": check.agrees,
    }


def _texts(arm: pd.DataFrame) -> dict[str, Any]:
    """How many greedy texts are the plain loop's, leave it where rounding decides, or elsewhere; {} if not asked."""
    standing = arm["against_plain"].dropna()
    if standing.empty:
        return {}
    return {
        f"texts_{name}": int((standing == value).sum())
        for name, value in (("same", SAME), ("tied", TIE), ("differ", DIFFERS))
    }


@dataclass(frozen=True, kw_only=True)
class DecodedCells:
    """Everything decoded end to end, beside what the measured costs make of it."""

    config: Config
    requests: Mapping[DecodedKey, pd.DataFrame]
    rounds: Mapping[DecodedKey, pd.DataFrame]
    blocks: Mapping[DecodedKey, Sequence[CountedBlock]]
    settings: Mapping[DecodedKey, RunSetting]
    """Of every cell of the grid, decoded or not."""
    sources: Mapping[DecodedKey, CostSource]
    """The measured costs, where they are known."""
    fitted: Mapping[DecodedKey, Overhead]
    measured: Mapping[DecodedKey, Mapping[int, FloatArray]]
    """S of every cell by γ, (1 + R,): the estimate, then replicates that draw blocks."""

    @classmethod
    def read(cls, run: Run, cells: Sequence[CellTimings], found: Sequence[RunSetting]) -> Self:
        """Read requests.parquet and rounds.parquet, where the run has them.

        Raises:
            ValueError: a file is damaged, foreign or of another release.
        """
        config = run.config
        every_request, every_round = read_decoded(run.path)
        requests, rounds = dict(_by_key(every_request)), dict(_by_key(every_round))
        for key in requests:  # texts that all end with their first token have no round
            rounds.setdefault(key, every_round.iloc[:0])
        blocks: dict[DecodedKey, list[CountedBlock]] = {}
        sources: dict[DecodedKey, CostSource] = {}
        settings: dict[DecodedKey, RunSetting] = {}
        for setting in found:
            own = cells_of(setting, cells)
            source = costs_of_cells(own) if requests else None
            for cell in own:
                key = setting.decoded_key(cell.cell)
                settings[key] = setting
                if key in requests and source is not None:
                    sources[key] = source
                    counted = counted_blocks(
                        source,
                        rounds[key],
                        batch_size=key.batch_size,
                        gammas=gammas_of(requests[key]),
                        gamma_max=max(config.grid.gamma),
                        max_new_tokens=decoded_tokens(config),
                    )
                    blocks[key] = list(counted)
        return cls(
            config=config,
            requests=requests,
            rounds=rounds,
            blocks=blocks,
            settings=settings,
            sources=sources,
            fitted=overheads(blocks, settings, replicates=config.precision.replicates, seed=config.seed),
            measured=_measured(config, blocks, rounds, requests),
        )

    def measured_where_models_decide(self, setting: RunSetting, cell: CellTimings) -> Mapping[int, FloatArray]:
        """S measured of a cell by γ, (1 + R,); empty where nothing was decoded or acceptance was forced by coin."""
        key = setting.decoded_key(cell.cell)
        return self.measured.get(key, {}) if key in self.requests and self.requests[key]["lossless"].all() else {}

    def disturbances(self, pair: str) -> list[Disturbance]:
        """What other programs did beside each block of a pair."""
        own = (requests for key, requests in self.requests.items() if key.pair == pair)
        return [one for requests in own for one in _disturbances(requests)]

    def overhead_s(self, setting: RunSetting, cell: CellTimings) -> FloatArray | None:
        """(1 + R,) ε of a cell, the estimate first; None where nothing like it was decoded."""
        fitted = self.fitted.get(setting.decoded_key(cell.cell))
        return None if fitted is None else fitted.t_overhead_s

    def rows(self, predicted: Mapping[tuple[DecodedKey, int], float]) -> list[dict[str, Any]]:
        """The rows of validation.csv, in the order decoded; unknown is None. predicted: S by cell and γ."""
        return [
            self._row(key, gamma, figures, predicted.get((key, gamma)))
            for key, requests in self.requests.items()
            for gamma, figures in request_figures(requests).items()
        ]

    def _row(self, key: DecodedKey, gamma: int, figures: Mapping[str, Any], predicted: float | None) -> dict[str, Any]:
        row = empty_row(key) | {"gamma": gamma, **figures}
        own = [block for block in self.blocks.get(key, ()) if block.gamma == gamma]
        setting = self.settings.get(key)
        recorded = None if setting is None else setting.rounds_at(key.start_context)
        if recorded is not None and recorded.by_prompt is not None and row["lossless"]:
            row |= self._acceptance(key, recorded, recorded.by_prompt, gamma)
        if own:
            row |= self._speedups(key, own)
            if predicted is not None and row["lossless"]:
                row |= {"speedup_predicted": predicted, "error": predicted / row["speedup_measured"] - 1.0}
        return row

    def _acceptance(
        self, key: DecodedKey, recorded: RecordedRounds, by_prompt: RenewalResult, gamma: int
    ) -> dict[str, Any]:
        rounds = self.rounds[key]  # those of a policy end where it expects a rejection, and would be a chosen few
        of_policies = [arm for arm in rounds["arm"].unique() if Arm.parse(arm).policy is not None]
        error = acceptance_error(
            rounds[~rounds["arm"].isin(of_policies)],
            by_prompt,
            recorded.acceptance.prompts,
            gamma,
            gamma_max=max(self.config.grid.gamma),
            limit=decoded_tokens(self.config),
        )
        if error is None:
            return {}
        return {
            "tokens_per_round_predicted": error.first,
            "tokens_per_round_counted": error.second,
            "acceptance_error": error.value,
            "acceptance_error_low": error.low,
            "acceptance_error_high": error.high,
        }

    def _speedups(self, key: DecodedKey, own: Sequence[CountedBlock]) -> dict[str, Any]:
        fitted = self.fitted.get(key)
        overhead_s = 0.0 if fitted is None else float(fitted.t_overhead_s[0])
        measured, low, high = interval_around(self.measured[key][own[0].gamma], self.config.precision.confidence)
        cost_error = float(
            np.median([block.speedup_from_counts(overhead_s) / block.speedup_measured - 1.0 for block in own])
        )
        counts = np.array([block.rounds for block in own], dtype=np.float64)

        def mean(values: Iterable[float]) -> float:
            return float(np.average(np.fromiter(values, dtype=np.float64), weights=counts))

        return {
            "blocks": len(own),
            "rounds": int(counts.sum()),
            "t_overhead_s": None if fitted is None else overhead_s,
            "overhead_from": None if fitted is None else fitted.fitted_from,
            "t_accept_rest_s": finite_or_none(mean(block.t_accept_rest_s for block in own)),
            "t_round_s": mean(block.t_round_s for block in own),
            "speedup_from_counts": measured * (1.0 + cost_error),
            "speedup_measured": measured,
            "speedup_measured_low": finite_or_none(low),
            "speedup_measured_high": finite_or_none(high),
            "cost_error": cost_error,
        }


def _disturbances(requests: pd.DataFrame) -> list[Disturbance]:
    """Of each block of a cell."""
    firsts = requests.drop_duplicates("block").to_dict("records")
    return [disturbance_of({str(name): value for name, value in first.items()}) for first in firsts]


def empty_row(key: DecodedKey) -> dict[str, Any]:
    """A row of validation.csv of a cell, nothing known of it."""
    row: dict[str, Any] = dict.fromkeys(columns(ValidationRow))
    return row | {name: value for name, value in asdict(key).items() if name in row} | {"context": key.start_context}


def _measured(
    config: Config,
    blocks: Mapping[DecodedKey, Sequence[CountedBlock]],
    rounds: Mapping[DecodedKey, pd.DataFrame],
    requests: Mapping[DecodedKey, pd.DataFrame],
) -> dict[DecodedKey, dict[int, FloatArray]]:
    by_gamma: dict[DecodedKey, dict[int, list[CountedBlock]]] = {}
    for key, own in blocks.items():
        for block in own:
            by_gamma.setdefault(key, {}).setdefault(block.gamma, []).append(block)
    prompts = {key: rounds[key].groupby("block")["prompt"].unique() for key in by_gamma}

    def batches(key: DecodedKey, own: Sequence[CountedBlock]) -> IntArray:
        return batch_numbers(prompts[key][block.block].tolist() for block in own)

    cells = [(own, batches(key, own)) for key, found in by_gamma.items() for own in found.values()]
    spread = batch_spread(cells)
    options: dict[str, Any] = {
        "confidence": config.precision.confidence,
        "replicates": config.precision.replicates,
        "seed": config.seed,
        "spread": SINGLE_BATCH_SPREAD if np.isnan(spread) else spread,
    }

    def measured(key: DecodedKey, own: Sequence[CountedBlock]) -> FloatArray:
        beside = _disturbances(requests[key])
        waiting = added_up(beside).waiting_spread(len(beside))
        return measured_replicates(own, batches(key, own), waiting_spread=waiting, **options)

    return {key: {gamma: measured(key, own) for gamma, own in found.items()} for key, found in by_gamma.items()}


def _by_key(frame: pd.DataFrame) -> Iterator[tuple[DecodedKey, pd.DataFrame]]:
    names = columns(DecodedKey)
    for values, rows in frame.groupby(list(names), sort=False):
        point: dict[str, Any] = dict(zip(names, cast("tuple[Any, ...]", values), strict=True))
        point |= {name: int(point[name]) for name in ("batch_size", "start_context")}
        yield DecodedKey(**point), rows
