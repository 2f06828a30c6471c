from __future__ import annotations

import json
from typing import Any

import pytest

from specgauge.sweeps.predictions import predict_run
from specgauge.sweeps.recommend import answer_text, answers_json, answers_text, recommend
from specgauge.sweeps.rundir import Run
from tests.sweeps import made
from tests.sweeps.made import acceptance_frame, write_run
from tests.sweeps.test_predictions import T_ROUND_S, S


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("recommend") / "run"
    config = made.config(
        grid={"batch_size": [1, 4], "context": [64, 256], "gamma": "1:3"},
        sampling=[{"name": "greedy", "temperature": 0}, {"name": "t1"}],
    )
    frames = {"greedy": acceptance_frame(10, 16), "t1": acceptance_frame(10, 16)}
    predict_run(write_run(path, config, frames, broken={(4, 256, "decode"): ("oom", "OutOfMemoryError: full")}))
    return Run.open(path)


def places(run: Run, **wanted: Any) -> list[tuple[str, int, int]]:
    return [(e["sampling"], e["batch_size"], e["context"]) for e in recommend(run, **wanted).entries]


def test_what_is_asked_for_comes_out(run: Run) -> None:
    assert len(places(run)) == 8
    assert places(run, sampling="t1", batch_size=4) == [("t1", 4, 64), ("t1", 4, 256)]
    assert places(run, pair="p", context=256, batch_size=1, sampling="greedy") == [("greedy", 1, 256)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"batch_size": 3}, "batch size 3 was not measured, allowed: 1, 4; the nearest is 4; .* into grid.batch_size"),
        ({"context": 100}, "context 100 was not measured, allowed: 64, 256; the nearest is 64"),
        ({"sampling": "greedi"}, r"sampling 'greedi' is not in this run, allowed: greedy, t1; did you mean 'greedy'\?"),
        ({"pair": "other"}, "pair 'other' is not in this run, allowed: p$"),
        ({"max_itl_s": 0.0}, "max_itl_s: found 0, allowed: seconds, above 0"),
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
    assert none_left["reason"] == "no gamma keeps the limits"


def test_without_a_limit_that_binds_the_file_and_the_recount_agree(run: Run) -> None:
    assert recommend(run, max_itl_s=1e6).entries == recommend(run).entries


def test_text_is_a_line_to_act_on(run: Run) -> None:
    text = answers_text(recommend(run, sampling="greedy", batch_size=1, context=64))
    assert text.splitlines()[:2] == [
        "pair p, sampling greedy",
        "  batch size 1, context 64: speculate with γ = 2, 1.15 × as fast as plain decoding "
        "(90 % interval 1.15 to 1.15); expected loss against the best γ 0.0 %",
    ]
    assert "S is optimistic: overhead not measured" in text
    limited = answers_text(recommend(run, batch_size=1, context=64, max_itl_s=1.0))
    assert "  batch size 1, context 64: do not speculate: no gamma keeps the limits" in limited
    assert "Rounds of over 1000 ms were left out." in limited
    assert "batch size 4, context 256: unknown, oom: OutOfMemoryError: full" in answer_text(run)
    assert "Warnings" in answer_text(run)


def test_json_is_strict(run: Run) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads(answers_json(recommend(run)), parse_constant=refuse)
    assert len(content["recommendations"]) == 8
    assert content["confidence"] == 0.9
    assert content["max_itl_s"] is None
    assert content["recommendations"][0]["speedup"]["value"] == pytest.approx(S[2], rel=1e-12)
