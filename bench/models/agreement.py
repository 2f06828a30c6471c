"""Hand a model's attention over to the cache with a length per row, and see that its logits stay the same.

Some architectures ignore the positions or the mask they are given, keep a buffer of their own, or let a token see the
ones after it; their numbers would be another model's without any sign of it.  So each model computes a few tokens by
its own means and no cache, and once more through the cache: rows of different lengths, tokens rolled back, one new
token and several.  A sliding window is made as short as a few tokens for that, so that it is passed.

Some configurations name a window that the architecture does not apply.  A model whose logits do not depend on it has
none.

    take_over_attention(model, "specgauge_rows", device, name="pair 'qwen' target")

Shapes: B rows, L tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specgauge.bench.cache.adapter import drop_window, sliding_window, window_of
from specgauge.bench.cache.cache import RowCache, new_cache, prefill
from specgauge.bench.models.load_errors import kind_and_line, refused
from specgauge.bench.models.static_graphs import StaticForward
from specgauge.bench.models.weights import rounding_dtype

_LENGTHS = (2, 5)
"""Tokens each row holds when it is rolled back."""
_TOKENS = 8
_SHORT_WINDOW = 3
"""Tokens of a sliding window while it is checked."""
_LARGEST_DIFFERENCE = {torch.float64: 1e-3, torch.float32: 1e-3}
"""Relative difference of logits that rounding explains, by their type; wrong masks or positions give about 1."""
_LARGEST_DIFFERENCE_LOW_PRECISION = 0.1


@torch.inference_mode()
def take_over_attention(model: PreTrainedModel, attention: str, device: torch.device, name: str) -> int | None:
    """Set the registered attention implementation ``attention`` on the model, and check what it computes.

    Returns the sliding window that its configuration names and the model does not apply, which is taken out of the
    configuration; None where there is no such.  A lack of memory goes through as it is.

    Raises:
        ValueError: the model cannot run on a cache with a length per row, or computes other logits on it.
    """
    who, tokens = f"{name}: {type(model).__name__}", _tokens(model, device)
    where, remedy = "on a cache with a length per row", "use a decoder-only model of another architecture"
    is_stated, stray = isinstance(getattr(model.config.get_text_config(), "sliding_window", None), int), None

    def by_own_means() -> Tensor:
        logits: Tensor = model(input_ids=tokens, use_cache=False).logits
        return logits

    def on_the_cache() -> dict[int, tuple[Tensor, int]]:
        cache = new_cache(model, batch_size=len(_LENGTHS), tokens=_TOKENS)
        prefill(model, cache, tokens[:, : max(_LENGTHS) + 1])
        return _cached_logits(cache, tokens, lambda fed: prefill(model, cache, fed))

    with refused(lambda error: f"{who} does not run {where} ({kind_and_line(error)}); {remedy}"):
        expected = by_own_means()
        has_nan = bool(expected.isnan().any())
        if is_stated and not has_nan:
            with window_of(model, _TOKENS):
                whole = by_own_means()
            with window_of(model, _SHORT_WINDOW):
                expected = by_own_means()
            if torch.equal(expected, whole):
                is_stated, stray = False, sliding_window(model)
                drop_window(model)
        model.set_attn_implementation(attention)
        with window_of(model, _SHORT_WINDOW) if is_stated else nullcontext():
            found = on_the_cache()
    if has_nan:
        raise ValueError(
            f"{name}: its logits are not numbers (NaN) in {str(expected.dtype).removeprefix('torch.')}; its weights "
            "are corrupt, or need a wider dtype, such as bfloat16 or float32"
        )
    rounding = rounding_dtype(model)
    _refuse_difference(found, expected, rounding, f"{who} computes other logits {where} than by its own means", remedy)
    return stray


@torch.inference_mode()
def check_static_forward(static: StaticForward) -> None:
    """See that a model computes over static shapes what it does eagerly; neither compiled nor captured, to be quick.

    Raises:
        ValueError: it does not.
    """
    who, tokens = f"{static.name}: {type(static.model).__name__}", _tokens(static.model, static.device)
    has_window = sliding_window(static.model) is not None
    with window_of(static.model, _SHORT_WINDOW) if has_window else nullcontext():
        if has_window:
            static = StaticForward(static.model, static.mode, name=static.name, device=static.device)
        plain = new_cache(static.model, batch_size=len(_LENGTHS), tokens=_TOKENS)
        cache = static.new_cache(batch_size=len(_LENGTHS), tokens=_TOKENS)
        expected = prefill(static.model, plain, tokens)
        prefill(static.model, cache, tokens)
        with refused(lambda error: f"{who} does not run over static shapes ({kind_and_line(error)}); use mode: eager"):
            found = _cached_logits(cache, tokens, lambda fed: static.run(static.model, cache, fed, 0, is_plain=True))
    what = f"{who} computes other logits over static shapes than eagerly"
    _refuse_difference(found, expected, rounding_dtype(static.model), what, "use mode: eager")


def _tokens(model: PreTrainedModel, device: torch.device) -> Tensor:
    """(B, L) ids all over the vocabulary."""
    rows = int(model.config.get_text_config().vocab_size)
    return (5 * torch.arange(len(_LENGTHS) * _TOKENS, device=device).reshape(len(_LENGTHS), _TOKENS) + 3) % rows


def _cached_logits(cache: RowCache, tokens: Tensor, run: Callable[[Tensor], Tensor]) -> dict[int, tuple[Tensor, int]]:
    """For each row, (logits, first position) of what it was fed after rolling a filled cache back to its own length."""
    cache.set_lengths(list(_LENGTHS))
    parts = []
    for new in (1, 2):
        starts = cache.lengths
        fed = torch.stack([tokens[row, start : start + new] for row, start in enumerate(starts)])
        parts.append(run(fed))
    logits = torch.cat(parts, dim=1)
    return {row: (logits[row], start) for row, start in enumerate(_LENGTHS)}


def _refuse_difference(
    found: dict[int, tuple[Tensor, int]], expected: Tensor, rounding: torch.dtype, what: str, remedy: str
) -> None:
    """ValueError where logits differ, over their spread, by more than rounding: each row's median, the worst row."""
    ratios = []
    for row, (logits, start) in found.items():
        wanted = expected[row, start : start + logits.shape[0]].double()
        never = wanted == -torch.inf  # rows that a model rules out by itself
        wanted, logits = wanted.masked_fill(never, 0), logits.double().masked_fill(never & (logits == -torch.inf), 0)
        spread = (wanted - wanted.mean(dim=-1, keepdim=True)).norm(dim=-1)
        distance = (logits - wanted).norm(dim=-1)
        ratios.append(torch.where(distance == 0, distance, distance / spread).median())
    limit = _LARGEST_DIFFERENCE.get(rounding, _LARGEST_DIFFERENCE_LOW_PRECISION)
    difference = float(torch.stack(ratios).max())
    if not difference <= limit:
        raise ValueError(
            f"{what} (they differ by {difference:.2g} of their spread, rounding explains {limit:g}); {remedy}"
        )
