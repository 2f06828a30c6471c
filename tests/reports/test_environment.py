from types import SimpleNamespace
from typing import Any

from specgauge.reports.html import compilation_facts, environment_facts


def test_the_environment_is_grouped_and_its_units_are_scaled() -> None:
    plain = [("python", "3.11"), ("memory", "1.5 GiB"), ("governor", "–"), ("nothing", "–")]
    plain += [("flags", "a, b"), ("ok", "yes")]
    gpus = [("0: clock", "1500 MHz"), ("0: limits: power limit", "700 W"), ("1: temperature", "41.5 °C")]
    assert environment_facts(
        {
            "python": "3.11",
            "memory_bytes": 3 * 2**29,
            "governor": None,
            "packages": {"torch": "2.13", "gguf": None},
            "gpus": [{"clock_hz": 1_500_000_000, "limits": {"power_limit_w": 700}}, {"temperature_c": 41.5}],
            "nothing": {},
            "flags": ["a", "b"],
            "ok": True,
        }
    ) == [("General", plain), ("packages", [("torch", "2.13"), ("gguf", "–")]), ("gpus", gpus)]


def line(mode: str, **notes: Any) -> Any:
    return SimpleNamespace(axes={"pair": "p", "mode": mode}, notes=notes)


def test_compiled_forwards_are_told_by_pair_and_mode() -> None:
    lines = [
        line("eager", threads=1),
        line("compile", graphs_built=0, build_s=0.0),
        line("compile", graphs_built=2, build_s=1.25),
        line("compile", graphs_built=3, build_s=11.0),
        line("cuda_graph", graphs_built=1, build_s=0.5),
        line("cuda_graph", graphs_built=True, build_s=1.0),
        line("cuda_graph", graphs_built="many", build_s=None),
    ]
    ((_, facts),) = compilation_facts(lines)
    assert facts == [("p, compile", "5 forwards in 12.2 s"), ("p, cuda_graph", "1 forward in 0.5 s")]
    assert compilation_facts(lines[:2]) == []
