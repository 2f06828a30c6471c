"""Forwards are counted and timed while the context lasts, and no longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specgauge.bench.decoding.plain import generate_plain
from specgauge.bench.end_to_end.side_by_side import ForwardTimer
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings
from tests.bench.conftest import FakeClock, FakeDevice

GREEDY = SamplingSettings(temperature=0.0)


def test_seconds_in_forwards_are_waited_for_and_others_are_not_counted(
    tiny_model: Callable[..., LoadedModel], fake_device: FakeDevice, fake_clock: FakeClock
) -> None:
    target = tiny_model()

    def work(*_: object) -> None:
        fake_device.launch(0.5)

    target.model.get_input_embeddings().register_forward_hook(work)
    with ForwardTimer(target.model, fake_clock) as timer:
        fake_device.launch(2.0)
        generate_plain(target, [[1, 2, 3]], GREEDY, max_new_tokens=4, seed=0, prompt_numbers=[0])
        fake_device.launch(2.0)
    assert timer.forwards == 4
    assert timer.inside_s == pytest.approx(2.0)
    target.model(input_ids=torch.tensor([[1]]))
    assert timer.forwards == 4


def test_a_failure_inside_removes_the_hooks(tiny_model: Callable[..., LoadedModel], fake_clock: FakeClock) -> None:
    target = tiny_model()
    with pytest.raises(RuntimeError, match="broken"), ForwardTimer(target.model, fake_clock) as timer:
        raise RuntimeError("broken")
    target.model(input_ids=torch.tensor([[1]]))
    assert timer.forwards == 0
