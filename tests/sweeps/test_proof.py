"""The promises are held against exact figures, each able to be missed by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specgauge.model.validate import ShareOfBest
from specgauge.sweeps.analysis.counted_rounds import CountedBlock
from specgauge.sweeps.proof import CellProof, main, measured_speeds, proof_text, prove, verdicts
from specgauge.sweeps.store.rundir import Run
from tests.sweeps.analysis.test_decoded import batch, forced_run, run
from tests.sweeps.analysis.test_validation import BLOCK
from tests.sweeps.decoded import key
from tests.sweeps.made import exact, known
from tests.sweeps.validation_rows import policy_row, validation_row


def proof(cost_errors: Sequence[float] = (0.03, -0.03), **changes: Any) -> CellProof:
    """A cell that keeps every promise, but for the errors by γ and `changes` of all its rows."""
    known = {"acceptance_error": 0.01, "acceptance_error_low": -0.02, "acceptance_error_high": 0.04, "tokens": 6144}
    rows = [validation_row(cost_error=error, **known | changes) for error in cost_errors]
    return CellProof(
        label="run: pair, greedy, batch 1, context 128",
        rows=rows,
        row=rows[0],
        recommended_gamma=2,
        best_gamma=3,
        choice=ShareOfBest(value=0.985, half_width=0.015, half_width_of_others=0.039),
        no_choice="",
    )


GOOD = proof()


def holds(*cells: CellProof) -> list[bool]:
    return [one.holds for one in verdicts(cells)]


def choosing(**changes: Any) -> CellProof:
    assert GOOD.choice is not None
    return replace(GOOD, choice=replace(GOOD.choice, **changes))


NO_BLOCK = replace(GOOD, choice=None, no_choice="no block has every γ")
FORCED = replace(proof([0.05], lossless=False), choice=None, no_choice="not lossless: forced")
CLOSE = policy_row(policy="renewal", speedup_measured=1.5, error=-0.03, error_low=-0.07, error_high=0.01)
POLICIES = replace(
    GOOD, policies=[CLOSE, CLOSE | {"policy": "svip", "error": 0.01, "error_low": None, "error_high": None}]
)


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        ([GOOD], [True, True, True]),
        ([proof([0.031, 0.031])], [False, True, True]),
        ([proof([0.0, 0.0, 0.081])], [False, True, True]),
        ([proof(acceptance_error_low=None)], [True, False, True]),
        ([choosing(value=0.984)], [True, True, False]),
        ([choosing(half_width=0.016)], [True, True, False]),
        ([choosing(half_width=None)], [True, True, False]),
        ([choosing(half_width=None, half_width_of_others=0.015)], [True, True, True]),
        ([choosing(half_width=None, half_width_of_others=None)], [True, True, False]),
        ([GOOD, choosing(half_width=None)], [True, True, False]),
        ([choosing(half_width_of_others=0.5)], [True, True, True]),
        ([GOOD, NO_BLOCK], [True, True, False]),
        ([NO_BLOCK], [True, True, False]),
        ([FORCED], [False]),
        ([FORCED, GOOD, GOOD, GOOD], [False, True, True]),
        ([POLICIES], [True] * 4),
    ],
)
def test_each_promise_is_missed_by_itself(cells: list[CellProof], kept: list[bool]) -> None:
    assert holds(*cells) == kept


@pytest.mark.parametrize(("outside", "wanted"), [(3, True), (4, False)])
def test_acceptance_may_miss_in_three_of_sixteen_cells(outside: int, wanted: bool) -> None:
    cells = [proof(acceptance_error_low=0.005 if number < outside else 0.0) for number in range(16)]
    assert holds(*cells)[1] is wanted


def block(gamma: int, number: int, t_round_s: float, tokens_per_round: float = 2.0) -> CountedBlock:
    return replace(BLOCK, gamma=gamma, block=number, t_round_s=t_round_s, tokens_per_round=tokens_per_round)


def requests(blocks: int, expected: Any = lambda *_: (None, None)) -> pd.DataFrame:
    """A plain row and one of γ = 2 and 3 in every block; `expected` gives (committed, starts) of a block and γ."""
    rows = []
    for number in range(blocks):
        for gamma in (0, 2, 3):
            committed, starts = expected(number, gamma) if gamma else (None, None)
            told = {"expected_committed": committed, "expected_starts": starts}
            rows.append({"block": number, "gamma": gamma, "prompt": number // 2, **told})
    return pd.DataFrame(rows)


def test_speeds_are_compared_over_the_blocks_of_every_gamma() -> None:
    """20 tokens in 10 s against 20 in 8 s, in every block alike: no doubt. A block of one γ only does not count."""
    blocks = [block(2, n, 1.0) for n in range(5)] + [block(3, n, 0.8) for n in range(4)]
    speeds = known(measured_speeds(blocks, requests(5)))
    assert (speeds.gammas, speeds.prompts.tolist(), speeds.best()) == ((2, 3), [0, 0, 1, 1], 3)
    assert astuple(speeds.share_of_best(2)) == exact([0.8, 0.0, 0.0])


def test_texts_that_say_what_to_expect_of_every_gamma_are_all_used() -> None:
    """Both arms' texts: γ = 2 commits 12 + 14 in 6 + 4 rounds of 1 s, γ = 3 commits 13 + 15 in 5 + 3 of .5 s."""
    blocks = [block(2, 0, 1.0, tokens_per_round=9.0), block(3, 0, 0.5)]
    expected = {2: ([12.0, 13.0], [6.0, 5.0]), 3: ([14.0, 15.0], [4.0, 3.0])}
    speeds = known(measured_speeds(blocks, requests(1, lambda _, gamma: expected[gamma])))
    assert speeds.committed.tolist() == [[26.0, 28.0]]
    assert speeds.seconds.tolist() == [[10.0, 4.0]]


def test_without_a_block_of_every_gamma_nothing_is_compared() -> None:
    assert measured_speeds([block(2, 0, 1.0), block(3, 1, 0.8)], requests(2)) is None
    no_room = requests(1, lambda _, __: ([0.0, 0.0], [0.0, 0.0]))
    assert measured_speeds([block(2, 0, 1.0), block(3, 0, 0.8)], no_room) is None


def test_the_text_has_a_line_a_cell_and_the_promises(snapshot: Callable[[str, str], None]) -> None:
    unknown = choosing(half_width=None, half_width_of_others=None)
    cases = [[GOOD], [unknown], [GOOD, NO_BLOCK], [NO_BLOCK], [FORCED], [POLICIES]]
    snapshot("proof", "\n\n".join(map(proof_text, cases)) + "\n")


@pytest.mark.parametrize(
    ("errors", "wanted"),
    [
        ([(0.031, -0.07, 0.01)], False),
        ([(0.0, -0.05, 0.05)], True),
        ([(-0.0299, None, None)], True),
        ([(0.03, 0.031, 0.05)], False),
        ([(-0.03, -0.05, -0.031)], False),
        ([(0.0, -0.07, 0.01), (0.0, -0.07, 0.01), (0.06, 0.04, 0.08)], False),
        ([(0.0, -0.07, 0.01), (0.0, -0.07, 0.01), (0.06, 0.02, 0.08)], True),
    ],
)
def test_an_error_may_be_the_prompts_but_not_on_average(errors: list[tuple[Any, ...]], wanted: bool) -> None:
    """The error of each policy with its interval."""
    rows = [policy_row(error=error, error_low=low, error_high=high) for error, low, high in errors]
    assert holds(replace(GOOD, policies=rows))[3] is wanted


def test_a_run_is_proved_from_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every γ in both cells, two prompts twice, all in the times of the parts: no cost error.

    Every γ accepts one draft and none in turn: γ = 1 takes 5/4 + 1/8 s, half of Δ₂ and ε, γ = 2 never catches up: 5/4 +
    2/8 s and ε. By acceptance 1/2 it is γ = 2 that is recommended, which the texts decoded contradict.
    """
    batches = {
        key(start_context=context): [
            batch(context=context, prompts=(prompt,), repetition=repetition, accepts=(1, 0))
            for prompt in (0, 1)
            for repetition in (0, 1)
        ]
        for context in (64, 65)
    }
    path = run(tmp_path / "run", batches, gammas=(1, 2, 3)).path
    cells = list(prove(Run.open(path)))
    assert [cell.label for cell in cells] == [f"run: p, greedy, batch 1, context {context}" for context in (64, 65)]
    for cell in cells:
        assert cell.cost_errors == exact([0.0] * 3)
        assert ([row["tokens"] for row in cell.rows], cell.no_choice) == ([48] * 3, "")
        assert (cell.recommended_gamma, cell.best_gamma) == (2, 1)
        assert known(cell.choice).value == exact(1.46875 / 1.5625)
    assert main([str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("run: p, greedy, batch 1, context 64: cost error mean 0.00 %, worst 0.00 %; acceptance ")
    assert [line.partition(":")[0] for line in lines[-3:]] == ["holds", "MISSED", "MISSED"]
    assert lines[-3] == "holds: cost error: mean 0.00 % (at most 3), worst 0.00 % (at most 8)"
    assert lines[-2].startswith("MISSED: acceptance error inside its 95 % interval in 0 of 2 cells")


def test_a_run_of_forced_acceptance_proves_its_costs_alone(tmp_path: Path) -> None:
    (cell,) = prove(forced_run(tmp_path / "run"))
    assert (cell.row["acceptance_error"], cell.choice, cell.no_choice) == (None, None, "not lossless: forced")
    assert main([str(tmp_path / "run")]) == 0


def test_without_a_run_or_with_a_wrong_one_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert main([str(tmp_path / "nothing")]) == 2
    assert "nothing: no such run" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "Does the prediction hold?" in capsys.readouterr().out
