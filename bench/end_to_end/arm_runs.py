"""What a batch leaves behind under one arm, and whether memory holds the caches of all arms at once.

    run = run_of_decoded("speculate:4", decoded)
    run.requests[0].seconds, run.rounds[0].t_draft_s

Times in seconds; a batch's stand in each of its rows.  Memory is asked before, since too many caches end in a killed
process on a host:

    caches_fit(pair, arms=9, batch_size=4, tokens=320, limit=8 << 30)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specgauge.bench.cache.cache import capacity_bucket
from specgauge.bench.decoding.records import Decoded, RoundTimes, RowRound, Text
from specgauge.bench.device import free_bytes
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.model.arms import Arm
from specgauge.model.stats.disturbance import Disturbance

MOST_OF_FREE = 0.5
"""Share of the free memory that caches may take: logits and what else a round needs come on top."""


@dataclass(frozen=True, kw_only=True)
class Request(Disturbance):
    """One row of one batch under one arm, and what else ran beside the batch's block, all arms together."""

    arm: str
    gamma: int | None
    """None where a policy chose it from round to round."""
    row: int
    prompt: int
    repetition: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    finish_reason: str
    prefill_s: float
    """The batch's, up to its first tokens; the draft's prefill included.  Of `generate`, the whole first step."""
    seconds: float | None
    """From the call to the end of this row; None where only the batch's end was seen."""
    decode_s: float
    """The batch's, from the first tokens to the end of its last row."""
    rounds: int | None
    """Rounds this row took part in; plain steps are rounds.  None where transformers decoded."""
    expected_rounds: float | None = None
    """What the one-pass estimate expects for this text; None where it is not asked."""
    expected_starts: tuple[float, ...] | None = None
    """The same at every γ of the block, rising, of rounds with as many positions left as the grid's largest γ needs."""
    expected_committed: tuple[float, ...] | None = None
    """Tokens that those rounds commit."""
    lossless: bool = True
    why_not_lossless: str | None = None
    against_plain: str | None = None
    """`same` as the plain loop's text, or leaves it at a numeric `tie`, or `differs`; None where it is not asked."""
    leaves_plain_at: int | None = None
    """The token where it leaves the plain loop's text."""
    leaves_plain_margin: float | None = None
    """How far the lower logit of the two tokens lies there under the largest one."""


@dataclass(frozen=True, kw_only=True)
class Round(RoundTimes, RowRound):
    """One row's part in one round of one batch under one arm, with the times of the batch.

    Its signals are, where a policy reads them, of the drafts it was shown; at a fixed γ, where reading would cost what
    is timed, of the drafts that met the accept–reject test, from a pass over the text afterwards; empty where no model
    drafts, and at a fixed γ where acceptance is forced.
    """

    arm: str
    row: int


@dataclass(frozen=True, kw_only=True)
class ArmRun:
    """One batch under one arm."""

    requests: tuple[Request, ...]
    rounds: tuple[Round, ...]
    texts: tuple[Text, ...]
    """Of the requests, in their order."""


def request_of(arm: str, row: int, text: Text, **measured: Any) -> Request:
    """The record of one row's text, with what was measured of it."""
    return Request(
        arm=arm,
        gamma=Arm.parse(arm).gamma,
        row=row,
        prompt=text.prompt,
        repetition=text.repetition,
        prompt_tokens=len(text.prompt_tokens),
        tokens=text.tokens,
        finish_reason=text.end_reason,
        **measured,
    )


def run_of_decoded(arm: str, decoded: Decoded) -> ArmRun:
    """The rounds of the decoder, or of the plain loop, with the batch's times beside each row's counts."""
    index = {text.prompt: row for row, text in enumerate(decoded.texts)}
    ends_s = decoded.prefill_s + np.cumsum([times.t_round_s for times in decoded.times])
    last = {round_.prompt: round_.round for round_ in decoded.rows}
    counts = Counter(one.prompt for one in decoded.rows)
    rounds = [
        Round(arm=arm, row=index[one.prompt], **vars(one), **vars(decoded.times[one.round])) for one in decoded.rows
    ]
    requests = [
        request_of(
            arm,
            row,
            text,
            prefill_s=decoded.prefill_s,
            seconds=float(ends_s[last[text.prompt]]) if text.prompt in last else decoded.prefill_s,
            decode_s=decoded.decode_s,
            rounds=counts[text.prompt],
            lossless=decoded.why_not_lossless is None,
            why_not_lossless=decoded.why_not_lossless,
        )
        for row, text in enumerate(decoded.texts)
    ]
    return ArmRun(requests=tuple(requests), rounds=tuple(rounds), texts=tuple(decoded.texts))


def caches_fit(pair: LoadedPair, *, arms: int, batch_size: int, tokens: int, limit: int | None = None) -> bool:
    """Whether each arm may have caches of its own, of so many tokens a row; yes where a figure is unknown.

    limit: bytes that the weights of both models and all those caches may take together; None is no limit.
    """
    needed: dict[torch.device, int] = {}
    for model in pair.models:
        own = cache_bytes(model, batch_size=batch_size, tokens=tokens) or 0
        needed[model.device] = needed.get(model.device, 0) + arms * own
    if limit is not None and weight_bytes(pair) + sum(needed.values()) > limit:
        return False
    return all((free := free_bytes(device)) is None or own <= MOST_OF_FREE * free for device, own in needed.items())


def weight_bytes(pair: LoadedPair) -> int:
    """Bytes of the weights of both models; what they share counts once."""
    weights = {weight.data_ptr(): weight.nbytes for model in pair.models for weight in model.model.parameters()}
    return sum(weights.values())


def cache_bytes(model: LoadedModel, *, batch_size: int, tokens: int) -> int | None:
    """Bytes of keys and values of all layers; None where the configuration does not say their shape."""
    config = model.model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    layers, hidden = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    if not heads or not layers or not hidden:
        return None
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    numbers = 2 * layers * batch_size * kv_heads * capacity_bucket(tokens) * head_dim
    return int(numbers) * model.model.dtype.itemsize
