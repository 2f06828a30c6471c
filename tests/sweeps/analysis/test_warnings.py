from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specgauge.model.arms import arm_names
from specgauge.sweeps.analysis.acceptance import recorded_texts
from specgauge.sweeps.analysis.predictions import predict
from specgauge.sweeps.analysis.timings import collect_timings
from specgauge.sweeps.analysis.warnings import decision_warnings, timing_warnings
from specgauge.sweeps.plan import plan_cells
from tests.sweeps import made
from tests.sweeps.analysis.test_timings import parsed
from tests.sweeps.made import acceptance_frame, write_run

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


def test_nothing_to_warn_of() -> None:
    assert timing() == {}


@pytest.mark.parametrize(("t_verify_s", "warned"), [(1.05, True), (1.099, True), (1.1, False), (1.3, False)])
def test_a_machine_that_verifies_for_nothing(t_verify_s: float, warned: bool) -> None:
    steady = {f"verify_{gamma}": (lambda index: 1.0) for gamma in (1, 2, 3)}
    found = timing(verify_4=lambda index: t_verify_s, **steady)
    assert ("light_machine" in found) is warned
    if warned:
        assert f"verifying 4 drafts takes only {t_verify_s:.2f} × a decode step" in found["light_machine"].message
        assert "this machine does not show what a loaded GPU would" in found["light_machine"].message
        assert found["light_machine"].remedy.startswith("measure on the machine that will serve")


def test_what_did_not_converge_is_named_with_the_remedy() -> None:
    found = timing(verify_2=lambda index: 1.25 * (1 + 0.1 * (index % 2)), draft=lambda index: 0.5 + 0.01 * (index % 2))
    assert "1 of 1 cell not known to ±2 %; worst batch size 1, context 64, argmax, verify:2: ±4.8 %" in (
        found["not_converged"].message
    )
    assert "raise precision.max_seconds and max_blocks" in found["not_converged"].remedy
    assert "drift" not in found


def test_a_single_block_is_not_known_at_all() -> None:
    lines = [parsed(made.line(arm, [made.marks(arm, 4)])) for arm in arm_names(CONFIG.grid.gamma)]
    cells = collect_timings(plan_cells(CONFIG), CONFIG.grid.gamma, lines)
    (warning,) = timing_warnings(CONFIG, "p", cells)
    assert warning.code == "not_converged"
    assert warning.message.endswith("not at all (too few samples)")


@pytest.mark.parametrize(("later", "warned"), [(1.04, False), (1.06, True), (0.94, True)])
def test_halves_that_differ(later: float, warned: bool) -> None:
    found = timing(decode=lambda index: 1.0 if index < 8 else later)
    assert ("drift" in found) is warned
    if warned:
        assert "decode: 6 %" in found["drift"].message


def test_verify_that_falls_with_gamma() -> None:
    found = timing(verify_2=lambda index: 1.0, verify_3=lambda index: 1.0, verify_4=lambda index: 1.2)
    assert "T_verify falls with γ in 1 of 1 cell; most from γ = 1 to 2" in found["verify_falls"].message
    assert found["verify_falls"].message.endswith(": × 0.80")
    noisy = timing(verify_2=lambda index: 1.0 if index % 2 else 1.5)
    assert "verify_falls" not in noisy


def test_arms_without_times_are_told_by_status() -> None:
    lines = [parsed(made.line(arm, [made.marks(arm, 4)] * 8)) for arm in arm_names(CONFIG.grid.gamma)[:-1]]
    lines.append(parsed(made.line("prefill_draft", [], status="oom", reason="OutOfMemoryError: full")))
    cells = collect_timings(plan_cells(CONFIG), CONFIG.grid.gamma, lines)
    (warning,) = timing_warnings(CONFIG, "p", cells)
    assert asdict(warning) == {
        "code": "oom",
        "message": "pair p: 1 of 1 cell oom, first batch size 1, context 64, argmax, prefill_draft: "
        "OutOfMemoryError: full",
        "remedy": "lower grid.batch_size or grid.context, or load the models in a smaller dtype",
    }


def test_recorded_text_that_is_fine(tmp_path: Path) -> None:
    assert recorded(tmp_path, acceptance_frame(8, 16)) == {}


def test_text_that_loops(tmp_path: Path) -> None:
    """Of 13 4-grams of one token 12 repeat: 92 %."""
    found = recorded(tmp_path, acceptance_frame(8, 16).assign(token=5))
    assert "92 % of the 4-grams repeat earlier ones" in found["degenerate_text"]["message"]


def test_few_prompts(tmp_path: Path) -> None:
    found = recorded(tmp_path, acceptance_frame(7, 16))
    assert found["few_prompts"]["message"] == "pair p: acceptance comes from 7 prompts; its interval is hardly known"


def test_tokens_outside_the_support_are_counted(tmp_path: Path) -> None:
    frame = acceptance_frame(8, 16)
    outside = frame.index == 3
    frame.loc[outside, ["target_prob", "draft_prob"]] = np.nan
    found = recorded(tmp_path, frame)
    assert "0.78 % of 128 tokens lie outside" in found["null_target_prob"]["message"]


def test_texts_of_another_chain(tmp_path: Path) -> None:
    """Accepted with 0.9 where the mean is 0.5, a little more or less by prompt."""
    frame = acceptance_frame(10, 16)
    found = recorded(tmp_path, frame.assign(draft_prob=0.89 + 0.02 * (frame["prompt"] % 2)))
    assert "acceptance differs from its own mean by +0.400 a token" in found["chain_inconsistent"]["message"]


def test_a_greedy_draft_that_is_hardly_ever_right_is_no_other_chain(tmp_path: Path) -> None:
    """160 positions with a mean of 0.004: no acceptance at all is what to expect."""
    rare = acceptance_frame(10, 16).assign(draft_argmax_target_prob=lambda frame: 0.004 + 1e-6 * frame["prompt"])
    setting: dict[str, Any] = {"draft_sampling": "greedy"}
    assert "chain_inconsistent" not in recorded(tmp_path / "rare", rare, **setting)
    often = rare.assign(draft_argmax_target_prob=lambda frame: 0.4 + 1e-6 * frame["prompt"])
    assert "chain_inconsistent" in recorded(tmp_path / "often", often, **setting)


def test_a_greedy_draft_timed_drawing(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"draft_sampling": "greedy", "sampling": [{"name": "greedy"}]}
    assert "draft_timed_drawing" in recorded(tmp_path, acceptance_frame(10, 16), **changes)


def test_undecided_entries_are_counted() -> None:
    entry = {"pair": "p", "sampling": "s", "batch_size": 1, "context": 64, "expected_loss": 0.0}
    entries = [
        entry | {"decision": "undecided", "best_gamma": 2},
        entry | {"decision": "speculate", "best_gamma": 2},
        entry | {"decision": "undecided", "best_gamma": None},
    ]
    (warning,) = decision_warnings(entries)
    assert warning.message.startswith("1 of 2 recommendations are undecided, first pair p, sampling s, batch size 1")
    assert list(decision_warnings(entries[1:])) == []


def test_gammas_that_should_lose_much_are_told_with_the_worst() -> None:
    entry = {"pair": "p", "sampling": "s", "batch_size": 1, "best_gamma": 3, "decision": "speculate", "gamma": 2}
    entries = [
        entry | {"context": 64, "expected_loss": 0.06},
        entry | {"context": 65, "expected_loss": 0.12},
        entry | {"context": 66, "expected_loss": 0.05},
        entry | {"context": 67, "expected_loss": None},
        entry | {"context": 68, "expected_loss": 0.5, "decision": "do not speculate"},
    ]
    (warning,) = decision_warnings(entries)
    assert warning.code == "gamma_in_doubt"
    assert warning.message == (
        "2 of 5 recommended γ should lose over 5 % against the best one, which the data do not tell; worst pair p, "
        "sampling s, batch size 1, context 65: γ = 2, 12 % expected"
    )
    assert list(decision_warnings(entries[2:])) == []


def test_recorded_texts_know_prompts_contexts_and_shares() -> None:
    texts = recorded_texts(acceptance_frame(3, 5, context=10).sample(frac=1, random_state=0))
    assert (texts.prompts, texts.positions, texts.null_share) == (3, 15, 0.0)
    assert [texts.covers(context) for context in (9, 10, 14, 15)] == [False, True, True, False]
    assert texts.repeated_share() == 0.0
    assert recorded_texts(acceptance_frame(3, 3)).repeated_share() is None
