"""Acceptance from one teacher-forced pass over the target's own texts.

Given that the target emitted y at a position, the draft's proposal was accepted there with probability
min(1, draft[y] / target[y]).  One forward of each model over a text therefore gives the acceptance at every position,
for every γ at once: one row per position, from which every acceptance rule derives
(`specgauge.model.acceptance.recorded`).  Both distributions come out of the same sampling chain and history.

    frame = measure_acceptance(target, draft, texts, settings, batch_size=8, chunk=128)

Shapes: B rows, N positions of a chunk, V vocabulary (the larger of the two models').
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from specgauge.bench.cache.cache import RowCache, forward, new_cache
from specgauge.bench.decoding.plain import check_room, feedable, pad_right, prefill_rows
from specgauge.bench.decoding.records import Text, refuse_places
from specgauge.bench.decoding.sampling import (
    are_no_numbers,
    lowest_argmax,
    probabilities,
    processed_logits,
    seen_along,
    seen_tokens,
    widen,
)
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings

INTEGER_COLUMNS = ("prompt", "repetition", "position", "context", "token", "draft_argmax")
FLOAT_COLUMNS = (
    "target_prob", "draft_prob", "overlap_ratio", "overlap_match",
    "draft_argmax_target_prob", "draft_top_prob", "draft_entropy_nats",
)  # fmt: skip


def text_batches(texts: Sequence[Text], batch_size: int) -> list[Sequence[Text]]:
    """The texts with a position, those of more than one token, ``batch_size`` at a time."""
    longer = [text for text in texts if len(text.tokens) > 1]
    return [longer[first : first + batch_size] for first in range(0, len(longer), batch_size)]


def sorted_frame(frame: pd.DataFrame, whole: Sequence[str], real: Sequence[str], order: Sequence[str]) -> pd.DataFrame:
    """The rows with ``whole`` columns as int32 and ``real`` ones as float64, sorted by ``order``."""
    typed = frame.astype(dict.fromkeys(whole, "int32") | dict.fromkeys(real, "float64"))
    return typed.sort_values(list(order), kind="stable").reset_index(drop=True)


def text_cache(model: LoadedModel, texts: Sequence[Text]) -> RowCache:
    """An empty cache with room for prompts and texts."""
    capacity = max(len(text.prompt_tokens) for text in texts) + max(len(text.tokens) for text in texts)
    return new_cache(model.model, batch_size=len(texts), tokens=capacity)


def logit_chunks(
    model: LoadedModel, texts: Sequence[Text], chunk: int, cache: RowCache | None = None
) -> Iterator[Tensor]:
    """(B, N, V) float32 logits along the texts, ``chunk`` positions at a time.

    Row b, position t is the distribution of the text's token t + 1, computed from the prompt and tokens 0 … t.
    A given ``cache``, of `text_cache`, holds all of them afterwards, filling beyond a text's end included.
    """
    longest = max(len(text.tokens) for text in texts)
    cache = text_cache(model, texts) if cache is None else cache
    prefill_rows(model, cache, [text.prompt_tokens for text in texts])
    fed = feedable(pad_right([text.tokens[:-1] for text in texts], 0, model.device)[0], model)
    for start in range(0, longest - 1, chunk):
        yield forward(model.model, cache, fed[:, start : start + chunk]).float()


class Histories:
    """What each position of padded texts has seen, chunk by chunk in their order; nothing without a penalty."""

    def __init__(self, texts: Sequence[Text], settings: SamplingSettings, device: torch.device) -> None:
        self._texts, self._needed, self._device = texts, settings.repetition_penalty != 1.0, device
        self.fed, _ = pad_right([text.tokens[:-1] for text in texts], 0, device)
        """(B, T) the token before each position."""
        self._seen: Tensor | None = None

    def along(self, start: int, stop: int, vocabulary: int) -> Tensor | None:
        """(B, N, V) tokens seen at positions start … stop − 1; ``start`` is where the last chunk stopped."""
        if not self._needed:
            return None
        if self._seen is None:
            prompts, in_prompt = pad_right([text.prompt_tokens for text in self._texts], 0, self._device)
            self._seen = seen_tokens(prompts, in_prompt, vocabulary)
        seen = seen_along(self._seen, self.fed[:, start:stop])
        self._seen = seen[:, -1]
        return seen


def _columns(
    target_logits: Tensor,
    draft_logits: Tensor,
    tokens: Tensor,
    settings: SamplingSettings,
    seen: Tensor | None,
    unknown: Tensor,
) -> tuple[dict[str, Tensor], Tensor]:
    """The recorded quantities of a chunk, each (B, N), and (2, B, N) where target and draft have logits that are no
    numbers; logits are (B, N, V), tokens (B, N).

    Where the last token is ``unknown`` (B, N) to the draft nothing can be drafted: its probabilities are 0 there, and
    its argmax is −1, which no token equals.
    """
    target_probs = probabilities(target_logits, settings, seen)
    draft_probs = probabilities(draft_logits, settings, seen)
    broken = torch.stack([are_no_numbers(target_probs), are_no_numbers(draft_probs)])
    draft_probs = draft_probs.masked_fill(unknown[..., None], 0.0)
    argmax = lowest_argmax(processed_logits(draft_logits, settings, seen))
    argmax = argmax.clamp(max=draft_logits.shape[-1] - 1)  # a place with NaN has no maximum
    argmax_target_prob = target_probs.gather(-1, argmax[..., None])[..., 0].masked_fill(unknown, 0.0)
    signal = draft_logits.log_softmax(dim=-1)
    signal_probs = signal.exp()
    found = {
        "token": tokens,
        "target_prob": target_probs.gather(-1, tokens[..., None])[..., 0],
        "draft_prob": draft_probs.gather(-1, tokens[..., None])[..., 0],
        "overlap_ratio": torch.minimum(target_probs, draft_probs).double().sum(-1).clamp(max=1.0),
        "overlap_match": (target_probs.double() * draft_probs.double()).sum(-1).clamp(max=1.0),
        "draft_argmax": argmax.masked_fill(unknown, -1),
        "draft_argmax_target_prob": argmax_target_prob,
        "draft_top_prob": signal_probs.amax(-1),
        "draft_entropy_nats": -(signal_probs * signal.clamp(min=-1e4)).double().sum(-1).clamp(max=0.0),
    }
    return found, broken


@torch.inference_mode()
def _batch_rows(
    texts: Sequence[Text],
    target_chunks: Iterator[Tensor],
    draft_chunks: Iterator[Tensor],
    settings: SamplingSettings,
    draft_rows: int,
    device: torch.device,
    names: tuple[str, str],
) -> Iterator[pd.DataFrame]:
    """The rows of one batch of texts, chunk by chunk; ``names`` are those of target and draft."""
    scored, valid = pad_right([text.tokens[1:] for text in texts], 0, device)
    histories = Histories(texts, settings, device)
    of_text = pd.DataFrame(
        [(text.prompt, text.repetition, text.end_reason, len(text.prompt_tokens)) for text in texts],
        columns=["prompt", "repetition", "end_reason", "context"],
    )
    start = 0
    for target_logits, draft_logits in zip(target_chunks, draft_chunks, strict=True):
        vocabulary = max(target_logits.shape[-1], draft_logits.shape[-1])
        stop = start + target_logits.shape[1]
        found, broken = _columns(
            widen(target_logits.to(device), vocabulary),
            widen(draft_logits.to(device), vocabulary),
            scored[:, start:stop],
            settings,
            histories.along(start, stop, vocabulary),
            histories.fed[:, start:stop] >= draft_rows,
        )
        for name, places in zip(names, (broken & valid[:, start:stop]).cpu(), strict=True):
            refuse_places(name, texts, places, start)
        mask = valid[:, start:stop].cpu().numpy()
        rows, offsets = np.nonzero(mask)
        own = of_text.iloc[rows].reset_index(drop=True)
        yield own.assign(
            position=start + offsets,
            context=own["context"] + start + offsets,
            **{name: values.cpu().numpy()[mask] for name, values in found.items()},
        )
        start = stop


def measure_acceptance(
    target: LoadedModel | Callable[[], LoadedModel],
    draft: LoadedModel | Callable[[], LoadedModel],
    texts: Sequence[Text],
    settings: SamplingSettings,
    *,
    batch_size: int,
    chunk: int,
    progress: Callable[[float], object] | None = None,
) -> pd.DataFrame:
    """One row per position of the texts, sorted (columns: `INTEGER_COLUMNS`, `FLOAT_COLUMNS`, ``end_reason``).

    With two loaded models both run side by side, chunk by chunk.  With two functions that load them, the target runs
    first over everything, its logits are kept on disk, it is dropped, and only then the draft is loaded.

    Texts of a single token have no position.  A token outside the recomputed support (its target probability is 0) has
    null probabilities: it cannot have come from this chain as computed here, and is counted rather than divided by.

    progress: told how many texts are done, parts of them included.

    Raises:
        ValueError: a text longer than the draft's context.
        NonFiniteLogitsError: either model's logits are not numbers.
    """
    batches = text_batches(texts, batch_size)
    columns, frames = [*INTEGER_COLUMNS, *FLOAT_COLUMNS, "end_reason"], list[pd.DataFrame]()
    with tempfile.TemporaryDirectory() as scratch:
        of_target: Iterable[Iterator[Tensor]]
        if isinstance(target, LoadedModel):
            name, device = target.name, target.device
            of_target = (logit_chunks(target, batch, chunk) for batch in batches)
        else:
            name, paths = _spill(target(), batches, chunk, Path(scratch))
            of_target = ((torch.from_numpy(np.load(path)) for path in of_batch) for of_batch in paths)
        model = draft if isinstance(draft, LoadedModel) else draft()
        if not isinstance(target, LoadedModel):
            device = model.device
        done = 0
        for batch, target_chunks in zip(batches, of_target, strict=True):
            for text in batch:
                check_room(model, len(text.prompt_tokens), len(text.tokens), text.prompt)
            chunks, names = logit_chunks(model, batch, chunk), (name, model.name)
            positions = max(len(text.tokens) for text in batch) - 1
            for part, rows in enumerate(
                _batch_rows(batch, target_chunks, chunks, settings, model.vocabulary_rows, device, names), start=1
            ):
                frames.append(rows)
                if progress is not None:
                    progress(done + len(batch) * min(1.0, part * chunk / positions))
            done += len(batch)
    whole = pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns)
    frame = sorted_frame(whole, INTEGER_COLUMNS, FLOAT_COLUMNS, ("prompt", "repetition", "position"))
    frame.loc[frame["target_prob"] == 0.0, ["target_prob", "draft_prob"]] = np.nan
    return frame


@torch.inference_mode()
def _spill(
    model: LoadedModel, batches: Sequence[Sequence[Text]], chunk: int, folder: Path
) -> tuple[str, list[list[Path]]]:
    """The model's name, and its logits of every batch on disk; the model goes out of scope with this call."""
    spilled = []
    for number, batch in enumerate(batches):
        paths = []
        for part, logits in enumerate(logit_chunks(model, batch, chunk)):
            paths.append(folder / f"{number}-{part}.npy")
            np.save(paths[-1], logits.cpu().numpy())
        spilled.append(paths)
    return model.name, spilled
