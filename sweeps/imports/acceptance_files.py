"""Files about acceptance: SPEED-Bench, Spec-Bench, and golden acceptance lengths (which have no times at all).

SPEED-Bench   acceptance_rate.json: Acceptance_Length_Histogram {tokens: steps}, the bonus in, and the prefill of
              each request as a step of one token, which is left out here; a list that grows with each run
Spec-Bench    a line a question: choices[0].{new_tokens, wall_time, decoding_steps, accept_lengths}
golden        model: {mode: {γ: tokens per round}}, the bonus in
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specgauge.sweeps.foretell.acceptance_lengths import every_acceptance_length
from specgauge.sweeps.imports.engine_run import (
    Counted,
    EngineRun,
    Given,
    Imported,
    by_position,
    checked_gamma,
    located,
)
from specgauge.sweeps.imports.files import Record, json_records, read_text, record_of
from specgauge.sweeps.imports.requests import counted_runs
from specgauge.sweeps.store.schema import WarningRow

_HISTOGRAM = "Acceptance_Length_Histogram"
_REQUESTS = ("Request_AL", "Request_AR")
"""By release."""
_NEAR = 0.02


def is_speed_bench(head: str) -> bool:
    """Whether a file begins as SPEED-Bench's acceptance_rate.json does."""
    return f'"{_HISTOGRAM}"' in head


def read_speed_bench(paths: Sequence[Path], given: Given) -> Imported:
    """A run for each entry of each list.

    Raises:
        ValueError: as `json_records`; steps of no token, fewer than the prefills, or a mean length under 1.
    """
    notes: list[WarningRow] = []
    records = [record for path in paths for record in json_records(path)]
    runs = [_speed_run(record, given.of("gamma", index, len(records)), notes) for index, record in enumerate(records)]
    return Imported(runs=located(runs, given), notes=tuple(notes))


def _speed_run(record: Record, gamma: int | None, notes: list[WarningRow]) -> EngineRun:
    _refuse_short(record)
    found = record.record(_HISTOGRAM)
    steps: dict[int, int] = {}
    for key in found.values:
        if not (str(key).isascii() and str(key).isdigit() and int(key) >= 1):
            raise ValueError(f"{found.where}: expected steps by tokens from 1 (the bonus is one), got the key {key!r}")
        steps[int(key)] = int(found.number(key, is_text=True))
    prefills = next((len(inner.values) for name in _REQUESTS if (inner := record.maybe_record(name))), 0)
    if prefills > steps.get(1, 0):
        raise ValueError(
            f"{found.where}: expected at least {prefills} steps of one token, the prefills of as many requests, got "
            f"{steps.get(1, 0)}"
        )
    steps[1] = steps.get(1, 0) - prefills
    longest = max(tokens for tokens, number in steps.items() if number or tokens == 1)
    checked_gamma(longest - 1, found.where)
    if gamma is None:
        gamma = max(1, longest - 1)
        notes.append(_longest_note(record.where, gamma))
    histogram = [steps.get(accepted + 1, 0) for accepted in range(longest)]
    rounds, accepted = sum(histogram), sum(number * count for number, count in enumerate(histogram))
    if not rounds:
        raise ValueError(f"{found.where}: expected steps beside the prefills, got none")
    counted = Counted(
        source=record.where,
        rounds=rounds,
        tokens=rounds + accepted,
        accepted=accepted,
        accepted_by_position=by_position(histogram, checked_gamma(gamma, record.where), found.where),
    )
    return EngineRun(source=record.where, gamma=gamma, counts=(counted,))


def _refuse_short(record: Record) -> None:
    """Refuse mean lengths under 1 (of requests, categories and all), which drafts without the bonus would have."""
    for name in ("Average_AL", "Category_AL", *_REQUESTS):
        inner = record.maybe_record(name) or Record(where=record.where, values={name: record.values.get(name)})
        for key in inner.values:
            if inner.has(key):
                inner.acceptance_length(key, is_text=True)


def _longest_note(where: str, gamma: int) -> WarningRow:
    return WarningRow(
        code="gamma_derived",
        message=f"{where}: γ is taken as {gamma}, the most drafts that a round accepted",
        remedy="give --gamma where more were drafted",
    )


def is_spec_bench(head: str) -> bool:
    """Whether a file begins as Spec-Bench's answers do."""
    return '"accept_lengths"' in head and '"choices"' in head


def read_spec_bench(paths: Sequence[Path], given: Given) -> Imported:
    """A run for each file; batch size 1, as Spec-Bench decodes.

    Raises:
        ValueError: as `json_records`; accepted lengths that fit the tokens neither with the bonus nor without.
    """
    notes: list[WarningRow] = []
    runs = [_spec_run(path, given.of("gamma", index, len(paths)), notes) for index, path in enumerate(paths)]
    return Imported(runs=located(runs, given), notes=tuple(notes))


def _spec_run(path: Path, gamma: int | None, notes: list[WarningRow]) -> EngineRun:
    questions = [_question(record) for record in json_records(path)]
    longest = max(max(lengths, default=0) for _, lengths, _ in questions)
    if gamma is None:
        gamma = checked_gamma(longest, str(path))
        if gamma:
            notes.append(_longest_note(str(path), gamma))
    seconds = sum(seconds for _, _, seconds in questions)
    rounds = sum(len(lengths) for _, lengths, _ in questions)
    notes.append(
        WarningRow(
            code="prefill_in_times",
            message=f"{path}: wall_time holds the prefills too: rounds are told longer than they are",
            remedy="compare γ of one benchmark with each other, plain decoding too, rather than with other sources",
        )
    )
    return EngineRun(
        source=str(path),
        gamma=gamma,
        batch_size=1,
        t_round_s=seconds / rounds if rounds and seconds else None,
        counts=tuple(_spec_counted(where, lengths, gamma) for where, lengths, _ in questions) if gamma else (),
    )


def _question(record: Record) -> tuple[str, list[int], float]:
    """Where it is, drafts accepted in each of its rounds, and its seconds."""
    choices = record.entries("choices")
    choice = record_of(choices[0] if choices else None, f"{record.where}, choices[0]")
    tokens, steps = _total(choice, "new_tokens"), _total(choice, "decoding_steps")
    lengths = choice.wholes("accept_lengths")
    if not lengths or len(lengths) != steps:
        raise ValueError(
            f"{choice.where}, accept_lengths: expected one for each of {steps:g} steps, got {len(lengths)}"
        )
    with_bonus = abs(sum(lengths) - tokens) <= abs(sum(lengths) + steps - tokens)
    off = abs(sum(lengths) - tokens) if with_bonus else abs(sum(lengths) + steps - tokens)
    if off > max(_NEAR * tokens, 2 * len(choice.entries("new_tokens"))):
        raise ValueError(
            f"{choice.where}, accept_lengths: expected {tokens:g} new tokens in {steps:g} steps, got {sum(lengths)}, "
            "which fits neither with the bonus in each nor without"
        )
    if with_bonus and min(lengths) < 1:
        raise ValueError(f"{choice.where}, accept_lengths: expected at least 1, the bonus included, got {min(lengths)}")
    return record.where, [length - with_bonus for length in lengths], _total(choice, "wall_time")


def _total(choice: Record, name: str) -> float:
    """Of all turns."""
    values = choice.entries(name)
    turns = Record(where=f"{choice.where}, {name}", values={str(turn): value for turn, value in enumerate(values)})
    return sum(turns.number(turn) for turn in turns.values)


def _spec_counted(where: str, lengths: Sequence[int], gamma: int) -> Counted:
    histogram = counted_runs(lengths, f"{where}, accept_lengths")
    return Counted(
        source=where,
        rounds=len(lengths),
        accepted=sum(lengths),
        accepted_by_position=by_position(histogram, gamma, where),
    )


def is_golden(head: str) -> bool:
    """Whether a file begins as golden acceptance lengths do."""
    return "thinking_on:" in head or "thinking_off:" in head


def read_golden(paths: Sequence[Path], given: Given) -> Imported:
    """A run without times for every γ of every model and mode; errors as `every_acceptance_length`."""
    runs = []
    for path in paths:
        read_text(path)  # tells an empty file
        for table in every_acceptance_length(path):
            pair, _, mode = table.name.partition("/")
            for gamma, length in table.tokens_per_round.items():
                where = f"{path}, {table.name}, gamma {gamma}"
                counted = Counted(source=where, tokens_per_round=length)
                runs.append(
                    EngineRun(
                        source=where,
                        gamma=checked_gamma(gamma, where),
                        counts=(counted,),
                        pair=pair,
                        sampling=mode.replace("/", "-") or None,
                    )
                )
    return Imported(runs=located(runs, given))
