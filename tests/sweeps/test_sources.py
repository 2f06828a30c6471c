"""Sources of costs by name: each gives costs of the shape asked for, with where they come from."""

from pathlib import Path
from typing import Any

import pytest

from specgauge.model.settings import Provenance, Setting
from specgauge.sweeps.sources import SOURCES, cost_source
from specgauge.sweeps.store.rundir import Run
from tests.model.roofline_cases import deployed
from tests.reports.synthetic import Shape, build_run

SETTING = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")


def test_the_sources_are_alike_to_what_reads_them(tmp_path: Path) -> None:
    shape = Shape(alphas={"greedy": 0.8}, batch_sizes=(1, 4), contexts=(64, 256), gammas=(1, 2))
    given: dict[str, dict[str, Any]] = {
        "measured": {"run": Run.open(build_run(tmp_path / "run", shape)), "setting": SETTING},
        "roofline": {"target": deployed("llama-2-7b"), "draft": deployed("tinyllama-1.1b")},
    }
    origins = {"measured": Provenance.MEASURED, "roofline": Provenance.PREDICTED}
    assert set(SOURCES) == set(given)
    for name, arguments in given.items():
        costs = cost_source(name, **arguments).costs([[1], [4]], [64, 256], [1, 2])
        assert costs.t_decode_s.shape == (2, 2)
        assert costs.t_draft_total_s.shape == costs.t_verify_s.shape == (2, 2, 2)
        assert set(costs.provenance.ravel().tolist()) == {int(origins[name])}


def test_a_source_nobody_registered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^source of costs: expected one of measured, roofline, got 'guess'$"):
        cost_source("guess")
    run = Run.open(build_run(tmp_path / "run"))
    with pytest.raises(ValueError, match="other"):
        cost_source("measured", run=run, setting=Setting(**{**vars(SETTING), "pair": "other"}))
