"""Interleaved decodings: who is next, what each returns, and that all are closed when one fails."""

from __future__ import annotations

import pytest

from specgauge.bench.decoding.plain import Interleavable, interleave, uninterrupted


class Told:
    """Decodings that say when they run and whether they were told of a break."""

    def __init__(self) -> None:
        self.log: list[tuple[str, float]] = []
        self.breaks: list[bool] = []
        self.closed: list[str] = []

    def decoding(self, name: str, steps: list[float], fails: bool = False) -> Interleavable[str]:
        try:
            for step in steps:
                self.log.append((name, step))
                self.breaks.append((yield step))
            if fails:
                raise ValueError(name)
            return f"{name} done"
        finally:
            self.closed.append(name)


def test_alone_there_is_no_break() -> None:
    told = Told()
    assert uninterrupted(told.decoding)("a", [1.0, 2.0, 3.0]) == "a done"
    assert told.breaks == [False] * 3


def test_the_shortest_text_is_next_the_first_named_where_equal() -> None:
    told = Told()
    found = interleave({"plain": told.decoding("plain", [1, 2, 3, 4]), "fast": told.decoding("fast", [1, 4])})
    assert told.log == [
        ("plain", 1), ("fast", 1), ("plain", 2), ("fast", 4), ("plain", 3), ("plain", 4)
    ]  # fmt: skip
    assert list(found.items()) == [("plain", "plain done"), ("fast", "fast done")]
    assert all(told.breaks)


def test_one_that_ends_at_once_returns_what_it_has() -> None:
    told = Told()
    found = interleave({"b": told.decoding("b", []), "a": told.decoding("a", [1.0])})
    assert list(found.items()) == [("b", "b done"), ("a", "a done")]


def test_when_one_fails_all_are_closed() -> None:
    told = Told()
    with pytest.raises(ValueError, match="bad"):
        interleave({"good": told.decoding("good", [1, 5]), "bad": told.decoding("bad", [2], fails=True)})
    assert sorted(told.closed) == ["bad", "good"]
