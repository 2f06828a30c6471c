"""How a process of specgauge ends: its exit codes, and whether it shows tracebacks."""

import os

DONE, FAILED, BAD_INPUT = 0, 1, 2
INTERRUPTED, READER_LEFT = 130, 141
DEBUG_VARIABLE = "SPECGAUGE_DEBUG"


def debug_by_environment() -> bool:
    """Whether the environment asks for tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "").strip().casefold() not in ("", "0", "false", "no")
