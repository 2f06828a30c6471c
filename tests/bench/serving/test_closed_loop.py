"""A held concurrency against the simulated engine: what is known of it is found again."""

import pytest

from specgauge.bench.serving.closed_loop import LoadBlock, run_block
from specgauge.bench.serving.streams import OpenAIClient
from tests.engine_server.engine import Engine, EngineSettings
from tests.engine_server.simulated import EngineTransport, simulate

PROMPTS = tuple(f"prompt {number} of some words" for number in range(400))


def block_of(engine: Engine, *, batch_size: int, requests: int, max_new_tokens: int = 64) -> LoadBlock:
    async def measure() -> LoadBlock:
        transport = EngineTransport(engine)
        async with OpenAIClient("http://engine", engine.settings.model, transport=transport) as client:
            return await run_block(
                client, PROMPTS[:requests], batch_size=batch_size, max_new_tokens=max_new_tokens,
                gamma=engine.settings.gamma, poll_s=0.05,
            )  # fmt: skip

    return simulate(measure())


@pytest.mark.parametrize("gamma", [0, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_times_and_acceptance_are_those_of_the_engine(gamma: int, batch_size: int) -> None:
    engine = Engine(EngineSettings(gamma=gamma, alpha=0.7))
    block = block_of(engine, batch_size=batch_size, requests=batch_size * 20)
    assert (block.void, block.not_reached) == (None, None)
    assert block.t_round_s == pytest.approx(engine.t_round_s(batch_size, gamma), rel=1e-9)
    assert block.tokens_per_round == pytest.approx(engine.omega(gamma), rel=0.04)
