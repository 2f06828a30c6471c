"""Several decodings side by side, a round of one and then of another, so that a machine that drifts hits all alike.

A decoding that can be interrupted is a generator: after every round it yields how far it is, in tokens of a text, and
it returns what it found.  It is sent whether time was spent elsewhere meanwhile, so that its clock leaves that out.

    found = take_turns({"plain": plain_turns(…), "speculate:3": decoder.turns(…)})
    alone = finish(decoder.turns(…))
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TypeVar

Result = TypeVar("Result")
Turns = Generator[float, bool, Result]
"""Yields mean tokens of the rows that go on; is sent whether something else ran since; returns its result."""


def finish(turns: Turns[Result]) -> Result:
    """Run one decoding to its end without a break."""
    try:
        next(turns)
        while True:
            turns.send(False)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def take_turns(decodings: Mapping[str, Turns[Result]]) -> dict[str, Result]:
    """Run all to their ends; the next round is always that of the shortest text, the first named where equal.

    All are thus at the same place of their texts at any time, whatever a round of each commits.  Each first step, up to
    the first yield, runs in the order given.  An exception of one ends all.
    """
    reached: dict[str, float] = {}
    found: dict[str, Result] = {}
    try:
        for name, turns in decodings.items():
            try:
                reached[name] = next(turns)
            except StopIteration as end:
                found[name] = end.value
        while reached:
            name = min(reached, key=lambda one: reached[one])
            try:
                reached[name] = decodings[name].send(True)
            except StopIteration as end:
                found[name] = end.value
                del reached[name]
    finally:
        for turns in decodings.values():
            turns.close()
    return {name: found[name] for name in decodings}
