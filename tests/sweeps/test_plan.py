from specgauge.configs.canonical import short_hash
from specgauge.model.arms import arm_names
from specgauge.model.sampling import SamplingSettings
from specgauge.sweeps.plan import chains, plan_cells, settings_of
from specgauge.sweeps.records import parse_line
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


def test_arms_follow_the_gammas_and_are_the_journals() -> None:
    names = arm_names((2, 5))
    assert names == ("decode", "draft", "draft_catch_up", "verify:2", "verify:5", "prefill_target", "prefill_draft")
    axes = made.axes()
    for arm in names:
        assert parse_line({"schema": 1, "config": "c", "cell": short_hash(axes), **made.line(arm, [[1.0]])}).arm == arm
