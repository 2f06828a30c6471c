"""A draft on another device than the target: the same texts, and what crosses is a phase of its own.

`cpu:1` holds tensors apart from those of `cpu`, and computes as it does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from specgauge.bench.decoding.drafters import Proposal
from specgauge.bench.decoding.sampling import Draws
from specgauge.bench.models.pair import LoadedPair
from specgauge.model.sampling import SamplingSettings
from tests.bench.conftest import FakeClock, FakeDevice
from tests.bench.decoded import DRAWN, FILTERED, GREEDY, PROMPTS, Make, decode

THERE = torch.device("cpu", 1)
RATIO, MATCH, FORCED = ({"acceptance_rule": "ratio"}, {"acceptance_rule": "match"}, {"forced_rates": 0.5})
CROSSING_S = 0.25


@pytest.mark.parametrize(
    ("settings", "rule", "needs_distributions"),
    [
        (GREEDY, RATIO, False),
        (DRAWN, RATIO, True),
        (FILTERED, RATIO, True),
        (DRAWN, MATCH, False),
        (DRAWN, FORCED, False),
    ],
    ids=["greedy", "draw", "filters", "match", "forced"],
)
def test_what_crosses_is_timed_apart_and_changes_no_text(
    tiny_model: Make, settings: SamplingSettings, rule: Any, needs_distributions: bool
) -> None:
    target, draft = tiny_model(scale=0.4), tiny_model(seed=1, scale=0.4)
    here = decode(target, draft, settings, **rule)
    assert {times.t_transfer_s for times in here.times} == {None}
    device, crossed, real = FakeDevice(), [], Proposal.on

    def crossing(proposal: Proposal, to: torch.device, *, distributions: bool) -> Proposal:
        device.launch(CROSSING_S, "transfer")
        found = real(proposal, to, distributions=distributions)
        crossed.append((found.tokens.shape[1], found.probs is not None))
        return found

    with patch.object(Proposal, "on", crossing):
        clock = FakeClock(device, marks_on_host=False)
        there = decode(target, replace(draft, device=THERE), settings, clock=clock, **rule)
    assert (there.texts, there.rows) == (here.texts, here.rows)
    assert {has_probs for width, has_probs in crossed if width} == {needs_distributions}
    assert [times.t_transfer_s for times in there.times] == [CROSSING_S] * len(crossed)
    assert there.decode_s == CROSSING_S * len(there.times)
    assert {times.t_overhead_s for times in there.times} == {0.0}


def test_uniforms_of_drafts_are_made_where_the_draft_is(tiny_model: Make) -> None:
    target, draft = tiny_model(scale=0.4), tiny_model(seed=1, scale=0.4)
    made, real = [], Draws.__init__

    def init(draws: Draws, purposes: list[str], *arguments: Any, device: torch.device, **options: Any) -> None:
        made.append((device, list(purposes)))
        real(draws, purposes, *arguments, device=device, **options)

    with patch.object(Draws, "__init__", init):
        for settings in (DRAWN, GREEDY):
            decode(target, replace(draft, device=THERE), settings, PROMPTS[:1], new=3)
    every = ["accept", "bonus", "draft", "residual", "token"]
    assert made == [(target.device, every), (THERE, ["draft"]), (target.device, [])]


def test_which_pairs_have_something_to_hand_over(tiny_model: Make) -> None:
    target, draft = tiny_model(), tiny_model(seed=1)
    pair = LoadedPair(name="p", target=target, draft=draft)
    devices = [torch.device(name) for name in ("cpu", "cpu:0", "cpu:1")]
    assert [replace(pair, draft=replace(draft, device=device)).transfers for device in devices] == [False, False, True]
