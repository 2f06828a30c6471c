"""Sources of costs by name: each gives costs of the shape asked for, with where they come from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.model.settings import Provenance, Setting
from specgauge.sweeps.sources import SOURCES, cost_source
from tests.model.roofline_cases import deployed
from tests.sweeps import made

SETTING = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")


def test_the_sources_are_alike_to_what_reads_them(tmp_path: Path) -> None:
    config = made.config(grid={"batch_size": [1, 4], "context": [64, 256], "gamma": "1:2"})
    given: dict[str, dict[str, Any]] = {
        "measured": {"run": made.write_run(tmp_path / "run", config, {}), "setting": SETTING},
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
    run = made.write_run(tmp_path / "run", made.config(), {})
    with pytest.raises(ValueError, match=r"found no setting .*other"):
        cost_source("measured", run=run, setting=replace(SETTING, pair="other"))
