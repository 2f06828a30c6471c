from specgauge.reports.environment import environment_sections


def test_the_environment_is_grouped_and_its_units_are_scaled() -> None:
    assert environment_sections(
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
    ) == [
        (
            "General",
            [
                ("python", "3.11"),
                ("memory", "1.5 GiB"),
                ("governor", "–"),
                ("nothing", "–"),
                ("flags", "a, b"),
                ("ok", "yes"),
            ],
        ),
        ("packages", [("torch", "2.13"), ("gguf", "–")]),
        ("gpus", [("0: clock", "1500 MHz"), ("0: limits: power limit", "700 W"), ("1: temperature", "41.5 °C")]),
    ]
