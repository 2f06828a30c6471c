"""Positions a model takes, by its configuration: what rotary scaling adds to them, and where its factors switch.

    yarn, dynamic    factor · original positions, where only the scaling was added to a configuration
    longrope         two sets of factors: the long ones once a position lies past the original ones
    dynamic          factors that grow with the longest position past the original ones

Factors that switch with the longest row make a text depend on its batch-mates. So all of a run stays on one side: below
the switch where nothing in it reaches further, else past it, as engines do that fix the length of the context.

YaRN: arXiv 2309.00071, section 3.4; LongRoPE: arXiv 2402.13753, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

STATED = ("max_position_embeddings", "n_positions", "max_seq_len")
_ORIGINAL = "original_max_position_embeddings"
_LONG = ("longrope", "su")


def context_limit(config: Mapping[str, Any], reach: int | None = None) -> int | None:
    """Positions that a model with this config.json takes; None where it does not say.

    reach: the largest position of a run, in tokens; up to where factors switch, or None, the model takes no more than
    that.
    """
    limit = _stated(config)
    if limit is None:
        return None
    for rope in _ropes(config):
        factor, original = rope.get("factor"), _count(rope.get(_ORIGINAL)) or _count(config.get(_ORIGINAL)) or limit
        if _kind(rope) in ("yarn", "dynamic") and isinstance(factor, int | float):
            limit = max(limit, int(factor * original))
    switch = rope_switch(config)
    return limit if switch is None or (reach is not None and reach > switch) else min(limit, switch)


def rope_switch(config: Mapping[str, Any]) -> int | None:
    """The tokens up to which the first rotary factors hold; None where they are the same at every length."""
    found = []
    for rope in _ropes(config):
        if _kind(rope) in _LONG:
            found.append(_count(rope.get(_ORIGINAL)) or _count(config.get(_ORIGINAL)) or _stated(config))
        elif _kind(rope) == "dynamic":
            found.append(_stated(config))
    return min((one for one in found if one is not None), default=None)


def _stated(config: Mapping[str, Any]) -> int | None:
    return next((count for name in STATED if (count := _count(config.get(name)))), None)


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary settings, of each kind of layer where those differ."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if isinstance(rope, Mapping):
            own = [one for one in rope.values() if isinstance(one, Mapping)]
            yield from own or [rope]


def _kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type"))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
