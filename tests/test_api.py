"""The interface from Python: every method against what it delegates to, or against numbers worked out by hand."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import specgauge as sg
from specgauge.api.keywords import SHORT_SECTIONS, config_of_keywords, places
from specgauge.cli.main import main
from specgauge.configs.schema import Config
from specgauge.reports.records import read_report_data
from specgauge.reports.summaries import acceptance_curves
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.run import runner
from specgauge.sweeps.store.rows import write_csv
from specgauge.sweeps.store.schema import ValidationRow
from tests.sweeps import made
from tests.sweeps.run import test_lookup_pairs as lookups
from tests.sweeps.validation_rows import validation_row
from tests.test_docs import blocks, page_text

PAGE = "docs/api.md"
TWO_SETTINGS = [{"name": "greedy", "temperature": 0}, {"name": "t_1"}]
ALPHAS = (0.5, 0.5, 0.5, 0.25, 0.75)
"""By prompt; the first three are code, the fourth is chat, the last two have no category."""
CATEGORIES = ("code", "code", "code", "chat", None, None)


def frame() -> pd.DataFrame:
    """Six prompts of one text each; the last passes a quarter of its drafts."""
    parts = [made.acceptance_frame(1, 16, alpha).assign(prompt=n) for n, alpha in enumerate((*ALPHAS, 0.25))]
    return pd.concat(parts, ignore_index=True)


def write_run(path: Path, *, predicted: bool = True, **changes: Any) -> sg.Run:
    config = made.config(**{"sampling": TWO_SETTINGS, **changes})
    run = made.write_run(path, config, {one.name: frame() for one in config.sampling})
    prompts = [
        {"schema": 1, "pair": "p", "prompt": n, "category": category, "text": f"text {n}", "tokens": [n]}
        for n, category in enumerate(CATEGORIES)
    ]
    (path / "prompts.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in prompts))
    if predicted:
        predict_run(run)
        write_csv(path / "validation.csv", ValidationRow, [validation_row()])
        made.restamp(path)
    return sg.open(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "run"
    write_run(path)
    return path


@pytest.fixture
def run(folder: Path) -> sg.Run:
    return sg.open(folder)


def omega(alpha: float, gamma: int) -> float:
    return sum(alpha**i for i in range(gamma + 1))


def test_only_public_names_are_listed(run: sg.Run) -> None:
    assert dir(sg) == sorted(sg.__all__)
    assert [name for name in dir(sg) if name.startswith("_")] == ["__version__"]
    assert dir(run) == [
        *(
            "acceptance_by",
            "config",
            "environment",
            "export",
            "path",
            "plot",
            "predict",
            "predictions",
            "recommend",
            "table",
        ),
        *("to_latex", "validation", "warnings"),
    ]


def test_the_page_lists_every_public_name(run: sg.Run) -> None:
    told = set(re.findall(r"[A-Za-z_]+", " ".join(re.findall(r"`([^`\n]+)`", page_text(PAGE)))))
    assert {*sg.__all__, *dir(run)} <= told


def test_the_code_of_the_page_runs_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"batch_size": 4, "context": 64, "gamma": "1:4"}

    def run(config: Config, *, out: Path, **_: Any) -> None:
        pair = {"name": "q", "target": "embedded", "draft": "o/d"}
        if out.name == "embedded":
            shutil.copytree(folder, out)
        else:
            write_run(out, grid=grid, pairs=[pair])
            (out / "acceptance").rename(out / "old")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run", run)
    write_run(tmp_path / "runs" / "quickstart", grid=grid)
    code = [block.text for block in blocks(PAGE) if block.language == "python"]
    assert len(code) == 7
    names: dict[str, Any] = {}
    for one in code:
        exec(compile(one, PAGE, "exec"), names)
    assert (tmp_path / "speedup.png").is_file()
    assert (tmp_path / "runs" / "embedded").is_dir()
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    tables = [block.text.splitlines()[0].split() for block in blocks(PAGE) if block.language == "text"]
    assert tables == [names for names in tables if names in printed], "columns that the page shows are those printed"
    assert len(tables) == 2
    assert ["..."] not in printed
    assert not any("..." in line for line in printed)


def test_a_run_is_shown_without_what_is_large(folder: Path) -> None:
    code = "import sys, specgauge as sg; print(sg.open(sys.argv[1])); print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert not {"torch", "pandas", "matplotlib"} & set(done.stderr.split())


@pytest.mark.parametrize("kind", [str, Path])
def test_a_run_shows_what_recommend_prints(
    kind: Callable[[Path], Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recommend", str(folder)]) == 0
    assert repr(sg.open(kind(folder))) + "\n" == capsys.readouterr().out


def test_what_has_no_answer_yet_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a&b", predicted=False)
    assert "TRUST: LOW" in repr(run)  # stopped before it predicted: from what there is
    (run.path / "cells.jsonl").unlink()
    (run.path / "cells.jsonl").mkdir()
    assert repr(run).startswith(f"Run('{run.path}'): {run.path}/cells.jsonl")
    assert "a&amp;b/cells.jsonl" in run._repr_html_()
    with pytest.raises(ValueError, match=r"no such run; did you mean .*a&b\?"):
        sg.open(tmp_path / "a&c")
    with pytest.raises(ValueError, match=r"^~nosuchuser/x: expected a path"):
        sg.open("~nosuchuser/x")
    shutil.rmtree(run.path / "acceptance")
    with pytest.raises(ValueError, match="acceptance is not recorded yet"):
        run.acceptance_by()


def test_the_answers_as_a_table(run: sg.Run) -> None:
    table = run.table()
    assert table[["pair", "sampling", "batch_size", "context"]].to_numpy().tolist() == [
        ["p", "greedy", 1, 64], ["p", "t_1", 1, 64]
    ]  # fmt: skip
    predicted = run.predictions.query("is_recommended").reset_index()
    for name in ("speedup", "speedup_low", "speedup_high"):
        assert table[name].tolist() == predicted[name].tolist()
    assert table["recommended_gamma"].tolist() == predicted["gamma"].tolist() == [2, 2]
    assert table["speedup_measured"][0] == run.validation["speedup_measured"][0] == 1.5
    assert math.isnan(table["speedup_measured"][1])
    assert run.recommend(sampling="greedy").equals(table[:1])
    with pytest.raises(ValueError, match="sampling 'gready' is not in this run, allowed: greedy, t_1; did you mean"):
        run.recommend(sampling="gready")


def test_a_limit_on_rounds_decides_again(run: sg.Run) -> None:
    limited = run.recommend(sampling="greedy", max_itl_s=1.5)
    assert limited["recommended_gamma"].tolist() == [1]  # whose round takes 1.25 + 0.125 and the catch-up
    assert run.recommend(sampling="greedy", max_itl_s=1.0)["recommended_gamma"].isna().all()


def test_the_answers_as_latex_and_html(run: sg.Run) -> None:
    head, *rows = [line.removesuffix(r" \\").split(" & ") for line in run.to_latex().splitlines() if "&" in line]
    assert head == [
        *("pair", "sampling", "batch", "context", "decision", r"$\gamma$", "S", r"90 \% interval", "measured"),
    ]
    assert [row[:4] for row in rows] == [["p", "greedy", "1", "64"], ["p", r"t\_1", "1", "64"]]
    assert [row[-1] for row in rows] == ["1.50", "--"]
    row = run.table().loc[0]
    assert rows[0][6:8] == [f"{row.speedup:.2f}", f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"]
    page = run._repr_html_()
    assert page.count("<tr>") == 3
    assert f"<td>t_1</td><td>1</td><td>64</td><td>{row.decision}</td>" in page


def test_acceptance_by_category(run: sg.Run) -> None:
    table = run.acceptance_by("category")
    assert len(table) == 2 * 3 * 3
    assert table["category"].drop_duplicates().tolist() == ["code", "chat", None]
    greedy = table.query("sampling == 'greedy' and gamma == 2").set_index(["prompts"])
    assert greedy.index.tolist() == [3, 1, 2]
    assert greedy["tokens_per_round"].tolist()[:2] == pytest.approx([omega(0.5, 2), omega(0.25, 2)])
    low, high = greedy["tokens_per_round_low"].tolist(), greedy["tokens_per_round_high"].tolist()
    assert (low[0], high[0]) == pytest.approx((omega(0.5, 2), omega(0.5, 2)))
    assert math.isnan(low[1])
    assert math.isnan(high[1])
    assert (low[2], high[2]) == (1, 3)  # two draws of one prompt, widened by √2 · t / z, within what a round can commit


def test_the_report_has_the_same_acceptance_by_category(run: sg.Run) -> None:
    data = read_report_data(run.path)
    shown = {
        (one.setting.sampling, group.group, figures["gamma"]): figures
        for one in acceptance_curves(data.acceptance, data.config, data.categories)
        for group in one.categories
        for figures in group.rows()
    }
    table = run.acceptance_by("category")
    assert len(shown) == len(table) + 2 * 3, "and all prompts of two settings at three γ"
    ends = ["tokens_per_round", "tokens_per_round_low", "tokens_per_round_high"]
    for row in table.to_dict("records"):
        figures = shown[row["sampling"], row["category"], row["gamma"]]
        assert [figures[name] for name in ends] == [None if math.isnan(row[name]) else row[name] for name in ends]


def test_acceptance_by_prompt(run: sg.Run) -> None:
    table = run.acceptance_by("prompt").query("sampling == 't_1' and gamma == 3")
    expected = [omega(alpha, 3) for alpha in (*ALPHAS, 0.25)]
    assert table["tokens_per_round"].tolist() == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"^by: expected category or prompt, got 'categroy'; did you mean 'category'"):
        run.acceptance_by("categroy")


def test_a_figure(run: sg.Run) -> None:
    figure = run.plot("speedup")
    assert isinstance(figure, mpl.figure.Figure)
    assert [axes.get_title() for axes in figure.axes] == ["batch 1, context 64"]
    with pytest.raises(ValueError, match=r"^plot: expected speedup, got 'heat'"):
        run.plot("heat")


def test_predict_with_times_from_elsewhere(run: sg.Run) -> None:
    recorded = run.predictions.query("sampling == 'greedy'")
    times: dict[str, Any] = {"t_decode_s": 0.02, "t_draft_s": 0.002, "t_verify_s": [0.021, 0.022, 0.023]}
    found = run.predict(**times, t_draft_catch_up_s=0.001, t_overhead_s=0.0005, sampling="greedy", batch_size=2)
    assert found["gamma"].tolist() == [1, 2, 3]
    follows = 1 - (1 - recorded["full_acceptance"].to_numpy()) ** 2
    round_s = np.array([0.023, 0.026, 0.029]) + follows * 0.001 + 0.0005
    assert found["t_round_s"].tolist() == pytest.approx(round_s.tolist(), rel=1e-12)
    gain = recorded["tokens_per_round"].to_numpy() * 0.02 / round_s
    assert found["speedup"].tolist() == pytest.approx(gain.tolist(), rel=1e-12)
    assert (found["speedup_low"] < found["speedup"]).all()
    assert (found["speedup_high"] > found["speedup"]).all()
    assert found["label"].isna().all()
    steps = run.predict(**times, sampling="greedy")
    total = run.predict(**{**times, "t_draft_s": None, "t_draft_total_s": [0.002, 0.004, 0.006]}, sampling="greedy")
    assert steps.equals(total)
    assert run.predict(t_decode_s=1, t_verify_s=1, t_draft_s=0.1, gamma=2)["sampling"].tolist() == ["greedy", "t_1"]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_lookups_verify_what_they_found(tmp_path: Path, batch_size: int) -> None:
    made.write_run(tmp_path / "run", lookups.config(), {"greedy": lookups.lookup_frame()})
    found = sg.open(tmp_path / "run").predict(t_decode_s=1, t_verify_s=1.25, t_draft_s=0.125, batch_size=batch_size)
    round_s = 0.125 + {1: 9 / 8, 2: 19 / 16}[batch_size]
    assert found["t_round_s"].tolist() == pytest.approx([round_s] * 3, rel=1e-12)
    for name in ("speedup", "speedup_low", "speedup_high"):
        assert found[name].tolist() == pytest.approx([1.5 / round_s] * 3, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gamma": 9}, "gamma: expected those that .* knows, 1, 2, 3, got 9"),
        ({"gamma": 0}, "gamma: expected a whole number, at least 1, got 0"),
        ({"pair": "q"}, "pair 'q' is not in this run, allowed: p"),
        ({"t_draft_s": None}, "draft cost: expected one of t_draft_s and t_draft_total_s, got neither"),
        ({"t_verify_s": [1, 2]}, "t_verify_s: expected one value for all 3 gammas or one each, got 2"),
        ({"t_decode_s": 0}, "t_decode_s: expected seconds, above 0, got 0"),
        ({"t_overhead_s": math.nan}, "t_overhead_s: expected a finite number, got nan"),
    ],
)
def test_what_predict_refuses(run: sg.Run, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        run.predict(**{"t_decode_s": 1, "t_verify_s": 1, "t_draft_s": 0.1, **changes})


def test_compare_gives_each_run_over_the_first(tmp_path: Path, run: sg.Run) -> None:
    sampling = TWO_SETTINGS[:1]
    config = made.config(sampling=sampling)
    for name, scale in (("b", 0.5), ("c", 2.0)):
        made.write_run(tmp_path / name, config, {"greedy": frame()}, scale={"decode": scale})
        shutil.copy(run.path / "prompts.jsonl", tmp_path / name)
    shutil.copytree(run.path, tmp_path / "a")
    (tmp_path / "a" / "validation.csv").unlink()
    table = sg.compare({"a": sg.open(tmp_path / "a"), "b": tmp_path / "b", "c": str(tmp_path / "c")})
    plain = table.query("figure == 'plain'")
    assert plain[["baseline", "run", "baseline_value", "value", "ratio", "verdict"]].to_numpy().tolist() == [
        ["a", "b", 1.0, 2.0, 2.0, "faster"], ["a", "c", 1.0, 0.5, 0.5, "slower"]
    ]  # fmt: skip
    assert plain["gamma"].tolist() == [None, None]
    assert table.query("figure == 'speed-up'")["gamma"].tolist() == [2, 2]
    assert table.attrs == {
        "differences": {"b": (), "c": ()},
        "left_out": dict.fromkeys("bc", ("sampling t_1 is only in the first",)),
    }
    for wrong in ({"a": run}, [run, run]):
        with pytest.raises(ValueError, match=r"^compare: expected two or more runs by name"):
            sg.compare(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got the same run twice"):
        sg.compare({"a": run, "b": run.path})


PAIR = {"name": "8b-1b", "target": "org/8b", "draft": "org/1b"}


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({"target": "org/8b", "draft": "org/1b"}, {"name": "8b-1b", "pairs": [PAIR]}),
        (
            {"target": "org/8b", "draft": {"layers": 4}, "name": "x", "batch_size": (1, 4), "gamma": range(1, 5)},
            {
                "name": "x",
                "pairs": [{"name": "8b-layers-4", "target": "org/8b", "draft": {"layers": 4}}],
                "grid": {"batch_size": [1, 4], "gamma": "1:4"},
            },
        ),
        (
            {"target": {"model": "org/8b", "dtype": "float32"}, "draft": "ngram", "validate": {}, "seed": np.int64(3)},
            {
                "name": "8b-ngram",
                "pairs": [{"name": "8b-ngram", "target": {"model": "org/8b", "dtype": "float32"}, "draft": "ngram"}],
                "validate": {},
                "seed": 3,
            },
        ),
        (
            {"config": {"name": "x", "pairs": [PAIR], "grid": {"context": 64}}, "gamma": np.array([2, 4]), "limit": 3},
            {"name": "x", "pairs": [PAIR], "grid": {"context": 64, "gamma": [2, 4]}, "workload": {"limit": 3}},
        ),
        (
            {"config": Config.model_validate({"name": "x", "pairs": [PAIR]}), "draft": "ngram", "run_seconds": 9},
            {"name": "x", "pairs": [{**PAIR, "draft": "ngram"}], "limits": {"run_seconds": 9}},
        ),
        ({"grid": {"batch_size": 2}, "context": 64, **{k: PAIR[k] for k in ("target", "draft")}},
         {"name": "8b-1b", "pairs": [PAIR], "grid": {"batch_size": 2, "context": 64}}),
    ],
)  # fmt: skip
def test_keywords_make_the_configuration_that_yaml_makes(arguments: dict[str, Any], written: Mapping[str, Any]) -> None:
    own = {name: arguments.pop(name, None) for name in ("config", "target", "draft")}
    found = config_of_keywords(own["config"], target=own["target"], draft=own["draft"], fields=arguments)
    assert found == Config.model_validate(written)


def test_a_configuration_by_name_or_path(tmp_path: Path) -> None:
    quickstart = sg.load_config("quickstart")
    (tmp_path / "mine.yaml").write_text(sg.config_to_yaml(quickstart))
    for source in (None, "quickstart", tmp_path / "mine.yaml", str(tmp_path / "mine.yaml"), quickstart):
        assert config_of_keywords(source, fields={}) == quickstart
    assert config_of_keywords("quickstart", fields={"context": 64}).grid.context == (64,)


def test_no_keyword_means_two_fields() -> None:
    names = [name for section in SHORT_SECTIONS.values() for name in section.model_fields]
    assert len(set(names)) == len(names)
    assert not {*names} & {"target", "draft", "out", "fresh", "config"}
    assert len(places()) == len(names) + len(Config.model_fields)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"taget": "org/8b"}, "run: expected a field of the configuration, got taget=; did you mean 'target'?"),
        ({"batch": 1}, "run: expected a field of the configuration, got batch=; did you mean 'batch_size'?"),
        ({"target": "org/8b"}, "run: expected target= and draft=, or a configuration with pairs, got no draft"),
        ({"gamma": 0}, "run: grid.gamma: expected "),
        ({"grid": 3, "gamma": 1}, "run: grid: expected a mapping "),
        ({"grid": {"gamma": 3}, "gamma": 4}, "run: expected grid.gamma once, got it in grid= and as gamma="),
        ({"config": "quikstart"}, "quikstart: expected the path of a YAML file, or a shipped name: "),
        ({"config": 3}, "run: expected a path, the name of a shipped configuration, a mapping or a Config, got 3"),
        ({"prompts": "nowhere.jsonl"}, "run: workload.prompts: expected embedded or one that exists "),
        ({"pairs": [PAIR, {**PAIR, "name": "b"}], "draft": "ngram"}, "run: expected one pair to put draft into, got 2"),
    ],
)
def test_what_run_refuses(
    arguments: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^{re.escape(told)}") as caught:
        sg.run(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("out", "where"), [(None, "runs/embedded"), ("there", "there")])
def test_run_measures_and_gives_the_run(
    out: str | None, where: str, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked = []

    def measured(config: Config, *, out: Path, **options: Any) -> int:
        asked.append(
            (
                config.grid.gamma,
                config.pairs[0].name,
                options.pop("report").__name__,
                options.pop("first").is_free,
                options,
            )
        )
        shutil.copytree(folder, out)
        print("the answer")
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run", measured)
    found = sg.run(target="embedded", draft="embedded", gamma=[2], out=out, fresh=True)
    assert asked == [((2,), "embedded", "write_report", True, {"fresh": True, "apart": True})]
    assert (found.path, repr(found)) == (Path(where), repr(sg.open(folder)))
    assert capsys.readouterr().out == ""


def test_export_is_what_the_command_prints(
    folder: Path, run: sg.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"release": "1.2.1", "sampling": "greedy", "context": 64, "undecided": "gamma"}
    found = run.export("tensorrt-llm", out=tmp_path / "settings.yaml", **options)
    typed = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    assert main(["export", str(folder), "--engine", "tensorrt-llm", *typed]) == 0
    assert capsys.readouterr().out == found == (tmp_path / "settings.yaml").read_text(encoding="utf-8")
    assert json.loads(run.export("vllm", undecided=2))["num_speculative_tokens"] == 2
    with pytest.raises(ValueError, match=r"engine: expected one of vllm, .*; did you mean 'sglang'"):
        run.export("sglan")
