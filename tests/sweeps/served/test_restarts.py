"""A server that takes every γ in turn, held against servers that were started with one γ."""

import math
from dataclasses import replace

import pytest

from specgauge.sweeps.analysis.restarts import restart_ratios
from specgauge.sweeps.served.warnings import live_warnings
from specgauge.sweeps.store.served import Purpose, ServedRow

ROW = ServedRow(pair="a", sampling="greedy", gamma=4, batch_size=1, context=64, block=0)


def blocks(
    purpose: Purpose, times_s: tuple[float, ...], *, gamma: int = 4, server: str | None = None
) -> list[ServedRow]:
    return [
        replace(ROW, purpose=purpose, block=number, t_round_s=seconds, gamma=gamma, server=server)
        for number, seconds in enumerate(times_s)
    ]


LIVE = blocks("timing", (0.010, 0.011, 0.012), server="live")
PLAIN = blocks("timing", (0.010, 0.010, 0.011, 0.011), gamma=0)


def test_the_ratio_of_both_servers_and_what_changed_meanwhile() -> None:
    own = blocks("restart", (0.011, 0.012, 0.013))
    (found,) = restart_ratios([*PLAIN[:2], *LIVE, *own, *PLAIN[2:]], confidence=0.9)
    assert (found.gamma, found.batch_size, found.context) == (4, 1, 64)
    assert found.ratio == pytest.approx((11 * 12 * 13 / (10 * 11 * 12)) ** (1 / 3))
    # Welch: s² = .00834 and .00698 over 3 blocks each, 3.97 degrees of freedom, t = 2.135
    assert math.log(found.high / found.ratio) == pytest.approx(0.1526, abs=2e-4)
    assert found.low * found.high == pytest.approx(found.ratio**2)
    assert found.plain == pytest.approx(1.1)
    assert not found.is_apart
    other = [replace(row, batch_size=2) for row in (*LIVE, *own)]
    both = restart_ratios([*LIVE, *own, *other], confidence=0.8)  # each at .9, so that both hold at .8
    assert [(one.ratio, one.low, one.high, one.plain) for one in both] == [
        (found.ratio, found.low, found.high, None)
    ] * 2


def test_what_the_client_saw_of_both_is_compared() -> None:
    live = [replace(row, t_round_s=0.005, t_round_from="steps", t_round_client_s=row.t_round_s) for row in LIVE]
    (found,) = restart_ratios([*live, *blocks("restart", (0.010, 0.011, 0.012))], confidence=0.9)
    assert found.ratio == pytest.approx(1.0)
    assert found.plain is None


@pytest.mark.parametrize(
    ("times_s", "codes"),
    [
        ((0.0130, 0.0131, 0.0132), ["restart_differs"]),
        ((0.0080, 0.0081, 0.0082), ["restart_differs"]),
        ((0.0101, 0.0112, 0.0119), []),
        ((0.0200,), []),  # one block tells no spread
    ],
)
def test_a_server_of_one_gamma_that_takes_another_time_is_told(times_s: tuple[float, ...], codes: list[str]) -> None:
    found = list(live_warnings("a", [*PLAIN, *LIVE, *blocks("restart", times_s)], confidence=0.9))
    assert [row.code for row in found] == codes
    assert not list(live_warnings("b", [*LIVE, *blocks("restart", times_s)], confidence=0.9))


def test_a_block_that_counts_for_nothing_checks_nothing() -> None:
    own = [replace(row, reason="requests failed") for row in blocks("restart", (0.1, 0.1))]
    assert restart_ratios([*LIVE, *own], confidence=0.9) == []


@pytest.mark.parametrize(
    ("client_s", "codes"), [(0.0104, []), (0.0107, ["t_round_disagrees"]), (0.0093, ["t_round_disagrees"])]
)
def test_streams_that_tell_another_time_than_the_steps_are_told(client_s: float, codes: list[str]) -> None:
    rows = [replace(row, t_round_s=0.01, t_round_from="steps", t_round_client_s=client_s) for row in LIVE]
    outlier = replace(rows[0], t_round_client_s=0.02)
    assert [row.code for row in live_warnings("a", [outlier, *rows[1:]], confidence=0.9)] == codes
