"""One block of load on an arm, warmed up before its first: what is sent, for how long, and what is kept of it."""

from __future__ import annotations

from typing import Any

from specgauge.bench.serving.closed_loop import LoadBlock, run_block
from specgauge.configs.schema import SamplingConfig
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.served.servers import ServedArm
from specgauge.sweeps.served.texts import PromptTexts

AGREE = 0.05
"""How near two blocks of warming up must be in tokens a second."""
MOST_WARM_UPS = 6
MOST_DRAFTED = 1.05
"""Of γ drafts a round, beyond which a server has another γ."""


class WrongServerError(ValueError):
    """A server does not do what it was given for."""


def requests_of(batch_size: int, samples: int) -> int:
    """Requests of a block: at least `samples`, and at least two for each stream, whole waves."""
    return batch_size * max(2, -(-samples // batch_size))


def sampling_fields(sampling: SamplingConfig) -> dict[str, Any]:
    """The fields of a request beside its temperature; those that are off are as the client sends them: not cutting."""
    fields = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
    if sampling.repetition_penalty != 1.0:
        fields["repetition_penalty"] = sampling.repetition_penalty
    return {name: value for name, value in fields.items() if value}


class Load:
    """What blocks of one pair are made of."""

    def __init__(self, texts: PromptTexts, *, max_new_tokens: int, samples: int, looks_up: bool = False) -> None:
        """Every request writes `max_new_tokens`; `samples` is the least number of requests in a block.

        looks_up: drafts come from lookups, which may find none in a whole block.
        """
        self._looks_up = looks_up
        self._texts, self._new, self._samples = texts, max_new_tokens, samples
        self._learned: set[int] = set()

    async def block(
        self, arm: ServedArm, cell: Cell, sampling: SamplingConfig, *, waves: int | None = None
    ) -> LoadBlock:
        """A block of a cell at an arm; waves: requests of each stream, where not as many as a block has.

        Raises:
            ValueError: the server refuses a short request, or does not count the tokens of a prompt.
        """
        await arm.select()
        if arm.client.options is None:
            await arm.client.probe("1 2 3")
        if cell.context not in self._learned:
            await self._texts.learn(arm.client, cell.context)
            self._learned.add(cell.context)
        count = requests_of(cell.batch_size, self._samples) if waves is None else waves * cell.batch_size
        await self._texts.measure(arm.client, count, cell.context)
        prompts = self._texts.take(count, cell.context)
        block = await run_block(
            arm.client,
            [one.prompt for one in prompts],
            batch_size=cell.batch_size,
            max_new_tokens=self._new,
            gamma=arm.fixed_gamma,
            temperature=sampling.temperature,
            extra={**sampling_fields(sampling), **arm.fields},
        )
        self._texts.told(prompts, block.streams, cell.context)
        return block

    async def warm_up(self, arm: ServedArm, cell: Cell, sampling: SamplingConfig) -> list[LoadBlock]:
        """Blocks before the first that counts: until two that follow each other agree, at most `MOST_WARM_UPS`.

        Raises:
            WrongServerError: it speculates where it should not, or does not where it should.
            ValueError: as `block`.
        """
        found: list[LoadBlock] = []
        while len(found) < MOST_WARM_UPS:
            block = await self.block(arm, cell, sampling, waves=1 if cell.batch_size > 1 else 2)
            found.append(block)
            if block.void is not None:
                break
            _check_drafts(arm, block, looks_up=self._looks_up)
            if len(found) > 1 and _agree(found[-2], block):
                break
        arm.warm.add(cell.id)
        return found


def _agree(one: LoadBlock, other: LoadBlock) -> bool:
    rates = [block.tokens_per_s or _rate(block) for block in (one, other)]
    return abs(rates[1] - rates[0]) <= AGREE * rates[0]


def _rate(block: LoadBlock) -> float:
    return sum(stream.tokens or 0 for stream in block.done) / (block.ended_s - block.started_s)


def _check_drafts(arm: ServedArm, block: LoadBlock, *, looks_up: bool) -> None:
    """Hold what the server counts, else the tokens of a chunk, against the γ that it was given for."""
    if arm.fixed_gamma is None:  # it may well decode plainly
        return
    largest = max((tokens or 0 for stream in block.done for tokens in stream.chunk_tokens), default=0)
    counts, where = block.counts, arm.client.base_url
    drafts = largest > 1 if counts is None else bool(counts.drafted or counts.accepted)
    if arm.gamma and counts is not None and not drafts and largest <= 1 and not looks_up:
        raise WrongServerError(
            f"{where}: expected rounds of γ = {arm.gamma} drafts, got a token a round: it does not speculate; start it "
            "with speculation, or give it as gamma: 0"
        )
    if arm.gamma and counts is not None and (counts.drafted or 0) > MOST_DRAFTED * arm.gamma * counts.rounds:
        raise WrongServerError(
            f"{where}: expected rounds of γ = {arm.gamma} drafts, got {counts.drafted} in {counts.rounds} of them: "
            "it has another γ; give the one that it was started with"
        )
    if not arm.gamma and drafts:
        raise WrongServerError(
            f"{where}: expected plain decoding (gamma: 0), got rounds of several tokens: it speculates; start one "
            "without speculation, or give its own gamma"
        )
