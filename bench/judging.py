"""Accept or reject a block of drafts, on the device, for all rows at once.

Per position, in order: keep the draft y with probability min(1, target[y] / draft[y]); at the first rejection commit a
token drawn from the normalised (target − draft)₊ and drop the rest; if all drafts pass, commit one bonus token drawn
from the last distribution.  The bonus is the same formula with a draft of no mass.  Under the match rule the target's
own draw decides: a draft that equals it is kept, the first that differs is replaced by it (law and losslessness:
`specgauge.model.exact`).

    accepted, following = judge_ratio(drafts, draft_probs, target_probs, drafted, accept_uniforms, follow_uniforms)

Shapes: B rows, G drafts a row, V vocabulary.  ``drafted`` (B,) counts a row's real drafts, at most G.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specgauge.bench.sampling import draw


def accepted_run(passed: Tensor, drafted: Tensor) -> Tensor:
    """(B,) length of the run of passed drafts from the first on, within each row's own number of drafts."""
    index = torch.arange(passed.shape[1], device=passed.device)
    return (passed & (index < drafted[:, None])).to(torch.int64).cumprod(dim=1).sum(dim=1)


def judge_ratio(
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


def judge_match(drafts: Tensor, target_tokens: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """(accepted (B,), following token (B,)) where the target's own (B, G+1) tokens decide; greedy decoding included."""
    accepted = accepted_run(drafts == target_tokens[:, :-1], drafted)
    return accepted, target_tokens.gather(1, accepted[:, None])[:, 0]


def judge_forced(
    drafts: Tensor, target_tokens: Tensor, drafted: Tensor, accept_uniforms: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor]:
    """(accepted (B,), following token (B,)) by coins at the given rates (G or more,), whatever the models say.

    For checking costs at a known acceptance; the output's law is not the target's.
    """
    accepted = accepted_run(accept_uniforms < rates[: drafts.shape[1]], drafted)
    return accepted, target_tokens.gather(1, accepted[:, None])[:, 0]
