"""Prompts of a length that only the server can count."""

from typing import Any

import pytest

from specgauge.bench.serving.streams import OpenAIClient, Stream
from specgauge.sweeps.served.texts import PromptTexts
from tests.engine_server.answers import BEGIN, tokens_of
from tests.engine_server.engine import Engine, EngineSettings
from tests.engine_server.simulated import EngineTransport, simulate

TEXTS = ["one two three", "four five six seven", "eight nine"]


def learned(texts: PromptTexts, context: int, **settings: Any) -> Engine:
    engine = Engine(EngineSettings(**settings))

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


@pytest.mark.parametrize("tokenizes", ["prompt", "content"])
def test_a_server_that_tokenizes_gets_ids_of_the_exact_length(tokenizes: str) -> None:
    texts = PromptTexts(TEXTS, first=17)
    engine = learned(texts, 20, tokenizes=tokenizes, letters=2, begins=True)
    assert (engine.requests, engine.tokenized > len(TEXTS)) == (1, True)
    first, second = (one.prompt for one in texts.take(2, 20))
    own = EngineSettings(letters=2)
    words = [tokens_of(text, own, has_special=False) for text in TEXTS]
    digits = [tokens_of(digit, own, has_special=False)[0] for digit in "0123456789"]
    assert first == (BEGIN, digits[1], digits[8], *[*words[2], *words[0], *words[1], *words[2], *words[0]][-17:])
    assert second[:3] == (BEGIN, digits[1], digits[9])
    assert {len(one.prompt) for one in texts.take(9, 20)} == {20}


def test_a_token_that_the_server_puts_before_ids_is_not_sent_twice() -> None:
    texts = PromptTexts(TEXTS)
    assert learned(texts, 20, tokenizes="prompt", letters=2, begins=True, adds_to_ids=1).requests == 2
    (one,) = texts.take(1, 20)
    assert (len(one.prompt), one.prompt[0] == BEGIN) == (19, False)


@pytest.mark.parametrize("settings", [{}, {"tokenizes": "prompt", "takes_ids": False}])
def test_without_tokens_or_where_ids_are_refused_words_are_sent(settings: dict[str, Any]) -> None:
    texts = PromptTexts(TEXTS)
    learned(texts, 20, **settings)
    (one,) = texts.take(1, 20)
    assert (type(one.prompt), one.words) == (str, 20)


def test_a_chat_asks_for_no_tokens() -> None:
    assert learned(PromptTexts(TEXTS, is_chat=True), 20, tokenizes="prompt").tokenized == 0


def test_a_prompt_shorter_than_its_number_keeps_the_end_of_it() -> None:
    texts = PromptTexts(TEXTS, first=123456)
    learned(texts, 8, tokenizes="prompt")
    digits = {digit: tokens_of(digit, EngineSettings(), has_special=False)[0] for digit in "0123456789"}
    (one,) = texts.take(1, 4)
    assert one.prompt[:3] == (digits["4"], digits["5"], digits["7"])


def test_what_the_server_counted_makes_the_next_prompts_of_a_text_nearer() -> None:
    texts = PromptTexts(TEXTS)
    sent = texts.take(3, 20)
    streams = [Stream(prompt=number, prompt_tokens=tokens) for number, tokens in enumerate((40, 20, 10))]
    texts.told(sent, streams, 20)
    assert [one.words for one in texts.take(3, 20)] == [10, 20, 40]


def test_texts_of_other_words_are_measured_so_that_the_first_prompts_are_as_long_as_they_must_be() -> None:
    long, short = "seven office doors " * 30, "a b c d " * 30
    texts, engine = PromptTexts([short, long, "eight nine ten " * 30]), Engine(EngineSettings(letters=2))

    async def ask() -> list[int | None]:
        async with OpenAIClient("http://host:1", "target", transport=EngineTransport(engine)) as client:
            await texts.learn(client, 60)
            await texts.measure(client, 5, 60)
            asked = engine.requests
            await texts.measure(client, 5, 60)
            assert engine.requests == asked
            return [(await client.stream(one.prompt, max_new_tokens=1)).prompt_tokens for one in texts.take(3, 60)]

    lengths = simulate(ask())
    assert all(tokens is not None and abs(tokens / 60 - 1) < 0.05 for tokens in lengths), lengths


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
