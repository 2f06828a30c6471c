"""What a reader must know of a run that measured servers, beside what every timing warns of. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from specgauge.configs.engines import EXPORTED
from specgauge.sweeps.analysis.restarts import restart_ratios
from specgauge.sweeps.store.schema import WarningRow
from specgauge.sweeps.store.served import LIVE, ServedRow
from specgauge.sweeps.text_table import count

MOST_LOST = 0.03
"""Of the speed of the fastest that was run, what the recommended γ may lack."""
_CELL = ("pair", "sampling", "draft_sampling", "acceptance_rule", "batch_size", "context")
MOST_OFF = 0.05
"""Of the tokens a prompt was to have."""
MOST_UNLIKE = 0.05
"""How far the time of a round by the engine's steps and by the client's streams may be apart."""


def served_warnings(pair: str, rows: Iterable[ServedRow]) -> Iterator[WarningRow]:
    """Warnings about the blocks of one pair: each kind once, as of its first block, with how many have it."""
    own = [row for row in rows if row.pair == pair]
    codes = dict.fromkeys(note.code for row in own for note in row.notes)
    for code in codes:
        hit = [note for row in own for note in row.notes if note.code == code]
        of = f" ({len(hit)} of {count(len(own), 'block')})" if len(hit) > 1 else ""
        yield replace(hit[0], message=f"pair {pair}, {hit[0].message}{of}")
    failed = [row for row in own if row.failed]
    if failed:
        worst = max(failed, key=lambda row: row.failed / max(row.requests, 1))
        yield WarningRow(
            code="requests_failed",
            message=f"pair {pair}: {sum(row.failed for row in failed)} of {sum(row.requests for row in own)} requests "
            f"failed, most at {_at(worst)}" + (f" ({worst.reason})" if worst.reason else ""),
            remedy="see the server's log; a block with over 1 % counts for nothing, and the next run repeats it",
        )
    off = [row for row in own if row.prompt_tokens and abs(row.prompt_tokens / row.context - 1) > MOST_OFF]
    if off:
        worst = max(off, key=lambda row: abs((row.prompt_tokens or 0) / row.context - 1))
        yield WarningRow(
            code="prompt_length",
            message=f"pair {pair}: prompts had {worst.prompt_tokens:.0f} tokens on average at {_at(worst)}",
            remedy="give prompts of one language and kind (workload.prompts): their words are equally long in tokens",
        )


def live_warnings(pair: str, rows: Iterable[ServedRow], *, confidence: float) -> Iterator[WarningRow]:
    """What is to be known of a server that takes every γ in turn: its rounds as its own log and its client have them,
    and as a server of one γ alone has them."""
    own = [row for row in rows if row.pair == pair]
    stands_in = [row for row in own if row.gamma == 0 and row.server == LIVE and row.reason is None]
    if stands_in:
        yield WarningRow(
            code="plain_is_live",
            message=f"pair {pair}: no plain server ran; plain decoding is γ = 0 on the server that takes every γ in "
            f"turn ({count(len(stands_in), 'block')}), which S is against",
            remedy="see the log of the plain server, and measure with --fresh: without speculation it may be faster",
        )
    apart = [one for one in restart_ratios(own, confidence=confidence) if one.is_apart]
    if apart:
        worst = max(apart, key=lambda one: abs(one.ratio - 1))
        yield WarningRow(
            code="restart_differs",
            message=f"pair {pair}, sampling {worst.sampling}, {worst.line} ({count(len(apart), 'cell')})",
            remedy="measure with launch.live: false, which starts a server for each γ",
        )
    cells: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for row in own:
        if row.t_round_s and row.t_round_client_s and row.reason is None and row.gamma is not None:
            times = (row.t_round_s, row.t_round_client_s)
            cells.setdefault((row.gamma, row.batch_size, row.context), []).append(times)
    ratios = {at: median(client / engine for engine, client in times) for at, times in cells.items()}
    off = {at: ratio for at, ratio in ratios.items() if abs(ratio - 1) > MOST_UNLIKE}
    if off:
        (gamma, batch_size, context), ratio = max(off.items(), key=lambda one: abs(one[1] - 1))
        yield WarningRow(
            code="t_round_disagrees",
            message=f"pair {pair}: by its streams a round took {ratio:.2f} of what the engine's steps took, at γ = "
            f"{gamma}, batch size {batch_size}, context {context} ({count(len(off), 'cell')}); the steps count",
            remedy="look whether the client or a proxy held chunks back; S measured is what the client saw",
        )


def lost_warnings(
    decisions: Iterable[Mapping[str, Any]], validation: Iterable[Mapping[str, Any]]
) -> Iterator[WarningRow]:
    """A warning where a recommended γ, or plain decoding in its place, was clearly slower than another that was run.

    decisions: entries of recommendation.yaml; validation: rows of validation.csv.
    """
    rows = [row for row in validation if row["measured_in"] == "validation" and row["speedup_measured"] is not None]
    lost = []
    for entry in decisions:
        own = {row["gamma"]: row["speedup_measured"] for row in rows if all(row[one] == entry[one] for one in _CELL)}
        chosen = own.get(entry["gamma"]) if entry["gamma"] else 1.0
        if chosen is None or not own:
            continue
        best, value = max([(0, 1.0), *own.items()], key=lambda one: one[1])
        if chosen < (1 - MOST_LOST) * value:
            lost.append((value / chosen, best, entry))
    if lost:
        gain, best, entry = max(lost, key=lambda one: one[0])
        yield WarningRow(
            code="recommended_lost",
            message=f"pair {entry['pair']}, sampling {entry['sampling']}, batch size {entry['batch_size']}, context "
            f"{entry['context']}: run on the server, γ = {best} was {100 * (gain - 1):.0f} % faster than γ = "
            f"{entry['gamma'] or 0}, which is recommended ({count(len(lost), 'cell')})",
            remedy="rely on neither yet: measure again with --fresh, larger precision.max_blocks and "
            "validate.repetitions, and nothing else on the server",
        )


def exported_warnings(
    policies: Iterable[Mapping[str, Any]], validation: Iterable[Mapping[str, Any]]
) -> Iterator[WarningRow]:
    """A warning where what was exported clearly lost, as it was run, to plain decoding or to the best fixed γ.

    policies, validation: rows of validation.csv. A γ that is exported as it is is a recommended one: `lost_warnings`.
    """
    fixed = [row for row in validation if row["measured_in"] == "validation"]
    lost: list[tuple[float, str, Mapping[str, Any]]] = []
    for row in policies:
        times = {own["speedup_measured"] for own in fixed if all(own[one] == row[one] for one in _CELL)} | {1.0}
        if row["policy"] != EXPORTED or row["speedup_measured"] in times:
            continue
        for name, other in (
            ("speedup_measured", "plain decoding"),
            ("over_best_fixed", f"γ = {row['best_fixed_gamma']}"),
        ):
            value, high = row[name], row[f"{name}_high"]
            if value is not None and high is not None and high < 1 and value < 1 - MOST_LOST:
                lost.append((1 / value, other, row))
    if lost:
        gain, other, row = max(lost, key=lambda one: one[0])
        cells = {tuple(row[one] for one in _CELL) for _, _, row in lost}
        yield WarningRow(
            code="exported_lost",
            message=f"pair {row['pair']}, sampling {row['sampling']}, batch size {row['batch_size']}, context "
            f"{row['context']}: run on the server, {other} was {100 * (gain - 1):.0f} % faster than the schedule that "
            f"is exported ({count(len(cells), 'cell')})",
            remedy="serve with one γ, or none, where that wins at every batch size that you have; what a schedule "
            "costs beside its γ is the engine's",
        )


def _at(row: ServedRow) -> str:
    return f"{row.arm_words}, batch size {row.batch_size}, context {row.context}"
