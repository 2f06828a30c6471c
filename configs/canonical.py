"""Canonical JSON and the short hashes that name configurations and cells.

Two values are the same if and only if their canonical texts are: keys sorted, no blanks, ASCII only, and no NaN or
Infinity (unknown is null). The hash is the first 12 hex digits of the text's SHA-256.
"""

import hashlib
import json
from typing import Any

HASH_DIGITS = 12


def canonical_json(value: Any) -> str:
    """The one JSON text of `value`, on one line.

    Raises:
        ValueError: `value` holds NaN or Infinity.
        TypeError: `value` holds something JSON has no form for.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def short_hash(value: Any) -> str:
    """The first 12 hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:HASH_DIGITS]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON (unknown is null)")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} appears twice")
        found[key] = value
    return found


def strict_loads(text: str) -> Any:
    """`json.loads` that refuses NaN, Infinity and repeated keys.

    Raises:
        ValueError: the text is not strict JSON.
    """
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
