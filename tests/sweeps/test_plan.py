from specgauge.configs.canonical import short_hash
from specgauge.model.sampling import SamplingSettings
from specgauge.sweeps.plan import chains, plan_cells, planned_pairs, settings_of
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


def test_cells_are_every_combination_smallest_first() -> None:
    pairs = [{"name": name, "target": "embedded", "draft": "embedded"} for name in ("a", "b")]
    config = made.config(
        pairs=pairs, sampling=SAMPLING[:3], grid={"batch_size": [4, 1], "context": [256, 64], "gamma": 2}
    )
    cells = plan_cells(config)
    assert [(c.pair, c.chain, c.batch_size, c.context) for c in cells] == [
        (pair, chain, batch_size, context)
        for pair in ("a", "b")
        for chain in ("argmax", "draw")
        for batch_size in (1, 4)
        for context in (64, 256)
    ]
    assert len({cell.id for cell in cells}) == 16


def test_a_cell_is_named_by_the_hash_of_its_axes() -> None:
    (cell,) = plan_cells(made.config())
    assert cell.axes == made.axes()
    assert cell.id == short_hash(made.axes())


PAIRS = [
    {"name": "a", "target": {"model": "o/m", "dtype": ["bfloat16", "float32"]}, "draft": "o/s"},
    {"name": "b", "target": "embedded", "draft": "ngram", "mode": "compile"},
]


def test_variants_are_pairs_with_their_own_mode() -> None:
    cells = plan_cells(made.config(pairs=PAIRS))
    assert [(cell.pair, cell.mode, cell.catches_up) for cell in cells] == [
        ("a-bfloat16", "eager", True),
        ("a-float32", "eager", True),
        ("b", "compile", False),
    ]


def test_the_rules_of_the_grid_leave_out_cells_and_whole_pairs() -> None:
    grid = {
        "batch_size": [1, 4], "context": [64, 128], "gamma": 2,
        "include": [{"pair": "a", "batch_size": 1}, {"mode": "compile"}],
        "exclude": [{"pair": "a-float32"}, {"pair": "b", "context": 128}],
    }  # fmt: skip
    config = made.config(pairs=PAIRS, grid=grid, sampling=SAMPLING[:3])
    assert [(c.pair, c.chain, c.batch_size, c.context) for c in plan_cells(config)] == [
        (pair, chain, batch_size, context)
        for pair, places in (("a-bfloat16", [(1, 64), (1, 128)]), ("b", [(1, 64), (4, 64)]))
        for chain in ("argmax", "draw")
        for batch_size, context in places
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
    for cell in plan_cells(one):
        assert known[cell.id] == cell.axes
    (first, _) = plan_cells(one)
    assert first.id == short_hash(
        {"pair": "a-bfloat16", "mode": "eager", "chain": "argmax", "batch_size": 4, "context": 128}
    )
