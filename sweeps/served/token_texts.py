"""Prompts of an exact number of tokens, as token ids: of a server that tells the tokens of a text and completes ids.

texts = await token_texts(client, ["First text …", "Second …"])      # None where it does not tell them
texts.prompt(17, text=1, tokens=512)          # 512 ids: what begins every text, the digits 1 and 7, the end of a text
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgauge.bench.serving.streams import OpenAIClient

DIGITS = "0123456789"


@dataclass(frozen=True, kw_only=True)
class TokenTexts:
    """The texts of a workload as one server's tokenizer has them."""

    texts: tuple[tuple[int, ...], ...]
    digits: tuple[int, ...]
    """The token of each digit."""
    start: tuple[int, ...]
    """What the tokenizer puts before a text."""

    def prompt(self, number: int, text: int, tokens: int) -> tuple[int, ...]:
        """So many ids: the start, a number of its own, then the end of a text after the ends of those before it."""
        own = [self.digits[int(digit)] for digit in str(number)]
        head = [*self.start, *own[-max(1, tokens - len(self.start) - 1) :]]
        wanted = max(0, tokens - len(head))
        found: list[int] = []
        while len(found) < wanted:
            found = [*self.texts[text % len(self.texts)], *found]
            text -= 1
        return (*head, *found[len(found) - wanted :])


async def token_texts(client: OpenAIClient, texts: Sequence[str]) -> TokenTexts | None:
    """The texts in tokens of a server; None where it does not tell them, or no digit has a token of its own.

    Raises:
        ValueError: it cannot be reached.
    """
    plain = await client.tokenize(DIGITS[1])
    if plain is None:
        return None
    around = await client.tokenize(DIGITS[1], has_special=True) or ()
    at = next((at for at in range(len(around)) if around[at : at + len(plain)] == plain), 0)
    digits = [(await client.tokenize(digit) or (-1,))[-1] for digit in DIGITS]
    found = [await client.tokenize(text) for text in texts]
    known = tuple(one for one in found if one is not None)
    if len(set(digits)) < len(DIGITS) or min(digits) < 0 or len(known) < len(texts):
        return None
    return TokenTexts(texts=known, digits=tuple(digits), start=around[:at])
