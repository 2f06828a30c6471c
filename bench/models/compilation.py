"""What was compiled or captured: counted, so that none of it happens unseen while a clock runs.

A compilation inside a timed region would be measured with it.

    with nothing_built("verify:3"):
        samples = [sample() for _ in range(5)]        # CompileInsideError where something was compiled meanwhile
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Built:
    """What this process has compiled and captured so far."""

    count: int
    """Graphs compiled, whoever asked for them, and CUDA graphs captured; a recompilation counts again."""
    seconds: float
    """Wall time of that, the compiled or captured forward's first run included."""

    def since(self, earlier: Built) -> Built:
        """What came after an earlier count."""
        return Built(count=self.count - earlier.count, seconds=self.seconds - earlier.seconds)


class CompileInsideError(RuntimeError):
    """Something was compiled or captured while a clock ran."""


@dataclass
class _Tally:
    captures: int = 0
    seconds: float = 0.0


_tally = _Tally()


def compilations() -> int:
    """Graphs that torch.compile has made in this process, recompilations included."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def built() -> Built:
    """The count so far."""
    return Built(count=compilations() + _tally.captures, seconds=_tally.seconds)


def count_build(*, captures: int, seconds: float) -> None:
    """Add captured graphs, which torch does not count, and the seconds of a capture or compilation."""
    _tally.captures += captures
    _tally.seconds += seconds


@contextmanager
def nothing_built(what: str) -> Iterator[None]:
    """Raise CompileInsideError, with ``what`` was timed, where the block compiled or captured anything."""
    before = built()
    yield
    found = built().since(before)
    if found.count:
        raise CompileInsideError(
            f"compile-inside: {found.count} graph{'' if found.count == 1 else 's'} compiled or captured in "
            f"{found.seconds:.3g} s while {what} was timed; its times would hold the compiler's, so they are dropped"
        )
