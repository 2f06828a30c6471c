"""llama.cpp's own server, with the shipped pair: the preset's options, its streams and its counters."""

import asyncio
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from specgauge.bench.serving.closed_loop import LoadBlock, run_block
from specgauge.bench.serving.presets import Served, preset
from specgauge.bench.serving.server import LaunchedServer, free_port
from specgauge.bench.serving.streams import OpenAIClient
from tests.llama_server.files import write_command, write_pair

pytestmark = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs xllamacpp, llama.cpp's server in a wheel")

PROMPTS = tuple(f"def f{number}(x):\n    return x + {number}\n\n" * 3 for number in range(6))
TOKENS = 24
ARMS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 0),
    "drafts": ({}, 2),
    "lookup": ({"method": "ngram"}, 3),
    "forced": ({"alpha": 1.0}, 3),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_pair(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def arms(pair: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], LoadBlock]]:
    """The greedy texts of each arm, and a block of two streams at once."""
    folder = tmp_path_factory.mktemp("servers")
    found, env = {}, write_command(folder)
    for name, (fields, gamma) in ARMS.items():
        served = Served(
            kind="llama_cpp",
            target=pair["target"],
            draft=pair["draft"],
            slots=2,
            options=("--ctx-size", "1024"),
            **fields,
        )
        port = free_port()
        words = preset(served, gamma=gamma, port=port, folder=folder).words
        with LaunchedServer(words, port=port, log=folder / f"{name}.log", env=env) as server:
            found[name] = asyncio.run(texts_and_block(server.base_url, gamma))
    return found


async def texts_and_block(url: str, gamma: int) -> tuple[list[str], LoadBlock]:
    body: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
    async with httpx.AsyncClient(trust_env=False, timeout=600) as client:
        answers = [await client.post(f"{url}/v1/completions", json={"prompt": one, **body}) for one in PROMPTS[:2]]
    async with OpenAIClient(url) as own:
        block = await run_block(own, PROMPTS, batch_size=2, max_new_tokens=TOKENS, gamma=gamma, poll_s=0.05)
    return [answer.json()["choices"][0]["text"] for answer in answers], block


def test_every_arm_writes_what_the_plain_server_writes(arms: dict[str, tuple[list[str], LoadBlock]]) -> None:
    assert arms["drafts"][0] == arms["lookup"][0] == arms["plain"][0]
    assert all(arms["plain"][0])


@pytest.mark.parametrize("name", ARMS)
def test_streams_and_counters_tell_the_same_rounds(arms: dict[str, tuple[list[str], LoadBlock]], name: str) -> None:
    _, block = arms[name]
    counts = block.counts
    assert counts is not None
    assert (block.void, counts.engine) == (None, "llama.cpp")
    assert [stream.tokens for stream in block.streams] == [TOKENS] * len(PROMPTS)
    rounds = sum(len(stream.chunk_tokens) - 1 for stream in block.streams)
    tokens = (TOKENS - 1) * len(PROMPTS)
    accepted = tokens - rounds
    assert (counts.rounds, counts.tokens, counts.accepted) == (rounds, tokens, accepted)
    assert sum(counts.accepted_by_position or ()) == accepted
    assert (accepted > 0) == (name != "plain")
    assert block.tokens_per_round == counts.tokens_per_round == tokens / rounds
    assert block.t_round_s is not None
    assert block.tokens_per_s is not None


def test_drafts_are_accepted_as_they_are_made_to_be(arms: dict[str, tuple[list[str], LoadBlock]]) -> None:
    counts = arms["forced"][1].counts
    assert counts is not None
    assert counts.drafted
    assert counts.accepted == counts.drafted
