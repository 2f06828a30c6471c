"""Progress on stderr: one line that rewrites itself on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

QUIET_S = 10.0
"""Away from a terminal, lines are at least this far apart."""

_ERASE = "\r\x1b[2K"


class ProgressLine:
    """Call it with what is being done; leave its ``with`` block to clear the line."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()
        self._clock = clock
        self._last_s: float | None = None

    def __call__(self, text: str) -> None:
        """Show ``text``; away from a terminal, only where the last line is QUIET_S ago."""
        if self._on_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"{_ERASE}{text[:width]}")
            return
        now_s = self._clock()
        if self._last_s is None or now_s - self._last_s >= QUIET_S:
            self._last_s = now_s
            self._write(f"{text}\n")

    def __enter__(self) -> ProgressLine:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line that rewrites itself."""
        if self._on_terminal:
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
