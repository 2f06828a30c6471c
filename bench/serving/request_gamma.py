"""γ with each request, as builds of llama.cpp took it, and whether the one that runs heeds it.

    client.stream(prompt, max_new_tokens=64, extra=gamma_fields(2))
    await unheeded(client, (0, 1, 2, 4))             # why it does not; None where it does

Servers ignore fields that they do not know without a word, so that a few short requests and the drafts counted in them
tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specgauge.bench.serving.closed_loop import run_block
from specgauge.bench.serving.streams import OpenAIClient

PROBE = " ".join(["1 2 3 4 5 6 7 8"] * 4)
"""A text in which lookups find drafts, too."""
TOKENS = 32


def gamma_fields(gamma: int) -> dict[str, Any]:
    """The fields of a request of γ drafts a round, in both spellings: an object, and a name with a point in it."""
    return {"speculative": {"n_max": gamma}, "speculative.n_max": gamma}


async def unheeded(client: OpenAIClient, gammas: Sequence[int]) -> str | None:
    """Why a server that was started with the largest γ does not take the others from a request; None where it does.

    Raises:
        ValueError: it refuses a short request, or its metrics cannot be read.
    """
    where, largest = client.base_url, max(gammas)
    some = min(gamma for gamma in gammas if gamma)
    fewer = [gamma for gamma in (0, some) if gamma in gammas and gamma < largest]
    rounds, drafted = await _drafts(client, {})
    if not rounds:
        return f"{where}: expected counters of rounds and drafts, got none: what a request changes is not seen"
    if fewer and drafted <= max(fewer) * rounds:
        return f"{where}: {drafted} drafts in {rounds} rounds of a probe: too few to see what a request changes"
    for gamma in fewer:
        rounds, drafted = await _drafts(client, gamma_fields(gamma))
        if drafted > gamma * rounds or (gamma and not drafted):
            return (
                f"{where}: {drafted} drafts in {rounds} rounds of a request with speculative.n_max: {gamma}: this "
                "build does not take γ from a request"
            )
    return None


async def _drafts(client: OpenAIClient, fields: Mapping[str, Any]) -> tuple[int, int]:
    """Rounds of one request and the drafts in them; (0, 0) where no counter tells."""
    block = await run_block(client, [PROBE], batch_size=1, max_new_tokens=TOKENS, extra=fields)
    if block.void is not None:
        raise ValueError(block.void)
    counts = block.counts
    return (0, 0) if counts is None else (counts.rounds, counts.drafted or 0)
