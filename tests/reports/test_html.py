import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from specgauge.cli.main import main
from specgauge.model.arms import arm_names
from specgauge.reports import sections
from specgauge.reports.html import compilation_facts, environment_facts, write_report
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.derived import write_answers
from specgauge.sweeps.store.rows import plain, read_mapping, write_csv, write_mapping
from specgauge.sweeps.store.rundir import Run, acceptance_path
from specgauge.sweeps.store.schema import PredictionRow
from tests.reports.pages import Page
from tests.reports.synthetic import ONE, Shape, build_run, decode, predicted, recommended
from tests.sweeps import made
from tests.sweeps.run.test_searched_cells import RULED_OUT, searched_run
from tests.sweeps.validation_rows import forced_row, policy_row, validation_row

HOSTILE = """<script>alert('x')</script> & "quoted" 'single' {{ 7 * 7 }} </style> $\\frac"""
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
    return read(build_run(folder / "run", shape))


def read(run: Path) -> tuple[str, Page]:
    html = write_report(run).read_text(encoding="utf-8")
    return html, Page(html)


def test_the_text_of_a_report(tmp_path: Path, snapshot: Callable[[str, str], None]) -> None:
    broken = {(4, 64): ("oom", "OutOfMemoryError: tried to allocate 2.00 GiB")}
    run = build_run(tmp_path / "run", Shape(contexts=(64,), gammas=(1, 2), overhead_s=0.001, broken=broken))
    decode(run, validation_row(), validation_row(sampling="t1", gamma=1, speedup_measured=1.2), policy_row())
    _, page = read(run)
    snapshot("report", re.sub(r"specgauge \d+\.\d+\.\d+", "specgauge", "\n".join(page.lines)) + "\n")


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = decode(build_run(tmp_path / "run", BROKEN), validation_row())
    first = write_report(run).read_bytes()
    (tmp_path / "elsewhere").mkdir()
    run.rename(tmp_path / "elsewhere" / "run")
    assert write_report(tmp_path / "elsewhere" / "run").read_bytes() == first


@pytest.mark.parametrize(
    "shape",
    [
        BROKEN,
        Shape(alphas={"t1": 0.55}, uncertainty=0.15, batch_sizes=(1,), contexts=(256,), gammas=(3,)),
        Shape(alphas={"t1": 0.4}, draft_share=0.4, contexts=(64,)),
        Shape(pairs=("a", "b"), acceptance_rule=("ratio", "match"), contexts=(64,), batch_sizes=(1,)),
        Shape(draft_sampling=("same", "greedy"), contexts=(64,), batch_sizes=(1,), with_acceptance=False),
        Shape(with_predictions=False, batch_sizes=(1,)),
        Shape(with_acceptance=False, with_predictions=False),
        Shape(batch_sizes=(1, 2, 4, 8), contexts=(64,), gammas=tuple(range(1, 17))),
    ],
)
def test_every_run_gives_a_sound_offline_page(shape: Shape, tmp_path: Path) -> None:
    html, page = report(tmp_path, shape)
    assert "http" not in html
    assert page.tags.count("script") == 1
    for anchor in ("answers", "warnings", "validation", "acceptance", "predictions", "timings", "environment"):
        assert page.ids.count(anchor) == 1
        assert f"#{anchor}" in page.links


def test_blocks_of_a_section_with_many_panels_open_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(alphas={"t1": 0.7}, acceptance_rule=("ratio", "match"), contexts=(64,), gammas=(1,))
    assert report(tmp_path / "few", shape)[1].tags.count("details") == 2
    monkeypatch.setattr(sections, "MOST_PANELS", 3)
    # two blocks of two panels each in the sections of S(γ), cost and acceptance
    html, page = report(tmp_path / "many", shape)
    assert page.tags.count("details") == 2 + 3 * 2
    assert html.count("<details open>") == 1 + 3


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    environment = {"device": HOSTILE, HOSTILE: {HOSTILE: [HOSTILE, {"x": HOSTILE}]}, "cpu": "\x00\x1b[31m\u202e"}
    shape = Shape(environment=environment, contexts=(64, 256), broken={(4, 256): ("failed", HOSTILE)})
    warning = dict.fromkeys(("code", "message", "remedy"), HOSTILE)
    run = build_run(tmp_path / "run", shape)
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    config["pairs"][0]["target"]["model"] = HOSTILE
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    texts = dict.fromkeys(("pair", "sampling", "draft_sampling", "cost_provenance", "label", "status"), HOSTILE)
    write_csv(run / "predictions.csv", PredictionRow, predicted(shape, **texts))
    answers = [plain(replace(one, reason=HOSTILE)) for one in recommended(shape, **texts)]
    write_mapping(run / "recommendation.yaml", {"recommendations": answers, "warnings": [warning]})
    decode(
        run,
        forced_row(pair=HOSTILE, sampling=HOSTILE, why_not_lossless=HOSTILE, overhead_from=HOSTILE),
        validation_row(mode=HOSTILE, draft_sampling=HOSTILE, acceptance_rule=HOSTILE, overhead_from=HOSTILE),
        policy_row(policy=HOSTILE),
    )
    html, page = read(run)
    assert page.text.count(HOSTILE) > 20
    assert html.count("<script") == 1
    assert "49" not in re.findall(r"\{\{.*?\}\}|alert\('x'\).{40}", page.text), "templates run once"
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", html)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        (
            {"p": {"target": 9_712_000, "draft": 2_430_000}},
            "target embedded (9.71\u00a0M\u00a0parameters), draft embedded (2.43",
        ),
        (
            {"p": {"target": 8_030_261_248, "draft": 0}},
            "target embedded (8.03\u00a0B\u00a0parameters), draft embedded ",
        ),
        ({"p": {"target": None, "draft": True}}, "target embedded, draft embedded "),
        ({"q": {"target": 1}, "p": [1]}, "target embedded, draft embedded "),
        (["p"], "target embedded, draft embedded "),
    ],
)
def test_the_sizes_of_models_are_told_where_the_run_knew_them(parameters: Any, told: str, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    answers = read_mapping(run / "recommendation.yaml")
    write_answers(run, answers["recommendations"], answers["warnings"], parameters=parameters)
    assert f"Pair p: {told}" in read(run)[1].text


def test_the_first_page_has_the_heaviest_caveats_and_the_rest_is_elsewhere(tmp_path: Path) -> None:
    codes = ["few_prompts", "drift", "undecided", "prediction_contradicted", "altered"]
    told = [{"code": code, "message": f"of {code}", "remedy": ""} for code in codes]
    html, page = read(build_run(tmp_path / "run", replace(ONE, overhead_s=0.001), *told))
    first, _, rest = html.partition('id="cells"')
    assert [code for code in codes if f"Of {code}." in first] == ["drift", "prediction_contradicted", "altered"]
    assert [code for code in codes if f"Of {code}." in rest] == ["few_prompts", "undecided"]
    assert "2 more" in page.text
    assert page.ids.count("more-warnings") == 1


def test_an_imported_run_says_whose_times_these_are(tmp_path: Path) -> None:
    files = Path(__file__).parents[1] / "golden" / "engines" / "vllm" / "sweep"
    assert main(["import", "--guess", str(files), "--out", str(tmp_path / "run")]) == 0
    text = read(tmp_path / "run")[1].text
    assert "does speculative decoding pay? Imported 20" in text
    assert "Times are those of the engine that served" in text
    assert "these times do not" not in text


@pytest.mark.parametrize(
    ("batch_sizes", "alphas", "order"),
    [
        ((1, 2, 4), {"t1": 0.7}, ["table", "svg", "warnings"]),
        ((1, 2, 4, 8, 16, 32, 64, 128), {"t1": 0.7}, ["svg", "table", "warnings"]),
        ((1, 2, 4, 8, 16, 32, 64, 128), {"t1": 0.7, "greedy": 0.8, "t2": 0.6}, ["svg", "warnings", "table"]),
    ],
)
def test_the_map_comes_first_where_the_table_is_long(
    batch_sizes: tuple[int, ...], alphas: dict[str, float], order: list[str], tmp_path: Path
) -> None:
    shape = Shape(batch_sizes=batch_sizes, contexts=(64,), gammas=(1,), alphas=alphas, with_acceptance=False)
    html, _ = report(tmp_path, shape)
    summary = html.partition('id="answers"')[2].partition('id="cells"')[0]
    at = {"table": summary.index("<table"), "svg": summary.index("<svg"), "warnings": summary.index('id="warnings"')}
    assert sorted(at, key=lambda part: at[part]) == order


def test_arms_not_yet_timed_are_listed(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(ONE, batch_sizes=(4,), contexts=(64, 256)))
    lines = (run / "cells.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["arm"] != "verify:6"]
    (run / "cells.jsonl").write_text("".join(kept), encoding="utf-8")
    text = read(run)[1].text
    assert "chain draw · batch 4, 256 tokens of context unmeasured T_verify(6) not measured yet" in text


def test_the_page_says_what_excluded_a_gamma(tmp_path: Path) -> None:
    predict_run(searched_run(tmp_path))
    _, page = read(tmp_path)
    assert RULED_OUT in page.text
    assert "T_verify(1), T_verify(3)" in page.text


def test_the_environment_and_the_configuration_are_complete(tmp_path: Path) -> None:
    environment = {"cpu": "A CPU", "cpu_cores": 2, "device": "cpu"}
    html, page = report(tmp_path, replace(ONE, environment=environment))
    assert "Measured on A CPU, 2 cores, 2026-01-02." in page.text
    config = (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")
    assert config.strip() in html.replace("&#39;", "'").replace("&#34;", '"')


@pytest.mark.parametrize("shape", [BROKEN, Shape(with_acceptance=False)])
def test_what_the_product_predicts_can_be_reported(shape: Shape, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(shape, with_predictions=False))
    found = predict_run(Run.open(run))
    _, page = read(run)
    known = [entry for entry in found.recommendations if entry["speedup"]["value"] is not None]
    assert page.marks["cell-value"] == len(known)
    for warning in found.warnings:
        assert warning["message"][1:] in page.text
    assert f"{sum(entry['decision'] == 'speculate' for entry in known)} speculate" in page.text or not known


def test_forced_texts_are_told_and_measure_no_speedup(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(ONE, alphas={"greedy": 0.82}, gammas=(1, 2, 3), overhead_s=0.001))
    html, page = read(decode(run, forced_row(gamma=3), forced_row(speedup_measured=3.0)))
    # Ω(3) = 1 + .82 + .82² + .82³ = 3.0438; a round costs .45 + 1.18 + .5514 · .015 of 10.064 ms and 1 ms: 17.49 ms
    said = "speculate with γ = 3: 1.75\u202f× (90\u202f% interval 1.70–1.80)."
    assert f"At batch 1 and 64 tokens of context: {said}" in page.text
    assert "γ = 1, ε: 1.00 ms of" in html
    assert page.text.count("None of these texts is lossless") == 2, "before the warnings, and in the section"
    assert "measured end to end" not in page.text
    assert page.marks["measured s0"] == 0


def test_what_is_not_to_be_measured_is_no_gap(tmp_path: Path) -> None:
    """Of two pairs in two modes, rules leave one mode and 3 of 4 points; one pair of the two is over the memory."""
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
    texts = acceptance_path(tmp_path / "run", "p-eager", "greedy")
    made.acceptance_frame(10, 16).to_parquet(texts, index=False)
    text = read(tmp_path / "run")[1].text
    names = ("p-eager", "p-compile", "q-eager", "q-compile")
    assert [name for name in names if f"Pair {name}: target" in text] == ["p-eager", "q-eager"]
    assert "Pair q-eager: 3 of 3 cells skipped" in text
    assert "Pair q-eager, sampling greedy: no acceptance" not in text
    assert "recorded for pair q-eager" not in text
    assert "3 cells of the grid have no answer" in text


def check_refused(run: Path, named: Path, out: Path | None = None) -> None:
    with pytest.raises(ValueError, match=rf"^[^\n]*{re.escape(str(named))}[^\n]*$"):
        write_report(run, out)


@pytest.mark.parametrize("name", ["config.yaml", "environment.json"])
def test_a_damaged_file_is_named_and_the_old_report_stays(name: str, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    before = write_report(run).read_bytes()
    (run / name).write_bytes(b"\xff{{{\n")
    check_refused(run, run / name)
    assert (run / "report.html").read_bytes() == before


@pytest.mark.parametrize("name", ["predictions.csv", "recommendation.yaml", "validation.csv"])
def test_answers_that_were_altered_are_derived_anew_and_the_page_says_so(name: str, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    (run / name).write_bytes(b"\xff{{{\n")
    text = read(run)[1].text
    assert "what is shown is derived anew from what was measured" in text
    (run / "recommendation.yaml").unlink()
    assert text.partition("Speed-up by γ")[2] == read(run)[1].text.partition("Speed-up by γ")[2]


def test_an_unusable_out_is_refused(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    os.mkfifo(tmp_path / "pipe")  # as /dev/null: a rename would put a file in its place
    for out in (tmp_path, tmp_path / "absent" / "report.html", tmp_path / "pipe"):
        check_refused(run, out, out)


@pytest.mark.parametrize("name", ["config.yaml", "cells.jsonl", "predictions.csv", "acceptance/embedded--t1.parquet"])
def test_no_report_is_written_over_what_was_measured(name: str, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    before = {path: path.read_bytes() for path in run.rglob("*.*")}
    check_refused(run, run / name, run / name)
    assert {path: path.read_bytes() for path in run.rglob("*.*")} == before


def test_the_environment_is_grouped_and_its_units_are_scaled() -> None:
    plain = [("python", "3.11"), ("memory", "1.5 GiB"), ("governor", "–"), ("nothing", "–")]
    plain += [("flags", "a, b"), ("ok", "yes")]
    gpus = [("0: clock", "1500 MHz"), ("0: limits: power limit", "700 W"), ("1: temperature", "41.5 °C")]
    assert environment_facts(
        {
            "python": "3.11",
            "memory_bytes": 3 * 2**29,
            "governor": None,
            "packages": {"torch": "2.13", "gguf": None},
            "gpus": [{"clock_hz": 1_500_000_000, "limits": {"power_limit_w": 700}}, {"temperature_c": 41.5}],
            "nothing": {},
            "flags": ["a", "b"],
            "ok": True,
        }
    ) == [("General", plain), ("packages", [("torch", "2.13"), ("gguf", "–")]), ("gpus", gpus)]


def test_compiled_forwards_are_told_by_pair_and_mode() -> None:
    built = [
        ("eager", {"threads": 1}),
        ("compile", {"graphs_built": 0, "build_s": 0.0}),
        ("compile", {"graphs_built": 2, "build_s": 1.25}),
        ("compile", {"graphs_built": 3, "build_s": 11.0}),
        ("cuda_graph", {"graphs_built": 1, "build_s": 0.5}),
        ("cuda_graph", {"graphs_built": True, "build_s": 1.0}),
        ("cuda_graph", {"graphs_built": "many", "build_s": None}),
    ]
    lines: list[Any] = [SimpleNamespace(axes={"pair": "p", "mode": mode}, notes=notes) for mode, notes in built]
    ((_, facts),) = compilation_facts(lines)
    assert facts == [("p, compile", "5 forwards in 12.2 s"), ("p, cuda_graph", "1 forward in 0.5 s")]
    assert compilation_facts(lines[:2]) == []
