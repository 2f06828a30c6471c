from __future__ import annotations

from specgauge.configs.schema import WorkloadConfig


def test_own_prompts_take_any_format() -> None:
    assert WorkloadConfig(prompts="mine.json", format="sharegpt").format == "sharegpt"
