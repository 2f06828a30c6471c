"""A made engine is advised its best γ at every batch size, whichever of its files are imported."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specgauge.sweeps.analysis.settings import run_settings
from specgauge.sweeps.imports.engine_run import Given
from specgauge.sweeps.imports.formats import find_format, guess, read
from specgauge.sweeps.imports.write import Names, write_import
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.sources import cost_source
from specgauge.sweeps.store.rundir import Run
from tests.sweeps.imports.engines import (
    BATCH_SIZES,
    GAMMAS,
    MADE,
    NOISE,
    SAID,
    WRITERS,
    bench_result,
    best,
    omega,
    speedup,
    t_round_s,
    written,
)


def imported(folder: Path, name: str, write: Callable[[Path], list[Path]]) -> Run:
    files = write(folder / "files")
    form = find_format(name)
    assert guess(files) == {form: files}
    given = Given(batch_size=SAID.get(name, ()))
    write_import(folder / "run", [form], files, read(form, files, given), Names())
    return Run.open(folder / "run")


@pytest.mark.parametrize("source", WRITERS)
def test_the_best_gamma_is_advised_at_every_batch_size(tmp_path: Path, source: str) -> None:
    run = imported(tmp_path, *WRITERS[source])
    entries = recommend(run).entries
    assert [entry["batch_size"] for entry in entries] == list(BATCH_SIZES)
    assert {speedup(size, 0) == best(size) for size in BATCH_SIZES} == {True, False}  # somewhere it does not pay
    for entry in entries:
        size = entry["batch_size"]
        used = entry["gamma"] or 0
        assert speedup(size, used) >= 0.99 * best(size)
        assert entry["decision"] == ("do not speculate" if best(size) == 1 else "speculate")
        shown = entry["recommended_gamma"]
        assert entry["speedup"]["value"] == pytest.approx(speedup(size, shown), rel=0.01)
        assert entry["t_round_s"] == pytest.approx(t_round_s(size, shown), rel=1e-9)


@pytest.mark.parametrize(
    ("gammas", "told"), [((0, 1, 5), "most γ = 3, by 8 %"), ((0, 2, 4), "most γ = 3, by 1 %"), ((0, 1, 2), "")]
)
def test_a_gamma_between_those_measured_is_told(tmp_path: Path, gammas: tuple[int, ...], told: str) -> None:
    files = [
        written(tmp_path / f"g{gamma}-{number}.json", bench_result(8, gamma, noise))
        for gamma in gammas
        for number, noise in enumerate(NOISE)
    ]
    form = find_format("vllm-bench")
    write_import(tmp_path / "run", [form], files, read(form, files, Given()), Names())
    run = Run.open(tmp_path / "run")
    assert {entry["gamma"] for entry in run.recommendations()} < {*gammas}
    assert [one["code"] for one in run.warnings if one["code"] == "gamma_between"] == ["gamma_between"] * bool(told)
    assert told in "".join(one["message"] for one in run.warnings)


def test_rounds_and_acceptance_are_recovered(tmp_path: Path) -> None:
    run = imported(tmp_path, "vllm-bench", MADE["vllm-bench"])
    (setting,) = run_settings(run, {})
    costs = cost_source("measured", run=run, setting=setting.key).costs([1, 8, 20], 600, GAMMAS[1:])
    for row, size in enumerate((1, 8)):
        assert costs.t_decode_s[row] == pytest.approx(t_round_s(size, 0), rel=1e-9)
        whole = costs.t_round_s
        assert whole is not None
        assert whole[row].tolist() == pytest.approx([t_round_s(size, gamma) for gamma in GAMMAS[1:]], rel=1e-9)
    assert whole is not None
    assert whole[2].tolist() == pytest.approx([t_round_s(20, gamma) for gamma in GAMMAS[1:]], rel=1e-9)
    acceptance = setting.acceptance_at(600)
    assert acceptance is not None
    assert acceptance.tokens_per_round[0].tolist() == pytest.approx([omega(gamma) for gamma in GAMMAS[1:]], rel=1e-3)
