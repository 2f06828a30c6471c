"""One request to each server of a configuration, and what its answer tells: before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specgauge.bench.serving.counters import count
from specgauge.bench.serving.streams import OpenAIClient, Stream, form_of
from specgauge.sweeps.served.load import sampling_fields
from specgauge.sweeps.served.servers import Connect, connect, run_to_end
from specgauge.sweeps.served.texts import PromptTexts

if TYPE_CHECKING:
    from specgauge.configs.engines import EngineConfig
    from specgauge.configs.schema import Config


def dry_run(config: Config, open_client: Connect = connect) -> str:
    """A line for each server that runs, what it answered to one request; nothing is measured or kept.

    Raises:
        ValueError: no pair has a server that runs, or one does not answer as it should.
    """
    engines = [(pair.name, one) for pair in config.pairs for one in pair.engines if one.base_url is not None]
    if not engines:
        raise ValueError(
            "--dry-run: expected a pair with servers that run (engine.base_url), got none; `specgauge check` shows "
            "what would be started"
        )
    return run_to_end(_ask(config, engines, open_client))


async def _ask(config: Config, engines: list[tuple[str, EngineConfig]], open_client: Connect) -> str:
    from specgauge.bench.prompts import read_prompts

    texts = PromptTexts(
        [prompt.text for prompt in read_prompts(config.workload, seed=config.seed)],
        is_chat=config.workload.chat_template == "always",
    )
    lines = []
    for pair, engine in engines:
        assert engine.base_url is not None
        async with open_client(engine, engine.base_url) as client:
            lines.append(f"pair {pair}, γ = {engine.gamma}, {', '.join(await _one(config, texts, client))}")
    return "\n".join(lines)


async def _one(config: Config, texts: PromptTexts, client: OpenAIClient) -> list[str]:
    model = await client.check_model()
    await client.probe("1 2 3")
    context, sampling = config.grid.context[0], config.sampling[0]
    await texts.learn(client, context)
    (one,) = texts.take(1, context)
    before = await client.metrics()
    stream = await client.stream(
        one.prompt,
        max_new_tokens=config.workload.max_new_tokens,
        temperature=sampling.temperature,
        extra=sampling_fields(sampling),
    )
    if stream.error is not None:
        raise ValueError(stream.error)
    after = await client.metrics()
    counted = None if before is None or after is None else count(before, after, first_tokens=1)
    return [
        f"{client.base_url}: model {model}",
        *_words(stream, config.workload.max_new_tokens, form_of(one.prompt)),
        f"counters of {counted.engine}" if counted is not None else f"no counters at {client.metrics_url}",
    ]


def _words(stream: Stream, wanted: int, form: str) -> Iterator[str]:
    sent = {"ids": ", sent as ids"}.get(form, "")
    yield f"{stream.tokens} of {wanted} tokens after {stream.prompt_tokens} of the prompt{sent}"
    yield f"in {len(stream.chunk_s)} chunks"
    if stream.ttft_s is not None:
        yield f"the first after {1e3 * stream.ttft_s:.3g} ms"
    if stream.speculative is not None:
        yield "with metrics of each request"
