"""Texts made up for lookups: what every start is offered, what of it the text goes on with, what was matched."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import text_ends
from specgauge.model.replay.texts import ReplayTexts, lookup_texts


def looked_up(
    offered: ArrayLike,
    matching: ArrayLike,
    matched: ArrayLike | None = None,
    *,
    lengths: ArrayLike | None = None,
    ended_by_eos: bool = False,
    length_limits: int | None = None,
) -> ReplayTexts:
    """Texts (N, T), one per prompt; where nothing else is said, 2 tokens matched where anything is offered."""
    most, run = np.asarray(offered), np.asarray(matching)
    sizes = np.full(most.shape[0], most.shape[1]) if lengths is None else np.asarray(lengths)
    return lookup_texts(
        text_ends(most.shape, sizes, np.full(most.shape[0], ended_by_eos), length_limits),
        prompts=np.arange(most.shape[0]),
        repetitions=np.zeros(most.shape[0], dtype=np.int64),
        offered=most,
        matching=run,
        matched=np.where(most > 0, 2, 0) if matched is None else matched,
    )


def random_lookups(seed: int, *, texts: int = 5, longest: int = 12, gamma_max: int = 4) -> ReplayTexts:
    """Of all lengths, some ended by EOS before a limit."""
    generator = np.random.default_rng(seed)
    offered = generator.integers(0, gamma_max + 1, (texts, longest))
    matching = np.minimum(generator.integers(0, gamma_max + 1, (texts, longest)), offered)
    lengths = generator.integers(1, longest + 1, texts)
    left = lengths[:, None] - np.arange(longest)
    return looked_up(
        offered,
        np.clip(np.minimum(matching, left), 0, None),
        np.where(offered > 0, generator.integers(1, 4, offered.shape), 0),
        lengths=lengths,
        ended_by_eos=bool(seed % 2),
        length_limits=longest + 2 if seed % 2 else None,
    )
