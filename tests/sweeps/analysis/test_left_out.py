"""What there was no time for has one remedy, that which works."""

from __future__ import annotations

from typing import Any

import pytest

from specgauge.sweeps.analysis.answers import Recommendations
from specgauge.sweeps.analysis.left_out import NEIGHBOURS, left_out_warnings, with_one_remedy
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.schema import WarningRow
from tests.sweeps import made
from tests.sweeps.validation_rows import validation_row

DECODING = "3 of 4 blocks of decoding end to end (most of greedy, batch size 1, context 64; validate.max_seconds)"
TIMING = "blocks of timing"
GOES_ON = ": it goes on where it stopped"


def short(*parts: str, **changes: Any) -> PairOutcome:
    return PairOutcome(left_out=list(parts), **changes)


@pytest.mark.parametrize(
    ("outcomes", "anew", "remedy"),
    [
        ([short(TIMING, needed_s=300.0)], False, "run the same command with --set limits.run_seconds=360" + GOES_ON),
        ([short(TIMING, needed_s=301.0)], False, "run the same command with --set limits.run_seconds=370" + GOES_ON),
        ([short(TIMING)], False, "run the same command with a larger limits.run_seconds" + GOES_ON),
        (
            [short(TIMING, needed_s=40.0)],
            False,
            "run the same command again, which goes on: what is missing should fit into the same seconds",
        ),
        (
            [short(DECODING, needed_s=400.0, needed_decoding_s=500.0)],
            False,
            "run the same command with --set validate.max_seconds=600" + GOES_ON,
        ),
        (
            [short(TIMING, DECODING, needed_s=400.0, needed_decoding_s=500.0)],
            False,
            "run the same command with --set limits.run_seconds=480 and --set validate.max_seconds=600" + GOES_ON,
        ),
        # two pairs share the seconds alike
        (
            [short(TIMING, needed_s=50.0), short(TIMING, needed_s=300.0)],
            False,
            "run the same command with --set limits.run_seconds=720" + GOES_ON,
        ),
        (
            [short(TIMING, needed_s=300.0), short("whatever was missing")],
            False,
            "run the same command with a larger limits.run_seconds" + GOES_ON,
        ),
        # cells go on with the γ they were begun with
        ([short(NEIGHBOURS, needed_s=100.0)], False, "measure again with --fresh and --set limits.run_seconds=180"),
        (
            [short(TIMING, NEIGHBOURS, needed_s=100.0)],
            False,
            "run the same command with --set limits.run_seconds=120" + GOES_ON,
        ),
        # what was measured in 60 s is measured again
        (
            [short(TIMING, needed_s=300.0)],
            True,
            "close other programs and measure again with --fresh and --set limits.run_seconds=420",
        ),
    ],
)
def test_the_remedy_says_what_it_takes(outcomes: list[PairOutcome], anew: bool, remedy: str) -> None:
    pairs = [{"name": name, "target": "embedded", "draft": "embedded"} for name in "pq"[: len(outcomes)]]
    config = made.config(pairs=pairs, limits={"run_seconds": 60}, validate={"max_seconds": 100})
    (row,) = left_out_warnings(config, dict(zip("pq", outcomes, strict=False)), anew=anew)
    assert (row.code, row.remedy) == ("out_of_time", remedy)
    assert row.message.startswith(f"no time was left for pair p: {', '.join(outcomes[0].left_out)}")


def row(code: str, message: str, remedy: str = "its own") -> WarningRow:
    return WarningRow(code=code, message=message, remedy=remedy)


def test_no_other_remedy_stands_beside_that_of_a_pair_which_ran_out_of_time() -> None:
    found = [
        row("not_converged", "pair p: 2 of 4 cells"),
        row("not_converged", "pair q: 2 of 4 cells"),
        row("few_prompts", "pair p: acceptance comes from 2 prompts"),
        row("busy_machine", "pair p: other programs"),
        row("undecided", "2 of 4 recommendations are undecided"),
    ]
    outcomes = {"p": short(TIMING), "q": PairOutcome()}
    late = row("out_of_time", "no time was left for pair p: …", "more time")
    told = with_one_remedy([*found, late], outcomes)
    assert [one.remedy for one in told] == ["more time", "its own", "more time", "its own", "more time", "more time"]
    assert list(with_one_remedy(found, {})) == found


def entry(decision: str) -> dict[str, Any]:
    gamma = 3 if decision == "speculate" else None
    key = {"pair": "p", "mode": "eager", "sampling": "greedy", "draft_sampling": "same", "acceptance_rule": "ratio"}
    span = {"value": 1.2, "low": 1.1, "high": 1.3}
    point = {"batch_size": 1, "context": 64, "decision": decision, "gamma": gamma, "recommended_gamma": 3}
    return {**key, **point, "best_gamma": 3, "speedup": span, "t_overhead_s": 0.1, "reason": ""}


@pytest.mark.parametrize(
    ("decision", "is_decoded", "step"),
    [
        ("speculate", True, "speculate with γ = 3; for what no time was left: more time"),
        ("do not speculate", True, "decode plainly here; the report says how far from paying it is; for what no time "),
        ("speculate", False, "more time"),
        ("undecided", True, "more time"),
    ],
)
def test_the_next_step_names_it_too(decision: str, is_decoded: bool, step: str) -> None:
    warning = {"code": "out_of_time", "message": "", "remedy": "more time"}
    rows = (validation_row(gamma=3),) if is_decoded else ()
    answers = Recommendations(entries=(entry(decision),), confidence=0.9, warnings=(warning,), validation=rows)
    assert answers.next_step.startswith(step)
