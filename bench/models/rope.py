"""Keep a model on one side of the position at which its rotary factors switch (`specgauge.model.context`).

transformers chooses the factors of a forward by the longest row in it, and keys that are cached already keep theirs.

    switch = fix_rotary_factors(model, reach=4096)      # None where the factors are the same at every length
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specgauge.model.context import context_limit, rope_switch

_SWITCHING = ("longrope", "dynamic")
_FIXED = "fixed"


def fix_rotary_factors(model: PreTrainedModel, reach: int | None) -> int | None:
    """Fix the factors that hold where a run reaches ``reach`` tokens; None is a run that stays before the switch.

    Returns the tokens at which they would switch; None for a model whose factors never do.
    """
    config = model.config.get_text_config().to_dict()
    switch = rope_switch(config)
    if switch is None:
        return None
    limit = context_limit(config, reach)
    assert limit is not None
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        if isinstance(types, str) and types in _SWITCHING:
            _fix(module, types, None, limit if limit > switch else None)
            module.rope_type = _FIXED  # type: ignore[assignment]
        elif isinstance(types, dict):
            for layer_type, kind in types.items():
                if kind in _SWITCHING:
                    _fix(module, kind, layer_type, limit if limit > switch else None)
            module.rope_type = {  # type: ignore[assignment]
                layer_type: _FIXED if kind in _SWITCHING else kind for layer_type, kind in types.items()
            }
    return switch


def _fix(module: Any, kind: str, layer_type: str | None, tokens: int | None) -> None:
    """Set the factors of a text of so many tokens; those of a short one are there already."""
    if tokens is None:
        return
    prefix, options = ("", {}) if layer_type is None else (f"{layer_type}_", {"layer_type": layer_type})
    held = getattr(module, f"{prefix}inv_freq")
    factors, scaling = ROPE_INIT_FUNCTIONS[kind](module.config, held.device, seq_len=tokens, **options)
    held.copy_(factors)
    setattr(module, f"{prefix}attention_scaling", scaling)
