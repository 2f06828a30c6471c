"""What decoding leaves behind: the texts, one record for every row and round, the seconds of every phase.

    emitted = accepted + 1, the replacement or bonus; = accepted where a round ended on an accepted end token
    tokens per round = Σ emitted / rounds          bonus included
    accepted drafts per round = Σ accepted / rounds          bonus excluded
    ε = Σ (t_accept_s + t_rest_s) / rounds

Accepted over drafted is not the acceptance rate: drafts after a rejection never met the accept–reject test.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

EndReason = Literal["eos", "length"]
GammaLimit = Literal["asked", "tokens_left", "draft_context"]
"""What set γ in force: what was asked for, or the limit that allowed less."""


@dataclass(frozen=True, kw_only=True)
class PromptBatch:
    """Prompts to decode together; uniforms are a function of their numbers and of the repetition."""

    prompts: Sequence[Sequence[int]]
    numbers: Sequence[int]
    max_new_tokens: int
    repetition: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(prompt) for prompt in self.prompts)


@dataclass(frozen=True, kw_only=True)
class Text:
    """One text the target wrote."""

    prompt: int
    """Number of the prompt in the workload."""
    repetition: int
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    """What was emitted, the first token sampled from the prefill included, an end-of-text token included."""
    end_reason: EndReason


@dataclass(kw_only=True)
class Row:
    """One prompt and the text that is being written after it."""

    prompt: int
    committed: list[int]
    prompt_tokens: int
    ended: EndReason | None = None

    @property
    def emitted(self) -> int:
        """Tokens of its text so far."""
        return len(self.committed) - self.prompt_tokens

    def commit(self, tokens: Sequence[int], end_tokens: Collection[int], most: int) -> int:
        """Append tokens up to and including the first end token, ``most`` in all; how many were emitted."""
        for count, token in enumerate(tokens, start=1):
            self.committed.append(token)
            if token in end_tokens or self.emitted == most:
                self.ended = "eos" if token in end_tokens else "length"
                return count
        return len(tokens)

    def text(self, repetition: int) -> Text:
        """What was written, once it has ended."""
        assert self.ended is not None, "not ended yet"
        return Text(
            prompt=self.prompt,
            repetition=repetition,
            prompt_tokens=tuple(self.committed[: self.prompt_tokens]),
            tokens=tuple(self.committed[self.prompt_tokens :]),
            end_reason=self.ended,
        )


@dataclass(frozen=True, kw_only=True)
class RowRound:
    """One row's part in one round; a step of the plain loop is a round without drafts."""

    round: int
    prompt: int
    repetition: int
    position: int
    """Index of the round's first token in the row's text; the prefill's token is index 0."""
    context: int
    """Tokens in the target's cache when the round started."""
    gamma_asked: int
    """γ that was asked for: drafts after which a policy that reads signals stopped, where it did."""
    gamma: int
    """γ in force: never more than the tokens left and both contexts allow."""
    gamma_limit: GammaLimit
    drafted: int
    """Drafts that were proposed: γ in force, or fewer where the drafter had none."""
    accepted: int
    """Drafts that were accepted and emitted; a replacement or bonus is not among them."""
    emitted: int
    """Tokens committed, the replacement or bonus included, nothing after an end token."""
    top_probs: tuple[float, ...] = ()
    """The draft's own largest probability at each of its steps; empty where signals are neither kept nor read, and
    without that of a last step that no other could follow where they are only read."""
    entropies_nats: tuple[float, ...] = ()
    match_length: int | None = None
    """Tokens that a lookup matched where the round started, 0 for no match; None for other drafters."""


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """Seconds of one round of the whole batch; rounds follow each other without a gap.  A plain step has no phases."""

    active_rows: int
    t_round_s: float
    t_draft_s: float | None = None
    t_verify_s: float | None = None
    t_accept_s: float | None = None
    """Accept or replace, and the read-back that tells the host."""
    t_transfer_s: float | None = None
    """Drafts, and their distributions where the rule needs them, to the target's device; None on one device."""
    t_rest_s: float | None = None
    """Bookkeeping on the host and rolling back, until the next round starts."""

    @property
    def t_overhead_s(self) -> float:
        """Accept and rest, 0 without phases."""
        return (self.t_accept_s or 0.0) + (self.t_rest_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A decoded batch."""

    texts: list[Text]
    rows: list[RowRound]
    times: list[RoundTimes]
    """Of every round, by its number."""
    prefill_target_s: float
    """Up to and including the first token, which the target samples."""
    prefill_draft_s: float = 0.0
    """Whatever the drafter does before the first round."""
    why_not_lossless: str | None = None
    """None where the texts have exactly the target's distribution, but for ties within rounding."""

    @property
    def prefill_s(self) -> float:
        """Both prefills."""
        return self.prefill_target_s + self.prefill_draft_s

    @property
    def decode_s(self) -> float:
        """From there to the end of the last row: the sum of all rounds."""
        return sum(one.t_round_s for one in self.times)


class NonFiniteLogitsError(RuntimeError):
    """A model's logits are not numbers; the message names the model, the prompt and the place in one line."""

    def __init__(self, model: str, prompt: int, position: int) -> None:
        super().__init__(
            f"{model}: prompt {prompt}: the logits of token {position} of its text are NaN or infinite; its weights "
            "are corrupt, or need a wider dtype, such as bfloat16 or float32"
        )
        self.model, self.prompt, self.position = model, prompt, position
        self.decoded: Decoded | None = None
        """What the speculative decoder wrote before: texts that had ended, and every finished round."""


def broken_logits(logits: Tensor) -> Tensor:
    """(...) whether (..., V) logits hold NaN or infinity, or give no token any mass; one of minus infinity is none."""
    return ~(logits.amax(dim=-1).abs() < torch.inf)


def refuse_places(model: str, texts: Sequence[Text], broken: Tensor, start: int) -> None:
    """Refuse the first text with a broken place.

    broken (B, N): places start … start + N − 1 of B texts, filling beyond their ends left out; place t is the
    distribution of token t + 1.

    Raises:
        NonFiniteLogitsError: there is one.
    """
    places = broken.cpu().nonzero().tolist()
    if places:
        row, place = places[0]
        raise NonFiniteLogitsError(model, texts[row].prompt, start + place + 1)
