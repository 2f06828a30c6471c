import pytest

from specgauge.configs.canonical import short_hash
from specgauge.model.sampling import SamplingSettings
from specgauge.sweeps.plan import chains, decoded_tokens, plan_cells, planned_pairs, settings_of
from tests.sweeps import made

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
