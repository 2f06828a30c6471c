"""γ by batch size at and between measured ones, from costs and S worked out by hand.

T_decode = 1 s, C(γ) = 0, T_verify(γ) = 1 + B s for every γ, Ω = 1.5 (γ 1) and 2 (γ 2): S = Ω / (1 + B) at B rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.decision import estimate_speedup
from specgauge.model.settings import Provenance
from specgauge.sweeps.exports.schedule import (
    EVALUATED,
    DecidedRange,
    KnownPoint,
    Rises,
    decided_schedule,
    gaps,
    interpolated,
    paying_sizes,
)
from tests.model.made import made_acceptance, made_costs

OMEGA = [1.5, 2.0]


def point(
    batch_size: int,
    verify_s: list[float],
    *,
    spread: float = 0.0,
    measured: dict[int, float] | None = None,
    replicates: int = 400,
) -> KnownPoint:
    """T_verify is `spread` shorter in half of the replicates and longer in the others."""
    signs = np.tile([-1.0, 1.0], replicates // 2)[:, None]
    rows = np.concatenate([[verify_s], np.array(verify_s) * (1 + signs * spread)])
    count = 1 + replicates
    costs = made_costs([1, 2], t_decode_s=np.ones(count), t_draft_total_s=np.zeros((count, 2)), t_verify_s=rows)
    acceptance = made_acceptance(np.tile(OMEGA, (count, 1)), np.zeros((count, 2)))
    own = {gamma: np.full(count, value) for gamma, value in (measured or {}).items()}
    estimate = estimate_speedup(costs, acceptance, batch_size=batch_size, measured=own)
    return KnownPoint(costs=costs, acceptance=acceptance, estimate=estimate)


def gammas(ranges: tuple[DecidedRange, ...]) -> list[tuple[int, int, int]]:
    return [(one.first, one.last, one.gamma) for one in ranges]


def schedule(points: Mapping[int, KnownPoint], undecided: str | int = "off") -> tuple[DecidedRange, ...]:
    return decided_schedule(points, undecided=undecided, confidence=0.9)  # type: ignore[arg-type]


def test_where_s_passes_1_between_two_measured_sizes_drafts_end() -> None:
    """S(2) = 2 / (1 + B / 100) is over 1 below 100 rows."""
    points = {1: point(1, [1.01, 1.01]), 201: point(201, [3.01, 3.01])}
    (pays, off) = schedule(points)
    assert (pays.first, pays.last, pays.gamma, pays.verdict) == (1, 99, 2, "speculate")
    assert (off.first, off.last, off.gamma, off.verdict) == (100, 201, 0, "do not speculate")
    assert (pays.reason, off.reason) == ("P(S > 1) = 1.000 at gamma 2", "P(max S > 1.01) = 0.000")
    assert paying_sizes(points, confidence=0.9) == ([(1, 99)], 100)


def test_gamma_changes_where_the_costs_cross() -> None:
    """S(1) = 1.5 / 1.2 throughout, S(2) = 2 / (1.2 + B / 100): equal within 1 % at T_verify(2) = 1.2 · 4 / 3 · .99."""
    points = {1: point(1, [1.2, 1.21]), 101: point(101, [1.2, 2.21])}
    crossing = next(size for size in range(1, 102) if 2 / (1.2 + size / 100) <= 1.5 / 1.2 / 0.99)
    assert gammas(schedule(points)) == [(1, crossing - 1, 2), (crossing, 101, 1)]
    assert paying_sizes(points, confidence=0.9) == ([(1, 101)], None)


def test_where_drafts_pay_again_and_from_where_on() -> None:
    points = {2: point(2, [2.0, 2.5]), 3: point(3, [1.2, 1.2]), 4: point(4, [2.0, 2.5]), 5: point(5, [1.2, 1.2])}
    assert paying_sizes(points, confidence=0.9) == ([(3, 3), (5, 5)], 4)
    assert paying_sizes({2: points[2], 4: points[4]}, confidence=0.9) == ([], None)
    assert paying_sizes({3: points[3]}, confidence=0.9) == ([(3, 3)], None)


def test_between_two_sizes_s_is_known_no_better_than_rounds_may_rise() -> None:
    """S(2) = 2 / 1.2 at 4 rows and 2 / 1.6 at 8, where steps may lie anywhere between; nothing lies between 8 and 9."""
    points = {4: point(4, [1.3, 1.2]), 8: point(8, [2.0, 1.6]), 9: point(9, [2.0, 3.0])}
    (gap,) = gaps(points, schedule(points), confidence=0.9)
    assert (gap.first, gap.last) == (5, 7)
    assert [gap.low, gap.high] == pytest.approx([2 / 1.6, 2 / 1.2], abs=0.02)
    assert gap.words == "batch 5 to 7: interpolated; S 1.25 to 1.67 where rounds may rise in steps"
    off = {4: point(4, [2.5, 3.0]), 8: point(8, [2.5, 3.0])}
    (gap,) = gaps(off, schedule(off), confidence=0.9)
    assert gap.words == "batch 5 to 7: interpolated"


def test_paths_between_two_sizes_rise_from_one_to_the_other() -> None:
    rises, shares = Rises.drawn(2000, 1), np.linspace(0, 1, 9)
    ends = np.array([1.0, 1.0]), np.array([1.0, 3.0])
    found = np.array([rises.off_the_line(*ends, share) for share in shares])
    assert np.all(found[..., 0] == 1)
    rounds = found[..., 1] * (1 + 2 * shares)[:, None]
    assert np.diff(rounds, axis=0).min() > -1e-9
    np.testing.assert_allclose(rounds[[0, -1]], np.broadcast_to([[1.0], [3.0]], (2, 2000)))
    np.testing.assert_allclose(rounds.mean(axis=1), 1 + 2 * shares, atol=0.06)
    assert np.quantile(rounds[4], [0.05, 0.95]) == pytest.approx([1.1, 2.9], abs=0.08)  # Beta(1, 1) in the middle


def test_a_single_size_is_the_answer_up_to_it() -> None:
    assert gammas(schedule({4: point(4, [1.2, 1.3])})) == [(1, 4, 2)]


def test_what_was_measured_goes_from_one_size_to_the_other() -> None:
    """Predicted S is 2 everywhere, at 101 rows 0.5 was decoded: what contradicts it there weighs less nearer to 1."""
    points = {1: point(1, [1.5, 1.0]), 101: point(101, [1.5, 1.0])}
    assert gammas(schedule(points)) == [(1, 101, 2)]
    decoded = {1: points[1], 101: point(101, [1.5, 1.0], measured={1: 0.25, 2: 0.5})}
    assert decoded[101].estimate.speedup[1] == pytest.approx(1.0)  # both weigh alike: the root of 2 · 0.5
    pays, open_ = schedule(decoded)
    assert (pays.gamma, open_.verdict, open_.last) == (2, "undecided", 101)
    assert 1 < pays.last < 100
    assert open_.reason == decoded[101].estimate.decision.reason


def test_open_decisions_export_what_is_asked_for() -> None:
    points = {1: point(1, [1.2, 1.3]), 8: point(8, [2.0, 1.98], spread=0.05)}
    assert points[8].estimate.decision.verdict == "undecided"
    off, as_recommended, own = (schedule(points, undecided) for undecided in ("off", "gamma", 1))
    assert (off[-1].gamma, off[-1].verdict, off[-1].last) == (0, "undecided", 8)
    assert "is under 0.95" in off[-1].reason
    assert gammas(as_recommended)[-1][2] == 2
    assert own[-1].gamma == 1
    with pytest.raises(ValueError, match="undecided: expected off, gamma or a gamma that was measured, 1, 2, got 3"):
        schedule(points, 3)
    slower = {8: point(8, [2.0, 2.02], spread=0.05)}
    assert slower[8].estimate.decision.verdict == "undecided"
    assert [gammas(schedule(slower, one)) for one in ("gamma", 2)] == [[(1, 8, 0)], [(1, 8, 2)]]


def test_between_two_sizes_nothing_is_decided_that_is_decided_at_neither() -> None:
    """S = 2 / 1.9 throughout, either way off by a tenth at both: the errors of the two do not cancel in between."""
    points = {1: point(1, [2.5, 1.9], spread=0.1), 101: point(101, [2.5, 1.9], spread=0.1)}
    assert {known.estimate.decision.verdict for known in points.values()} == {"undecided"}
    assert gammas(schedule(points)) == [(1, 101, 0)]
    sure = {1: point(1, [2.5, 1.2]), 101: points[101]}
    assert [one.verdict for one in schedule(sure)] == ["speculate", "undecided"]


def test_gammas_that_one_size_lacks_are_left_out_between() -> None:
    only_1 = point(9, [1.2, 1.2])
    lacking = KnownPoint(
        costs=only_1.costs.only([1]),
        acceptance=only_1.acceptance.only([1]),
        estimate=estimate_speedup(only_1.costs.only([1]), only_1.acceptance.only([1]), batch_size=9),
    )
    assert gammas(schedule({1: point(1, [1.2, 1.2]), 9: lacking})) == [(1, 1, 2), (2, 9, 1)]
    only_2 = KnownPoint(
        costs=only_1.costs.only([2]),
        acceptance=only_1.acceptance.only([2]),
        estimate=estimate_speedup(only_1.costs.only([2]), only_1.acceptance.only([2]), batch_size=1),
    )
    assert gammas(schedule({1: only_2, 9: lacking})) == [(1, 8, 2), (9, 9, 1)]  # nothing in common


def test_costs_between_are_on_the_line_and_say_so() -> None:
    found = interpolated(point(1, [1.0, 2.0]).costs, point(5, [3.0, 3.0]).costs, 0.25)
    np.testing.assert_allclose(found.t_verify_s[0], [1.5, 2.25])
    assert found.t_draft_catch_up_s is None
    assert found.provenance == Provenance.INTERPOLATED


@given(
    sizes=st.lists(st.integers(1, 20 * EVALUATED), min_size=1, max_size=4, unique=True),
    verify_s=st.lists(st.tuples(st.floats(0.8, 3), st.floats(0.8, 3)), min_size=4, max_size=4),
)
def test_ranges_have_no_gap_and_agree_with_the_run(sizes: list[int], verify_s: list[tuple[float, float]]) -> None:
    points = {size: point(size, list(times)) for size, times in zip(sorted(sizes), verify_s, strict=False)}
    found = schedule(points)
    assert (found[0].first, found[-1].last) == (1, max(sizes))
    assert all(after.first == before.last + 1 for before, after in pairwise(found))
    assert all((a.gamma, a.verdict) != (b.gamma, b.verdict) for a, b in pairwise(found))
    for size, known in points.items():
        (here,) = [one for one in found if one.first <= size <= one.last]
        decision = known.estimate.decision
        expected = known.estimate.recommended_gamma if decision.verdict == "speculate" else 0
        assert (here.gamma, here.verdict) == (expected, decision.verdict)
