"""Prompts for a server with a tokenizer of its own: of a wanted length, and no two with a common beginning.

    texts = PromptTexts(["First text …", "Second …"], is_chat=False)
    await texts.learn(client, 512)                # its /tokenize, else one or two requests, tell how long a text is
    await texts.measure(client, 8, 512)           # in words: a request or two for each of the next texts
    texts.take(8, 512)                            # eight prompts of 512 token ids, else of about as many in words
    texts.told(prompts, streams, 512)             # what the server counted makes the next ones nearer

A prompt is brought to its length as in a run without servers: its end, after the ends of the prompts before it. It
begins with a number of its own, so that no prefix cache has it. Token ids are sent where the server tells those of a
text and then counts as many; a chat is text, and its words are made to fit by what the server counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specgauge.bench.serving.streams import OpenAIClient, Prompt, Stream
from specgauge.sweeps.served.token_texts import TokenTexts, token_texts

_PROBES = 4
NEAR = 0.02
"""How far a length may be off as a share, when it is learned."""


@dataclass(frozen=True, kw_only=True)
class SizedPrompt:
    """A prompt and how many words it has."""

    prompt: Prompt
    text: int
    """The number of the text that it ends with."""
    words: int
    """Or token ids."""


class PromptTexts:
    """The texts of a workload, from which prompts of any length are made."""

    def __init__(self, texts: Sequence[str], *, is_chat: bool = False, first: int = 0) -> None:
        """Prompts are numbered from `first` on; as chat, each is one message of the user's."""
        self._texts, self._words = texts, [text.split() for text in texts]
        self._is_chat = is_chat
        self._next = first
        self._known: dict[tuple[int, int], float] = {}
        """Tokens of a word by text and context: a longer prompt has words of other texts, too."""
        self._around = 0.0
        """Tokens of a chat's template and of the beginning of a text."""
        self._of_any = 1.0
        self._tokens: TokenTexts | None = None
        self._added = 0
        """Tokens that the server puts before ids."""
        self._is_asked = is_chat

    async def learn(self, client: OpenAIClient, context: int) -> None:
        """Find the tokens of the texts, or how many words are `context` tokens on this server.

        Raises:
            ValueError: it refuses a request, or does not count the tokens of a prompt.
        """
        if not self._is_asked:
            self._is_asked, self._tokens = True, await token_texts(client, self._texts)
        if self._tokens is not None:
            self._tokens = await self._counted(client, self._tokens, context)
        for _ in range(0 if self._tokens is not None else _PROBES):
            one = self._sized(context)
            tokens = await _tokens_of(client, one.prompt)
            self._of_any = max(tokens - self._around, 1.0) / one.words
            if _is_near(tokens, context):
                return

    async def measure(self, client: OpenAIClient, count: int, context: int) -> None:
        """Find how long the words of the next prompts are, where they are sent as words: each text until it fits.

        Raises:
            ValueError: as `learn`.
        """
        if self._tokens is not None:
            return
        start, texts, rounds = self._next, len(self._words), 0
        open_ones = [one for one in range(min(count, texts)) if ((start + one) % texts, context) not in self._known]
        while open_ones and rounds < _PROBES:
            found = []
            for place in open_ones:
                self._next = start + rounds * texts + place  # a number of its own: no cache of the server has it
                one = self._sized(context)
                tokens = await _tokens_of(client, one.prompt)
                self._keep(one, context, tokens)
                found += [] if _is_near(tokens, context) else [place]
            open_ones, rounds = found, rounds + 1
        self._next = start + rounds * texts

    async def _counted(self, client: OpenAIClient, own: TokenTexts, context: int) -> TokenTexts | None:
        """The tokens, if the server counts as many ids as it is sent, or always the same few more; else None."""
        self._added = 0
        for _ in range(2):
            self._tokens = own
            stream = await client.stream(self._sized(context).prompt, max_new_tokens=1)
            if stream.error is not None or stream.prompt_tokens is None:
                return None
            if stream.prompt_tokens == context:
                return own
            self._added = stream.prompt_tokens - context
            own = replace(own, start=())
        return None

    def take(self, count: int, context: int) -> list[SizedPrompt]:
        """So many prompts, the texts one after the other."""
        return [self._sized(context) for _ in range(count)]

    def told(self, prompts: Sequence[SizedPrompt], streams: Sequence[Stream], context: int) -> None:
        """What the server counted of prompts that were sent: `Stream.prompt` is their place among them."""
        for stream in streams:
            if stream.prompt_tokens is not None and stream.error is None:
                self._keep(prompts[stream.prompt], context, stream.prompt_tokens)

    def _keep(self, one: SizedPrompt, context: int, tokens: int) -> None:
        self._known[one.text, context] = max(tokens - self._around, 1.0) / one.words

    def _sized(self, context: int) -> SizedPrompt:
        number = self._next
        self._next += 1
        text = number % len(self._words)
        if self._tokens is not None:
            ids = self._tokens.prompt(number, text, context - self._added)
            return SizedPrompt(prompt=ids, text=text, words=len(ids))
        wanted = max(1, round((context - self._around) / self._known.get((text, context), self._of_any)))
        words = [str(number), *self._end(text, wanted - 1)]
        line = " ".join(words)
        prompt: Prompt = [{"role": "user", "content": line}] if self._is_chat else line
        return SizedPrompt(prompt=prompt, text=text, words=len(words))

    def _end(self, text: int, count: int) -> list[str]:
        """The last words of a text, after those of the texts before it, around again where all are too few."""
        found: list[str] = []
        at = text
        while len(found) < count:
            found = self._words[at % len(self._words)] + found
            at -= 1
        return found[len(found) - count :]


def _is_near(tokens: int, context: int) -> bool:
    return abs(tokens - context) <= NEAR * context + 1


async def _tokens_of(client: OpenAIClient, prompt: Prompt) -> int:
    """Tokens that the server counts in a prompt; ValueError where it refuses the request, or does not count them."""
    stream = await client.stream(prompt, max_new_tokens=1)
    if stream.error is not None:
        raise ValueError(stream.error)
    if stream.prompt_tokens is None:
        raise ValueError(
            f"{client.base_url}: expected the tokens of a prompt in the usage of its answer, got none: prompts cannot "
            "be brought to a length"
        )
    return stream.prompt_tokens
