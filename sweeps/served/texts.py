"""Prompts for a server that has its tokenizer to itself: of a wanted length, and no two with a common beginning.

    texts = PromptTexts(["First text …", "Second …"], is_chat=False)
    await texts.learn(client, 512)                # one or two short requests tell how long a word is
    texts.take(8, 512)                            # eight prompts of about 512 tokens; blocks tell how long they were
    texts.told(prompt_number, words, tokens)      # what the server counted makes the next ones nearer

A prompt is brought to its length as in a run without servers: its end, after the ends of the prompts before it. It
begins with a number of its own, so that no prefix cache has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgauge.bench.serving.streams import OpenAIClient, Prompt, Stream

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


class PromptTexts:
    """The texts of a workload, from which prompts of any length are made."""

    def __init__(self, texts: Sequence[str], *, is_chat: bool = False, first: int = 0) -> None:
        """Prompts are numbered from `first` on; as chat, each is one message of the user's."""
        self._words = [text.split() for text in texts]
        self._is_chat = is_chat
        self._next = first
        self._tokens_per_word: dict[int, float] = {}
        self._around = 0.0
        """Tokens of a chat's template and of the beginning of a text."""
        self._of_any = 1.0

    async def learn(self, client: OpenAIClient, context: int) -> None:
        """Find how many words are `context` tokens on this server.

        Raises:
            ValueError: it refuses a request, or does not count the tokens of a prompt.
        """
        for _ in range(_PROBES):
            one = self._sized(context)
            stream = await client.stream(one.prompt, max_new_tokens=1)
            if stream.error is not None:
                raise ValueError(stream.error)
            if stream.prompt_tokens is None:
                raise ValueError(
                    f"{client.base_url}: expected the tokens of a prompt in the usage of its answer, got none: prompts "
                    "cannot be brought to a length"
                )
            self._of_any = max(stream.prompt_tokens - self._around, 1.0) / one.words
            if abs(stream.prompt_tokens - context) <= NEAR * context + 1:
                return

    def take(self, count: int, context: int) -> list[SizedPrompt]:
        """So many prompts, the texts one after the other."""
        return [self._sized(context) for _ in range(count)]

    def told(self, prompts: Sequence[SizedPrompt], streams: Sequence[Stream]) -> None:
        """What the server counted of prompts that were sent: `Stream.prompt` is their place among them."""
        for stream in streams:
            if stream.prompt_tokens is not None and stream.error is None:
                one = prompts[stream.prompt]
                self._tokens_per_word[one.text] = max(stream.prompt_tokens - self._around, 1.0) / one.words

    def _sized(self, context: int) -> SizedPrompt:
        number = self._next
        self._next += 1
        text = number % len(self._words)
        wanted = max(1, round((context - self._around) / self._tokens_per_word.get(text, self._of_any)))
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
