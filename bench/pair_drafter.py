"""The drafter of a loaded pair, whatever drafts in it: a draft model, the target's first layers, or lookups.

decoder = SpeculativeDecoder(pair.target, drafter_for(pair, settings), settings, seed=0)
"""

from __future__ import annotations

from specgauge.bench.drafters import Drafter, ModelDrafter
from specgauge.bench.models import LoadedPair
from specgauge.bench.ngram import NgramDrafter
from specgauge.model.exact import DraftSampling
from specgauge.model.sampling import SamplingSettings


def drafter_for(
    pair: LoadedPair,
    settings: SamplingSettings,
    *,
    draft_sampling: DraftSampling = "same",
    signals: bool = False,
    prefill_takes_first_token: bool = False,
) -> Drafter:
    """A new drafter; the options are those of `ModelDrafter`, and a lookup, whose proposals are certain, needs none."""
    if pair.ngram is not None:
        return NgramDrafter(longest=pair.ngram.longest, shortest=pair.ngram.shortest)
    return ModelDrafter(
        pair.draft_model,
        settings,
        draft_sampling=draft_sampling,
        signals=signals,
        prefill_takes_first_token=prefill_takes_first_token,
    )
