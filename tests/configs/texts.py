"""Configuration texts that the tests of this folder share."""

from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import json_schema, load_config

PAIRS = "pairs:\n  - {name: embedded, target: embedded, draft: embedded}\n"
MINIMAL = "name: x\n" + PAIRS
TWO_PAIRS = MINIMAL + "  - {name: other, target: org/big, draft: {model: org/small, dtype: float16}}\n"
VARIANTS = "name: x\npairs:\n  - name: qwen\n    target: {model: o/m, dtype: [bfloat16, float32]}\n    draft: o/s\n"
DRAFT = "name: x\npairs:\n  - name: a\n    target: embedded\n    draft: %s\n"
RULED = (
    "name: x\npairs:\n"
    "  - {name: qwen, target: {model: o/m, dtype: [bfloat16, float32]}, draft: o/s}\n"
    "  - {name: small, target: embedded, draft: ngram, mode: compile}\n"
    "grid:\n  batch_size: [1, 4, 8]\n  context: [64, 128]\n"
)
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def write(folder: Path, text: str, name: str = "file.yaml") -> Path:
    """A file of that text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def error_of(path: Path, overrides: Sequence[str] = (), *, require_files: bool = False) -> ConfigError:
    """The error that loading ``path`` fails with, one line."""
    with pytest.raises(ConfigError, match=r"^[^\n]+$") as caught:
        load_config(path, overrides, require_files=require_files)
    return caught.value
