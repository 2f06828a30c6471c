"""What is not imported in a worker, which loads and computes all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADS = """
import sys
from specgauge.bench.models.unused_parts import UNUSED, import_without_unused_parts
import_without_unused_parts()
unused = {"scipy.optimize", "torch.distributed.checkpoint"}
import transformers.utils
print(sorted(unused - set(sys.modules)), [getattr(transformers.utils, name)() for name in UNUSED])
import torch
from specgauge.bench.models.pair import load_model
from specgauge.configs.pairs import ModelConfig
loaded = load_model(ModelConfig(model="embedded"), role="draft", name="draft")
with torch.inference_mode():
    print(tuple(loaded.model(torch.tensor([[1, 2, 3]])).logits.shape[:2]))
"""


def test_a_model_is_loaded_without_what_measuring_never_uses() -> None:
    pytest.importorskip("scipy")
    ended = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.splitlines()) == (
        0,
        ["['scipy.optimize', 'torch.distributed.checkpoint'] [True, True]", "(1, 3)"],
    ), ended.stderr
