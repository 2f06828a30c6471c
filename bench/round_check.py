"""The one-pass estimate against the decoder: teacher-force what it wrote, and compare the rounds it took.

check = check_rounds(target, draft, decoded, settings, gamma=4, max_new_tokens=64)
check.agrees
"""

from __future__ import annotations

from collections.abc import Sequence

from specgauge.bench.decoded import Decoded
from specgauge.bench.generate import Text
from specgauge.bench.models import LoadedModel, LoadedPair
from specgauge.bench.pair_acceptance import pair_acceptance
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.recorded_rounds import needed_columns, recorded_rounds
from specgauge.model.round_check import RoundCheck, round_check, rounds_by_prompt
from specgauge.model.sampling import SamplingSettings
from specgauge.model.texts import pad_texts


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
    expected = expected_rounds(
        LoadedPair(name=target.name, target=target, draft=draft),
        texts,
        settings,
        gamma=gamma,
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
            by_prompt[text.prompt] += value
    return round_check([counted[prompt] for prompt in prompts], [by_prompt[prompt] for prompt in prompts])


def expected_rounds(
    pair: LoadedPair,
    texts: Sequence[Text],
    settings: SamplingSettings,
    *,
    gamma: int,
    max_new_tokens: int,
    acceptance_rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
    batch_size: int = 8,
    chunk: int = 128,
) -> list[float]:
    """Σ v_t of each text at one γ, from a teacher-forced pass over it; 0 for a text of one token."""
    expected = dict.fromkeys(((text.prompt, text.repetition) for text in texts), 0.0)
    depth = max(gamma, 1)
    frame = pair_acceptance(pair, texts, settings, gamma_max=depth, batch_size=batch_size, chunk=chunk)
    if frame.empty:
        return list(expected.values())
    padded = pad_texts(
        frame["prompt"].to_numpy(),
        frame["repetition"].to_numpy(),
        frame["position"].to_numpy(),
        frame["end_reason"].to_numpy(dtype=str),
        {name: frame[name].to_numpy() for name in needed_columns(frame.columns)},
    )
    found = recorded_rounds(
        padded,
        acceptance_rule=acceptance_rule,
        draft_sampling=draft_sampling,
        gammas=[gamma],
        gamma_max=depth,
        length_limits=max_new_tokens - 1,
    ).rounds[:, 0]
    for prompt, repetition, value in zip(padded.prompts, padded.repetitions, found.tolist(), strict=True):
        expected[int(prompt), int(repetition)] = value
    return [expected[text.prompt, text.repetition] for text in texts]
