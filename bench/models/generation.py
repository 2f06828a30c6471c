"""What a checkpoint asks of whoever generates with it: tokens that end a text, and sampling settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specgauge.bench.notes import Note
from specgauge.model.sampling import SamplingSettings

_DRAWN = ("temperature", "top_k", "top_p", "min_p")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (None, 1.0),
    "top_k": (None, 0),
    "top_p": (None, 1.0),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}
_OTHERS = (
    *("typical_p", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "encoder_repetition_penalty", "num_beams"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "min_length", "min_new_tokens"),
    *("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "guidance_scale"),
)
"""Settings that change a text and that no sampling setting here has."""
_OFF: tuple[object, ...] = (None, False, 0, 0.0, 1, 1.0, [], {})


def end_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> tuple[tuple[int, ...], Iterator[Note]]:
    """Every id that ends a text by any of the checkpoint's files, and what a reader must know where they differ.

    Those of the generation configuration, or else of the model's, and the tokenizer's: chat templates close a turn by
    that one, whether or not the others list it.
    """
    generation = _ids(getattr(model, "generation_config", None))
    listed = generation or _ids(model.config) or _ids(model.config.get_text_config())
    missing = [token for token in _ids(tokenizer) if token not in listed]

    def notes() -> Iterator[Note]:
        if listed and missing:
            text = tokenizer.convert_ids_to_tokens(missing[0])
            yield Note(
                code="end_tokens_differ",
                message=f"{name}: {'generation_config' if generation else 'config'}.json ends texts at "
                f"{', '.join(map(str, listed))}, the tokenizer's eos_token is {missing[0]} ({text!r}); both end them",
                remedy="put eos_token_id of generation_config.json right, which other engines go by",
            )

    return (*listed, *missing), notes()


def _ids(holder: Any) -> list[int]:
    value = getattr(holder, "eos_token_id", None)
    return [] if value is None else [int(one) for one in (value if isinstance(value, list | tuple) else [value])]


def generation_notes(model: PreTrainedModel, name: str, settings: Sequence[SamplingSettings]) -> Iterator[Note]:
    """Told where a checkpoint's generation configuration asks for sampling that none of the run's settings has."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return
    is_drawn = getattr(config, "do_sample", None) is True
    named = (*(_DRAWN if is_drawn else ()), "repetition_penalty")
    asked = {field: getattr(config, field, None) for field in named}
    others = {field: value for field in _OTHERS if (value := getattr(config, field, None)) not in _OFF}
    wanted = {field: value for field, value in asked.items() if value not in _NEUTRAL[field]}

    def has(setting: SamplingSettings) -> bool:
        own = {field: getattr(setting, field) for field in named}
        same = all(own[field] == asked[field] or {own[field], asked[field]} <= set(_NEUTRAL[field]) for field in named)
        return same and (not is_drawn or setting.temperature != 0.0)

    if others or ((wanted or is_drawn) and not any(map(has, settings))):
        shown = {**({"do_sample": True} if is_drawn else {}), **wanted, **others}
        yield Note(
            code="generation_settings",
            message=f"{name}: its generation_config.json asks for "
            f"{', '.join(f'{field} {value}' for field, value in shown.items())}, which no sampling setting here has",
            remedy="add a sampling setting with these values, if the model will be served so",
        )
