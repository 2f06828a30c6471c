"""The promises are held against exact figures, each able to be missed by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from specgauge.sweeps.counted import CountedBlock
from specgauge.sweeps.proof import CellProof, main, paired_ratio, proof_text, verdicts

GOOD = CellProof(
    words="run: pair, greedy, batch 1, context 128",
    cost_errors=(0.03, -0.03),
    acceptance_inside=True,
    acceptance_error=0.01,
    acceptance_low=-0.02,
    acceptance_high=0.04,
    recommended_gamma=2,
    best_gamma=3,
    of_best=0.985,
    half_width=0.015,
    tokens=6144,
)


def holds(*cells: CellProof) -> list[bool]:
    return [one.holds for one in verdicts(cells)]


def test_promises_hold_at_their_very_bounds() -> None:
    assert holds(GOOD) == [True, True, True]


def test_each_promise_is_missed_by_itself() -> None:
    assert holds(replace(GOOD, cost_errors=(0.031, 0.031))) == [False, True, True]
    assert holds(replace(GOOD, cost_errors=(0.0, 0.0, 0.081))) == [False, True, True]
    assert holds(replace(GOOD, of_best=0.984)) == [True, True, False]
    assert holds(replace(GOOD, half_width=0.016)) == [True, True, False]
    assert holds(replace(GOOD, half_width=math.nan)) == [True, True, False]
    assert holds(GOOD, replace(GOOD, of_best=None, half_width=None)) == [True, True, False]


@pytest.mark.parametrize(("outside", "wanted"), [(3, True), (4, False)])
def test_acceptance_may_miss_in_three_of_sixteen_cells(outside: int, wanted: bool) -> None:
    cells = [replace(GOOD, acceptance_inside=number >= outside) for number in range(16)]
    assert holds(*cells)[1] is wanted


def test_acceptance_that_nowhere_has_an_interval_proves_nothing() -> None:
    assert holds(replace(GOOD, acceptance_inside=None)) == [True, False, True]


def block(gamma: int, number: int, t_round_s: float, tokens_per_round: float = 2.0) -> CountedBlock:
    return CountedBlock(
        gamma=gamma,
        block=number,
        rounds=10,
        tokens_per_round=tokens_per_round,
        t_plain_step_s=1.0,
        t_round_s=t_round_s,
        t_decode_s=1.0,
        t_parts_s=1.0,
        t_draft_catch_up_s=0.0,
        catch_up_share=0.0,
        t_accept_rest_s=0.0,
    )


def test_the_ratio_of_two_gammas_is_taken_over_the_blocks_of_both() -> None:
    """20 tokens in 10 s against 20 in 8 s, in every block alike: no doubt. A block of one γ only does not count."""
    blocks = [block(2, n, 1.0) for n in range(4)] + [block(3, n, 0.8) for n in range(3)]
    assert paired_ratio(blocks, 2, 3) == pytest.approx([0.8, 0.8, 0.8], rel=1e-12)
    assert paired_ratio(blocks, 3, 2)[0] == pytest.approx(1.25, rel=1e-12)


def test_one_block_says_nothing_of_others() -> None:
    found = paired_ratio([block(2, 0, 1.0), block(3, 0, 0.8)], 2, 3)
    assert found[0] == pytest.approx(0.8, rel=1e-12)
    assert math.isnan(found[1])
    assert math.isnan(found[2])


def test_the_text_has_a_line_a_cell_and_the_promises() -> None:
    lines = proof_text([GOOD]).splitlines()
    assert lines[0] == (
        "run: pair, greedy, batch 1, context 128: cost error mean 3.00 %, worst 3.00 %; acceptance +1.0 % (-2.0 to "
        "+4.0); γ = 2 has 98.5 % ± 1.5 of γ = 3; 6144 tokens an arm"
    )
    assert [line.split(":")[0] for line in lines[2:]] == ["holds"] * 3


def test_without_a_run_or_with_a_wrong_one_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "nothing")]) == 2
    assert "nothing: no such run" in capsys.readouterr().err
