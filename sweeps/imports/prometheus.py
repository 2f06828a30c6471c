"""Files with what engines expose at /metrics, two scrapes a run: BEFORE AFTER.

between, = betweens_of([before, after], needs="vllm:generation_tokens")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specgauge.configs.prometheus import Between, Scrape
from specgauge.sweeps.imports.files import read_text


def read_scrape(path: Path) -> Scrape:
    """The scrape in a file.

    Raises:
        ValueError: empty, too large, truncated or foreign; the line is named.
        OSError: it is missing or cannot be read.
    """
    return Scrape.parse(read_text(path), str(path))


def betweens_of(paths: Sequence[Path], *, needs: str) -> list[Between]:
    """The time between each two scrapes of a run, BEFORE AFTER.

    Raises:
        ValueError: as `read_scrape` and `Between.of`, and for an odd number of files.
        OSError: one is missing or cannot be read.
    """
    if len(paths) % 2:
        raise ValueError(f"{paths[-1]}: expected two scrapes a run, BEFORE AFTER, got {len(paths)} files")
    scrapes = [read_scrape(path) for path in paths]
    return [Between.of(before, after, needs=needs) for before, after in zip(scrapes[::2], scrapes[1::2], strict=True)]
