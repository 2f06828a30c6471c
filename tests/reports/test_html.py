import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specgauge.model.arms import arm_names
from specgauge.reports.html import write_report
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.rundir import Run, acceptance_file_name
from tests.reports.pages import Page, read_page
from tests.reports.synthetic import Shape, acceptance_frame, build_run, prediction_rows
from tests.sweeps import made

HOSTILE = """<script>alert('x')</script> & "quoted" 'single' {{ 7 * 7 }} </style>"""
ONE = Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64,))
BROKEN = Shape(
    batch_sizes=(1, 4, 16),
    contexts=(64, 256),
    broken={
        (16, 64): ("failed", "RuntimeError: index out of range"),
        (4, 256): ("oom", "OutOfMemoryError: tried to allocate 2.00 GiB"),
        (16, 256): ("skipped", "out of memory already at batch size 4, context 256"),
    },
)


def report(folder: Path, shape: Shape | None = None) -> tuple[str, Page]:
    html = write_report(build_run(folder / "run", shape)).read_text(encoding="utf-8")
    return html, read_page(html)


def test_it_is_written_into_the_run_or_where_asked(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    assert write_report(run) == run / "report.html"
    assert write_report(run, tmp_path / "else.html") == tmp_path / "else.html"
    assert (tmp_path / "else.html").read_bytes() == (run / "report.html").read_bytes()


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    first = write_report(run).read_bytes()
    (tmp_path / "elsewhere").mkdir()
    run.rename(tmp_path / "elsewhere" / "run")
    assert write_report(tmp_path / "elsewhere" / "run").read_bytes() == first


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        BROKEN,
        Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(256,), gammas=(3,)),
        Shape(alphas={"t1": 0.4, "greedy": 0.45}, draft_share=0.4),
        Shape(alphas={"t1": 0.55}, doubt=0.15),
        Shape(pairs=("a", "b"), draft_sampling=("same", "greedy"), acceptance_rule=("ratio", "match"), contexts=(64,)),
        Shape(overhead_s=0.001),
        Shape(with_acceptance=False),
        Shape(with_predictions=False),
        Shape(with_acceptance=False, with_predictions=False),
        Shape(batch_sizes=(1, 2, 4, 8), contexts=(16, 64, 256, 1024), gammas=tuple(range(1, 17))),
    ],
)
def test_every_run_gives_a_sound_offline_page(shape: Shape, tmp_path: Path) -> None:
    html, page = report(tmp_path, shape)
    assert "http" not in html
    for anchor in ("answers", "warnings", "acceptance", "predictions", "timings", "environment", "glossary"):
        assert page.ids.count(anchor) == 1
        assert f"#{anchor}" in page.links


def test_the_answer_is_a_sentence(tmp_path: Path) -> None:
    _, page = report(tmp_path, ONE)
    # γ = 2: Ω = 1 + .7 + .49 = 2.19; a round costs .3 + 1.12 + .49 · .015 = 1.42735 of T_decode; S = 1.5343
    assert (
        "At batch 1 and 64 tokens of context: speculate with γ = 2: 1.53\u202f× (90\u202f% interval 1.49–1.58)."
        in page.text
    )
    assert "Speculate with γ = 2: 1.53\u202f× plain decoding is predicted in the one setting." in page.text
    assert "optimistic: overhead not measured" in page.text


def test_every_prediction_is_in_the_table(tmp_path: Path) -> None:
    html, _ = report(tmp_path)
    body = html[html.index('id="predictions"') :]
    rows = re.findall(r"<tr(?: class=\"chosen\")?><th scope=\"row\" class=\"words\">(\d+)</th>(.*?)</tr>", body)
    cells = [[gamma, *re.findall(r"<td[^>]*>([^<]*)</td>", rest)] for gamma, rest in rows]
    expected = prediction_rows(Shape())
    assert len(cells) >= len(expected)
    for found, row in zip(cells, expected, strict=False):
        assert found[0] == str(row["gamma"])
        assert found[1:3] == [f"{row['speedup']:.2f}", f"{row['speedup_low']:.2f}–{row['speedup_high']:.2f}"]
        assert found[5] == f"{row['tokens_per_round']:.2f}"
        assert found[8] == f"{1e3 * row['t_decode_s']:.1f}"
        assert found[9] == f"{1e3 * row['t_draft_total_s']:.2f}"
        assert found[12] == "–", "the overhead is unknown"
    assert body.count('<tr class="chosen">') == 8, "one row to use for each of 2 settings × 2 batch sizes × 2 contexts"
    assert "every time and acceptance: measured; every speed-up is optimistic: overhead not measured." in body


def test_how_a_number_is_known_is_told_row_by_row_where_it_differs(tmp_path: Path) -> None:
    _, page = report(tmp_path, replace(ONE, contexts=(16, 64)))
    assert "cost measured, acceptance extrapolated" in page.text
    assert "every time and acceptance:" not in page.text


def test_a_measured_overhead_is_shown_and_nothing_is_called_optimistic(tmp_path: Path) -> None:
    _, page = report(tmp_path, replace(ONE, overhead_s=0.001))
    assert "optimistic: overhead not measured" not in page.text
    # γ = 2: 10.064 · (.3 + 1.12 + .49 · .015) + 1 = 15.4 ms
    assert "2 1.43 1.39–1.48" in page.text
    assert "1.00 15.4" in page.text


def test_acceptance_comes_from_the_recorded_positions(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    html = write_report(run).read_text(encoding="utf-8")
    for place in range(1, 7):
        assert f"t1, position {place}: {0.7**place:.3f}" in html
        assert f"t1, position {place}: 0.700" in html
    omega = sum(0.7**i for i in range(7))
    assert f"t1 {omega:.2f} 0.700 0.700 0.700 12 12 480 0\u202f% 0\u202f%" in read_page(html).text


def test_cells_without_a_number_are_hatched_and_listed(tmp_path: Path) -> None:
    html, page = report(tmp_path, BROKEN)
    for place, (status, reason) in BROKEN.broken.items():
        assert f"Batch {place[0]}, context {place[1]}: {status}." in html
        cell = f"batch {place[0]}, {place[1]} tokens of context"
        assert f"chain draw · {cell} {status} every part {reason}" in page.text
    assert html.count('class="hatch"') == 2 * len(BROKEN.broken)
    assert "6 settings of the grid have no answer." in page.text
    assert "6 without an answer" in page.text


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    environment = {"device": HOSTILE, HOSTILE: {HOSTILE: [HOSTILE, {"x": HOSTILE}]}, "cpu": "\x00\x1b[31m\u202e"}
    shape = Shape(environment=environment, broken={(4, 256): ("failed", HOSTILE)})
    run = build_run(tmp_path / "run", shape)
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    config["pairs"][0]["target"]["model"] = HOSTILE
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    _spoil(run, pair=HOSTILE, sampling=HOSTILE, draft_sampling=HOSTILE, cost_known=HOSTILE, label=HOSTILE)
    html = write_report(run).read_text(encoding="utf-8")
    page = read_page(html)
    assert page.text.count(HOSTILE) > 10
    assert "<script" not in html
    assert "49" not in re.findall(r"\{\{.*?\}\}|alert\('x'\).{40}", page.text), "templates run once"
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", html)


def _spoil(run: Path, **texts: str) -> None:
    """Put `texts` into every row of the predictions and recommendations of `run`."""
    import pandas as pd

    frame = pd.read_csv(run / "predictions.csv")
    for name, text in texts.items():
        frame[name] = text
    frame.to_csv(run / "predictions.csv", index=False)
    answers = yaml.safe_load((run / "recommendation.yaml").read_text(encoding="utf-8"))
    for entry in answers["recommendations"]:
        entry |= {name: text for name, text in texts.items() if name in entry} | {"reason": HOSTILE}
    answers["warnings"] = [{"code": HOSTILE, "message": HOSTILE, "remedy": HOSTILE}]
    (run / "recommendation.yaml").write_text(yaml.safe_dump(answers), encoding="utf-8")


def test_warnings_stand_with_their_remedies(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    answers = yaml.safe_load((run / "recommendation.yaml").read_text(encoding="utf-8"))
    answers["warnings"] = [
        {"code": "drift", "message": "late samples are 7 % slower", "remedy": "let the machine cool"},
        {"code": "drift", "message": "late samples are 7 % slower", "remedy": "let the machine cool"},
    ]
    (run / "recommendation.yaml").write_text(yaml.safe_dump(answers), encoding="utf-8")
    page = read_page(write_report(run).read_text(encoding="utf-8"))
    assert page.text.count("Late samples are 7 % slower. Let the machine cool.") == 1


def test_a_run_that_stopped_before_acceptance_says_what_is_missing(tmp_path: Path) -> None:
    _, page = report(tmp_path, Shape(with_acceptance=False, with_predictions=False))
    assert "No answer yet: no setting of this run has both timings and acceptance." in page.text
    for sampling in ("greedy", "t1"):
        assert f"sampling {sampling}: no acceptance: acceptance is not recorded yet" in page.text
    assert "This run stopped before it had predicted" in page.text
    assert "Run the same `specgauge run` again: it goes on where it stopped." in page.text
    assert "T_decode 10.1" in page.text, "what was timed is shown all the same"


def test_a_run_that_stopped_before_predicting_is_answered_from_what_it_has(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(ONE, with_predictions=False))
    page = read_page(write_report(run).read_text(encoding="utf-8"))
    assert "At batch 1 and 64 tokens of context: speculate with γ = 2: 1.53\u202f×" in page.text
    assert "This run stopped before it had predicted" in page.text
    assert not (run / "predictions.csv").exists()


@pytest.mark.parametrize("left", ["", None])
def test_a_run_without_a_single_block_still_has_a_report(left: str | None, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(ONE, with_acceptance=False, with_predictions=False))
    (run / "cells.jsonl").unlink()
    if left is not None:
        (run / "cells.jsonl").write_text(left, encoding="utf-8")
    page = read_page(write_report(run).read_text(encoding="utf-8"))
    assert "Nothing has been timed yet." in page.text
    assert "There is no answer yet. Run the same `specgauge run` again: it goes on where it stopped." in page.text


def test_parts_not_yet_timed_are_listed(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(ONE, batch_sizes=(4,), contexts=(64, 256)))
    lines = (run / "cells.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["arm"] != "verify:6"]
    (run / "cells.jsonl").write_text("".join(kept), encoding="utf-8")
    page = read_page(write_report(run).read_text(encoding="utf-8"))
    assert "chain draw · batch 4, 256 tokens of context unmeasured T_verify(6) not measured yet" in page.text


def test_timings_show_their_quality(tmp_path: Path) -> None:
    _, page = report(tmp_path, ONE)
    # three blocks of five samples at −1, −.5, 0, .5 and 1 %: the 90 % interval of the median of 15 reaches from the
    # 4th to the 12th, −.5 % to .5 %; the median of the first seven is −.5 %, of the last seven .5 %: drift 1.0 %;
    # first calls were made five times as slow
    assert "T_decode 10.1 ±0.5\u202f% 15 3 +1.0\u202f% 50.3 ok" in page.text
    assert "T_verify(2) 11.3 ±0.5\u202f% 15 3" in page.text


def test_the_environment_is_complete(tmp_path: Path) -> None:
    environment = {
        "cpu": "A CPU",
        "cpu_cores": 2,
        "memory_bytes": 8 * 2**30,
        "device": "cpu",
        "cuda_devices": [{"name": "GPU 0", "sm_clock_hz": 1_980_000_000, "driver": None}],
        "packages": {"torch": "2.13.0", "accelerate": None},
    }
    _, page = report(tmp_path, replace(ONE, environment=environment))
    for words in ("memory 8 GiB", "0: name GPU 0", "0: sm clock 1980 MHz", "torch 2.13.0", "accelerate –"):
        assert words in page.text
    assert "Measured on A CPU, 2 cores, 2026-01-02." in page.text


def test_the_configuration_is_shown_as_it_stands(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    text = (run / "config.yaml").read_text(encoding="utf-8")
    html = write_report(run).read_text(encoding="utf-8")
    assert text.strip() in html.replace("&#39;", "'").replace("&#34;", '"')


def test_several_strategies_each_have_their_answer(tmp_path: Path) -> None:
    _, page = report(tmp_path, replace(ONE, pairs=("a", "b"), acceptance_rule=("ratio", "match")))
    for pair in "ab":
        for rule in ("ratio", "match"):
            assert f"Pair {pair}, sampling t1, {rule} rule" in page.text


@pytest.mark.parametrize("shape", [Shape(), BROKEN, Shape(with_acceptance=False)])
def test_what_the_product_predicts_can_be_reported(shape: Shape, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(shape, with_predictions=False))
    predicted = predict_run(Run.open(run))
    html = write_report(run).read_text(encoding="utf-8")
    page = read_page(html)
    known = [entry for entry in predicted.recommendations if entry["speedup"]["value"] is not None]
    assert len(re.findall(r'class="cell-value"', html)) == len(known)
    for warning in predicted.warnings:
        assert warning["message"][1:] in page.text
    assert f"{sum(entry['decision'] == 'speculate' for entry in known)} speculate" in page.text or not known


def refused(run: Path, out: Path | None = None) -> str:
    with pytest.raises(ValueError, match=re.escape(str(out or run))) as caught:
        write_report(run, out)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert "not a run directory" in refused(tmp_path / "empty")
    assert "is a file" in refused(tmp_path / "file")
    assert "no such run" in refused(tmp_path / "absent")
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "cells.jsonl", "predictions.csv"])
def test_a_damaged_file_is_named_and_the_old_report_stays(name: str, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    before = write_report(run).read_bytes()
    (run / name).write_bytes(b"\xff{{{\n")
    assert str(run / name) in refused(run)
    assert (run / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 1.5}, "line 2, gamma: expected a whole number of at least 1, got '1.5'"),
        ({"is_best": "perhaps"}, "line 2, is_best: expected True or False, got 'perhaps'"),
        ({"speedup": "fast"}, "line 2, speedup: expected a number, or nothing, got 'fast'"),
    ],
)
def test_a_bad_prediction_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    import pandas as pd

    run = build_run(tmp_path / "run", ONE)
    frame = pd.read_csv(run / "predictions.csv").astype(object)
    for name, value in change.items():
        frame.loc[0, name] = value
    frame.to_csv(run / "predictions.csv", index=False)
    line = refused(run)
    assert line.startswith(f"{run / 'predictions.csv'}, {message}")


def test_a_bad_recommendation_is_named(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    (run / "recommendation.yaml").write_text("recommendations:\n- {pair: a}\n", encoding="utf-8")
    assert refused(run).startswith(f"{run / 'recommendation.yaml'}, recommendations[0], mode: ")


def test_an_unusable_out_is_refused(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    assert "is a directory" in refused(run, tmp_path)
    assert "does not exist" in refused(run, tmp_path / "absent" / "report.html")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_an_error(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    run.chmod(0o500)
    with pytest.raises(OSError, match="cannot write"):
        write_report(run)
    run.chmod(0o700)


def test_single_prompts_have_no_interval(tmp_path: Path) -> None:
    html, _ = report(tmp_path, replace(ONE, prompts=1))
    drawn = html[html.index('id="acceptance"') : html.index('id="predictions"')]
    assert drawn.count('class="band c0"') == 0


def test_positions_outside_the_support_are_counted(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    frame = acceptance_frame(0.7, 12, 40)
    frame.loc[::4, ["target_prob", "draft_prob"]] = float("nan")
    (path,) = (run / "acceptance").iterdir()
    frame.to_parquet(path, index=False)
    page = read_page(write_report(run).read_text(encoding="utf-8"))
    assert "12 12 480 25\u202f% 0\u202f%" in page.text


def test_what_is_not_to_be_measured_is_no_gap(tmp_path: Path) -> None:
    """Of two pairs in two modes, rules leave one mode and 3 of 4 places; one pair of the two is over the memory."""
    pair = {"name": "p", "target": "embedded", "draft": "embedded", "mode": ["eager", "compile"]}
    grid = {"batch_size": [1, 4], "context": [64, 256], "gamma": "1:3"}
    rules = {"exclude": [{"mode": "compile"}, {"batch_size": 4, "context": 64}]}
    config = made.config(pairs=[pair, {**pair, "name": "q"}], grid={**grid, **rules})
    with made.begin(tmp_path / "run", config) as run:
        for cell in plan_cells(config):
            for arm in arm_names((1, 2, 3)):
                if cell.pair == "p-eager":
                    made.record_blocks(run.journal, cell, arm, 3, 1.0)
                else:
                    line = {"arm": arm, "block": 0, "status": "skipped", "reason": "needs more"}
                    run.journal.append({"axes": cell.axes, **line})
    texts = tmp_path / "run" / "acceptance" / acceptance_file_name("p-eager", "greedy")
    made.acceptance_frame(10, 16).to_parquet(texts, index=False)
    text = read_page(write_report(tmp_path / "run").read_text(encoding="utf-8")).text
    assert [f"Pair {name}: target" in text for name in ("p-eager", "p-compile", "q-eager", "q-compile")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert "Pair q-eager: 3 of 3 cells skipped" in text
    assert "Pair q-eager, sampling greedy: no acceptance" not in text
    assert "recorded for pair q-eager" not in text
    assert "3 settings of the grid have no answer" in text
