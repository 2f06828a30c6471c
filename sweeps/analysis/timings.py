"""What the journal says of every planned cell: samples by block, medians, and what is missing with the reason.

    T_decode, T_verify(γ), prefill    median of the only mark
    C(k), Δ₂                          of the medians of the draft chain's marks and of draft_catch_up

Times in seconds; samples stay in their blocks, which are what a bootstrap draws. The arms of a cell are interleaved in
a block, so what they have in common there is the machine's pace: every block is brought to the mean pace of all
(`specgauge.model.search.levels`), and a ratio of two arms does not depend on which blocks were slow. Blocks that were
timed apart, as a serving engine's runs are, have no such pace; they stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from specgauge.model.arms import (
    APART,
    DRAFT_ARMS,
    arm_gammas,
    arm_names,
    is_prefill,
    round_arm,
    round_arms,
    verify_arm,
)
from specgauge.model.checks import FloatArray
from specgauge.model.costs import RoundCosts, measured_costs
from specgauge.model.search.levels import level_blocks
from specgauge.model.search.search import SEARCH_NOTE
from specgauge.model.settings import Provenance
from specgauge.model.stats.disturbance import Disturbance, added_up, disturbance_of
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.store.outcomes import OUT_OF_TIME, PairOutcome, read_outcomes
from specgauge.sweeps.store.rundir import CELLS, Run
from specgauge.sweeps.store.schema import JournalLine

UNMEASURED, REFUSED = "unmeasured", "refused"
DISTURBED = "disturbed"
"""The note of a block on how many of its samples other programs disturbed, as earlier releases wrote it."""
NOT_YET = "not measured yet; run the same command again, it goes on where it stopped"
NOT_IMPORTED = "the imported files hold no time of {arm} here"
"""As NOT_YET, of a run that another program measured."""
_SEVERITY = (REFUSED, "failed", "killed", "oom", "skipped", UNMEASURED, "ok")


@dataclass(frozen=True, kw_only=True)
class ArmTimings:
    """One arm of one cell."""

    arm: str
    status: str
    """`ok` where there is a block of samples, else the worst of what was recorded, else `refused` or `unmeasured`."""
    reason: str
    """Why there is no sample, or no more of them; empty where all is well."""
    ended_by: str = ""
    """Where there are samples: the status of a block that gave none; empty where all gave some."""
    blocks: Mapping[int, FloatArray] = field(default_factory=dict)
    """Samples (n, marks) in seconds, by block, in rising order; all at one pace of the machine."""
    first_call_s: float | None = None
    search: str = ""
    """How the search ended that left this arm out, or in too few blocks to be weighed; its status is then `skipped`."""
    disturbance: Disturbance = field(default_factory=Disturbance)
    """Of all samples."""
    blocks_as_taken_s: Mapping[int, FloatArray] = field(default_factory=dict)
    """At the pace they were taken at: by which the uncertainty of a figure in seconds goes."""
    is_apart: bool = False
    """Whether its blocks were timed apart from those of other arms."""

    @property
    def samples_s(self) -> FloatArray:
        """(n, marks), all blocks in the order taken; (0, 1) without any."""
        return _joined(self.blocks)

    @property
    def samples_as_taken_s(self) -> FloatArray:
        """The same at the pace they were taken at."""
        return _joined(self.blocks_as_taken_s)

    @cached_property
    def median_s(self) -> FloatArray:
        """(marks,) medians of all samples; (0,) without any."""
        return np.asarray(np.median(self.samples_s, axis=0)) if self.blocks else np.empty(0)


@dataclass(frozen=True, kw_only=True)
class CellTimings:
    """One planned cell and its arms; every planned arm is there, measured or not, and rounds that were timed whole."""

    cell: Cell
    arms: Mapping[str, ArmTimings]
    is_served: bool = False
    """Whether servers decoded it: its arms are plain decoding and whole rounds."""

    @property
    def gammas(self) -> tuple[int, ...]:
        """The γ planned, in rising order."""
        return arm_gammas(self.arms, "round" if self.is_served else "verify")

    @cached_property
    def costs(self) -> RoundCosts:
        """Medians, of every γ up to the largest planned; NaN where an arm has no time."""
        gammas = np.arange(1, max(self.gammas) + 1)
        verify_s, whole_s = (np.full(gammas.size, np.nan) for _ in range(2))
        for gamma in self.gammas:
            verify_s[gamma - 1] = self._median_s(verify_arm(gamma))[0]
            whole_s[gamma - 1] = self._median_s(round_arm(gamma))[0]
        return measured_costs(
            gammas,
            t_decode_s=self._median_s("decode")[0],
            t_draft_marks_s=self._marks_s("draft", gammas.size),
            t_verify_s=verify_s,
            t_draft_two_tokens_s=self._median_s("draft_catch_up")[0] if self.cell.catches_up else None,
            t_transfer_marks_s=self._marks_s("transfer", gammas.size) if self.transfers else None,
            t_round_s=whole_s if self.has_whole_rounds else None,
        )

    @property
    def transfers(self) -> bool:
        """Whether drafts go to another device: then that was timed."""
        return "transfer" in self.arms

    def _marks_s(self, arm: str, count: int) -> FloatArray:
        """(count,) the first medians of an arm; NaN where it has no more."""
        found_s, known_s = np.full(count, np.nan), self._median_s(arm)[:count]
        found_s[: known_s.size] = known_s
        return found_s

    def _median_s(self, arm: str) -> FloatArray:
        found = self.arms.get(arm)
        return np.array([np.nan]) if found is None or not found.blocks else found.median_s

    def with_draft_of(self, other: CellTimings) -> CellTimings:
        """These target arms with the draft arms of another chain at the same point, timed block by block beside them.

        What the other chain has no times of stays.
        """
        drafting = (name for name in DRAFT_ARMS if name in other.arms)
        draft = {name: other.arms[name] for name in drafting if other.arms[name].status == "ok"}
        return replace(self, arms={**self.arms, **draft})

    def waiting_spread(self, arms: Iterable[str]) -> float:
        """Standard deviation of log S from threads that waited for each other in the samples of some arms."""
        own = [self.arms[arm] for arm in arms]
        return added_up(arm.disturbance for arm in own).waiting_spread(sum(len(arm.samples_s) for arm in own))

    def held_against_s(self, arm: str) -> float | None:
        """What an arm's uncertainty is a share of: its own median (None), but T_decode for microseconds.

        Those are lookups and transfers.
        """
        decode, is_lookup = self.arms["decode"], arm == "draft" and not self.cell.catches_up
        if not (is_lookup or arm == "transfer") or decode.status != "ok":
            return None
        return float(np.median(decode.samples_s))

    def is_whole(self, gamma: int) -> bool:
        """Whether rounds of `gamma` were timed whole: their parts are then not needed."""
        return round_arm(gamma) in self.arms

    @property
    def has_whole_rounds(self) -> bool:
        """Whether rounds of some γ were timed whole."""
        return any(self.is_whole(gamma) for gamma in self.gammas)

    @property
    def is_interleaved(self) -> bool:
        """Whether servers decoded it whose arms were timed in the same blocks."""
        return self.is_served and not any(arm.is_apart for arm in self.arms.values())

    @property
    def is_apart(self) -> bool:
        """Whether an engine's rounds were timed, which has no catch-up step of its own to show."""
        return self.is_served or any(arm.is_apart for arm in self.arms.values())

    @property
    def round_provenance(self) -> Provenance:
        """Where its times come from."""
        return Provenance.IMPORTED if self.is_apart and not self.is_served else Provenance.MEASURED

    def trouble(self, gamma: int) -> tuple[str, str]:
        """(status, reason) of a round of `gamma`: that of its worst arm; ("ok", "") when all are measured."""
        catches_up = self.cell.catches_up and not self.is_apart
        names = round_arms([gamma], catches_up=catches_up, transfers=self.transfers)
        if self.is_whole(gamma):
            names = "decode", round_arm(gamma)
        needed = [self.arms[name] for name in names]
        worst = min(needed, key=lambda arm: _SEVERITY.index(arm.status))
        if self.is_apart and not self.is_served and worst.status == UNMEASURED:
            is_plain = self.arms["decode"].status == UNMEASURED
            return UNMEASURED, NOT_IMPORTED.format(
                arm="plain decoding (γ = 0)" if is_plain else f"rounds at γ = {gamma}"
            )
        return worst.status, "" if worst.status == "ok" else worst.reason


def timings_of(run: Run, outcomes: Mapping[str, PairOutcome] | None = None) -> tuple[CellTimings, ...]:
    """The cells of a run with what its files say of them; ValueError where one is damaged.

    outcomes: of its pairs, where they are read already.
    """
    missing = NOT_IMPORTED if run.is_imported else NOT_YET
    lines = run.journal() if (run.path / CELLS).exists() else ()
    outcomes = read_outcomes(run.path) if outcomes is None else outcomes
    late = {pair for pair, one in outcomes.items() if one.left_out}
    planned, given_up = plan_cells(run.config), refused(outcomes)
    gammas, is_served = run.config.grid.gamma, run.is_served
    return collect_timings(planned, gammas, lines, given_up, missing=missing, late=late, is_served=is_served)


def refused(outcomes: Mapping[str, PairOutcome]) -> dict[str, str]:
    """Why pairs were given up for good, by their names."""
    return {pair: one.bad_input for pair, one in outcomes.items() if one.bad_input is not None}


def collect_timings(
    cells: Iterable[Cell],
    gammas: tuple[int, ...],
    lines: Iterable[JournalLine],
    refusals: Mapping[str, str] | None = None,
    *,
    missing: str = NOT_YET,
    late: Collection[str] = (),
    is_served: bool = False,
) -> tuple[CellTimings, ...]:
    """Sort journal lines into the planned cells; of lines about the same block the last counts.

    refusals: why pairs were given up, by their names; their arms without a line have that status and reason.
    missing: why another arm has no line, its name as {arm}.
    late: pairs that the seconds of the run ended before, whose warning has the remedy.
    is_served: whether servers decode the cells.

    Raises:
        ValueError: samples of one block have different numbers of marks.
    """
    latest: dict[tuple[str, str], dict[int, JournalLine]] = {}
    for line in lines:
        latest.setdefault((line.cell, line.arm), {})[line.block] = line
    found = []
    for cell in cells:
        why_none = OUT_OF_TIME if cell.pair in late else missing
        names = ["decode"] if is_served else [*arm_names(gammas, catches_up=cell.catches_up)]
        names += ["transfer"] * ((cell.id, "transfer") in latest)
        names += [arm for arm in map(round_arm, gammas) if is_served or (cell.id, arm) in latest]
        arms = {arm: _arm(arm, latest.get((cell.id, arm), {}), why_none) for arm in names}
        if refusals is not None and (why := refusals.get(cell.pair)) is not None:
            given_up = {name: arm for name, arm in arms.items() if arm.status == UNMEASURED}
            arms |= {name: replace(arm, status=REFUSED, reason=why) for name, arm in given_up.items()}
        found.append(CellTimings(cell=cell, arms=_at_one_pace(arms), is_served=is_served))
    return tuple(found)


def _at_one_pace(arms: Mapping[str, ArmTimings]) -> dict[str, ArmTimings]:
    """The arms of a cell as if the machine had kept one pace; prefills as taken, and an arm that stands alone."""
    timed = {name: arm.blocks for name, arm in arms.items() if arm.blocks and not (is_prefill(name) or arm.is_apart)}
    level = level_blocks(timed) if len(timed) > 1 else {}
    return {name: replace(arm, blocks=level.get(name, arm.blocks)) for name, arm in arms.items()}


def _joined(blocks: Mapping[int, FloatArray]) -> FloatArray:
    return np.concatenate(list(blocks.values())) if blocks else np.empty((0, 1))


def _arm(arm: str, lines: Mapping[int, JournalLine], missing: str) -> ArmTimings:
    measured = [line for _, line in sorted(lines.items()) if line.status == "ok" and line.samples_s]
    rest = [line for line in lines.values() if line.status != "ok" and SEARCH_NOTE not in line.notes]
    notes = [line for line in lines.values() if line.status != "ok" and SEARCH_NOTE in line.notes]
    left_out = max(notes, key=lambda line: line.block, default=None)
    blocks = {line.block: _samples(line) for line in measured}
    first_call_s = next((line.first_call_s for line in measured if line.first_call_s is not None), None)
    found = ArmTimings(
        arm=arm,
        status="ok",
        reason="",
        blocks=blocks,
        blocks_as_taken_s=blocks,
        first_call_s=first_call_s,
        disturbance=added_up(map(_disturbance, measured)),
        is_apart=any(APART in line.notes for line in measured),
    )
    if left_out is not None and all(line.block < left_out.block for line in measured):
        search = str(left_out.notes[SEARCH_NOTE])
        return replace(found, status="skipped", reason=left_out.reason or "", search=search)
    worst = min(rest, key=lambda line: _SEVERITY.index(line.status), default=None)
    if worst is None:
        return found if measured else replace(found, status=UNMEASURED, reason=missing.format(arm=arm))
    reason = worst.reason or worst.status
    return (
        replace(found, reason=reason, ended_by=worst.status)
        if measured
        else replace(found, status=worst.status, reason=reason)
    )


def _disturbance(line: JournalLine) -> Disturbance:
    """What stands in a line; of the lines of earlier releases only how many samples were disturbed is known."""
    if line.disturbance is not None:
        return disturbance_of(vars(line.disturbance))
    noted = line.notes.get(DISTURBED, 0)
    return Disturbance(disturbed=noted if type(noted) is int else 0)


def _samples(line: JournalLine) -> FloatArray:
    marks = {len(sample) for sample in line.samples_s}
    if len(marks) > 1:
        raise ValueError(
            f"cell {line.cell}, arm {line.arm}, block {line.block}: expected the same number, got samples of "
            f"{min(marks)} and of {max(marks)} marks; start anew with --fresh"
        )
    return np.array(line.samples_s, dtype=np.float64)
