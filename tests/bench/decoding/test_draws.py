"""Uniforms by place: the same alone and in a batch, and of their own by round where drafts have a say in the future."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specgauge.bench.decoding.records import PromptBatch
from specgauge.bench.decoding.sampling import ROUND_DRAFT, Draws
from specgauge.model.sampling import PURPOSES, uniforms

CPU = torch.device("cpu")


def draws(prompts: list[int], round_drafts: int | None = None) -> Draws:
    purposes = ["accept", "draft"]
    batch = PromptBatch(prompts=[], numbers=prompts, max_new_tokens=8, repetition=2)
    return Draws(purposes, batch, seed=1, device=CPU, round_drafts=round_drafts)


def test_a_uniform_is_that_of_its_place() -> None:
    """Beyond the text the last one repeats."""
    found = draws([3, 5])
    found.move([1, 6], 3)
    places = np.array([[1, 2, 3], [6, 7, 7]])
    for purpose in ("accept", "draft"):
        wanted = uniforms(1, np.array([[3], [5]]), 2, places, PURPOSES[purpose])
        np.testing.assert_array_equal(found.at(purpose, 3).numpy(), wanted)


@pytest.mark.parametrize("known", [0, 2, 4])
def test_drafts_of_a_round_have_their_own_as_many_as_it_takes(known: int) -> None:
    found = draws([3, 5], known)
    for positions in ([0, 2], [1, 2]):
        found.move(positions, 4)
        wanted = uniforms(1, np.array([[3], [5]]), 2, np.array(positions)[:, None], ROUND_DRAFT + np.arange(3))
        np.testing.assert_array_equal(found.at("draft", 3).numpy(), wanted)
        np.testing.assert_array_equal(found.at("draft", 1).numpy(), wanted[:, :1])
    found.move([0, 0], 8)
    rounds = [found.at("draft", 7)[0]]
    for start in range(1, 8):
        found.move([start, 0], 8)
        rounds.append(found.at("draft", 7)[0])
    assert torch.stack(rounds).unique().numel() == 8 * 7


def test_a_row_draws_the_same_alone_and_in_a_batch() -> None:
    alone, together = draws([5], 3), draws([3, 5, 9], 3)
    alone.move([4], 3)
    together.move([0, 4, 7], 3)
    for purpose in ("accept", "draft"):
        assert together.at(purpose, 2)[1].tolist() == alone.at(purpose, 2)[0].tolist()
