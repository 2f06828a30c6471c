"""Prompts of a length that only the server can count."""

import pytest

from specgauge.bench.serving.streams import OpenAIClient, Stream
from specgauge.sweeps.served.texts import PromptTexts
from tests.engine_server.engine import Engine, EngineSettings
from tests.engine_server.simulated import EngineTransport, simulate

TEXTS = ["one two three", "four five six seven", "eight nine"]


def learned(texts: PromptTexts, context: int) -> Engine:
    engine = Engine(EngineSettings())

    async def ask() -> None:
        async with OpenAIClient("http://host:1", "target", transport=EngineTransport(engine)) as client:
            await texts.learn(client, context)

    simulate(ask())
    return engine


def test_a_prompt_is_the_end_of_its_text_after_those_before_it_and_begins_with_its_number() -> None:
    texts = PromptTexts(TEXTS, first=9)
    assert [one.prompt for one in texts.take(3, 6)] == [
        "9 eight nine one two three", "10 three four five six seven", "11 five six seven eight nine",
    ]  # fmt: skip
    (long,) = texts.take(1, 30)
    assert (len(str(long.prompt).split()), str(long.prompt).split()[-3:]) == (30, ["one", "two", "three"])


def test_few_requests_tell_how_long_a_word_is() -> None:
    texts = PromptTexts(TEXTS)
    assert learned(texts, 20).requests == 1
    assert {one.words for one in texts.take(3, 20)} == {20}


def test_what_the_server_counted_makes_the_next_prompts_of_a_text_nearer() -> None:
    texts = PromptTexts(TEXTS)
    sent = texts.take(3, 20)
    streams = [Stream(prompt=number, prompt_tokens=tokens) for number, tokens in enumerate((40, 20, 10))]
    texts.told(sent, streams)
    assert [one.words for one in texts.take(3, 20)] == [10, 20, 40]


def test_a_chat_is_one_message_of_the_users() -> None:
    (one,) = PromptTexts(TEXTS, is_chat=True).take(1, 3)
    assert one.prompt == [{"role": "user", "content": "0 two three"}]


def test_a_server_that_refuses_is_told() -> None:
    engine = Engine(EngineSettings(api_key="word"))

    async def ask() -> None:
        async with OpenAIClient("http://host:1", "target", transport=EngineTransport(engine)) as client:
            await PromptTexts(TEXTS).learn(client, 8)

    with pytest.raises(ValueError, match="401"):
        simulate(ask())
