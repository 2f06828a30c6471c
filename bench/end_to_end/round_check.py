"""The one-pass estimate against the decoder: teacher-force what it wrote, and compare the rounds it took.

check = check_rounds(target, draft, decoded, settings, gamma=4, max_new_tokens=64)
check.agrees
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specgauge.bench.acceptance.lookups import pair_acceptance
from specgauge.bench.decoding.decoded import Decoded
from specgauge.bench.decoding.nonfinite import NonFiniteLogitsError
from specgauge.bench.decoding.plain import Text
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.model.acceptance.recorded import needed_columns, pad_texts, recorded_rounds
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.sampling import SamplingSettings
from specgauge.model.validate import RoundCheck, round_check, rounds_by_prompt

_SIGNALS = ("draft_top_prob", "draft_entropy_nats")


def check_rounds(
    target: LoadedModel,
    draft: LoadedModel,
    decoded: Sequence[Decoded],
    settings: SamplingSettings,
    *,
    gamma: int,
    max_new_tokens: int,
    acceptance_rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
    batch_size: int = 8,
    chunk: int = 128,
) -> RoundCheck:
    """Rounds counted in decoded batches of one γ against Σ v_t along their own texts, by prompt.

    The rounds must have run at γ wherever tokens were left: neither a draft's shorter context nor a token that only the
    target has is known to the estimate.  Raises ValueError where forced acceptance, another γ, or no text of two tokens
    makes the comparison meaningless.
    """
    forced = [found.why_not_lossless for found in decoded if not found.lossless]
    if forced:
        raise ValueError(f"rounds cannot be checked: {forced[0]}; decode without it")
    rows = [row for found in decoded for row in found.rows]
    other = sorted({row.gamma_asked for row in rows} - {gamma})
    if other:
        raise ValueError(f"rounds cannot be checked: found rounds at gamma {other[0]}, expected {gamma} only")
    texts = [text for found in decoded for text in found.texts]
    if not any(len(text.tokens) > 1 for text in texts):
        raise ValueError("rounds cannot be checked: no text has a second token; raise max_new_tokens")
    expected = expected_counts(
        LoadedPair(name=target.name, target=target, draft=draft),
        texts,
        settings,
        gammas=[gamma],
        window=max(gamma, 1),
        max_new_tokens=max_new_tokens,
        acceptance_rule=acceptance_rule,
        draft_sampling=draft_sampling,
        batch_size=batch_size,
        chunk=chunk,
    )
    counted = rounds_by_prompt([row.prompt for row in rows])
    prompts = sorted({text.prompt for text in texts if len(text.tokens) > 1})
    by_prompt = dict.fromkeys(prompts, 0.0)
    for text, value in zip(texts, expected, strict=True):
        if text.prompt in by_prompt:
            by_prompt[text.prompt] += value.rounds[0]
    return round_check([counted[prompt] for prompt in prompts], [by_prompt[prompt] for prompt in prompts])


@dataclass(frozen=True, kw_only=True)
class ExpectedCounts:
    """What one text takes at each γ, in expectation over the coins given the text."""

    rounds: tuple[float, ...]
    """Σ v_t; 0 for a text of one token."""
    starts: tuple[float, ...]
    """Rounds that start with the window's positions left."""
    committed: tuple[float, ...]
    """Tokens that those commit."""
    top_probs: tuple[float, ...] = ()
    """The draft's largest probability where it drafts token 1, 2, … of the text; empty where no model drafts."""
    entropies_nats: tuple[float, ...] = ()


def expected_counts(
    pair: LoadedPair,
    texts: Sequence[Text],
    settings: SamplingSettings,
    *,
    gammas: Sequence[int],
    window: int,
    max_new_tokens: int,
    acceptance_rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
    batch_size: int = 8,
    chunk: int = 128,
) -> list[ExpectedCounts]:
    """The counts of each text at every γ, from one teacher-forced pass; equal texts are looked at once.

    window: positions left from which a round's start is counted, at least the largest γ.
    Raises NonFiniteLogitsError where either model's logits are not numbers.
    """
    nothing = (0.0,) * len(gammas)
    found = [ExpectedCounts(rounds=nothing, starts=nothing, committed=nothing)] * len(texts)
    keys = [(text.prompt_tokens, text.tokens, text.end_reason) for text in texts]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    numbered = [
        Text(prompt=number, repetition=0, prompt_tokens=prompt_tokens, tokens=tokens, end_reason=end_reason)
        for (prompt_tokens, tokens, end_reason), number in numbers.items()
    ]
    try:
        frame = pair_acceptance(pair, numbered, settings, gamma_max=window, batch_size=batch_size, chunk=chunk)
    except NonFiniteLogitsError as error:
        first = next(text for text, key in zip(texts, keys, strict=True) if numbers[key] == error.prompt)
        raise NonFiniteLogitsError(error.model, first.prompt, error.position) from None
    if frame.empty:
        return found
    padded = pad_texts(
        frame["prompt"].to_numpy(),
        frame["repetition"].to_numpy(),
        frame["position"].to_numpy(),
        frame["end_reason"].to_numpy(dtype=str),
        {name: frame[name].to_numpy() for name in (*needed_columns(frame.columns), *_SIGNALS)},
    )
    result = recorded_rounds(
        padded,
        acceptance_rule=acceptance_rule,
        draft_sampling=draft_sampling,
        gammas=list(gammas),
        gamma_max=window,
        length_limits=max_new_tokens - 1,
    )
    rows = {int(number): row for row, number in enumerate(padded.prompts)}
    for index, key in enumerate(keys):
        row = rows.get(numbers[key])
        if row is not None:
            counts = (result.rounds[row], result.starts[row], result.committed[row])
            rounds, starts, committed = (tuple(values.tolist()) for values in counts)
            found[index] = ExpectedCounts(rounds=rounds, starts=starts, committed=committed)
            if pair.ngram is None:
                tops, entropies = (padded.columns[name][row, : padded.lengths[row]].tolist() for name in _SIGNALS)
                found[index] = replace(found[index], top_probs=tuple(tops), entropies_nats=tuple(entropies))
    return found
