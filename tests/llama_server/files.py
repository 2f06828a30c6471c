"""The shipped pair as GGUF files, and a `llama-server` for PATH that is llama.cpp's own, of the package xllamacpp."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from specgauge.bench.models.pair import EMBEDDED
from tests.llama_server.gguf_file import write_gguf

ROOT = Path(__file__).parents[2]


def write_pair(folder: Path) -> dict[str, str]:
    """The paths of target and draft."""
    return {role: str(write_gguf(EMBEDDED / role, folder / f"{role}.gguf")) for role in ("target", "draft")}


def write_command(folder: Path) -> dict[str, str]:
    """Write the command; the variables with which it is found and runs."""
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tests.llama_server "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    modules = [str(ROOT / "src"), str(ROOT)]
    return {"PATH": os.pathsep.join([str(folder), os.environ["PATH"]]), "PYTHONPATH": os.pathsep.join(modules)}
