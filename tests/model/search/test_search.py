"""What a search times and leaves out, step by step on cells whose every time is known, and what it expects of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.arms import Arm, verify_gammas
from specgauge.model.costs import RoundCosts
from specgauge.model.search.candidates import SearchObjective, SearchSettings
from specgauge.model.search.levels import ArmLevels, BlockSummary, exact_levels, summarise_block
from specgauge.model.search.search import Step, expected_levels, next_step, searched_costs
from specgauge.model.settings import Point
from tests.model.made import asked, made_costs, question

BASE = ("decode", "draft", "draft_catch_up")
CLIFF = (1.0, 1.0, 1.0, 1.0, 1.6, 1.6, 1.6, 1.6)
"""A tile of five tokens: S is 1.64, 2.03, 2.27, 2.40, 1.757, 1.796, 1.809, 1.804 at alpha .8; the best γ is 4."""
T_DRAFT_S, T_TRANSFER_S = 0.1, 0.025


@dataclass(kw_only=True)
class Cell:
    """One cell: T_verify(1), T_verify(2), … in seconds, an even chain, nothing to catch up with."""

    t_verify_s: Sequence[float]
    spread: float = 0.0
    """Distance of the logarithms of successive samples."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """Those of arms that differ."""
    pace: Callable[[int], float] = lambda _: 1.0
    """By block."""
    blocks: dict[str, dict[int, BlockSummary]] = field(default_factory=dict)
    log: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    @property
    def gammas(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.t_verify_s) + 1))

    def marks_s(self, arm: str) -> list[float]:
        if arm == "draft":
            return [T_DRAFT_S * gamma for gamma in self.gammas]
        if arm == "draft_catch_up":
            return [T_DRAFT_S]
        if arm == "transfer":
            return [T_TRANSFER_S * gamma for gamma in self.gammas]
        return [1.0 if arm == "decode" else self.t_verify_s[(Arm.parse(arm).gamma or 0) - 1]]

    def settings(self, **changes: Any) -> SearchSettings:
        wanted: dict[str, Any] = {"gammas": self.gammas, "batch_size": 1, "relative_ci": 0.9}
        return SearchSettings(**wanted | changes)

    def take(self, arms: Sequence[str], number: int) -> None:
        for arm in arms:
            spread = self.spreads.get(arm, self.spread)
            factors = self.pace(number) * np.exp(spread * np.arange(-2, 3))
            self.blocks.setdefault(arm, {})[number] = summarise_block(np.outer(factors, self.marks_s(arm)))

    def search(
        self, questions: Sequence[SearchObjective], settings: SearchSettings | None = None, **options: Any
    ) -> Step:
        wanted = settings or self.settings()
        while (step := next_step(wanted, questions, self.blocks, **options)).arms:
            assert len(self.log) < 500, self.log[-3:]
            self.take(step.arms, len(self.log))
            self.log.append((step.reason, step.arms))
        return step

    @property
    def timed(self) -> set[int]:
        return set(verify_gammas(self.blocks))

    def speedups(self, alpha: float) -> dict[int, float]:
        """S by γ, the truth."""
        return {
            gamma: (1 - alpha ** (gamma + 1)) / (1 - alpha) / (T_DRAFT_S * gamma + t)
            for gamma, t in zip(self.gammas, self.t_verify_s, strict=True)
        }


def expected(cell: Cell) -> ArmLevels:
    """The cell's arms as a model knows them, exactly."""
    arms = (*BASE, *(f"verify:{gamma}" for gamma in cell.gammas))
    return exact_levels({arm: cell.marks_s(arm) for arm in arms})


def test_the_trace_of_a_search_over_a_cliff() -> None:
    """Bounds from γ = 1 leave all open; flat lines point at 6 and 5, the slope between 1 and 5 then at 3 and 4."""
    cell = Cell(t_verify_s=CLIFF)
    end = cell.search([question(0.8, 8)])
    assert cell.log == [
        ("opening", (*BASE, "verify:1")),
        ("scouting", (*BASE, "verify:1", "verify:6", "verify:5")),
        ("scouting", (*BASE, "verify:6", "verify:3", "verify:4")),
        ("neighbours", ("verify:4", "verify:3", "verify:5")),
        ("neighbours", ("verify:4", "verify:3", "verify:5")),
    ]
    (verdict,) = end.verdicts
    assert (end.reason, end.arms, verdict.gamma, verdict.decided) == ("decided", (), 4, True)
    assert verdict.speedup == pytest.approx(3.3616 / 1.4)
    bounds = {1: 1.64, 2: 2.03, 6: 1.796, 7: 1.809, 8: 1.804}
    assert {gamma: verdict.bounds[gamma] for gamma in bounds} == pytest.approx(bounds, rel=3e-3)
    assert not any(verdict.could_win[gamma] for gamma in bounds)


def test_bounds_allow_for_the_uncertainty_of_both_arms() -> None:
    """γ = 3 and 4 in a block each, γ = 4 ahead by 5.6 %: noise decides whether γ = 3 could still win."""
    found = {}
    for spread in (0.005, 0.1):
        cell = Cell(t_verify_s=CLIFF, spread=spread)
        cell.take([*BASE, "verify:1", "verify:3", "verify:4"], 0)
        (verdict,) = next_step(cell.settings(), [question(0.8, 8)], cell.blocks).verdicts
        found[spread] = verdict.could_win[3]
    assert found == {0.005: False, 0.1: True}


@pytest.mark.parametrize(
    ("first_s", "spread", "timed"),
    [
        # at 1.3, T_verify(1) would rule out all others; its neighbour takes 1.0, so nothing is ruled out unseen
        (1.3, 0.0, set(range(1, 9))),
        (1.004, 0.02, {1, 2}),  # a fall within the uncertainty
    ],
)
def test_a_fall_of_t_verify_ends_the_pruning(first_s: float, spread: float, timed: set[int]) -> None:
    cell = Cell(t_verify_s=(first_s, *(1.0,) * 7), spread=spread)
    cell.search([question(0.3, 8)])
    assert cell.timed == timed


def test_neighbours_of_the_best_are_timed_though_their_bounds_rule_them_out() -> None:
    """At alpha .3, S(1) is 1.18 and S(2) at most 1.158: over 1 % less."""
    cell = Cell(t_verify_s=(1.0, 1.0, 1.0))
    cell.take([*BASE, "verify:1"], 0)
    step = next_step(cell.settings(), [question(0.3, 3)], cell.blocks)
    assert step.verdicts[0].could_win == {1: True, 2: False, 3: False}
    assert (step.reason, step.arms) == ("neighbours", (*BASE, "verify:1", "verify:2"))
    cell.search([question(0.3, 3)])
    assert len(cell.blocks["verify:2"]) == 3
    assert 3 not in cell.timed


def test_effort_goes_to_the_leader_and_its_strongest_challenger() -> None:
    """γ = 3 and 4 are .4 % apart, γ = 2 and 5 far behind: only 3 and 4 are raced, until neither can be 1 % better."""
    cell = Cell(t_verify_s=(1.0, 1.0, 1.0, 1.0863, 1.6, 1.6, 1.6, 1.6), spread=0.05)
    truth = cell.speedups(0.8)
    assert 1 < truth[3] / truth[4] < 1.005
    end = cell.search([question(0.8, 8)], cell.settings(max_blocks=100))
    raced = [arms for reason, arms in cell.log if reason == "racing"]
    assert len(raced) > 5
    assert {frozenset(arms) for arms in raced} == {frozenset({"verify:3", "verify:4"})}
    assert (end.reason, end.verdicts[0].gamma) == ("decided", 3)


@pytest.mark.parametrize(
    ("t_verify_s", "alpha", "spreads", "options", "reason", "arms"),
    [
        # where γ is clear, decode and T_verify at the leader are timed until S is as precise as asked for
        ((1.0, 1.8), 0.9, {}, {"relative_ci": 0.005, "max_blocks": 200}, "measuring", {"decode", "verify:1"}),
        ((1.0, 1.0), 0.35, {"draft": 0.5}, {"max_blocks": 100}, "racing", {"draft"}),
    ],
)
def test_what_dominates_the_uncertainty_is_timed(
    t_verify_s: tuple[float, ...], alpha: float, spreads: dict[str, float], options: Any, reason: str, arms: set[str]
) -> None:
    cell = Cell(t_verify_s=t_verify_s, spread=0.01 if spreads else 0.03, spreads=spreads)
    cell.search([question(alpha, 2)], cell.settings(**options))
    timed = [set(step) for why, step in cell.log if why == reason]
    assert len(timed) > 10
    assert all(arms <= step for step in timed)


def test_plain_decoding_is_a_candidate() -> None:
    """Nothing is accepted: no γ can reach plain decoding, and the first tells; its neighbour may hide a fall."""
    cell = Cell(t_verify_s=(1.0,) * 8)
    end = cell.search([question(0.0, 8)])
    assert end.verdicts[0].gamma == 0
    assert end.verdicts[0].speedup == pytest.approx(1.0)
    assert cell.timed == {1, 2}
    assert end.why_left_out(5) == "cannot be best: S at most 0.667, best is 1"


def test_blocks_are_not_taken_for_ever_and_not_without_a_question() -> None:
    cell = Cell(t_verify_s=(1.0, 1.1), spread=0.3)
    end = cell.search([question(0.5, 2)], cell.settings(max_blocks=4))
    assert end.reason == "undecided"
    assert max(map(len, cell.blocks.values())) == 4
    with pytest.raises(ValueError, match=r"questions: expected .*got none"):
        next_step(cell.settings(), [], {})


def test_when_time_is_spent_only_what_an_answer_needs_is_timed() -> None:
    cell = Cell(t_verify_s=CLIFF)
    cell.search([question(0.8, 8)], is_spent=True)
    assert cell.log == [
        ("opening", (*BASE, "verify:1")),
        ("measuring", (*BASE, "verify:1")),
        ("measuring", (*BASE, "verify:1")),
    ]
    end = next_step(cell.settings(), [question(0.8, 8)], cell.blocks, is_spent=True)
    assert end.reason == "spent"
    assert not end.verdicts[0].decided
    assert end.why_left_out(4) == "left out: time or blocks are spent; S at most 2.4, best is 1.64 so far"


def test_every_question_has_its_answer() -> None:
    """alpha .05 wants plain decoding, alpha .8 wants γ = 4: the best γ of both and their neighbours are timed."""
    cell = Cell(t_verify_s=CLIFF)
    end = cell.search([question(0.05, 8, "sampling a"), question(0.8, 8, "sampling b")])
    assert [verdict.gamma for verdict in end.verdicts] == [0, 4]
    assert {1, 2, 3, 4, 5} <= cell.timed
    assert end.why_left_out(7).endswith("best is 2.4 (sampling b)")


def test_prompts_that_could_make_a_gamma_best_keep_it_in() -> None:
    """S(2) and S(3) are .96 and .90 of S(1), and Ω(2) to Ω(4) may be an eighth larger under other prompts: γ = 2 and 3
    are weighed, in the least blocks, but none is raced; S(4), .84 of S(1), stays out."""
    cell = Cell(t_verify_s=(1.0,) * 4)
    sure = question(0.25, 4)
    omega = np.repeat(sure.acceptance.tokens_per_round, 21, axis=0)
    omega[11:, 1:] *= 1.125
    unsure = asked(omega, sure.acceptance.full_acceptance)
    end = cell.search([unsure])
    assert {gamma: len(cell.blocks[f"verify:{gamma}"]) for gamma in cell.timed} == {1: 3, 2: 3, 3: 3}
    assert end.reason == "decided"
    certain = Cell(t_verify_s=(1.0,) * 4)
    certain.search([sure])
    assert certain.timed == {1, 2}


def test_a_gamma_without_tokens_per_round_takes_no_part() -> None:
    cell = Cell(t_verify_s=(1.0,) * 4)
    sure = question(0.9, 4)
    omega = sure.acceptance.tokens_per_round.copy()
    omega[:, 3] = np.nan
    end = cell.search([asked(omega, sure.acceptance.full_acceptance)])
    assert end.verdicts[0].gamma == 3
    assert 4 not in cell.timed
    assert end.why_left_out(4) == "not timed: its tokens per round are not known"


def test_lookups_have_nothing_to_catch_up_with_and_may_verify_fewer() -> None:
    """Half the rounds find nothing and are plain steps: V(γ) = (T_decode + T_verify(γ)) / 2."""
    cell = Cell(t_verify_s=(2.0, 2.0))
    shares = np.zeros((2, 3))
    shares[:, 0] = 0.5
    shares[[0, 1], [1, 2]] = 0.5
    halves = asked([[1.5, 2.0]], [0.5, 0.5], draft_count_distribution=shares)
    end = cell.search([halves], cell.settings(catches_up=False))
    assert "draft_catch_up" not in cell.blocks
    assert end.verdicts[0].gamma == 2
    assert end.verdicts[0].speedup == pytest.approx(2.0 / (0.2 + 1.5))


def test_what_crosses_devices_is_timed_and_counts_towards_a_round() -> None:
    """S(4) = Ω / (4 · 0.1 + 4 · 0.025 + 1)."""
    cell = Cell(t_verify_s=CLIFF)
    end = cell.search([question(0.8, 8)], cell.settings(transfers=True))
    assert (end.verdicts[0].gamma, len(cell.blocks["transfer"])) == (4, len(cell.blocks["draft"]))
    assert end.verdicts[0].speedup == pytest.approx((1 - 0.8**5) / 0.2 / 1.5)
    found = searched_costs(cell.blocks, cell.gammas, min_blocks=3)
    assert found is not None
    assert found.t_transfer_s == pytest.approx([T_TRANSFER_S * gamma for gamma in cell.gammas])
    levels = expected_levels(
        {Point(batch_size=1, context=context): found for context in (64, 256)},
        Point(batch_size=1, context=128),
        cell.gammas,
    )
    assert levels is not None
    assert levels.marks_s("transfer") == pytest.approx(found.t_transfer_s)


def test_a_cell_that_keeps_to_what_is_expected_is_only_checked() -> None:
    cell = Cell(t_verify_s=CLIFF)
    end = cell.search([question(0.8, 8)], cell.settings(relative_ci=0.02), expected=expected(cell))
    assert cell.timed == {3, 4, 5}
    assert cell.log == [
        ("opening", (*BASE, "verify:3", "verify:4", "verify:5")),
        ("checking", (*BASE, "verify:3", "verify:4", "verify:5")),
        ("checking", (*BASE, "verify:3", "verify:4", "verify:5")),
    ]
    assert (end.reason, end.verdicts[0].gamma) == ("checked", 4)
    assert end.why_left_out(7) == (
        "not timed: S about 1.81 by the costs of cells around, which this one keeps to; best is 2.4"
    )


def test_a_cell_that_does_not_is_searched() -> None:
    """S at γ = 4 is 7 % under what was expected there: γ = 3 leads, and its other neighbour is timed as well."""
    cell = Cell(t_verify_s=(1.0, 1.0, 1.0, 1.1, 1.6, 1.6, 1.6, 1.6))
    ahead = expected(Cell(t_verify_s=CLIFF))
    end = cell.search([question(0.8, 8)], cell.settings(relative_ci=0.02), expected=ahead)
    assert {reason for reason, _ in cell.log} == {"opening", "checking", "neighbours"}
    assert cell.timed == {2, 3, 4, 5}
    assert (end.reason, end.verdicts[0].gamma) == ("decided", 3)


@given(
    st.lists(st.floats(0.0, 0.5), min_size=1, max_size=12),
    st.floats(0.0, 0.98),
    st.lists(st.floats(0.7, 1.4), min_size=30, max_size=30),
)
def test_without_noise_the_best_gamma_is_found_and_no_bound_is_broken(
    rises: list[float], alpha: float, paces: list[float]
) -> None:
    """Whatever rising T_verify, acceptance and drift."""
    cell = Cell(t_verify_s=(1 + np.cumsum(rises)).tolist(), pace=lambda block: paces[block % 30])
    end = cell.search([question(alpha, len(rises))])
    truth = {0: 1.0, **cell.speedups(alpha)}
    (verdict,) = end.verdicts
    assert verdict.decided
    assert truth[verdict.gamma] >= 0.989 * max(truth.values())
    for gamma, bound in verdict.bounds.items():
        assert bound >= truth[gamma] * (1 - 1e-3)


Cells = dict[Point, RoundCosts]


def costs(batch_size: int, context: int, scale: float, gammas: tuple[int, ...] = (1, 2)) -> Cells:
    found = made_costs(
        [1, 2],
        t_decode_s=scale,
        t_draft_total_s=[0.1 * scale, 0.2 * scale],
        t_draft_catch_up_s=0.05 * scale,
        t_verify_s=[scale * (1 + gamma) if gamma in gammas else np.nan for gamma in (1, 2)],
    )
    return {Point(batch_size=batch_size, context=context): found}


def at(cells: Cells, context: int, *, batch_size: int = 1, **options: bool) -> dict[str, list[float]]:
    """The marks that are expected of each arm."""
    found = expected_levels(cells, Point(batch_size=batch_size, context=context), (1, 2), **options)
    return {} if found is None else {arm: found.marks_s(arm).tolist() for arm in found.arms}


TWO = {**costs(1, 100, 1.0), **costs(1, 300, 2.0)}


def test_a_cell_between_two_is_on_their_line_and_one_between_four_on_their_plane() -> None:
    marks = {"decode": [1.25], "draft": [0.125, 0.25], "draft_catch_up": [0.125 + 0.0625], "verify:1": [2.5]}
    assert at(TWO, 150) == {arm: pytest.approx(own) for arm, own in (marks | {"verify:2": [3.75]}).items()}
    corners = {k: v for b in (1, 3) for s in (100, 300) for k, v in costs(b, s, b * s / 100).items()}
    assert at(corners, 200, batch_size=2)["decode"] == pytest.approx([4.0])


@pytest.mark.parametrize(
    ("cells", "context"),
    [
        ({}, 100),
        (costs(1, 100, 1.0), 200),
        ({**costs(1, 100, 1.0), **costs(1, 200, 2.0)}, 300),
        ({**costs(2, 100, 1.0), **costs(2, 300, 2.0)}, 200),
        ({**costs(1, 100, 1.0, ()), **costs(1, 300, 2.0, ())}, 200),
    ],
    ids=["no cell", "one cell", "beyond them", "at another batch size", "no round timed"],
)
def test_nothing_is_expected_elsewhere(cells: Cells, context: int) -> None:
    assert at(cells, context) == {}


def test_what_was_timed_on_one_side_only_or_is_no_arm_of_lookups_is_not_expected() -> None:
    assert set(at(TWO | costs(1, 300, 2.0, (1,)), 200)) == {"decode", "draft", "draft_catch_up", "verify:1"}
    assert set(at(TWO, 200, catches_up=False)) == {"decode", "draft", "verify:1", "verify:2"}


def test_a_searched_cell_costs_what_its_arms_take_at_one_pace() -> None:
    """Block 1 is twice as slow; T_verify(1) has too few blocks to count."""
    marks = {"decode": [1.0], "draft": [0.1, 0.2], "draft_catch_up": [0.15], "verify:1": [2.0], "verify:2": [3.0]}
    blocks = {arm: {b: summarise_block(np.tile(own, (3, 1)) * (1 + b)) for b in (0, 1)} for arm, own in marks.items()}
    del blocks["verify:1"][1]
    cell = searched_costs(blocks, (1, 2), min_blocks=2)
    assert cell is not None
    assert cell.gammas.tolist() == [1, 2]
    assert cell.t_verify_s / cell.t_decode_s == pytest.approx([np.nan, 3.0], nan_ok=True)
    assert cell.t_draft_total_s / cell.t_decode_s == pytest.approx([0.1, 0.2])
    assert cell.t_draft_catch_up_s == pytest.approx(0.05 * float(cell.t_decode_s))
    assert searched_costs({"decode": blocks["decode"]}, (1,), min_blocks=1) is None
