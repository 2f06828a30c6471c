"""Which answers of a run are exported, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import Config
from specgauge.model.decision import OPTIMISTIC
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.exports.answers import DraftSource, ServingAnswers
from specgauge.sweeps.exports.engine import DraftRules
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.store.rows import write_csv
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import ValidationRow
from tests.sweeps.exports.made_engine import MadeEngine, config, write_run
from tests.sweeps.made import restamp
from tests.sweeps.validation_rows import validation_row

GREEDY = DraftRules(draft_sampling="greedy", acceptance_rule="ratio")
SAME = DraftRules(draft_sampling="same", acceptance_rule="ratio")
T1: dict[str, Any] = {"sampling": [{"name": "t1"}]}


def made(path: Path, config: Config, **changes: Any) -> Run:
    return write_run(path / "run", MadeEngine(), config, **changes)


def answers(run: Run, rules: DraftRules = SAME, **options: Any) -> ServingAnswers:
    return run_answers(run, rules, **{"undecided": "off", **options})


def test_at_measured_batch_sizes_they_are_those_of_recommend(tmp_path: Path) -> None:
    run = made(tmp_path, config((1, 8, 96), contexts=(64, 128)))
    predict_run(run)
    for context in (64, 128):
        found = {point.batch_size: point for point in answers(run, context=context).points}
        for entry in recommend(run, context=context).entries:
            point = found[entry["batch_size"]]
            assert (point.verdict, point.reason) == (entry["decision"], entry["reason"])
            assert point.gamma == (entry["gamma"] or 0)
            figures = point.by_gamma[entry["recommended_gamma"]]
            assert (figures.speedup, figures.low, figures.high) == pytest.approx(tuple(entry["speedup"].values()))
            assert figures.t_round_s == pytest.approx(entry["t_round_s"])


def test_it_says_what_it_rests_on(tmp_path: Path) -> None:
    found = answers(made(tmp_path, config((4,))))
    assert (found.pair, found.sampling, found.context) == ("p", "greedy", 64)
    assert (found.target, found.draft) == ("org/target", DraftSource(kind="model", model="org/draft"))
    assert found.origin == "measured 2026-01-02 on Some CPU"
    on_its_kind = made(tmp_path / "kinds", config((4,)))
    (pair,) = on_its_kind.config.pairs
    pairs = (pair.model_copy(update={"accelerator_type": "L4"}),)
    devices = {"H100": {"device": "NVIDIA H100"}, "L4": {"device": "NVIDIA L4"}}
    on_its_kind = replace(
        on_its_kind, config=on_its_kind.config.model_copy(update={"pairs": pairs}), environment={"devices": devices}
    )
    assert answers(on_its_kind).origin == "measured 2026-01-02 on NVIDIA L4"
    assert found.notes == (f"S is {OPTIMISTIC}",)
    assert found.reach.startswith(
        "below batch size 4 nothing was measured: γ is as there; only batch size 4 was measured"
    )
    assert found.warnings == ()


def test_it_says_where_whole_requests_took_longer_in_the_words_of_recommend(tmp_path: Path) -> None:
    run = made(tmp_path, config((1, 8), contexts=(64, 128)))
    predict_run(run)
    (at,) = recommend(run, batch_size=8, context=64).entries
    row = validation_row(batch_size=8, context=64, gamma=at["recommended_gamma"], speedup_whole=0.98)
    write_csv(run.path / "validation.csv", ValidationRow, [row])
    restamp(run.path)
    told = recommend(run, context=64).whole_requests
    assert "0.98 ×. Under 1 (batch 8)" in told
    assert answers(run, context=64).notes[-1] == told
    assert answers(run, context=128).notes == (f"S is {OPTIMISTIC}",)


@pytest.mark.parametrize(
    ("draft", "source"),
    [
        ("ngram", DraftSource(kind="ngram", longest=3, shortest=1)),
        ({"layers": 4}, DraftSource(kind="layers", layers=4)),
        ("embedded", DraftSource(kind="model")),
    ],
)
def test_drafts_of_every_kind(tmp_path: Path, draft: Any, source: DraftSource) -> None:
    pair = {"name": "p", "target": "embedded", "draft": draft}
    found = answers(made(tmp_path, config((1,), pairs=[pair], **T1)))
    assert found.rules_differ is (source.kind != "ngram")
    assert (found.target, found.draft) == (None, source)


def test_what_was_not_named_is_chosen_and_told(tmp_path: Path) -> None:
    settings = [{"name": "greedy", "temperature": 0}, {"name": "t1"}]
    run = made(tmp_path, config((1,), contexts=(64, 128), sampling=settings))
    found = answers(run)
    assert (found.sampling, found.context) == ("greedy", 128)
    assert found.warnings == (
        "sampling greedy was taken of greedy, t1: --sampling chooses",
        "context 128 was taken of 64, 128: --context chooses",
    )
    assert answers(run, sampling="t1", context=64).warnings == ()
    with pytest.raises(ValueError, match="context 100 was not measured, allowed: 64, 128"):
        answers(run, context=100)


def test_one_of_several_pairs_has_to_be_named(tmp_path: Path) -> None:
    pairs = [{"name": name, "target": "org/target", "draft": "org/draft"} for name in ("p", "q")]
    run = made(tmp_path, config((1,), pairs=pairs))
    with pytest.raises(ValueError, match="pair: expected one of p, q, since an engine takes one draft, got none"):
        answers(run)
    assert answers(run, pair="p").pair == "p"


def test_batch_sizes_without_an_answer_are_told(tmp_path: Path) -> None:
    run = made(tmp_path, config((1, 8, 32)), broken=(8,))
    found = answers(run)
    assert found.warnings == ("batch size 8 is not known (oom: out of memory)",)
    assert [point.batch_size for point in found.points] == [1, 32]
    assert (found.ranges[0].first, found.largest_batch) == (1, 32)


def test_nothing_known_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path, config((1,)), broken=(1,))
    with pytest.raises(ValueError, match=r"run: nothing to export, no batch size is known \(oom: out of memory\)"):
        answers(run)


def test_one_prompt_decides_nothing(tmp_path: Path) -> None:
    run = made(tmp_path, config((1,)), prompts=1)
    found = answers(run)
    assert [(one.gamma, one.verdict) for one in found.ranges] == [(0, "undecided")]
    assert found.points[0].label == ("batch 1: γ 0, undecided: one block or one prompt says nothing about others")
    with pytest.raises(
        ValueError,
        match=r"nothing to export, speculation is known to pay at no batch size; batch 1: .*; --undecided gamma ",
    ):
        _ = found.largest_gamma
    chosen = answers(run, undecided="gamma").points[0]
    assert chosen.gamma > 0
    assert chosen.label.endswith("undecided: one block or one prompt says nothing about others")
    assert answers(run, undecided=2).fixed(None).gamma == 2


@pytest.mark.parametrize("prompts", [1, 6])
def test_a_gamma_that_was_not_measured_is_refused_whether_or_not_something_is_undecided(
    tmp_path: Path, prompts: int
) -> None:
    run = made(tmp_path, config((1,)), prompts=prompts)
    with pytest.raises(ValueError, match="or a gamma that was measured, 1, 2, 3, 4, 5, 6, 7, 8, got 9"):
        answers(run, undecided=9)


class TestDraftRules:
    """How drafts are drawn: what the run was configured for, or the same positions under the engine's rule."""

    def test_the_engines_default_is_taken_where_the_run_has_it(self, tmp_path: Path) -> None:
        run = made(tmp_path, config((1,), **T1, draft_sampling=["same", "greedy"]), greedy_share=0.9)
        assert answers(run, GREEDY).draft_sampling == "greedy"
        assert answers(run, SAME).draft_sampling == "same"
        assert answers(run, GREEDY, draft_sampling="same").draft_sampling == "same"

    def test_the_rule_is_the_engines_where_the_run_has_it(self, tmp_path: Path) -> None:
        run = made(tmp_path, config((1,), **T1, acceptance_rule=["ratio", "match"]))
        rules = DraftRules(draft_sampling="same", acceptance_rule="match")
        assert (answers(run, rules).acceptance_rule, answers(run).acceptance_rule) == ("match", "ratio")

    def test_greedy_drafts_are_answered_from_the_same_positions(self, tmp_path: Path) -> None:
        """Of ten positions, nine hold the draft's argmax: greedy drafts fare better than drawn ones at 3 in 4."""
        run = made(tmp_path, config((1, 8), **T1), greedy_share=0.9)
        drawn, greedy = answers(run, GREEDY), answers(run, GREEDY, draft_sampling="greedy")
        assert (drawn.draft_sampling, greedy.draft_sampling) == ("same", "greedy")
        for before, after in zip(drawn.points, greedy.points, strict=True):
            assert before.by_gamma[1].tokens_per_round == pytest.approx(1.75, rel=1e-3)
            assert 1.75 < after.by_gamma[1].tokens_per_round < 2
            assert after.gamma > before.gamma
        assert "the time of a draft step is that of drawn drafts; greedy ones were not timed" in greedy.notes
        assert run.config.draft_sampling == ("same",)

    def test_what_was_not_recorded_says_how_to(self, tmp_path: Path) -> None:
        run = made(tmp_path, config((1,), **T1))
        (run.path / "acceptance" / "p--t1.parquet").unlink()
        told = r"no drafts were recorded from which greedy ones could be answered, only same ones; record both with "
        with pytest.raises(ValueError, match=told + r"`specgauge run … --set draft_sampling=\[same,greedy\]`"):
            answers(run, draft_sampling="greedy")
        with pytest.raises(
            ValueError, match="draft sampling: expected same or greedy, got 'gredy'; did you mean 'gree"
        ):
            answers(run, draft_sampling="gredy")

    def test_a_greedy_target_makes_all_rules_alike(self, tmp_path: Path) -> None:
        run = made(tmp_path, config((1,)))
        found = answers(run, GREEDY)
        assert (found.rules_differ, found.draft_sampling) == (False, "same")
        assert answers(run, GREEDY, draft_sampling="greedy").points == found.points
        assert answers(made(tmp_path / "t1", config((1,), **T1))).rules_differ is True
