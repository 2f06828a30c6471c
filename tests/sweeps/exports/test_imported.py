"""From the files of an engine to the settings of one: import, then export, for a made engine whose rounds are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specgauge.sweeps.exports.registry import ENGINES, export_settings
from specgauge.sweeps.imports.engine_run import Given
from specgauge.sweeps.imports.formats import find_format, read
from specgauge.sweeps.imports.write import Names, write_import
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.store.rundir import Run
from tests.sweeps.exports.test_round_trip import READERS
from tests.sweeps.imports import engines
from tests.sweeps.imports.engines import BATCH_SIZES, MADE, bench_result, best, speedup, written
from tests.sweeps.imports.test_round_trip import imported

THREE = (0, 2, 4)


@pytest.fixture(scope="module", params=["vllm-bench", "sglang-bench"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return imported(tmp_path_factory.mktemp("imported"), request.param, MADE[request.param])


@pytest.mark.parametrize(("name", "form", "release"), READERS)
def test_every_batch_size_is_advised_within_a_hundredth(
    run: Run, name: str, form: str | None, release: str | None
) -> None:
    gamma = READERS[(name, form, release)](export_settings(run, name, form=form, release=release).content)
    losses = {size: 1 - speedup(size, gamma(size)) / best(size) for size in range(1, BATCH_SIZES[-1] + 1)}
    assert max(losses.values()) <= 0.01 + 1e-9, losses


@pytest.fixture
def three_gammas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Run]:
    """A run of the made engine at γ 0, 2 and 4, imported from the files of a format."""
    monkeypatch.setattr(engines, "GAMMAS", THREE)

    def made(source: str) -> Run:
        if source in engines.SAID:  # a batch size for each file
            sizes = tuple(size for size in BATCH_SIZES for _ in THREE for _ in engines.NOISE)
            monkeypatch.setitem(engines.SAID, source, sizes)
        return imported(tmp_path, source, MADE[source])

    return made


@pytest.mark.parametrize("source", MADE)
def test_runs_at_three_gammas_give_settings_whose_gain_is_stated(
    three_gammas: Callable[[str], Run], source: str
) -> None:
    run = three_gammas(source)
    assert [entry["recommended_gamma"] for entry in recommend(run, batch_size=1).entries] == [4]
    settings = READERS["vllm", None, None](export_settings(run, "vllm").content)
    for size in BATCH_SIZES:
        assert speedup(size, settings(size)) >= 0.99 * best_of_three(size)
    gain = speedup(1, 4)
    for name in ENGINES:
        found = export_settings(run, name)
        (line,) = [line for line in found.header.splitlines() if line.startswith("batch 1: γ 4, S ")]
        shown = float(line.partition(", S ")[2].partition(" ")[0])
        assert shown == pytest.approx(gain, rel=0.015)
        assert f"and {shown:.2f} × the tokens a second of the same server without drafts" in found.header


def best_of_three(batch_size: int) -> float:
    return max(speedup(batch_size, gamma) for gamma in THREE)


FIXED = {
    "vllm": '"num_speculative_tokens": ',
    "sglang": "--speculative-num-steps ",
    "llama.cpp": "--spec-draft-n-max ",
    "transformers": '"num_assistant_tokens": ',
}
"""What stands before γ in settings of one γ."""
OWN_FILES = {
    "vllm": "vllm-metrics",
    "sglang": "sglang-bench",
    "tensorrt-llm": "aiperf",
    "llama.cpp": "llama-metrics",
    "transformers": "table",
}
"""Files of each engine itself; of those that write none a format that every engine can be measured in."""


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_told_its_best_gamma_from_its_own_files(three_gammas: Callable[[str], Run], name: str) -> None:
    run = three_gammas(OWN_FILES[name])
    assert {best_of_three(size) > 1 for size in BATCH_SIZES} == {True, False}
    for (engine, form, release), reader in READERS.items():
        if engine == name:
            gamma = reader(export_settings(run, name, form=form, release=release).content)
            for size in range(1, BATCH_SIZES[-1] + 1):
                assert speedup(size, gamma(size)) >= 0.99 * best_of_three(size) - 1e-9, size
    for size in BATCH_SIZES[: 1 if name == "transformers" else None] if name in FIXED else ():
        if best_of_three(size) == 1:
            with pytest.raises(ValueError, match=f"nothing to export, batch {size}: γ 0, do not speculate"):
                export_settings(run, name, batch_size=size)
            continue
        content = export_settings(run, name, batch_size=size).content
        gamma_text = content.partition(FIXED[name])[2].replace(",", " ").split()[0]
        assert speedup(size, int(gamma_text)) >= 0.99 * best_of_three(size), size


def test_what_was_counted_under_one_rule_says_nothing_of_another(run: Run) -> None:
    with pytest.raises(ValueError, match="no drafts were recorded from which same ones could be answered, only greedy"):
        export_settings(run, "vllm", draft_sampling="same")


def test_more_batch_sizes_are_imported_where_one_was(tmp_path: Path) -> None:
    files = [written(tmp_path / f"g{gamma}.json", bench_result(8, gamma)) for gamma in (0, 3)]
    form = find_format("vllm-bench")
    write_import(tmp_path / "run", [form], files, read(form, files, Given()), Names())
    header = export_settings(tmp_path / "run", "vllm").header
    assert "γ is 0 beyond it; import runs at more batch sizes beside these\n" in header
    assert "specgauge run" not in header


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, engine in ENGINES.items() for form in engine.forms])
def test_every_form_does_without_the_split_of_a_round(run: Run, name: str, form: str) -> None:
    assert run.predictions()["t_verify_s"].isna().all()
    assert "batch 1: γ 4, S " in export_settings(run, name, form=form).header


def test_it_says_where_the_numbers_come_from(run: Run) -> None:
    found = export_settings(run, "sglang")
    engine = {"vllm-bench": "vllm", "sglang-bench": "sglang"}[run.environment["format"]]
    day = max(line.at[:10] for line in run.journal() if line.at)
    assert f"imported {day} ({run.environment['format']}) from {engine}: pair " in found.header
    assert "holds for the draft sampling and acceptance rule that the acceptance was taken under;" in found.header
    told = "the default of SGLang is greedy drafts: γ holds where the acceptance was taken so"
    assert found.warnings == (told,)
    assert "drawn drafts" not in found.header
    assert "optimistic" not in found.header
    assert "--speculative-draft-model-path DRAFT" in found.content
