"""Configuration texts that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgauge.configs.errors import ConfigError

from specgauge.configs.loader import load_config

PAIRS = "pairs:\n  - {name: embedded, target: embedded, draft: embedded}\n"
MINIMAL = "name: x\n" + PAIRS
TOP_KEYS = (
    "name, pairs, workload, sampling, draft_sampling, acceptance_rule, grid, precision, mode, threads, seed, "
    "acceptance, verify, limits"
)
MODEL_KEYS = "model, revision, gguf_file, dtype, device, device_map, quantization, attention, trust_remote_code"
NAME_RULE = "a name for files: up to 100 of A-Z a-z 0-9 . _ - with no -- in it and no . or - at an end"


def write(folder: Path, text: str, name: str = "file.yaml") -> Path:
    """A file of that text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def error_of(path: Path, *overrides: str, require_files: bool = False) -> str:
    """The one line that loading ``path`` fails with, its folder left out."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, require_files=require_files)
    line = str(caught.value)
    assert "\n" not in line
    return line.replace(f"{path.parent}/", "")
