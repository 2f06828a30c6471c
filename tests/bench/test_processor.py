"""The processor's name and instructions, without torch."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from specgauge.bench.processor import cpu_flags, cpu_name
from tests.sweeps.odd_workers import PATHS

AVX512, ARM = "fpu avx2 avx512_bf16", "fp asimd bf16"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (f"processor\t: 0\nflags\t\t: {AVX512}\nbugs\t: x\n\nprocessor\t: 1\nflags\t\t: other\n", AVX512),
        (f"processor\t: 0\nFeatures\t: {ARM}\n", ARM),
        ("nothing of it", ""),
        (None, ""),
    ],
)
def test_instructions_are_read_as_linux_names_them(
    monkeypatch: pytest.MonkeyPatch, text: str | None, flags: str
) -> None:
    def read(self: Path, **_: str) -> str:
        if text is None:
            raise FileNotFoundError(self)
        return text

    monkeypatch.setattr(Path, "read_text", read)
    assert cpu_flags() == frozenset(flags.split())


def test_its_name_is_the_kernels_else_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ["processor\t: 0\nmodel name\t: A Processor: fast\nmodel name\t: Another\n"]
    monkeypatch.setattr(Path, "read_text", lambda self, **_: text[0])
    assert cpu_name() == "A Processor: fast"
    text[0] = "processor\t: 0\nFeatures\t: asimd\n"
    monkeypatch.setattr(platform, "processor", lambda: "aarch64")
    assert cpu_name() == "aarch64"
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert cpu_name() is None


def test_nodes_are_asked_without_torch() -> None:
    code = "import sys, specgauge.sweeps.cluster.task; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": PATHS}, check=False).returncode == 0
