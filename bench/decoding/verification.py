"""Verify a block of drafts: one target forward over rows of any length, the accept–reject test, and what replaces.

Per position, in order: keep the draft y with probability min(1, target[y] / draft[y]); at the first rejection commit a
token drawn from the residual distribution, the normalised (target − draft)₊, and drop the rest; if all drafts pass,
commit one bonus token drawn from the last distribution (arXiv 2211.17192, Algorithm 1).  The bonus is the same formula
with a draft of no mass.  Under the match rule the target's own draw decides: a draft that equals it is kept, the first
that differs is replaced by it (distribution and losslessness: `specgauge.model.exact`).

    accepted, following = accept_by_ratio(drafts, draft_probs, target_probs, drafted, accept_uniforms, follow_uniforms)

Shapes: B rows, G drafts a row, N = G + 1 tokens fed, V vocabulary (the larger of both models').  ``drafted`` (B,)
counts a row's real drafts, at most G.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specgauge.bench.cache.cache import RowCache, forward
from specgauge.bench.decoding.drafters import Proposal
from specgauge.bench.decoding.plain import feedable
from specgauge.bench.decoding.sampling import (
    NO_TOKEN,
    Draws,
    are_no_numbers,
    draw,
    next_tokens,
    probabilities,
    seen_along,
    widen,
)
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.exact import AcceptanceRule
from specgauge.model.sampling import SamplingSettings


def accepted_run(passed: Tensor, drafted: Tensor) -> Tensor:
    """(B,) length of the run of passed drafts from the first on, within each row's own number of drafts."""
    index = torch.arange(passed.shape[1], device=passed.device)
    return (passed & (index < drafted[:, None])).to(torch.int64).cumprod(dim=1).sum(dim=1)


def accept_by_ratio(
    drafts: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    drafted: Tensor,
    accept_uniforms: Tensor,
    follow_uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """(accepted (B,), following token (B,)) under the ratio rule.

    drafts (B, G); draft_probs (B, G, V), or None where each proposal was certain (one-hot: a greedy draft, a lookup);
    target_probs (B, G+1, V); accept_uniforms (B, G); follow_uniforms (B, G+1), the uniform of the replacement or bonus
    at each place.  A token without target mass is always rejected; nothing is divided.
    """
    rows = torch.arange(drafts.shape[0], device=drafts.device)
    target_mass = target_probs[:, :-1].gather(2, drafts[..., None])[..., 0].double()
    if draft_probs is None:
        draft_mass = torch.ones_like(target_mass)
    else:
        draft_mass = draft_probs.gather(2, drafts[..., None])[..., 0].double()
    accepted = accepted_run(accept_uniforms * draft_mass < target_mass, drafted)
    surviving = target_probs[rows, accepted]
    follows = follow_uniforms[rows, accepted]
    if drafts.shape[1] == 0:
        return accepted, draw(surviving, follows)
    at = accepted.clamp(max=drafts.shape[1] - 1)
    if draft_probs is None:
        proposal = torch.zeros_like(surviving).scatter_(1, drafts[rows, at][:, None], 1.0)
    else:
        proposal = draft_probs[rows, at].to(surviving.dtype)
    proposal *= (accepted < drafted)[:, None]  # a bonus has a draft of no mass
    residual = (surviving - proposal).clamp_(min=0.0)
    # Rounding can leave a rejected row without residual mass only where both agree; the target is then exact.
    residual = torch.where(residual.sum(dim=1, keepdim=True) > 0, residual, surviving)
    return accepted, draw(residual, follows)


def accept_by_match(drafts: Tensor, target_tokens: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """(accepted (B,), following token (B,)) where the target's own (B, G+1) tokens decide; greedy decoding included."""
    accepted = accepted_run(drafts == target_tokens[:, :-1], drafted)
    return accepted, target_tokens.gather(1, accepted[:, None])[:, 0]


def accept_forced(
    drafts: Tensor, target_tokens: Tensor, drafted: Tensor, accept_uniforms: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor]:
    """(accepted (B,), following token (B,)) at the given rates (G or more,), whatever the models say.

    For checking costs at a known acceptance; the output's distribution is not the target's.
    """
    accepted = accepted_run(accept_uniforms < rates[: drafts.shape[1]], drafted)
    return accepted, target_tokens.gather(1, accepted[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class RowOutcome:
    """What the verification of one row says."""

    accepted: int
    following: int
    """The token after the accepted drafts: a replacement or the bonus."""
    target_fault: int
    """First place of the row's block, up to the token that follows, whose target logits are not numbers; -1: none."""
    draft_fault: int
    """The same of the draft's own logits, among the row's drafts."""


def verify_block(
    target: LoadedModel, cache: RowCache, committed: Sequence[Sequence[int]], active: Sequence[bool], drafts: Tensor
) -> Tensor:
    """(B, N, V) target logits after each active row's last committed token and after each of its (B, G) drafts.

    The cache holds every active row's committed tokens but the last.  A row with fewer drafts than the widest may stand
    so near the end of its context that the block would reach over it; it then starts earlier, over tokens it already
    holds.  Rows that ended move along with the longest active one.
    """
    rows, new = len(committed), drafts.shape[1] + 1
    places = cache.capacity if target.max_context is None else min(cache.capacity, target.max_context)
    contexts = [len(tokens) - 1 for tokens in committed]
    furthest = max(context for context, is_active in zip(contexts, active, strict=True) if is_active)
    latest = places - new
    shift = max(0, furthest - latest)
    starts = [
        min(context if is_active else furthest, latest) for context, is_active in zip(contexts, active, strict=True)
    ]
    heads = [([0] * shift + list(tokens[-shift - 1 :]))[-shift - 1 :] for tokens in committed]
    fed = torch.cat([torch.tensor(heads, device=drafts.device), drafts], dim=1)
    back = torch.zeros(rows, dtype=torch.long)
    if shift:
        back = torch.tensor([max(0, c - latest) if a else 0 for c, a in zip(contexts, active, strict=True)])
        back = back.to(drafts.device)
        fed = fed.gather(1, (shift - back)[:, None] + torch.arange(new, device=drafts.device))
    cache.set_lengths(starts)
    logits = forward(target.model, cache, feedable(fed, target))
    if shift:
        index = (back[:, None] + torch.arange(new, device=drafts.device)).clamp(max=new - 1)
        logits = logits[torch.arange(rows, device=drafts.device)[:, None], index]
    return logits


class Verifier:
    """The accept–reject test under one sampling chain and one rule, or at forced rates."""

    def __init__(
        self,
        settings: SamplingSettings,
        *,
        vocabulary: int,
        target_vocabulary: int,
        acceptance_rule: AcceptanceRule = "ratio",
        forced_rates: float | Sequence[float] | None = None,
    ) -> None:
        """Take a chain and a rule.

        Raises:
            ValueError: a rate outside [0, 1].
        """
        self.settings, self.acceptance_rule = settings, acceptance_rule
        self.vocabulary, self.target_vocabulary = vocabulary, target_vocabulary
        self.greedy = settings.temperature == 0.0
        self._one_rate = isinstance(forced_rates, int | float)
        self.rates: list[float] | None = None
        if forced_rates is not None:
            self.rates = [forced_rates] if isinstance(forced_rates, int | float) else list(forced_rates)
            if not self.rates or not all(0.0 <= rate <= 1.0 for rate in self.rates):
                raise ValueError(f"validate.acceptance: expected rates from 0 to 1, got {forced_rates}")

    @property
    def needs_distributions(self) -> bool:
        """Whether the test reads what the drafts were drawn from."""
        return self.rates is None and not self.greedy and self.acceptance_rule == "ratio"

    def purposes(self) -> list[str]:
        """What uniforms are drawn for."""
        if self.rates is not None:
            return ["accept"] if self.greedy else ["accept", "draft", "token"]
        if self.greedy:
            return []
        if self.acceptance_rule == "match":
            return ["draft", "token"]
        return ["accept", "bonus", "draft", "residual", "token"]

    def rates_for(self, gamma: int, device: torch.device) -> Tensor:
        """(γ,) forced rates by place.

        Raises:
            ValueError: fewer are given than γ asks for.
        """
        assert self.rates is not None
        rates = self.rates * gamma if self._one_rate else self.rates
        if len(rates) < gamma:
            raise ValueError(
                f"validate.acceptance: expected one rate, or one for each of {gamma} drafts, got {len(rates)}"
            )
        return torch.tensor(rates[:gamma], dtype=torch.float64, device=device)

    def accept(
        self, logits: Tensor, last: Tensor, drafts: Tensor, proposal: Proposal, draws: Draws, seen: Tensor | None
    ) -> list[RowOutcome]:
        """One outcome a row, from (B, N, V) logits.

        last (B, 1) is each row's last committed token, drafts (B, G) lie on the target's device; ``draws`` look at the
        round's N first token indices; seen (B, V) is the history including the last token.
        """
        count, device = drafts.shape[1] + 1, drafts.device
        drafted = torch.tensor(proposal.drafted, device=device)
        along = None if seen is None else seen_along(seen, torch.cat([last, drafts], dim=1))
        logits, target_probs = widen(logits, self.vocabulary), None
        if self.greedy:
            tokens = next_tokens(logits, self.settings, None, along)
            faults = tokens == NO_TOKEN
        else:
            target_probs = probabilities(logits, self.settings, along)
            faults = are_no_numbers(target_probs)
        if self.rates is not None or self.greedy or self.acceptance_rule == "match":
            if target_probs is not None:
                tokens = draw(target_probs, draws.at("token", count))
            if self.rates is None:
                accepted, following = accept_by_match(drafts, tokens, drafted)
            else:
                uniforms = torch.where(drafts < self.target_vocabulary, draws.at("accept", count - 1), 1.0)
                rates = self.rates_for(count - 1, device)
                accepted, following = accept_forced(drafts, tokens, drafted, uniforms, rates)
        else:
            assert target_probs is not None
            accepted, following = self._accept_by_ratio(target_probs, drafts, proposal, drafted, draws)
        place = torch.arange(count, device=device)
        at_target = _first(faults & (place <= accepted[:, None]))
        at_draft = torch.full_like(accepted, -1)
        if proposal.faults is not None and count > 1:
            at_draft = _first(proposal.faults.to(device) & (place[:-1] < drafted[:, None]))
        # one read-back: a round waits for the device once
        table = torch.stack([accepted, following, at_target, at_draft], dim=1).tolist()
        return [RowOutcome(accepted=a, following=f, target_fault=t, draft_fault=d) for a, f, t, d in table]

    def _accept_by_ratio(
        self, target_probs: Tensor, drafts: Tensor, proposal: Proposal, drafted: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor]:
        count, device = drafts.shape[1] + 1, drafts.device
        probs = proposal.probs
        if probs is not None:
            probs = widen(probs.to(device), self.vocabulary, absent=0.0)
        is_bonus = torch.arange(count, device=device) >= drafted[:, None]
        follow = torch.where(is_bonus, draws.at("bonus", count), draws.at("residual", count))
        return accept_by_ratio(drafts, probs, target_probs, drafted, draws.at("accept", count - 1), follow)


def _first(marked: Tensor) -> Tensor:
    """(B,) index of the first true of (B, N) places, -1 where there is none."""
    return torch.where(marked.any(dim=1), marked.to(torch.int8).argmax(dim=1), -1)
