"""One request to each server, before anything is measured."""

import pytest

from specgauge.sweeps.served.dry_run import _ask, dry_run
from tests.engine_server.simulated import simulate
from tests.sweeps.served.simulated import served_config
from tests.sweeps.served.test_measure import engines


def test_each_server_is_told_by_its_answer() -> None:
    servers, config = engines(0, 3), served_config((0, 3))
    pairs = [("a", one) for one in config.pairs[0].engines]
    lines = simulate(_ask(config, pairs, servers.connect)).splitlines()
    assert lines[0] == (
        "pair a, γ = 0, http://gamma0:1/v1: model target, 32 of 32 tokens after 64 of the prompt, in 32 chunks, "
        "the first after 6.4 ms, counters of vllm"
    )
    assert "with metrics of each request" in lines[1]


def test_prompts_of_ids_are_told() -> None:
    servers, config = engines(0, tokenizes="prompt", letters=2), served_config((0,), grid={"context": 64, "gamma": 1})
    (line,) = simulate(_ask(config, [("a", config.pairs[0].engines[0])], servers.connect)).splitlines()
    assert "after 64 of the prompt, sent as ids, in 32 chunks" in line


def test_a_configuration_without_a_server_that_runs_is_refused() -> None:
    engine = {"kind": "vllm", "target": "t", "draft": "d", "launch": {}}
    config = served_config(pairs=[{"name": "a", "engine": engine}])
    with pytest.raises(ValueError, match="--dry-run"):
        dry_run(config)
