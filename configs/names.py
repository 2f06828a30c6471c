"""Names that pairs, sampling settings and runs go by, fit for files on every system, and values as parts of names.

NAME.accepts("qwen-bfloat16")                       →  True
part_of_name("kernels-community/flash-attn3")       →  "kernels-community_flash-attn3"
"""

from __future__ import annotations

import re

from specgauge.configs.rules import Text

EMBEDDED = "embedded"
"""The pair that ships with specgauge, and its prompts."""
LONGEST_NAME = 100
NAME = Text(
    pattern=r"^(?!.*--)[A-Za-z0-9_]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_])?$",
    means="a name for files: up to 100 of A-Z a-z 0-9 . _ - with no -- in it and no . or - at an end",
)


def part_of_name(value: object) -> str:
    """A value as it can stand in a name; two values may give the same part."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", str(value))
    return re.sub(r"-{2,}", "-", plain).strip(".-") or "_"
