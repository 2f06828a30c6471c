"""The one-pass estimate against the decoder: teacher-force what it wrote, and compare the rounds it took.

check = check_rounds(target, draft, decoded, settings, gamma=4, max_new_tokens=64)
check.agrees
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specgauge.bench.acceptance import measure_acceptance
from specgauge.bench.decoded import Decoded
from specgauge.bench.models import LoadedModel
from specgauge.model.acceptance import acceptance_probability, overlap, recorded_columns
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.renewal import renewal
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
    frame = measure_acceptance(target, draft, texts, settings, batch_size=batch_size, chunk=chunk)
    recorded = recorded_columns({name: frame[name].to_numpy() for name in frame.columns})
    accepted = acceptance_probability(recorded, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling)
    means = overlap(recorded, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling)
    padded = pad_texts(
        frame["prompt"].to_numpy(),
        frame["repetition"].to_numpy(),
        frame["position"].to_numpy(),
        frame["end_reason"].to_numpy(dtype=str),
        {"acceptance": np.nan_to_num(accepted), "overlap": np.nan_to_num(means)},
    )
    expected = renewal(
        padded.columns["acceptance"],
        padded.columns["overlap"],
        padded.lengths,
        padded.ended_by_eos,
        [gamma],
        max(gamma, 1),
        length_limits=max_new_tokens - 1,
    ).by_prompt(padded.prompts)
    counted = rounds_by_prompt([row.prompt for row in rows])
    prompts = np.unique(padded.prompts)
    return round_check([counted[int(prompt)] for prompt in prompts], expected.rounds[:, 0])
