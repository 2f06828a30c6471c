"""environment.json of a run that measured servers: the client's side; of the servers only what they tell."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING, Any

from specgauge.version import __version__

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

SERVED_PROVENANCE = "served"


def served_environment(config: Config) -> dict[str, Any]:
    """What the client runs on; device and processor are those of the servers, which nobody told."""
    try:
        httpx: str | None = importlib.metadata.version("httpx")
    except importlib.metadata.PackageNotFoundError:
        httpx = None
    return {
        "provenance": SERVED_PROVENANCE,
        "engine": ", ".join(dict.fromkeys(one.kind for pair in config.pairs for one in pair.engines)),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_cores": os.cpu_count(),
        "device": None,
        "cpu": None,
        "cuda": None,
        "threads": None,
        "packages": {"specgauge": __version__, "httpx": httpx},
    }
