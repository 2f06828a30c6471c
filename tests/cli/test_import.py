"""`specgauge import`: what it prints, and files that it must not be led astray by."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgauge.cli.main import main
from specgauge.sweeps.imports.formats import FORMATS
from specgauge.sweeps.store.derived import doubts, stands
from specgauge.sweeps.store.rundir import Run
from tests.sweeps.imports.engines import (
    MADE,
    bench_result,
    counts,
    llama_answers,
    omega,
    scrape,
    sweep_folder,
    t_round_s,
    table_file,
    written,
)
from tests.sweeps.imports.samples import OPTIONS, SAMPLES, llama_bench, with_nan


def files_of(folder: Path) -> dict[str, list[Path]]:
    """Two small runs in each of some formats."""
    return {
        "vllm-bench": [written(folder / f"g{gamma}.json", bench_result(8, gamma)) for gamma in (0, 2)],
        "vllm-metrics": [written(folder / f"{times}.txt", scrape(8, 2, times)) for times in (1, 2)],
        "table": table_file(folder),
    }


def test_what_was_taken_up_is_shown(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: Callable[[str, str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    files = files_of(Path("files"))["vllm-bench"]
    assert main(["import", "vllm-bench", *map(str, files), "--out", "served"]) == 0
    shown = capsys.readouterr().out
    assert main(["recommend", "served"]) == 0
    snapshot("import", shown + "\n" + capsys.readouterr().out)
    run = Run.open(Path("served"))
    assert run.is_imported
    assert stands(run.path)
    assert not doubts(run.path)
    assert [one["file"] for one in run.environment["files"]] == [str(file) for file in files]
    assert main(["report", "served"]) == 0


@pytest.mark.parametrize("name", MADE)
def test_a_format_is_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    files = MADE[name](tmp_path / "files")
    assert main(["import", "--guess", *map(str, files)]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: ")


def test_a_folder_is_guessed_and_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = sweep_folder(tmp_path / "sweep")
    assert main(["import", "--guess", str(folder), "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("vllm-bench: ")
    assert Run.open(tmp_path / "run").config.grid.gamma == (1, 2, 3, 4, 5, 6)


def test_what_is_known_of_the_requests_is_kept(tmp_path: Path) -> None:
    files = files_of(tmp_path / "files")["vllm-metrics"]
    options = ["--batch-size", "4", "--context", "2k", "--temperature", "0", "--draft", "ngram", "--target", "org/big"]
    options += ["--pair", "lookup", "--out", str(tmp_path / "run")]
    assert main(["import", "vllm-metrics", *map(str, files), *options]) == 0
    config = Run.open(tmp_path / "run").config
    (pair,) = config.pairs
    assert (pair.name, pair.target.model, pair.drafts_with_model) == ("lookup", "org/big", False)
    assert (config.sampling[0].name, config.sampling[0].temperature) == ("temperature-0", 0)
    assert (config.grid.batch_size, config.grid.context) == ((4,), (2048,))


Broken = Callable[[Path], list[Path]]


def truncated(folder: Path) -> list[Path]:
    text = json.dumps(bench_result(8, 2))
    return [written(folder / "cut.json", text[: len(text) // 2])]


def copied(folder: Path) -> list[Path]:
    return [written(folder / name, bench_result(8, 2)) for name in ("one.json", "two.json")]


def same_figures(folder: Path) -> list[Path]:
    return [written(folder / f"{date}.json", bench_result(8, 2) | {"date": date}) for date in ("20260101", "20260102")]


def huge(folder: Path) -> list[Path]:
    path = written(folder / "huge.json", "{")
    os.truncate(path, 1 << 30)  # sparse: nothing of it is ever read
    return [path]


def one(content: Any, name: str = "bad.json") -> Broken:
    return lambda folder: [written(folder / name, content)]


BAD: dict[str, tuple[str, Broken, str]] = {
    "truncated": ("vllm-bench", truncated, "truncated or not JSON"),
    "empty": ("vllm-bench", one(""), "got an empty file"),
    "empty list": ("vllm-bench", one([]), "expected results, got an empty list"),
    "foreign": ("vllm-bench", one({"name": "x"}), "expected the field 'completed', it is missing"),
    "no mapping": ("vllm-bench", one([1, 2]), "entry 1: expected a mapping, got 1"),
    "other release": (
        "vllm-bench",
        one({**bench_result(8, 2), "spec_decode_num_drafts": None, "spec_decode_n_drafts": 1}),
        "got 'spec_decode_n_drafts'; other releases may write it otherwise",
    ),
    "1 GB": ("vllm-bench", huge, "expected at most 256 MiB, got a larger file"),
    "NaN": ("vllm-bench", one(json.dumps(bench_result(8, 2) | {"mean_itl_ms": float("nan")})), "NaN is not JSON"),
    "infinite": ("vllm-bench", one(json.dumps(bench_result(8, 2)).replace("50.0", "1e999")), "got inf"),
    "binary": ("vllm-bench", lambda folder: [binary(folder)], "expected UTF-8 text, got other bytes"),
    "a copy": ("vllm-bench", copied, "expected every run once, got the same content as"),
    "the same run": ("vllm-bench", same_figures, "expected every run once, got the same figures as"),
    "a directory": ("table", lambda folder: [written(folder / "x" / "y", "z").parent], "got a directory"),
    "no such file": ("table", lambda folder: [folder / "none.csv"], "No such file or directory"),
    "no such format": ("vllm-bensh", files_of_bench := one("{}"), "did you mean 'vllm-bench'?"),
    "too little": ("table", one("batch_size,context,gamma\n"), "expected a row for each run, got a header alone"),
    "no column": ("table", one("batch_size,gamma\n1,2\n"), "expected the column 'context', it is missing"),
    "odd column": ("table", one("batch_size,context,gamma,when\n1,2,3,4\n"), "got 'when'"),
    "no number": ("table", one("batch_size,context,gamma,t_round_s\n1,512,0,nan\n"), "t_round_s: expected"),
    "negative": ("table", one("batch_size,context,gamma,t_round_s\n1,512,0,-1\n"), "expected a number above 0"),
    "no machine": ("table", one("batch_size,context,gamma,t_round_s\n1,512,0,1e13\n"), "t_round_s: expected seconds"),
    "impossible": (
        "table",
        one("batch_size,context,gamma,t_round_s,rounds,tokens\n1,512,2,0.1,10,31\n"),
        "expected 1 to 3 tokens a round at gamma 2, the bonus included (got 3.1)",
    ),
    "under one": (
        "table",
        one("batch_size,context,gamma,tokens_per_round\n1,512,2,0.9\n"),
        "expected 1 to 3 tokens a round at gamma 2, the bonus included (got 0.9)",
    ),
    "rising": (
        "table",
        one("batch_size,context,gamma,rounds,tokens,accepted_by_position\n1,512,2,10,20,4;6\n"),
        "expected accepted_by_position that never rises",
    ),
    "too few": (
        "table",
        one("batch_size,context,gamma,rounds,tokens,accepted_by_position\n1,512,2,10,20,4\n"),
        "expected accepted_by_position of 2 positions",
    ),
    "no counts": (
        "table",
        one("batch_size,context,gamma,rounds,tokens,accepted_by_position\n1,512,2,10,20,a;b\n"),
        "expected counts as in 750;500;250, got 'a;b'",
    ),
}  # fmt: skip


def binary(folder: Path) -> Path:
    path = written(folder / "bad.json", "")
    path.write_bytes(b'{"model_id": "\xff\xfe"}')
    return path


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    form, write, told = BAD[name]
    files = write(tmp_path / "files")
    out = tmp_path / "out"
    assert main(["import", form, *map(str, files), "--out", str(out)]) == 2
    line = capsys.readouterr().err
    assert told in line
    assert line.count("\n") == 1
    assert line.startswith("specgauge: ")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "files") == []


def spoiled(folder: Path, name: str) -> dict[str, list[Path]]:
    """Files that are none of a format, by what is wrong with them; of two scrapes the second."""
    files = SAMPLES[name](folder / name)
    text = files[-1].read_text(encoding="utf-8")
    broken = {
        "truncated early": text[: len(text) // 5],
        "truncated late": text[: 4 * len(text) // 5],
        "empty": "",
        "blank": " \n\n",
        "prose": "hello there\nthis is no file of an engine\n",
        "an empty mapping": "{}",
        "an empty list": "[]",
        "numbers": "[1, 2]",
        "NaN": with_nan(text),
    }
    found = {what: [*files[:-1], written(folder / what, content)] for what, content in broken.items()}
    for other, write in SAMPLES.items():
        if other != name:
            foreign = write(folder / other)
            found[f"a file of {other}"] = foreign if len(foreign) == len(files) else foreign[:1] * len(files)
    found["bytes"] = [*files[:-1], folder / "bytes"]
    found["bytes"][-1].write_bytes(b"\x00\xff" + text.encode())
    found["1 GB"] = [*files[:-1], *huge(folder)]
    found["a directory"] = [*files[:-1], folder]
    found["no file"] = [*files[:-1], folder / "none"]
    return found | {"every run twice": files * 2}


@pytest.mark.parametrize("name", [form.name for form in FORMATS])
def test_what_is_no_file_of_a_format_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for what, files in spoiled(tmp_path / "files", name).items():
        options = [*OPTIONS.get(name, ()), "--out", str(tmp_path / "out")]
        assert main(["import", name, *map(str, files), *options]) == 2, what
        line = capsys.readouterr().err
        assert (line.count("\n"), line.startswith("specgauge: ")) == (1, True), what
        assert [path.name for path in tmp_path.iterdir()] == ["files"], what


@pytest.mark.parametrize("name", [form.name for form in FORMATS])
def test_the_files_that_are_spoiled_are_read_as_they_were(tmp_path: Path, name: str) -> None:
    files = map(str, SAMPLES[name](tmp_path / "files"))
    assert main(["import", name, *files, *OPTIONS.get(name, ()), "--out", str(tmp_path / "out")]) == 0
    assert Run.open(tmp_path / "out").environment["format"] == name


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["import"], "expected FORMAT FILE…"),
        (["import", "table"], "got no file"),
        (["import", "--guess"], "got no file"),
        (["import", "table", "x.csv"], "--out: expected the run directory to write"),
        (["import", "table", "x.csv", "--out", "y", "--batch-size", "0"], "--batch-size (item 1): expected an integer"),
    ],
)
def test_too_little_is_told(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_out_that_holds_something_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    out = tmp_path / "out"
    kept = written(out if kind == "file" else out / "notes.txt", "mine")
    assert main(["import", "table", *map(str, table_file(tmp_path / "files")), "--out", str(out)]) == 2
    assert "expected a new directory, got one that holds something" in capsys.readouterr().err
    assert kept.read_text(encoding="utf-8") == "mine"


def test_an_out_without_a_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(file.resolve()) for file in table_file(tmp_path / "files")]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["import", "table", *files, "--out", "."]) == 2
    assert "expected the name of a new directory" in capsys.readouterr().err


def test_what_fails_while_it_is_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specgauge.sweeps.imports.write.write_counts", full)
    assert main(["import", "table", *map(str, table_file(tmp_path / "files")), "--out", str(tmp_path / "run")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_an_empty_out_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert main(["import", "table", *map(str, table_file(tmp_path / "files")), "--out", str(tmp_path / "out")]) == 0
    assert Run.open(tmp_path / "out").is_imported


def test_files_of_several_formats_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [llama_bench("big", 8e9, 0, 64, 64 * 20_000_000), llama_bench("small", 1e9, 0, 64, 64 * 1_000_000)]
    parts += [llama_bench("big", 8e9, gamma + 1, 0, 21_000_000 + 500_000 * gamma) for gamma in (1, 2, 3)]
    answers = llama_answers(1, 3, 1.0)
    files = [written(tmp_path / "bench.json", parts), written(tmp_path / "answers.json", answers)]
    assert main(["import", "--guess", *map(str, files), "--context", "512", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("llama-bench: ")
    run = Run.open(tmp_path / "run")
    assert run.environment["format"] == "llama-bench, llama-server"
    (entry,) = run.recommendations()
    assert entry["t_decode_s"] == pytest.approx(0.02)
    assert entry["speedup"]["value"] == pytest.approx(omega(3) * 0.02 / t_round_s(1, 3), rel=0.01)


def test_a_file_of_no_format_is_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--guess", str(written(tmp_path / "notes.txt", "hello"))]) == 2
    assert "got none that begins like one; name its format" in capsys.readouterr().err


@pytest.mark.parametrize(("runs", "told"), [(3, ["", "", ""]), (4, ["; and 3 more runs like it"])])
def test_what_is_taken_of_many_runs_is_told_once(tmp_path: Path, runs: int, told: list[str]) -> None:
    files = [written(tmp_path / f"{run}.json", llama_answers(1, 2, 1 + run / 100)) for run in range(runs)]
    assert main(["import", "llama-server", *map(str, files), "--batch-size", "1", "--out", str(tmp_path / "run")]) == 0
    messages = [one["message"] for one in Run.open(tmp_path / "run").warnings if one["code"] == "gamma_derived"]
    rounds, drafts = counts(2).rounds, 2 * counts(2).rounds
    assert messages == [
        f"{file}: γ is taken as 2, from {drafts} drafts in {rounds} rounds{more}"
        for file, more in zip(files, told, strict=False)
    ]


def test_as_many_values_as_runs_or_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(file) for file in files_of(tmp_path / "files")["vllm-bench"]]
    assert main(["import", "vllm-bench", *files, "--batch-size", "1,2,3", "--out", str(tmp_path / "run")]) == 2
    assert "--batch-size: expected one value, or one for each of 2 runs, got 3" in capsys.readouterr().err


def test_the_help_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--help"]) == 0
    shown = "".join(capsys.readouterr().out.split())  # a line may end at a hyphen
    assert [form.name for form in FORMATS if form.name not in shown] == []


def test_what_cannot_be_predicted_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [written(tmp_path / "g2.json", bench_result(8, 2))]
    assert main(["import", "vllm-bench", *map(str, files), "--out", str(tmp_path / "run")]) == 0
    assert main(["recommend", str(tmp_path / "run"), "--warnings"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the imported files hold no time of plain decoding (γ = 0) here" in shown
    assert "run the engine without speculation at the same batch size and context" in shown
    assert main(["replay", str(tmp_path / "run")]) == 0
    assert "it has counts of rounds, no texts" in capsys.readouterr().out


def test_acceptance_alone_predicts_with_times_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "big:\n  thinking_on: {1: 1.9, 2: 2.7}\n"
    path = written(tmp_path / "golden.yaml", text)
    assert main(["import", "golden", str(path), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    times = ["--t-decode", "10ms", "--t-draft", "1ms", "--t-verify", "12ms"]
    assert main(["predict", "--from-run", str(tmp_path / "run"), *times, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["speedup"] for row in rows] == pytest.approx([19 / 13, 27 / 14])


def test_the_report_of_an_import_says_what_it_is(tmp_path: Path) -> None:
    plain, drafting = (written(tmp_path / f"g{gamma}.json", bench_result(8, gamma)) for gamma in (0, 2))
    elsewhere = written(tmp_path / "g3.json", bench_result(32, 3))
    files = [str(file) for file in (plain, drafting, elsewhere)]
    assert main(["import", "vllm-bench", *files, "--out", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "An imported run is another program" in page
    assert "Acceptance was counted by the engine, not recorded" in page
    assert "the imported files hold no time of rounds at γ = 3 here" in page
    assert "run the same command again" not in page


def test_acceptance_alone_plans_as_the_lengths_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions are not told: the share of rounds that accept every draft is that of one alpha, either way."""
    monkeypatch.chdir(tmp_path)
    Path("lengths.yaml").write_text("model: {thinking_on: {1: 1.93, 2: 2.73}}\n", encoding="utf-8")
    assert main(["import", "golden", "lengths.yaml", "--out", "run"]) == 0
    found = []
    for given in (("--survival-of", "run"), ("--acceptance-lengths", "lengths.yaml")):
        capsys.readouterr()
        arguments = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--hardware", "h100-sxm"]
        assert main(["plan", *arguments, *given, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["points"][0]["by_gamma"])
    assert found[0][1]["tokens_per_round"] == 2.73
    assert [one["t_round_s"] for one in found[0]] == pytest.approx([one["t_round_s"] for one in found[1]], rel=1e-9)
    assert [one["low"] for one in found[0]] == pytest.approx([one["low"] for one in found[1]], rel=0.02)
