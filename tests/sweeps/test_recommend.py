from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specgauge.configs.canonical import strict_loads
from specgauge.model.decision import DISAGREE, OPTIMISTIC
from specgauge.sweeps.analysis.answers import Recommendations
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.answer_table import answer_text, verdict
from specgauge.sweeps.recommend import recommend, recommendations_json
from specgauge.sweeps.store.rows import write_csv
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import ValidationRow
from tests.sweeps import made
from tests.sweeps.analysis.test_predictions import T_ROUND_S, S
from tests.sweeps.made import acceptance_frame, known, write_run
from tests.sweeps.validation_rows import forced_row, validation_row

GRID: dict[str, Any] = {"batch_size": [1, 4], "context": [64, 256], "gamma": "1:3"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("recommend") / "run"
    config = made.config(grid=GRID, sampling=[{"name": "greedy", "temperature": 0}, {"name": "t1"}])
    frames = {"greedy": acceptance_frame(10, 16), "t1": acceptance_frame(10, 16)}
    predict_run(write_run(path, config, frames, broken={(4, 256, "decode"): ("oom", "OutOfMemoryError: full")}))
    return Run.open(path)


def points(run: Run, **wanted: Any) -> list[tuple[str, int, int]]:
    return [(e["sampling"], e["batch_size"], e["context"]) for e in recommend(run, **wanted).entries]


def test_what_is_asked_for_comes_out(run: Run) -> None:
    assert len(points(run)) == 8
    assert points(run, sampling="t1", batch_size=4) == [("t1", 4, 64), ("t1", 4, 256)]
    assert points(run, pair="p", context=256, batch_size=1, sampling="greedy") == [("greedy", 1, 256)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"batch_size": 3}, "batch size 3 was not measured, allowed: 1, 4; the nearest is 4; .* into grid.batch_size"),
        ({"context": 100}, "context 100 was not measured, allowed: 64, 256; the nearest is 64; .* into grid.context"),
        ({"sampling": "greedi"}, r"sampling 'greedi' is not in this run, allowed: greedy, t1; did you mean 'greedy'\?"),
        ({"pair": "other"}, "pair 'other' is not in this run, allowed: p$"),
        ({"max_itl_s": 0.0}, "max_itl_s: expected seconds, above 0, got 0"),
    ],
)
def test_what_was_not_measured_is_refused_with_what_was(run: Run, wanted: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        recommend(run, **wanted)


def test_a_latency_limit_bounds_the_round(run: Run) -> None:
    def entry(max_itl_s: float) -> Any:
        return recommend(run, sampling="greedy", batch_size=1, context=64, max_itl_s=max_itl_s).entries[0]

    assert entry(T_ROUND_S[3])["gamma"] == 2
    bound = entry((T_ROUND_S[1] + T_ROUND_S[2]) / 2)
    assert (bound["decision"], bound["gamma"], bound["best_gamma"]) == ("speculate", 1, 1)
    assert bound["speedup"]["value"] == pytest.approx(S[1], rel=1e-12)
    assert (bound["p_gamma_best"], bound["expected_loss"]) == (1.0, 0.0)
    none_left = entry(1.0)
    assert (none_left["decision"], none_left["gamma"]) == ("do not speculate", None)
    shortest = "no gamma keeps the limit: the shortest round takes 1406 ms; a plain step takes 1000 ms"
    assert none_left["reason"] == shortest
    assert entry(0.5)["reason"] == f"{shortest}, which is over it too"


def test_without_a_limit_that_binds_the_file_and_the_recount_agree(run: Run) -> None:
    assert recommend(run, max_itl_s=1e6).entries == recommend(run).entries


def test_answers_are_a_table_of_80_columns(run: Run, snapshot: Callable[[str, str], None]) -> None:
    some = answer_text(recommend(run, sampling="greedy", batch_size=1, context=64))
    limited = answer_text(recommend(run, sampling="t1", batch_size=1, context=64, max_itl_s=1.0))
    everything = answer_text(recommend(run), every_warning=True)
    snapshot("recommend", "\n\n".join([some, limited, everything]) + "\n")
    assert all(len(line) <= 80 for line in everything.split("\nTRUST")[0].splitlines())


def test_cells_that_are_open_for_one_reason_share_a_line(run: Run) -> None:
    why = "one block or one prompt says nothing about others, however often it is repeated, on any machine"
    text = answer_text(answers(run, decision="undecided", reason=why))
    assert text.partition("  3 cells")[2].partition("\n\n")[0] == (
        ", first batch 1, context 64: one block or one prompt says nothing about\n"
        "    others, however often it is repeated, on any machine"
    )


def test_each_reason_is_told_once_and_what_a_pair_was_refused_for_by_its_warning(run: Run) -> None:
    unknown = {**dict.fromkeys(("value", "low", "high"))}
    settings = [{"sampling": name, "batch_size": size} for name in ("greedy", "t1") for size in (1, 4)]
    first = {**recommend(run).entries[0], "speedup": unknown, "decision": "undecided", "recommended_gamma": None}
    warning = {"code": "pair_refused", "message": "not measured: pair 'p': no weights", "remedy": "…"}

    def told(reason: str) -> list[str]:
        entries = tuple({**first, **setting, "reason": reason} for setting in settings)
        text = answer_text(Recommendations(entries=entries, confidence=0.9, warnings=(warning,)))
        return text.partition("TRUST")[0].splitlines()

    tables = ["p, greedy: no number in 2 cells", "", "p, t1: no number in 2 cells", ""]
    assert told("refused: pair 'p': no weights") == tables
    assert told("oom: full") == [*tables, "  4 cells, first p, greedy, batch 1, context 64: oom: full", ""]


def test_a_run_stopped_before_it_predicted_has_answers(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    for name in ("predictions.csv", "recommendation.yaml"):
        (tmp_path / "run" / name).unlink()
    assert recommend(Run.open(tmp_path / "run")).entries == recommend(run).entries


def answers(run: Run, *warnings: str, errors: Any = (), **changes: Any) -> Recommendations:
    """The answers of one setting, decoded at the γ recommended where there are errors, each entry with changes."""
    entries = [
        {**one, **changes} for one in recommend(run, sampling="greedy").entries if one["speedup"]["value"] is not None
    ]
    rows = [
        validation_row(batch_size=one["batch_size"], context=one["context"], gamma=2, error=error)
        for one, error in zip(entries, errors, strict=False)
    ]
    told = tuple({"code": code, "message": code, "remedy": ""} for code in warnings)
    return Recommendations(
        entries=tuple(entries), max_itl_s=None, confidence=0.9, warnings=told, validation=tuple(rows)
    )


CONFLICT = {"decision": "undecided", "reason": f"{DISAGREE} at gamma 2: …"}


@pytest.mark.parametrize(
    ("told", "level", "reason"),
    [
        ({"errors": [0.02, -0.03, 0.01], "t_overhead_s": 0.1}, "high", "within 2.0 % of measured on average, 3.0 %"),
        ({"errors": [0.02, -0.03, 0.01]}, "middling", "the overhead of a round is not measured in 3 of 3"),
        ({"errors": [0.02, -0.03], "t_overhead_s": 0.1}, "middling", "in 2 of 3 cells"),
        ({"errors": [0.1, 0.1, 0.1], "t_overhead_s": 0.1}, "middling", "within 10.0 %"),
        ({"errors": [0.2, 0.2, 0.2], "t_overhead_s": 0.1}, "low", "within 20.0 %"),
        ({"errors": [0.0] * 3, "t_overhead_s": 0.1, **CONFLICT}, "low", "disagree in 3 of 3 cells"),
        ({}, "low", "no speed-up was decoded end to end; the overhead"),
    ],
)
def test_trust_follows_the_figures(run: Run, told: dict[str, Any], level: str, reason: str) -> None:
    found = answers(run, **told).trust
    assert found.level == level
    assert reason in "; ".join(found.reasons)
    if level == "high":
        assert answers(run, "busy_machine", **told).trust.level == "middling"
        assert answers(run, "generate_differs", **told).trust.level == "low"


def test_a_conflict_is_told_from_what_is_only_open(run: Run) -> None:
    words = [verdict(answers(run, **one).entries[0]) for one in ({}, CONFLICT, {"decision": "undecided"})]
    assert words == ["speculate", "conflict", "undecided"]
    assert verdict(answers(run, decision="do not speculate").entries[0]) == "don't"


def test_trust_is_kept_and_printed_alike(run: Run) -> None:
    trust = {
        "level": "low",
        "reasons": ["no speed-up was decoded end to end", "the overhead of a round is not measured in 6 of 6"],
    }
    assert yaml.safe_load((run.path / "recommendation.yaml").read_text(encoding="utf-8"))["trust"] == trust
    found = recommend(run)
    document = strict_loads(recommendations_json(found))
    assert document["trust"] == trust
    text = answer_text(found)
    assert f"TRUST: LOW, {'; '.join(trust['reasons'])}\nnext: {document['next_step']}\n" in text


def test_three_warnings_are_shown_the_heaviest_first(run: Run) -> None:
    told = answers(run, "few_prompts", "drift", "oom", "not_lossless")
    lines = answer_text(told).splitlines()
    assert lines[-4:-1] == [f"warning: {code} → " for code in ("not_lossless", "oom", "drift")]
    assert lines[-1].startswith("1 more warning: ")
    assert "warning: few_prompts" in answer_text(told, every_warning=True)


@pytest.fixture
def validated(run: Run, tmp_path: Path) -> Callable[..., Run]:
    """The run with rows of validation.csv, and with ε in the recommendations of some points (all of them: None)."""

    def copied(*rows: dict[str, Any], known: set[tuple[str, int, int]] | None = None) -> Run:
        path = tmp_path / "run"
        shutil.copytree(run.path, path)
        write_csv(path / "validation.csv", ValidationRow, rows)
        answers = yaml.safe_load((path / "recommendation.yaml").read_text(encoding="utf-8"))
        for entry in answers["recommendations"]:
            if known is None or (entry["sampling"], entry["batch_size"], entry["context"]) in known:
                entry["t_overhead_s"] = 0.25
        made.restamp(path, **answers)
        return Run.open(path)

    return copied


def test_what_was_measured_stands_beside_what_was_predicted(
    validated: Callable[..., Run], snapshot: Callable[[str, str], None]
) -> None:
    """At its γ, at the nearest one decoded (ε, known only then, may have moved the γ), with and without an interval."""
    once = {"blocks": 1, "speedup_measured_low": None, "speedup_measured_high": None, "speedup_whole": None}
    rows = [
        validation_row(),
        validation_row(gamma=3, error=-0.02),
        *(validation_row(context=256, gamma=gamma, speedup_measured=gamma / 2, error=0.5) for gamma in (3, 4, 1)),
        validation_row(batch_size=4, **once),
    ]
    found = validated(*rows)
    some = recommend(found, sampling="greedy", batch_size=1, context=64)
    others = recommend(found, sampling="t1", context=64)
    snapshot("recommend_measured", "\n\n".join(map(answer_text, (recommend(found), some, others))) + "\n")
    nearest = recommend(found, sampling="greedy", batch_size=1, context=256)
    row = known(nearest.nearest_measured(nearest.entries[0]))
    assert (nearest.entries[0]["recommended_gamma"], row["gamma"]) == (2, 1)
    assert document(nearest)["recommendations"][0]["speedup_measured"] is None


def document(answers: Recommendations) -> Any:
    return strict_loads(recommendations_json(answers))


def test_optimistic_is_said_only_where_the_overhead_is_unknown(validated: Callable[..., Run]) -> None:
    found = validated(validation_row(), known={("greedy", 1, 64), ("greedy", 4, 64)})
    # 8 cells, of which one at each setting has no number
    assert "not measured in 4 of 6" in answer_text(recommend(found))
    assert "not measured" not in answer_text(recommend(found, sampling="greedy", context=64))
    content = document(recommend(found, context=64))
    labels = {(e["sampling"], e["batch_size"]): e["label"] for e in content["recommendations"]}
    assert labels[("greedy", 1)] is None
    assert (labels[("t1", 1)], content["label"]) == (OPTIMISTIC, None)
    assert document(recommend(found, sampling="t1"))["label"] == OPTIMISTIC


def test_forced_acceptance_is_no_measured_speedup(validated: Callable[..., Run]) -> None:
    answers = recommend(validated(forced_row()), sampling="greedy", batch_size=1, context=64)
    assert answers.nearest_measured(answers.entries[0]) is None
    content = document(answers)
    assert (content["validation"]["forced"], content["validation"]["speedup_error_mean"]) == (1, None)
    assert content["recommendations"][0]["speedup_measured"] is None


def test_json_tells_what_was_measured(run: Run, validated: Callable[..., Run]) -> None:
    whole = document(recommend(run))
    assert (len(whole["recommendations"]), whole["confidence"], whole["max_itl_s"]) == (8, 0.9, None)
    assert (whole["recommendations"][0]["speedup"]["value"], whole["validation"]) == (pytest.approx(S[2]), None)
    alone = {"speedup_measured_low": None, "speedup_measured_high": None, "acceptance_error_low": None}
    content = document(recommend(validated(validation_row(**alone)), sampling="greedy", batch_size=1))
    first, second = content["recommendations"]
    assert (first["speedup_measured"], first["speedup_whole"]) == ({"value": 1.5, "low": None, "high": None}, 1.4)
    assert (second["speedup_measured"], second["speedup_whole"]) == (None, None)
    validation = content["validation"]
    assert [validation[name] for name in ("cells", "speedup_error_worst", "acceptance_known")] == [1, 0.1, 0]


def test_points_that_rules_leave_out_are_refused_as_such(tmp_path: Path) -> None:
    pair = {"name": "p", "target": "embedded", "draft": "embedded"}
    exclude = [{"pair": "q"}, {"batch_size": 4, "context": 64}]
    config = made.config(pairs=[pair, {**pair, "name": "q", "mode": "compile"}], grid={**GRID, "exclude": exclude})
    predict_run(write_run(tmp_path / "run", config, {"greedy": acceptance_frame(10, 16)}))
    found = Run.open(tmp_path / "run")
    assert points(found) == [("greedy", 1, 64), ("greedy", 1, 256), ("greedy", 4, 256)]
    with pytest.raises(ValueError, match="256; the nearest is 256; there the rules of the grid leave it out"):
        recommend(found, batch_size=4, context=64)
    with pytest.raises(ValueError, match="pair 'q' is not in this run, allowed: p"):
        recommend(found, pair="q")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([validation_row(batch_size=4, speedup_whole=0.98), validation_row(speedup_whole=1.2)], "0.98 to 1.20 ×. {}"),
        ([validation_row(batch_size=4, speedup_whole=0.981)], "0.98 ×. {}"),
        ([validation_row(speedup_whole=0.98)], "0.98 ×. Under 1 at batch 1 the draft's prefill takes "),
        ([validation_row(speedup_whole=1.0)], "1.00 ×. TRUST"),
    ],
)
def test_whole_requests_that_took_longer_are_told(
    validated: Callable[..., Run], rows: list[dict[str, Any]], told: str
) -> None:
    under = "Under 1 (batch 4) it pays only where a finished text's place in the batch is filled at once."
    answers = recommend(validated(*rows))
    assert f"its longest text: {told.format(under)}" in " ".join(answer_text(answers).split())
    assert answers.whole_requests_lose == (answers.whole_requests if "Under 1" in answers.whole_requests else "")


def test_the_table_has_the_speedup_that_the_rates_go_by(validated: Callable[..., Run]) -> None:
    """S from all evidence with its interval, the two figures that it comes from, and plain · S = spec."""
    found = recommend(validated(validation_row()), sampling="greedy", batch_size=1, context=64)
    told = dict(found.entries[0]) | {"speedup": {"value": 1.4, "low": 1.2, "high": 1.6}, "t_decode_s": 0.01}
    lines = answer_text(replace(found, entries=(told,))).splitlines()
    assert lines[1:3] == [
        "batch    ctx  verdict    γ  S (90 %)         pred. measured  plain   spec  round",
        "    1     64  speculate  2  1.40 (1.20-1.60)  1.15     1.50    100    140 1515.6",
    ]
    assert all(len(line) <= 80 for line in lines[:5])
