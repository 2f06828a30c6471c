"""Networks whose logits are written down, by place or by the last token; they refuse ids and places they lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from specgauge.bench.decoding.drafters import NO_LIMIT, EarlyStopCheck, Proposal
from specgauge.bench.decoding.records import Text
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.policies.policy import GammaPolicy
from tests.bench.conftest import loaded

LogitsOf = Callable[[Tensor, Tensor], Tensor]
"""(B, N, V) logits from (B, N) tokens and positions."""
FAR = 20.0
"""The logit of a scripted token; all others are 0."""


class ScriptedNetwork(torch.nn.Module):
    """As much of a language model as decoding uses; it keeps no keys, so a wrong place or token shows at once."""

    def __init__(self, logits_of: LogitsOf, vocabulary: int, max_context: int | None) -> None:
        super().__init__()
        config = SimpleNamespace(num_hidden_layers=1)
        config.get_text_config = lambda: config
        self.config, self.logits_of, self.max_context = config, logits_of, max_context
        self.embedding = torch.nn.Embedding(vocabulary, 1)
        self.dtype = torch.float64
        self.forwards: list[Tensor] = []

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding

    def forward(self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: int, cache: Any, **_: Any) -> Any:
        self.embedding(input_ids)  # raises IndexError for an id without a row
        if self.max_context is not None and int(position_ids.max()) >= self.max_context:
            raise IndexError(f"position {int(position_ids.max())} in a context of {self.max_context}")
        self.forwards.append(input_ids.clone())
        logits = self.logits_of(input_ids, position_ids)
        return SimpleNamespace(logits=logits[:, -logits_to_keep:] if logits_to_keep else logits)


def scripted(
    logits_of: LogitsOf,
    *,
    vocabulary: int,
    name: str = "scripted",
    eos: Sequence[int] = (),
    max_context: int | None = None,
) -> LoadedModel:
    network: Any = ScriptedNetwork(logits_of, vocabulary, max_context)
    return loaded(network, max_context=max_context, name=name, eos=eos)


def text_of(script: Sequence[int], prompt_tokens: int, vocabulary: int) -> LogitsOf:
    """Logits that write the script after a prompt, whatever was written; its last token for ever after."""
    tokens = torch.tensor(list(script))

    def logits_of(_: Tensor, positions: Tensor) -> Tensor:
        index = (positions - (prompt_tokens - 1)).clamp(min=0, max=len(tokens) - 1)
        return FAR * torch.nn.functional.one_hot(tokens[index], vocabulary).double()

    return logits_of


def broken_at(place: int, value: float, script: Sequence[int] = tuple(range(3, 12)), vocabulary: int = 12) -> LogitsOf:
    """The script's logits after a prompt of two, but for one place of the text where one of them is not a number."""
    good = text_of(script, 2, vocabulary)

    def logits_of(tokens: Tensor, positions: Tensor) -> Tensor:
        logits = good(tokens, positions)
        logits[..., 4] = torch.where(positions == place + 1, value, logits[..., 4])
        return logits

    return logits_of


def always(logits: Sequence[float]) -> LogitsOf:
    """The same logits everywhere."""
    row = torch.tensor(list(logits), dtype=torch.float64)
    return lambda tokens, _: row.expand(*tokens.shape, -1).clone()


def spread(*probs: float) -> LogitsOf:
    """The same distribution everywhere."""
    return always(torch.tensor(probs, dtype=torch.float64).log().tolist())


def after(table: Tensor) -> LogitsOf:
    """Logits by the last token, from a (V, V) table."""
    return lambda tokens, _: table[tokens]


def written(tokens: Sequence[int], number: int = 0, *, prompt: Sequence[int] = (1, 2), eos: bool = False) -> Text:
    """A text that somebody wrote after a prompt."""
    return Text(
        prompt=number,
        repetition=0,
        prompt_tokens=tuple(prompt),
        tokens=tuple(tokens),
        end_reason="eos" if eos else "length",
    )


class GivenDrafter:
    """Proposes what it was given, round after round, then nothing; remembers what was committed."""

    name = "given"

    def __init__(self, rounds: Sequence[Sequence[int]], vocabulary: int = 0) -> None:
        self.rounds, self.vocabulary_rows = [list(tokens) for tokens in rounds], vocabulary
        self.committed: list[list[int]] = []

    def start(self, committed: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        self.committed = [list(row) for row in committed]

    def propose(
        self,
        committed: Sequence[Sequence[int]],
        gammas: Sequence[int],
        uniforms: Tensor | None,
        check: EarlyStopCheck | None = None,
    ) -> Proposal:
        tokens = self.rounds.pop(0) if self.rounds else []
        return Proposal(
            tokens=torch.tensor([tokens[: max(gammas)]] * len(gammas), dtype=torch.long),
            drafted=[min(len(tokens), gamma) for gamma in gammas],
        )

    def keep(self, committed: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        self.committed = [list(row) for row in committed]

    def room(self, context: int) -> int:
        return NO_LIMIT


class Trace(GammaPolicy):
    """A policy of the given γ in turn; goes on while `until` says so, notes everything it is asked and told."""

    def __init__(self, *gammas: int, until: Callable[[int], bool] = lambda _: True, reads_signals: bool = True) -> None:
        self.gammas, self.until, self.reads_signals = gammas, until, reads_signals
        self.asked: list[tuple[int, list[float], list[float]]] = []
        self.told: list[tuple[list[int], list[int]]] = []

    @property
    def gamma(self) -> int:
        return self.gammas[len(self.told) % len(self.gammas)]

    def begin(self) -> Self:
        return self

    def goes_on(self, depth: int, top_probs: Sequence[float], entropies_nats: Sequence[float]) -> bool:
        self.asked.append((depth, list(top_probs), list(entropies_nats)))
        return self.until(depth)

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        self.told.append((list(drafted), list(accepted)))
