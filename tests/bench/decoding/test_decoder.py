"""The decoder: each row as if alone, greedy text equal to plain text, limits, ends, caches, records."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from specgauge.bench.decoding.drafters import ModelDrafter, NgramDrafter
from specgauge.bench.models.pair import LoadedModel, first_layers
from specgauge.model.sampling import SamplingSettings
from tests.bench.conftest import FakeClock, FakeDevice
from tests.bench.decoded import DRAWN, FILTERED, GREEDY, PROMPTS, Make, decode, plain

PENALISED = SamplingSettings(temperature=0.0, repetition_penalty=1.3)
NUMBERS = [3, 4, 9]


@pytest.mark.parametrize("rule", [{"acceptance_rule": "ratio"}, {"acceptance_rule": "match"}, {"forced_rates": 0.5}])
@pytest.mark.parametrize("settings", [GREEDY, PENALISED, DRAWN, FILTERED], ids=["greedy", "penalty", "draw", "filters"])
def test_every_row_equals_its_own_batch_of_one(tiny_model: Make, settings: SamplingSettings, rule: Any) -> None:
    """Prompts of 3, 9 and 17 tokens, which accept differently in a round."""
    target, draft = tiny_model(seed=3, eos=(4,), scale=0.2), tiny_model(seed=3, layers=1, scale=0.2)
    options: Any = {"gamma": 3, "seed": 7, **rule}
    drafter = ModelDrafter(draft, settings, signals=True)
    together = decode(target, drafter, settings, numbers=NUMBERS, **options)
    plainly = plain(target, settings, seed=7, numbers=NUMBERS)
    assert any(
        len({row.accepted for row in together.rows if row.round == number}) > 1 for number in range(len(together.times))
    )
    for number, prompt in zip(NUMBERS, PROMPTS, strict=True):
        alone = decode(target, drafter, settings, [prompt], numbers=[number], **options)
        assert alone.texts == [text for text in together.texts if text.prompt == number]
        assert plain(target, settings, [prompt], seed=7, numbers=[number])[0] in plainly
        rows = [row for row in together.rows if row.prompt == number]
        assert [row.round for row in alone.rows] == [row.round for row in rows]
        for one, other in zip(alone.rows, rows, strict=True):
            assert one.top_probs == pytest.approx(other.top_probs, abs=1e-5)
            assert one.entropies_nats == pytest.approx(other.entropies_nats, abs=1e-4)
            same = {name: value for name, value in vars(one).items() if name not in ("top_probs", "entropies_nats")}
            assert same.items() <= vars(other).items()


@pytest.mark.parametrize("settings", [GREEDY, PENALISED])
@pytest.mark.parametrize("gamma", range(9))
def test_greedy_text_is_the_plain_one(tiny_model: Make, settings: SamplingSettings, gamma: int) -> None:
    target, draft = tiny_model(scale=0.4), tiny_model(seed=1, scale=0.4)
    expected = plain(target, settings)
    for drafter in (draft, first_layers(target, 1), NgramDrafter()):
        assert decode(target, drafter, settings, gamma=gamma).texts == expected


@pytest.mark.parametrize("settings", [DRAWN, FILTERED])
def test_under_the_match_rule_the_drawn_text_is_the_plain_one(tiny_model: Make, settings: SamplingSettings) -> None:
    target, draft = tiny_model(scale=0.4), tiny_model(seed=1, scale=0.4)
    found = decode(target, draft, settings, acceptance_rule="match")
    assert found.texts == plain(target, settings)
    assert found.why_not_lossless is None


def test_every_phase_takes_time_and_rounds_have_the_rows_that_were_active(tiny_model: Make) -> None:
    found = decode(tiny_model(), tiny_model(seed=1), DRAWN)
    assert min(found.prefill_target_s, found.prefill_draft_s) > 0
    for number, times in enumerate(found.times):
        phases = [vars(times)[f"t_{phase}_s"] for phase in ("draft", "verify", "accept", "rest")]
        assert min(phases) > 0
        assert (times.t_round_s, times.t_overhead_s) == (sum(phases), sum(phases[2:]))
        assert times.active_rows == sum(row.round == number for row in found.rows)
    assert found.decode_s == sum(times.t_round_s for times in found.times)


def test_a_waiting_device_is_waited_for_once_a_round(tiny_model: Make) -> None:
    """On a device that returns at once, the draft's queued work does not vanish from the round."""
    device = FakeDevice()
    clock = FakeClock(device, marks_on_host=False)
    drafter = NgramDrafter()
    right = drafter.propose

    def slow(*arguments: Any) -> Any:
        device.launch(0.25, "draft")
        return right(*arguments)

    setattr(drafter, "propose", slow)  # noqa: B010
    found = decode(tiny_model(), drafter, GREEDY, PROMPTS[:1], new=6, gamma=2, clock=clock)
    drafting = [times.t_draft_s for times, row in zip(found.times, found.rows, strict=True) if row.gamma]
    assert drafting == pytest.approx([0.25] * len(drafting))
    assert found.decode_s == pytest.approx(0.25 * len(drafting))


def on_cuda(loaded: LoadedModel) -> Any:
    model: Any = copy.deepcopy(loaded.model)
    return model.to("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("settings", [GREEDY, FILTERED], ids=["greedy", "filters"])
def test_the_draft_may_live_on_another_device(tiny_model: Make, settings: SamplingSettings) -> None:
    target, draft = tiny_model(scale=0.4), tiny_model(seed=1, scale=0.4)
    here = decode(target, ModelDrafter(draft, settings, signals=True), settings)
    moved = replace(draft, model=on_cuda(draft), device=torch.device("cuda"))
    there = decode(target, ModelDrafter(moved, settings, signals=True), settings)
    assert there.texts == here.texts
    both = replace(target, model=on_cuda(target), device=torch.device("cuda"))
    assert decode(both, draft, settings).texts == here.texts
