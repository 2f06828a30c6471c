from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specgauge.reports.built import built_forwards


def line(mode: str, **notes: Any) -> Any:
    return SimpleNamespace(axes={"pair": "p", "mode": mode}, notes=notes)


def test_forwards_that_were_built_are_told_by_pair_and_mode() -> None:
    lines = [
        line("eager", threads=1),
        line("compile", graphs_built=0, build_s=0.0),
        line("compile", graphs_built=2, build_s=1.25),
        line("compile", graphs_built=3, build_s=11.0),
        line("cuda_graph", graphs_built=1, build_s=0.5),
        line("cuda_graph", graphs_built=True, build_s=1.0),
        line("cuda_graph", graphs_built="many", build_s=None),
    ]
    assert built_forwards(lines) == [
        (
            "compiled or captured, outside what is timed",
            [("p, compile", "5 forwards in 12.2 s"), ("p, cuda_graph", "1 forward in 0.5 s")],
        )
    ]
    assert built_forwards(lines[:2]) == []
