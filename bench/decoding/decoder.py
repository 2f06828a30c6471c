"""The reference decoder: exact speculative decoding of a batch, timed phase by phase.

    round:  draft γ tokens → verify them in one target forward → accept or replace → roll both caches back

From a draft on another device, its tokens, and their distributions where the rule needs them, go to the target's in
between, which is a phase of its own.
Rows accept different counts; each keeps its own length.  What is emitted has exactly the target's distribution under
the sampling chain (ratio rule: arXiv 2211.17192 and 2302.01318; match rule: the target's own draws), and a row draws
the same numbers alone and in any batch: every uniform is a function of (seed, prompt, repetition, token index,
purpose).

A policy chooses γ from round to round, one for all rows, and may stop a round's drafting by the draft's own signals; a
row then equals its own batch of one in distribution, token for token only where γ does not depend on the batch.

    decoder = SpeculativeDecoder(target, ModelDrafter(draft, settings), settings, seed=0)
    decoded = decoder.run(PromptBatch(prompts=prompts, numbers=[0, 1], max_new_tokens=64), gamma=4)

Token index 0 is the token the target samples at the end of its prefill.  Shapes: B rows, G drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from specgauge.bench.cache.cache import RowCache
from specgauge.bench.decoding.drafters import Drafter, EarlyStopChecks, ModelDrafter, Proposal
from specgauge.bench.decoding.plain import Interleavable, first_logits, new_rows, uninterrupted
from specgauge.bench.decoding.records import (
    Decoded,
    GammaLimit,
    NonFiniteLogitsError,
    PromptBatch,
    RoundTimes,
    Row,
    RowRound,
)
from specgauge.bench.decoding.sampling import NO_TOKEN, Draws, History, next_tokens, widen
from specgauge.bench.decoding.verification import RowOutcome, Verifier, verify_block
from specgauge.bench.device import distinct_devices
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.timing.clock import Clock, clock_for
from specgauge.model.exact import AcceptanceRule
from specgauge.model.policies.policy import FixedPolicy, GammaChoice, GammaPolicy
from specgauge.model.sampling import SamplingSettings


@dataclass(kw_only=True)
class Batch:
    """The rows of a static batch, what they are decoded with, and what has been recorded."""

    given: PromptBatch
    rows: list[Row]
    cache: RowCache
    draws: Draws
    draft_draws: Draws
    """Those of drafts, on the draft's device; `draws` itself where there is one device."""
    history: History | None
    reads_signals: bool
    """Whether the policy is asked after every draft."""
    edge: Any = None
    """The mark where the next round starts."""
    records: list[RowRound] = field(default_factory=list)
    rounds: list[tuple[int, list[Any]]] = field(default_factory=list)
    """(active rows, the round's marks: five, or six where drafts go to another device) of every finished round."""

    @property
    def committed(self) -> list[list[int]]:
        """Prompt and text of each row."""
        return [row.committed for row in self.rows]

    @property
    def active(self) -> list[bool]:
        """Whether each row is still being written."""
        return [row.ended is None for row in self.rows]

    @property
    def mean_emitted(self) -> float:
        """Tokens of the text so far, averaged over the active rows, of which there must be one."""
        lengths = [row.emitted for row in self.rows if row.ended is None]
        return sum(lengths) / len(lengths)

    def seen(self) -> Tensor | None:
        """(B, V) history, where the chain needs one."""
        return None if self.history is None else self.history.update(self.committed)

    def decoded(self, clock: Clock, marks: list[Any], *, forced: bool) -> Decoded:
        """What there is: the texts that ended, every finished round, and the seconds of each phase.

        marks: before the prefill, after the target's and after the drafter's, as far as they were reached.
        """
        if len(marks) < 3:
            marks = marks + [clock.mark()] * (3 - len(marks))
        clock.synchronize()
        times = []
        for active, stamps in self.rounds:
            phases = [clock.elapsed_s(a, b) for a, b in pairwise(stamps)]
            draft, *transfer, verify, accept, rest = phases
            times.append(
                RoundTimes(
                    active_rows=active,
                    t_round_s=sum(phases),
                    t_draft_s=draft,
                    t_transfer_s=transfer[0] if transfer else None,
                    t_verify_s=verify,
                    t_accept_s=accept,
                    t_rest_s=rest,
                )
            )
        return Decoded(
            texts=[row.text(self.given.repetition) for row in self.rows if row.ended is not None],
            rows=self.records,
            times=times,
            prefill_target_s=clock.elapsed_s(marks[0], marks[1]),
            prefill_draft_s=clock.elapsed_s(marks[1], marks[2]),
            why_not_lossless="acceptance is forced by coin at given rates" if forced else None,
        )


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
        forced_rates: float | Sequence[float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take a target, a drafter, and the sampling chain of both.

        forced_rates: accept at one rate, or at one for each place of a round, whatever the models say; the texts are
        then not the target's.

        Raises:
            ValueError: a rate outside [0, 1].
        """
        self.target, self.drafter, self.settings, self.seed = target, drafter, settings, seed
        draft = drafter.draft if isinstance(drafter, ModelDrafter) else target
        self.clock = clock or clock_for(*target.devices, *draft.devices)
        is_apart = len(distinct_devices([target.device, draft.device])) > 1
        self._draft_device = draft.device if is_apart else None
        """Where the draft is, if that is not where the target is."""
        self.verifier = Verifier(
            settings,
            vocabulary=max(target.vocabulary_rows, drafter.vocabulary_rows),
            target_vocabulary=target.vocabulary_rows,
            acceptance_rule=acceptance_rule,
            forced_rates=forced_rates,
        )

    @torch.inference_mode()
    def rounds(self, given: PromptBatch, *, gamma: int | GammaPolicy) -> Interleavable[Decoded]:
        """Decode a batch, a round at a time, until every row met an end token or its length.

        The first step goes up to the first round.  A policy is begun anew; one that reads signals is asked after every
        draft.  The drafter has one batch at a time.

        Raises:
            ValueError: no prompt, an empty one, one without room in the target's context or with an id that the target
                does not have; γ or max_new_tokens below their least.
            NonFiniteLogitsError: a model's logits are not numbers; it carries what was decoded before.
        """
        policy = FixedPolicy(gamma=gamma) if isinstance(gamma, int) else gamma
        choice = policy.begin()
        batch = self._begin(given, choice.gamma if policy.reads_signals else None)
        forced = self.verifier.rates is not None
        self.clock.synchronize()
        marks = [self.clock.mark()]
        try:
            self._first_token(batch)
            self.clock.synchronize()
            marks.append(self.clock.mark())
            if any(batch.active):
                self.drafter.start(batch.committed, given.max_new_tokens)
            self.clock.synchronize()
            marks.append(self.clock.mark())
            batch.edge = marks[-1]
            while any(batch.active):
                if (yield batch.mean_emitted):
                    self.clock.synchronize()  # what another decoding left in the queue is not this round's
                    batch.edge = self.clock.mark()
                self._round(batch, choice)
        except NonFiniteLogitsError as error:
            error.decoded = batch.decoded(self.clock, marks, forced=forced)
            raise
        return batch.decoded(self.clock, marks, forced=forced)

    run = uninterrupted(rounds)

    def compile(self, *, batch_size: int, prompt_tokens: int, gamma: int, max_new_tokens: int) -> None:
        """Compile or capture every forward that rounds of up to γ drafts need, before they are timed.

        prompt_tokens: of the longest prompt.  Nothing where the models' mode is eager.
        """
        tokens = prompt_tokens + max_new_tokens
        self.target.compile(batch_size=batch_size, tokens=tokens, new_tokens=range(1, gamma + 2))
        if gamma and isinstance(self.drafter, ModelDrafter):
            self.drafter.compile(batch_size=batch_size, prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens)

    def _begin(self, given: PromptBatch, round_drafts: int | None) -> Batch:
        """The batch before anything ran; ``round_drafts`` are those of a first round that reads signals."""
        rows, device = new_rows(self.target, given), self.target.device
        history = None
        if self.settings.repetition_penalty != 1.0:
            history = History(len(rows), self.verifier.vocabulary, device)
        purposes = self.verifier.purposes()
        drawn = partial(Draws, batch=given, seed=self.seed, round_drafts=round_drafts)
        draws = draft_draws = drawn(purposes, device=device)
        if self._draft_device is not None and "draft" in purposes:
            draft_draws = drawn(["draft"], device=self._draft_device)
        return Batch(
            given=given,
            rows=rows,
            cache=self.target.new_cache(batch_size=len(rows), tokens=given.longest + given.max_new_tokens),
            draws=draws,
            draft_draws=draft_draws,
            reads_signals=round_drafts is not None,
            history=history,
        )

    def _first_token(self, batch: Batch) -> None:
        """Prefill the target and commit the token its last row gives."""
        logits = widen(first_logits(self.target, batch.cache, batch.committed), self.verifier.vocabulary)
        uniforms = None if self.verifier.greedy else batch.draws.column("token", 0)
        tokens = next_tokens(logits, self.settings, uniforms, batch.seen()).tolist()
        if NO_TOKEN in tokens:
            raise NonFiniteLogitsError(self.target.name, batch.rows[tokens.index(NO_TOKEN)].prompt, 0)
        for row, token in zip(batch.rows, tokens, strict=True):
            row.commit([token], self.target.eos_token_ids, batch.given.max_new_tokens)

    def _round(self, batch: Batch, choice: GammaChoice) -> None:
        """One round of the whole batch, recorded."""
        rows, active, device = batch.rows, batch.active, self.target.device
        stamps, asked = [batch.edge], choice.gamma
        if self.verifier.rates is not None:
            self.verifier.rates_for(asked, device)
        limits = self._limits(batch, asked)
        positions = [row.emitted for row in rows]
        widest = max(gamma for gamma, _ in limits)
        for draws in dict.fromkeys([batch.draws, batch.draft_draws]):
            draws.move(positions, widest + 1)
        checks = EarlyStopChecks(choice, active) if batch.reads_signals else None
        if widest == 0:
            proposal = Proposal.of_none(len(rows), device)
        else:
            uniforms = None if self.verifier.greedy else batch.draft_draws.at("draft", widest)
            proposal = self.drafter.propose(batch.committed, [gamma for gamma, _ in limits], uniforms, checks)
        if checks is not None and checks.stopped_at is not None:
            asked = checks.stopped_at
            limits = self._limits(batch, asked)
        if self._draft_device is not None:
            stamps.append(self.clock.mark())
            proposal = proposal.on(device, distributions=self.verifier.needs_distributions)
        drafts = proposal.tokens.to(device)
        stamps.append(self.clock.mark())

        logits = verify_block(self.target, batch.cache, batch.committed, active, drafts)
        stamps.append(self.clock.mark())

        last = torch.tensor([[row.committed[-1]] for row in rows], device=device)
        outcomes = self.verifier.accept(logits, last, drafts, proposal, batch.draws, batch.seen())
        proposed = drafts.tolist()
        stamps.append(self.clock.mark())

        self._refuse_faults(rows, outcomes, positions)
        tops, entropies = proposal.signals()
        records = []
        for index, row in enumerate(rows):
            if not active[index]:
                continue
            context, drafted, run = len(row.committed) - 1, proposal.drafted[index], outcomes[index].accepted
            tokens = [*proposed[index][:run], outcomes[index].following]
            emitted = row.commit(tokens, self.target.eos_token_ids, batch.given.max_new_tokens)
            records.append(
                RowRound(
                    round=len(batch.rounds),
                    prompt=row.prompt,
                    repetition=batch.given.repetition,
                    position=positions[index],
                    context=context,
                    gamma_asked=asked,
                    gamma=limits[index][0],
                    gamma_limit=limits[index][1],
                    drafted=drafted,
                    accepted=min(run, emitted),
                    emitted=emitted,
                    top_probs=tuple(tops[index][:drafted]),
                    entropies_nats=tuple(entropies[index][:drafted]),
                    match_length=None if proposal.match_lengths is None else proposal.match_lengths[index],
                )
            )
        batch.cache.set_lengths([len(row.committed) - 1 for row in rows])
        if widest:
            self.drafter.keep(batch.committed, [outcome.accepted for outcome in outcomes])
        choice.observe([record.drafted for record in records], [record.accepted for record in records])
        batch.records += records
        batch.edge = self.clock.mark()
        batch.rounds.append((len(records), [*stamps, batch.edge]))

    def _refuse_faults(self, rows: Sequence[Row], outcomes: Sequence[RowOutcome], positions: Sequence[int]) -> None:
        """Raise NonFiniteLogitsError for the first active row with a place whose logits are not numbers."""
        for row, outcome, position in zip(rows, outcomes, positions, strict=True):
            if row.ended is None and outcome.draft_fault >= 0:
                raise NonFiniteLogitsError(self.drafter.name, row.prompt, position + outcome.draft_fault)
            if row.ended is None and outcome.target_fault >= 0:
                raise NonFiniteLogitsError(self.target.name, row.prompt, position + outcome.target_fault)

    def _limits(self, batch: Batch, asked: int) -> list[tuple[int, GammaLimit]]:
        """Each row's γ in force and what set it: min(γ, tokens left − 1, draft limit − s); 0 where the row has ended.

        The target's context, which holds the prompt and every new token, allows more than the tokens left do.
        """
        found: list[tuple[int, GammaLimit]] = []
        for row in batch.rows:
            limits: dict[GammaLimit, int] = {
                "asked": asked if row.ended is None else 0,
                "tokens_left": batch.given.max_new_tokens - row.emitted - 1,
                "draft_context": self.drafter.room(len(row.committed) - 1),
            }
            lowest = min(limits, key=lambda name: limits[name])
            found.append((max(0, limits[lowest]), lowest))
        return found
