"""Cells that are planned, and sources of their costs by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.canonical import short_hash
from specgauge.configs.schema import Config
from specgauge.model.sampling import SamplingSettings
from specgauge.model.settings import Provenance
from specgauge.sweeps.plan import (
    begun_config,
    chains,
    decoded_tokens,
    first_batch_sizes,
    plan_cells,
    planned_pairs,
    settings_of,
)
from specgauge.sweeps.sources import SOURCES, cost_source
from tests.model.roofline_cases import deployed
from tests.sweeps import made
from tests.sweeps.served.simulated import served_config
from tests.sweeps.store.test_tables import GREEDY

SAMPLING = [
    {"name": "greedy", "temperature": 0},
    {"name": "greedy-top5", "temperature": 0, "top_k": 5},
    {"name": "t1", "temperature": 1.0},
    {"name": "warm", "temperature": 0.7, "top_p": 0.9},
    {"name": "warmer", "temperature": 0.9, "top_p": 0.8},
]


def test_settings_that_share_a_chain_share_cells() -> None:
    config = made.config(sampling=SAMPLING)
    assert list(chains(config)) == ["argmax", "draw", "temperature+top_p+draw"]
    assert chains(config)["temperature+top_p+draw"] == SamplingSettings(temperature=0.7, top_p=0.9)
    assert settings_of(config.sampling[1]) == SamplingSettings(temperature=0, top_k=5)


@pytest.mark.parametrize(("validate", "tokens"), [({"max_new_tokens": 12}, 12), ({}, 9), (None, 9)])
def test_how_long_texts_are(validate: dict[str, int] | None, tokens: int) -> None:
    assert decoded_tokens(made.config(validate=validate, workload={"max_new_tokens": 9})) == tokens


PAIRS = [
    {"name": "a", "target": {"model": "o/m", "dtype": ["bfloat16", "float32"]}, "draft": "o/s"},
    {"name": "b", "target": "embedded", "draft": "ngram", "mode": "compile"},
]


def test_cells_are_those_of_every_variant_that_the_rules_leave_smallest_first() -> None:
    grid = {
        "batch_size": [4, 1], "context": [128, 64], "gamma": 2,
        "include": [{"pair": "a", "batch_size": 1}, {"mode": "compile"}],
        "exclude": [{"pair": "a-float32"}, {"pair": "b", "context": 128}],
    }  # fmt: skip
    config = made.config(pairs=PAIRS, grid=grid, sampling=SAMPLING[:3])
    cells = plan_cells(config)
    assert [(c.pair, c.mode, c.catches_up, c.chain, c.batch_size, c.context) for c in cells] == [
        (*pair, chain, *point)
        for pair, points in (
            (("a-bfloat16", "eager", True), [(1, 64), (1, 128)]),
            (("b", "compile", False), [(1, 64), (4, 64)]),  # lookups have no cache that lags
        )
        for chain in ("argmax", "draw")
        for point in points
    ]
    assert [pair.name for pair in planned_pairs(config)] == ["a-bfloat16", "b"]


def test_the_id_of_a_cell_does_not_depend_on_what_else_is_measured() -> None:
    one = made.config(pairs=[PAIRS[0]], grid={"batch_size": 4, "context": 128, "gamma": 2})
    others = made.config(
        pairs=PAIRS[::-1],
        sampling=SAMPLING[::-1],
        grid={"batch_size": [1, 4], "context": [64, 128], "gamma": "1:3", "exclude": [{"batch_size": 1}]},
        seed=7,
    )
    known = {cell.id: cell.axes for cell in plan_cells(others)}
    assert [known[cell.id] for cell in plan_cells(one)] == [cell.axes for cell in plan_cells(one)]
    axes = {"pair": "a-bfloat16", "mode": "eager", "chain": "argmax", "batch_size": 4, "context": 128}
    assert plan_cells(one)[0].id == short_hash(axes)


@pytest.mark.parametrize(
    ("sizes", "first"),
    [
        (range(1, 17), (1, 2, 4, 8, 16)),
        (range(3, 15), (3, 6, 12, 14)),
        ([1, 2, 3, 5, 24, 30], (1, 2, 3, 5, 24, 30)),
        ([7], (7,)),
    ],
)
def test_what_a_search_for_batch_sizes_begins_with(sizes: Sequence[int], first: tuple[int, ...]) -> None:
    assert first_batch_sizes(sizes) == first


def planned(config: Config) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for cell in plan_cells(config):
        found.setdefault((cell.pair, cell.context), []).append(cell.batch_size)
    return found


def test_a_run_has_the_first_batch_sizes_of_a_search_and_those_begun() -> None:
    grid = {"batch_size": {"max": 8, "search": "adaptive"}, "context": [64, 128]}
    pairs = [{"name": name, "engine": {"base_url": f"http://{name}:1", "gamma": 0}} for name in ("a", "b")]
    config = served_config(pairs=pairs, grid=grid | {"exclude": [{"pair": "b", "batch_size": [8]}]})
    at_first = begun_config(config, ())
    assert planned(at_first) == {
        ("a", 64): [1, 2, 4, 8], ("a", 128): [1, 2, 4, 8], ("b", 64): [1, 2, 4, 7], ("b", 128): [1, 2, 4, 7],
    }  # fmt: skip
    assert at_first.grid.batch_size == (1, 2, 4, 7, 8)
    later = begun_config(config, [("a", 6, 128), ("a", 8, 64), ("c", 5, 64)])
    assert planned(later) == planned(at_first) | {("a", 128): [1, 2, 4, 6, 8]}
    assert planned(begun_config(served_config(grid={"batch_size": [1, 3]}), [("a", 2, 256)])) == {("a", 256): [1, 3]}


def test_batch_sizes_decoded_by_number_are_among_the_first() -> None:
    grid = {"batch_size": {"max": 8, "search": "adaptive"}, "context": 64}
    config = served_config(grid=grid, validate={"batch_size": [3, 8]})
    assert planned(begun_config(config, ())) == {("a", 64): [1, 2, 3, 4, 8]}


def test_the_sources_are_alike_to_what_reads_them(tmp_path: Path) -> None:
    config = made.config(grid={"batch_size": [1, 4], "context": [64, 256], "gamma": "1:2"})
    given: dict[str, dict[str, Any]] = {
        "measured": {"run": made.write_run(tmp_path / "run", config, {}), "setting": GREEDY},
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
        cost_source("measured", run=run, setting=replace(GREEDY, pair="other"))
