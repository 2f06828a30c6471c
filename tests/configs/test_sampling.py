from __future__ import annotations

from specgauge.configs.schema import SamplingConfig


def test_whole_numbers_become_floats_where_a_number_is_meant() -> None:
    setting = SamplingConfig.model_validate({"name": "t", "temperature": 1, "top_p": 1})
    assert (setting.temperature, setting.top_p) == (1.0, 1.0)
    assert isinstance(setting.temperature, float)
    assert str(SamplingConfig(name="t", temperature=-0.0).temperature) == "0.0"


def test_top_k_zero_is_off_as_in_transformers() -> None:
    assert SamplingConfig(name="t", top_k=0).top_k == 0
