"""The reference decoder: exact speculative decoding of a batch, timed phase by phase.

    round:  draft γ tokens → verify them in one target forward → accept or replace → roll both caches back

Rows accept different counts; each keeps its own length.  What is emitted has exactly the target's law under the
sampling chain (ratio rule: arXiv 2211.17192 and 2302.01318; match rule: the target's own draws), and a row draws the
same numbers alone and in any batch: every uniform is a function of (seed, prompt, repetition, token index, purpose).

    decoder = SpeculativeDecoder(target, ModelDrafter(draft, settings), settings, seed=0)
    decoded = decoder.run(prompts, gamma=4, max_new_tokens=64, prompt_numbers=range(len(prompts)))

Token index 0 is the token the target samples at the end of its prefill.  Shapes: B rows, G drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from specgauge.bench.cache import RowCache, forward, new_cache
from specgauge.bench.clock import Clock, clock_for
from specgauge.bench.drafters import Drafter, Proposal, history_of
from specgauge.bench.generate import EndReason, Text, check_room, prefill_rows
from specgauge.bench.judging import judge_forced, judge_match, judge_ratio
from specgauge.bench.models import LoadedModel
from specgauge.bench.sampling import draw, lowest_argmax, probabilities, processed_logits, seen_along
from specgauge.model.exact import AcceptanceRule
from specgauge.model.sampling import SamplingSettings
from specgauge.model.uniforms import uniforms

GammaOf = Callable[[int], int]
"""γ asked for in a round, by the round's number."""


@dataclass(frozen=True, kw_only=True)
class RowRound:
    """One row's part in one round."""

    round: int
    prompt: int
    repetition: int
    position: int
    """Index of the round's first token in the row's text; the prefill's token is index 0."""
    context: int
    """Tokens in the target's cache when the round started."""
    gamma_asked: int
    gamma: int
    """γ in force: never more than the tokens left and both contexts allow."""
    drafted: int
    accepted: int
    emitted: int
    """Tokens committed, the replacement or bonus included, nothing after an end token."""
    top_probs: tuple[float, ...]
    entropies_nats: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """Seconds of one round of the whole batch, by phase."""

    round: int
    t_draft_s: float
    t_verify_s: float
    t_accept_s: float
    """Accept or replace, and the read-back that tells the host."""
    t_rest_s: float
    """Bookkeeping on the host and rolling back."""
    active_rows: int


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A decoded batch."""

    texts: list[Text]
    rows: list[RowRound]
    times: list[RoundTimes]
    prefill_s: float
    """Both prefills, up to the first token."""
    decode_s: float
    """From the first token to the end of the last row."""
    lossless: bool
    why_not_lossless: str | None


@dataclass(kw_only=True)
class _Row:
    """A row while it is decoded."""

    prompt: int
    committed: list[int]
    prompt_tokens: int
    ended: EndReason | None = None

    @property
    def emitted(self) -> int:
        return len(self.committed) - self.prompt_tokens


class SpeculativeDecoder:
    """Decodes batches with one target, one drafter and one sampling chain."""

    def __init__(
        self,
        target: LoadedModel,
        drafter: Drafter,
        settings: SamplingSettings,
        *,
        seed: int,
        acceptance_rule: AcceptanceRule = "ratio",
        forced_rates: Sequence[float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.target, self.drafter, self.settings, self.seed = target, drafter, settings, seed
        self.acceptance_rule = acceptance_rule
        self.clock = clock or clock_for(target.device)
        self.rates = (
            None if forced_rates is None else torch.tensor(forced_rates, dtype=torch.float64, device=target.device)
        )

    @torch.inference_mode()
    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        gamma: int | GammaOf,
        max_new_tokens: int,
        prompt_numbers: Sequence[int],
        repetition: int = 0,
    ) -> Decoded:
        """Decode until every row met an end token or ``max_new_tokens``.

        Raises ValueError for an empty prompt or one without room in the target's context.
        """
        gamma_of: GammaOf = gamma if callable(gamma) else (lambda _number: gamma)
        rows = [
            _Row(prompt=number, committed=list(prompt), prompt_tokens=len(prompt))
            for number, prompt in zip(prompt_numbers, prompts, strict=True)
        ]
        for row in rows:
            check_room(self.target, row.prompt_tokens, max_new_tokens, row.prompt)
        clock = self.clock
        clock.synchronize()
        begin = clock.mark()
        longest = max(row.prompt_tokens for row in rows)
        cache = new_cache(self.target.model, batch_size=len(rows), tokens=longest + max_new_tokens + 1)
        draws = _Uniforms(self.seed, prompt_numbers, repetition, max_new_tokens, self.target.device)
        self._first_token(cache, rows, draws, max_new_tokens)
        self.drafter.start(prompts, max_new_tokens)
        clock.synchronize()
        first = clock.mark()
        records: list[RowRound] = []
        marks: list[tuple[int, int, list[object]]] = []
        number = 0
        while any(row.ended is None for row in rows):
            active = sum(row.ended is None for row in rows)
            found, stamps = self._round(number, gamma_of(number), cache, rows, draws, max_new_tokens, repetition)
            records += found
            marks.append((number, active, stamps))
            number += 1
        clock.synchronize()
        end = clock.mark()
        return Decoded(
            texts=[
                Text(
                    prompt=row.prompt,
                    repetition=repetition,
                    prompt_tokens=tuple(row.committed[: row.prompt_tokens]),
                    tokens=tuple(row.committed[row.prompt_tokens :]),
                    end_reason=row.ended or "length",
                )
                for row in rows
            ],
            rows=records,
            times=[self._times(number, active, stamps) for number, active, stamps in marks],
            prefill_s=clock.elapsed_s(begin, first),
            decode_s=clock.elapsed_s(first, end),
            lossless=self.rates is None,
            why_not_lossless=None if self.rates is None else "acceptance is forced at given rates",
        )

    def _times(self, number: int, active: int, stamps: list[object]) -> RoundTimes:
        parts = [self.clock.elapsed_s(a, b) for a, b in pairwise(stamps)]
        return RoundTimes(
            round=number,
            t_draft_s=parts[0],
            t_verify_s=parts[1],
            t_accept_s=parts[2],
            t_rest_s=parts[3],
            active_rows=active,
        )

    def _history(self, rows: Sequence[_Row]) -> Tensor | None:
        if self.settings.repetition_penalty == 1.0:
            return None
        return history_of([row.committed for row in rows], self.target.vocabulary_rows, self.target.device)

    def _first_token(self, cache: RowCache, rows: Sequence[_Row], draws: _Uniforms, max_new_tokens: int) -> None:
        """Prefill the target and commit the token its last row gives."""
        if any(row.prompt_tokens > 1 for row in rows):
            prefill_rows(self.target, cache, [row.committed[:-1] for row in rows])
        last = torch.tensor([[row.committed[-1]] for row in rows], device=self.target.device)
        logits = forward(self.target.model, cache, last, keep=1)[:, -1]
        seen = self._history(rows)
        if self.settings.temperature == 0.0:
            tokens = lowest_argmax(processed_logits(logits, self.settings, seen))
        else:
            tokens = draw(probabilities(logits, self.settings, seen), draws.at("token", [0] * len(rows), 1)[:, 0])
        for row, token in zip(rows, tokens.tolist(), strict=True):
            self._commit(row, [token], max_new_tokens)

    def _commit(self, row: _Row, tokens: Sequence[int], max_new_tokens: int) -> int:
        """Append tokens up to and including the first end token; how many were emitted."""
        for count, token in enumerate(tokens, start=1):
            row.committed.append(token)
            if token in self.target.eos_token_ids:
                row.ended = "eos"
                return count
            if row.emitted == max_new_tokens:
                row.ended = "length"
                return count
        return len(tokens)

    def gamma_in_force(self, asked: int, row: _Row, max_new_tokens: int) -> int:
        """min(γ, tokens left − 1, target limit − s − 1, draft limit − s), never below 0; 0 for a row that ended."""
        if row.ended is not None:
            return 0
        context = len(row.committed) - 1
        limits = [asked, max_new_tokens - row.emitted - 1, self.drafter.room(context)]
        if self.target.max_context is not None:
            limits.append(self.target.max_context - context - 1)
        return max(0, min(limits))

    def _round(
        self,
        number: int,
        asked: int,
        cache: RowCache,
        rows: Sequence[_Row],
        draws: _Uniforms,
        max_new_tokens: int,
        repetition: int,
    ) -> tuple[list[RowRound], list[object]]:
        """One round of the whole batch: its rows' records, and the marks between its phases."""
        stamps: list[object] = [self.clock.mark()]
        gammas = [self.gamma_in_force(asked, row, max_new_tokens) for row in rows]
        positions = [row.emitted for row in rows]
        committed = [row.committed for row in rows]
        widest = max(gammas)
        if widest:
            proposal = self.drafter.propose(committed, gammas, draws.at("draft", positions, widest))
        else:
            proposal = nothing_drafted(len(rows), self.target.device)
        drafts = proposal.tokens.to(self.target.device)
        stamps.append(self.clock.mark())

        last = torch.tensor([[row.committed[-1]] for row in rows], device=self.target.device)
        fed = torch.cat([last, drafts], dim=1)
        latest = cache.capacity - fed.shape[1]  # binds only for rows that ended
        cache.set_lengths([min(len(row.committed) - 1, latest) for row in rows])
        logits = forward(self.target.model, cache, fed)
        stamps.append(self.clock.mark())

        accepted, following = self._judge(logits, fed, proposal, rows, draws, positions)
        outcome = torch.stack([accepted, following], dim=1).tolist()
        proposed = drafts.tolist()
        stamps.append(self.clock.mark())

        signals = _signals(proposal)
        records, runs = [], []
        for index, row in enumerate(rows):
            run, token = outcome[index]
            runs.append(run)
            if row.ended is not None:
                continue
            context = len(row.committed) - 1
            emitted = self._commit(row, [*proposed[index][:run], token], max_new_tokens)
            drafted = proposal.drafted[index]
            records.append(
                RowRound(
                    round=number,
                    prompt=row.prompt,
                    repetition=repetition,
                    position=positions[index],
                    context=context,
                    gamma_asked=asked,
                    gamma=gammas[index],
                    drafted=drafted,
                    accepted=min(run, emitted),
                    emitted=emitted,
                    top_probs=tuple(signals[0][index][:drafted]),
                    entropies_nats=tuple(signals[1][index][:drafted]),
                )
            )
        if widest:
            self.drafter.keep(committed, runs)
        stamps.append(self.clock.mark())
        return records, stamps

    def _judge(
        self,
        logits: Tensor,
        fed: Tensor,
        proposal: Proposal,
        rows: Sequence[_Row],
        draws: _Uniforms,
        positions: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """(accepted, following token), each (B,), from (B, G+1, V) target logits."""
        count = fed.shape[1]
        device = self.target.device
        drafted = torch.tensor(proposal.drafted, device=device)
        drafts = fed[:, 1:]
        seen = self._history(rows)
        along = None if seen is None else seen_along(seen, fed)
        greedy = self.settings.temperature == 0.0
        if greedy:
            own = lowest_argmax(processed_logits(logits, self.settings, along))
        else:
            target_probs = probabilities(logits, self.settings, along)
        if self.rates is not None:
            if not greedy:
                own = draw(target_probs, draws.at("token", positions, count))
            return judge_forced(drafts, own, drafted, draws.at("accept", positions, count)[:, :-1], self.rates)
        if greedy:
            return judge_match(drafts, own, drafted)
        if self.acceptance_rule == "match":
            return judge_match(drafts, draw(target_probs, draws.at("token", positions, count)), drafted)
        probs = proposal.probs
        if probs is not None:
            probs = probs.to(device)
            missing = target_probs.shape[-1] - probs.shape[-1]
            if missing > 0:
                probs = torch.nn.functional.pad(probs, (0, missing))
            elif missing < 0:
                target_probs = torch.nn.functional.pad(target_probs, (0, -missing))
        follow = draws.at("residual", positions, count)
        bonus = draws.at("bonus", positions, count)
        place = torch.arange(count, device=device)[None, :] >= drafted[:, None]
        return judge_ratio(
            drafts,
            probs,
            target_probs,
            drafted,
            draws.at("accept", positions, count)[:, :-1],
            torch.where(place, bonus, follow),
        )


def nothing_drafted(rows: int, device: torch.device) -> Proposal:
    """The proposal of a round at γ = 0."""
    return Proposal(
        tokens=torch.zeros(rows, 0, dtype=torch.long, device=device),
        probs=None,
        drafted=[0] * rows,
        top_probs=None,
        entropies_nats=None,
    )


def _signals(proposal: Proposal) -> tuple[list[list[float]], list[list[float]]]:
    """(largest probabilities, entropies) by row; empty lists where the drafter kept none."""
    empty: list[list[float]] = [[] for _ in proposal.drafted]
    if proposal.top_probs is None or proposal.entropies_nats is None:
        return empty, empty
    return proposal.top_probs.tolist(), proposal.entropies_nats.tolist()


class _Uniforms:
    """Every uniform a batch can need, computed once: by purpose, (B, tokens)."""

    def __init__(
        self, seed: int, prompts: Sequence[int], repetition: int, max_new_tokens: int, device: torch.device
    ) -> None:
        self._prompts = np.asarray(prompts, dtype=np.int64)[:, None]
        self._positions = np.arange(2 * max_new_tokens + 2)[None, :]
        self._seed, self._repetition, self._device = seed, repetition, device
        self._tables: dict[str, Tensor] = {}

    def at(self, purpose: str, positions: Sequence[int], count: int) -> Tensor:
        """(B, count) uniforms of a purpose from each row's token index on."""
        table = self._tables.get(purpose)
        if table is None:
            values = uniforms(self._seed, self._prompts, self._repetition, self._positions, purpose)
            table = torch.from_numpy(np.ascontiguousarray(values)).to(self._device)
            self._tables[purpose] = table
        index = torch.tensor(positions, device=self._device)[:, None] + torch.arange(count, device=self._device)
        return table.gather(1, index)
