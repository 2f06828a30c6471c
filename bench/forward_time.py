"""How long a loop spends inside a model's forwards, and how long outside: on the host, drawing, judging, moving data.

    with ForwardTimer(target.model, clock) as timer:
        decoder.run(…)
    timer.forwards, timer.inside_s          # outside: the call's seconds − inside_s of both models

Each forward is waited for on both sides, so a device's queue never fills: the split holds, the total is longer than
that of an undisturbed run.  Masks that a model makes itself count as forward, those made for it do not.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn

from specgauge.bench.clock import Clock


class ForwardTimer:
    """Counts a model's forwards while the context lasts, and adds up their seconds."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        self.model, self.clock = model, clock
        self.forwards, self.inside_s = 0, 0.0
        self._start: Any = None
        self._hooks: list[Any] = []

    def __enter__(self) -> ForwardTimer:
        """Start counting."""
        self._hooks = [
            self.model.register_forward_pre_hook(self._begin),
            self.model.register_forward_hook(self._end),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop counting, whatever happened."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: Any) -> None:
        self.clock.synchronize()
        self._start = self.clock.mark()

    def _end(self, *_: Any) -> None:
        self.clock.synchronize()
        end = self.clock.mark()
        self.clock.synchronize()
        self.forwards += 1
        self.inside_s += self.clock.elapsed_s(self._start, end)
