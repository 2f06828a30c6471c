"""Timings as the journal has them, and what is warned of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specgauge.configs.canonical import short_hash
from specgauge.model.arms import arm_names
from specgauge.model.stats.disturbance import Disturbance
from specgauge.sweeps.analysis.acceptance import recorded_texts
from specgauge.sweeps.analysis.predictions import predict
from specgauge.sweeps.analysis.timings import NOT_YET, UNMEASURED, CellTimings, collect_timings
from specgauge.sweeps.analysis.warnings import decision_warnings, decoding_warnings, text_warnings, timing_warnings
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.outcomes import OUT_OF_TIME
from specgauge.sweeps.store.rows import row_of
from specgauge.sweeps.store.schema import JournalLine
from tests.sweeps import made
from tests.sweeps.made import acceptance_frame, write_run
from tests.sweeps.validation_rows import validation_row


def parsed(record: Mapping[str, Any]) -> JournalLine:
    return row_of(JournalLine, {"config": "c", "cell": short_hash(record["axes"]), **record}, "line")


def collected(*records: Mapping[str, Any]) -> CellTimings:
    (found,) = collect_timings(plan_cells(made.config()), (1, 2), [parsed(record) for record in records])
    return found


def everything(block: int, but: Sequence[str] = ()) -> list[dict[str, Any]]:
    marks = {"decode": [1.0], "draft": [0.25, 0.5], "draft_catch_up": [0.25], "verify:1": [1.0], "verify:2": [2.0]}
    return [made.line(arm, [mark, mark], block) for arm, mark in marks.items() if arm not in but]


def test_blocks_of_samples_in_order_whatever_the_journals_order() -> None:
    cell = collected(
        made.line("draft", [[3.0, 4.0]], 1), made.line("draft", [[1.0, 2.0], [5.0, 6.0]], 0, first_call_s=7.0)
    )
    arm = cell.arms["draft"]
    assert (arm.status, arm.reason, list(arm.blocks)) == ("ok", "", [0, 1])
    np.testing.assert_array_equal(arm.samples_s, [[1.0, 2.0], [5.0, 6.0], [3.0, 4.0]])
    assert (arm.median_s.tolist(), arm.first_call_s) == ([3.0, 4.0], 7.0)
    assert cell.arms["decode"].median_s.tolist() == []


def test_arms_are_brought_to_one_pace_and_prefills_stay() -> None:
    """Block 1 took three times as long as block 0: what arms have in common is gone, what they differ by stays."""
    times = {"decode": 1.0, "verify:1": 2.0, "prefill_target": 8.0}
    cell = collected(
        *(made.line(arm, [[pace * s]] * 2, block) for block, pace in enumerate((1, 3)) for arm, s in times.items())
    )
    pace = 3**0.5
    for arm, seconds in (("decode", 1.0), ("verify:1", 2.0)):
        found = cell.arms[arm]
        assert found.samples_s[:, 0].tolist() == pytest.approx([pace * seconds] * 4)
        assert found.samples_as_taken_s[:, 0].tolist() == [seconds] * 2 + [3 * seconds] * 2
        assert [block[0, 0] for block in found.blocks_as_taken_s.values()] == [seconds, 3 * seconds]
    assert cell.arms["prefill_target"].samples_s[:, 0].tolist() == [8.0] * 2 + [24.0] * 2


def test_a_machine_that_kept_its_pace_and_an_arm_alone_stay_as_they_are() -> None:
    steady = collected(*everything(0), *everything(1))
    assert steady.arms["draft"].samples_s.tolist() == [[0.25, 0.5]] * 4
    alone = collected(made.line("decode", [[1.0]], 0), made.line("decode", [[1.5]], 1))
    assert alone.arms["decode"].samples_s.tolist() == [[1.0], [1.5]]
    assert alone.arms["decode"].blocks_as_taken_s is alone.arms["decode"].blocks


def test_every_planned_arm_is_there_with_its_reason() -> None:
    cell = collected(*everything(0, but=["verify:2"]), made.line("verify:2", [], status="oom", reason="no room"))
    assert cell.trouble(1) == ("ok", "")
    assert cell.trouble(2) == ("oom", "no room")
    failed = made.line("decode", [], status="failed", reason="RuntimeError: x")
    skipped = made.line("draft", [], status="skipped", reason="larger than one that ran out")
    worst = collected(*everything(0, but=["draft", "decode"]), skipped, failed).trouble(1)
    assert worst == ("failed", "RuntimeError: x")
    again = collected(failed, *everything(0), made.line("decode", [], 1, status="oom", reason="later"))
    decode = again.arms["decode"]  # of lines about one block the last counts, samples before a failure too
    assert (decode.status, decode.reason, decode.ended_by) == ("ok", "later", "oom")
    assert again.trouble(1) == ("ok", "")
    prefill = cell.arms["prefill_target"]
    assert (prefill.status, prefill.reason, prefill.samples_s.shape) == (UNMEASURED, NOT_YET, (0, 1))


def test_arms_that_the_seconds_ended_before_have_no_other_remedy() -> None:
    (late,), (other,) = (collect_timings(plan_cells(made.config()), (1,), [], late={pair}) for pair in "pq")
    assert {arm.reason for arm in late.arms.values()} == {OUT_OF_TIME}
    assert {arm.reason for arm in other.arms.values()} == {NOT_YET}


def test_ragged_marks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"arm draft, block 0: expected .*got samples of 1 and of 2 marks"):
        collected(made.line("draft", [[1.0], [1.0, 2.0]]))


CONFIG = made.config(grid={"batch_size": 1, "context": 64, "gamma": "1:4"}, precision={"relative_ci": 0.02})


def timing(**samples: Callable[[int], float]) -> dict[str, Any]:
    """The warnings of one cell; `samples` gives the time of sample i of an arm (`verify_4` for verify:4)."""
    lines = []
    for arm in arm_names(CONFIG.grid.gamma):
        mark = samples.get(arm.replace(":", "_"), lambda index, arm=arm: made.marks(arm, 4)[-1])
        chain = made.marks(arm, 4)[:-1] if arm == "draft" else []
        lines += [
            parsed(made.line(arm, [[*chain, mark(4 * block + i)] for i in range(4)], block)) for block in range(4)
        ]
    cells = collect_timings(plan_cells(CONFIG), CONFIG.grid.gamma, lines)
    return {warning.code: warning for warning in timing_warnings(CONFIG, "p", cells)}


def recorded(tmp_path: Path, frame: pd.DataFrame, **changes: Any) -> Mapping[str, Mapping[str, str]]:
    """The warnings of a run with these recorded positions, by code."""
    run = write_run(tmp_path / "run", made.config(**changes), {"greedy": frame})
    return {warning["code"]: warning for warning in predict(run).warnings}


def test_a_greedy_draft_that_is_hardly_ever_right_is_no_other_chain(tmp_path: Path) -> None:
    """160 positions with a mean of 0.004: no acceptance at all is what to expect."""
    rare = acceptance_frame(10, 16).assign(draft_argmax_target_prob=lambda frame: 0.004 + 1e-6 * frame["prompt"])
    setting: dict[str, Any] = {"draft_sampling": "greedy"}
    assert "chain_inconsistent" not in recorded(tmp_path / "rare", rare, **setting)
    often = rare.assign(draft_argmax_target_prob=lambda frame: 0.4 + 1e-6 * frame["prompt"])
    assert "chain_inconsistent" in recorded(tmp_path / "often", often, **setting)


def test_recorded_texts_know_prompts_contexts_and_shares() -> None:
    texts = recorded_texts(acceptance_frame(3, 5, context=10).sample(frac=1, random_state=0))
    assert (texts.prompts, texts.positions, texts.null_share) == (3, 15, 0.0)
    assert [texts.covers(context) for context in (9, 10, 14, 15)] == [False, True, True, False]
    assert texts.repeated_share() == 0.0
    assert recorded_texts(acceptance_frame(3, 3)).repeated_share() is None


def busy(*disturbances: Mapping[str, Any] | None, decoded: Sequence[Disturbance] = ()) -> list[str]:
    """What is said of 20 samples of T_decode, five a block, each block disturbed as given."""
    lines = [
        parsed(made.line("decode", [[1.0]] * 5, block, **({} if own is None else own)))
        for block, own in enumerate(disturbances)
    ]
    cells = collect_timings(plan_cells(CONFIG), CONFIG.grid.gamma, lines)
    found = timing_warnings(CONFIG, "p", cells, decoded)
    return [warning.message for warning in found if warning.code == "busy_machine"]


QUIET: dict[str, Any] = {"disturbance": {"wall_s": 5.0, "steal_s": 0.0, "pressure_s": 0.5}}
STOLEN: dict[str, Any] = {
    "disturbance": {
        "wall_s": 5.0, "processor_s": 5.0, "steal_s": 2.4, "pressure_s": 7.5, "disturbed": 3, "retaken": 4,
    }
}  # fmt: skip


def test_a_busy_machine_is_told_with_what_the_system_says() -> None:
    assert busy(QUIET, QUIET, QUIET, QUIET) == []
    assert busy(QUIET, QUIET, QUIET, STOLEN) == [
        "pair p: other programs took the processor during 15 % of 20 samples (worst batch size 1, context 64, argmax; "
        "4 taken again, steal 12 %, pressure 45 %)"
    ]
    blocks = [Disturbance(wall_s=2.0, steal_s=0.5, retaken=1), Disturbance(wall_s=2.0, steal_s=0.5, disturbed=1)]
    decoded = "in 1 of 2 blocks decoded end to end (1 taken again, steal 25 %)"
    assert busy(QUIET, decoded=blocks) == [f"pair p: other programs took the processor {decoded}"]
    (both,) = busy(STOLEN, decoded=blocks)
    assert both.endswith(f"pressure 150 %, 1.00 processors used) and {decoded}")


def test_threads_that_were_held_up_leave_s_less_certain() -> None:
    """Half the samples of T_decode, none of the draft's: a quarter of all, of which .2 is the most."""
    counted = {"wall_s": 5.0, "threads": 2}
    cell = collected(
        made.line("decode", [[1.0]] * 4, disturbance=counted | {"disturbed": 2}),
        made.line("draft", [[1.0]] * 4, disturbance=counted),
    )
    assert cell.waiting_spread(["decode", "draft"]) == pytest.approx(0.2 / 4)
    assert cell.waiting_spread(["decode"]) == pytest.approx(0.2 / 2)
    assert cell.waiting_spread(["verify:1"]) == 0.0


def test_samples_that_an_earlier_release_counted_as_disturbed_are_told() -> None:
    assert busy(None, {"notes": {"disturbed": 4}}) == [
        "pair p: other programs took the processor during 40 % of 10 samples (worst batch size 1, context 64, argmax; "
        "0 taken again)"
    ]
    assert busy(None, {"notes": {"disturbed": "all"}}) == []


STEADY: dict[str, Any] = {f"verify_{gamma}": (lambda index: 1.0) for gamma in (1, 2, 3)}
NOISY: dict[str, Any] = {
    "verify_2": lambda index: 1.25 * (1 + 0.1 * (index % 2)),
    "draft": lambda index: 0.5 + 0.01 * (index % 2),
}
FALLING: dict[str, Any] = {**STEADY, "verify_1": lambda index: 1.25, "verify_4": lambda index: 1.2}
TIMINGS: list[tuple[dict[str, Any], str, bool]] = [
    ({**STEADY, "verify_4": lambda index: 1.05}, "light_machine", True),
    ({**STEADY, "verify_4": lambda index: 1.099}, "light_machine", True),
    ({**STEADY, "verify_4": lambda index: 1.1}, "light_machine", False),
    (NOISY, "not_converged", True),
    (NOISY, "drift", False),
    ({"decode": lambda index: 1.0 if index < 8 else 1.04}, "drift", False),
    ({"decode": lambda index: 1.0 if index < 8 else 1.06}, "drift", True),
    ({"decode": lambda index: 1.0 if index < 8 else 0.94}, "drift", True),
    (FALLING, "verify_falls", True),
    ({"verify_2": lambda index: 1.0 if index % 2 else 1.5}, "verify_falls", False),
]
"""Times of arms by sample, a code, and whether it is warned of."""


def test_timings_that_are_warned_of(snapshot: Callable[[str, str], None]) -> None:
    assert timing() == {}
    shown: dict[str, Any] = {}
    for samples, code, is_warned in TIMINGS:
        found = timing(**samples)
        assert (code in found) is is_warned
        shown |= {code: found[code]} if is_warned else {}
    lines = [parsed(made.line(arm, [made.marks(arm, 4)])) for arm in arm_names(CONFIG.grid.gamma)[:-1]]
    lines.append(parsed(made.line("prefill_draft", [], status="oom", reason="OutOfMemoryError: full")))
    cells = collect_timings(plan_cells(CONFIG), CONFIG.grid.gamma, lines)
    few, full = sorted(timing_warnings(CONFIG, "p", cells), key=lambda one: one.code)
    assert (few.code, full.code) == ("not_converged", "oom")
    texts = [f"{one.code}: {one.message}\n  -> {one.remedy}" for one in (*shown.values(), few, full)]
    snapshot("timing_warnings", "\n".join([*texts, ""]))


OUTSIDE = acceptance_frame(8, 16)
OUTSIDE.loc[OUTSIDE.index == 3, ["target_prob", "draft_prob"]] = np.nan
FRAME = acceptance_frame(10, 16)


@pytest.mark.parametrize(
    ("frame", "changes", "code", "words"),
    [
        (FRAME, {}, None, ""),
        (acceptance_frame(8, 16).assign(token=5), {}, "degenerate_text", "92 % of the 4-grams"),  # 12 of 13 repeat
        (acceptance_frame(7, 16), {}, "few_prompts", "acceptance comes from 7 prompts"),
        (OUTSIDE, {}, "null_target_prob", "0.78 % of 128 tokens"),
        # accepted with 0.9 where the mean is 0.5, a little more or less by prompt
        (FRAME.assign(draft_prob=0.89 + 0.02 * (FRAME["prompt"] % 2)), {}, "chain_inconsistent", "mean by +0.400 a"),
        (FRAME, {"draft_sampling": "greedy", "sampling": [{"name": "greedy"}]}, "draft_timed_drawing", "drawing"),
    ],
)
def test_recorded_texts_that_are_warned_of(
    tmp_path: Path, frame: pd.DataFrame, changes: dict[str, Any], code: str | None, words: str
) -> None:
    found = recorded(tmp_path, frame, **changes)
    assert found == {} if code is None else words in found[code]["message"]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ([{"decision": "undecided"}, {}, {"decision": "undecided", "best_gamma": None}], "undecided", "1 of 2 "),
        ([{}, {"decision": "undecided", "best_gamma": None}], None, ""),
        (
            [{"expected_loss": loss, "context": n} for n, loss in enumerate((0.06, 0.12, 0.05, None))],
            "gamma_uncertain",
            "2 of 4 recommended γ should lose over 5 % against the best one, which the data do not tell; worst pair p, "
            "sampling s, batch size 1, context 1: γ = 2, 12 % expected",
        ),
        ([{"expected_loss": 0.05}, {"expected_loss": 0.5, "decision": "do not speculate"}], None, ""),
    ],
)
def test_decisions_that_are_warned_of(changes: list[dict[str, Any]], code: str | None, words: str) -> None:
    entry = {
        "pair": "p", "sampling": "s", "batch_size": 1, "context": 64, "expected_loss": 0.0, "best_gamma": 3,
        "decision": "speculate", "gamma": 2,
    }  # fmt: skip
    found = {one.code: one.message for one in decision_warnings([entry | one for one in changes])}
    assert list(found) == ([] if code is None else [code])
    assert words in "".join(found.values())


ROW = validation_row(
    plain_over_generate=0.95, rounds_counted=10, rounds_expected=9.0, speedup_predicted=None, speedup_from_counts=1.2,
    speedup_measured=1.25, speedup_measured_low=None, speedup_measured_high=None, cost_error=0.08,
)  # fmt: skip
SLOWER = {"speedup_predicted": 1.2, "speedup_measured": 0.75, "speedup_measured_low": 0.7}
FASTER = {
    "speedup_predicted": 0.9, "speedup_measured": 1.1, "speedup_measured_low": 1.05, "speedup_measured_high": 1.2,
}  # fmt: skip
TEXTS = {"texts_same": 10, "texts_tied": 3, "texts_differ": 0}
AT_64 = {("p", "greedy, batch size 1, context 64"): "failed: RuntimeError: odd"}
AT_65 = {("p", "greedy, batch size 1, context 65"): "oom: full"}


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, **changes}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(), row(cost_error=-0.08)],
        [row(**dict.fromkeys(("plain_over_generate", "rounds_agree", "rounds_expected", "cost_error")))],
        [row(**SLOWER, speedup_measured_high=1.0), row(speedup_predicted=1.2), row(speedup_predicted=None)],
        [row(**SLOWER | {"speedup_predicted": 1.019}, speedup_measured_high=0.8)],
    ],
    ids=["nothing decoded", "as it should be", "unknown", "interval on both sides of 1", "hardly on one side"],
)
def test_what_is_passed_over(rows: list[dict[str, Any]]) -> None:
    assert list(decoding_warnings(rows, {})) == []
    assert list(text_warnings([*rows, row(**TEXTS)])) == []


WORST = {
    "not_decoded": ([], AT_64 | AT_65),
    "prediction_contradicted": ([row(**FASTER, context=65), row(**SLOWER, speedup_measured_high=0.8)], {}),
    "slow_baseline": ([row(plain_over_generate=0.9499), row(plain_over_generate=0.7, context=65)], {}),
    "rounds_unexpected": (
        [
            row(rounds_agree=False, rounds_expected=12.0),
            row(rounds_agree=False, rounds_counted=15, rounds_expected=12.04, gamma=3, batch_size=4),
        ],
        {},
    ),
    "cost_error": ([row(cost_error=0.0801, gamma=3), row(cost_error=-0.25, gamma=4)], {}),
    "not_lossless": ([row(), row(lossless=False, why_not_lossless="acceptance is forced", sampling="t1")], {}),
}
"""By code: rows and reasons, the worst one last."""


def test_one_warning_a_kind_for_the_worst(snapshot: Callable[[str, str], None]) -> None:
    lines = []
    for code, (rows, reasons) in WORST.items():
        (found,) = decoding_warnings(rows, reasons)
        assert found.code == code
        lines += [f"{code}: {found.message}", f"  -> {found.remedy}"]
    (texts,) = text_warnings([row(**TEXTS | {"texts_differ": 1}), row(**TEXTS | {"texts_differ": 2}, context=128)])
    policy = row(**TEXTS | {"texts_differ": 2}, gamma=None, policy="svip")
    lines += [one.message for one in (texts, *text_warnings([policy])) if one.code == "texts_differ"]
    (other,) = decoding_warnings([row(**FASTER)], {})
    (few,) = decoding_warnings([row(rounds_agree=False, rounds_counted=3, rounds_expected=0.0)], {})
    snapshot("validation_warnings", "\n".join([*lines, other.message, few.message, ""]))


def test_one_warning_a_kind_and_pair() -> None:
    reasons = {("p", "here"): "a", ("q", "there"): "b", ("p", "elsewhere"): "c"}
    rows = [row(pair=pair, cost_error=size, plain_over_generate=0.5) for pair in "pq" for size in (0.1, 0.2)]
    assert [(one.code, one.message[5]) for one in decoding_warnings(rows, reasons)] == [
        ("not_decoded", "p"), ("not_decoded", "q"), ("slow_baseline", "p"), ("cost_error", "p"),
        ("slow_baseline", "q"), ("cost_error", "q"),
    ]  # fmt: skip
