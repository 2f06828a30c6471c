from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from specgauge.configs.canonical import short_hash
from specgauge.sweeps.analysis.timings import NOT_YET, UNMEASURED, CellTimings, collect_timings
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.rows import row_of
from specgauge.sweeps.store.schema import JournalLine
from tests.sweeps import made

GAMMAS = (1, 2)


def parsed(record: Mapping[str, Any]) -> JournalLine:
    return row_of(JournalLine, {"config": "c", "cell": short_hash(record["axes"]), **record}, "line")


def collected(*records: Mapping[str, Any]) -> CellTimings:
    (found,) = collect_timings(plan_cells(made.config()), GAMMAS, [parsed(record) for record in records])
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


def test_ragged_marks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"arm draft, block 0: expected .*got samples of 1 and of 2 marks"):
        collected(made.line("draft", [[1.0], [1.0, 2.0]]))
