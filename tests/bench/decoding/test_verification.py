"""The accept–reject test against `specgauge.model.exact`: the probability of every outcome, and known examples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgauge.bench.decoding.sampling import draw
from specgauge.bench.decoding.verification import accept_by_match, accept_by_ratio, accept_forced, accepted_run
from specgauge.model.checks import FloatArray
from specgauge.model.exact import DraftSampling, position_distribution, proposal_probs

WEIGHTS = st.one_of(st.just(0.0), st.floats(1e-300, 1e-290), st.floats(1e-18, 1e-10), st.floats(1e-3, 1.0))


@st.composite
def distributions(pick: st.DrawFn, size: int) -> FloatArray:
    """Random, one-hot and near-zero distributions."""
    weights = np.array(pick(st.lists(WEIGHTS, min_size=size, max_size=size)))
    if weights.sum() == 0 or pick(st.integers(0, 5)) == 0:
        weights[:] = 0.0
        weights[pick(st.integers(0, size - 1))] = 1.0
    return np.asarray(weights / weights.sum())


@st.composite
def pairs(pick: st.DrawFn) -> tuple[FloatArray, FloatArray]:
    """(target, draft): any, equal, or disjoint."""
    size = pick(st.integers(2, 6))
    target = pick(distributions(size))
    kind = pick(st.sampled_from(["any", "any", "equal", "disjoint"]))
    if kind == "equal":
        return target, target.copy()
    if kind == "disjoint":
        halves = np.arange(size) < size // 2
        left, right = np.where(halves, 1.0, 0.0), np.where(halves, 0.0, 1.0)
        return left / left.sum(), right / right.sum()
    return target, pick(distributions(size))


ROUNDING = 1e-12
BELOW_ONE = float(np.nextafter(1.0, 0.0))


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@contextmanager
def masses_drawn_from() -> Iterator[list[Tensor]]:
    """Every (B, V) mass that a replacement or bonus is drawn from."""
    seen: list[Tensor] = []

    def spy(probs: Tensor, uniforms: Tensor) -> Tensor:
        seen.append(probs)
        return draw(probs, uniforms)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specgauge.bench.decoding.verification.draw", spy)
        yield seen


def accept_one(
    target: FloatArray, proposals: FloatArray, is_certain: bool, tokens: list[int], uniforms: list[float]
) -> tuple[list[bool], FloatArray]:
    """(accepted, masses of the replacement) for one draft a row, each with its own token and uniform."""
    rows = len(tokens)
    both = torch.from_numpy(np.stack([target, target]))[None].expand(rows, -1, -1)
    probs = None if is_certain else torch.from_numpy(proposals)[None, None].expand(rows, -1, -1)
    with masses_drawn_from() as masses:
        accepted, _ = accept_by_ratio(
            torch.tensor(tokens)[:, None],
            probs,
            both,
            torch.ones(rows, dtype=torch.long),
            double(uniforms)[:, None],
            torch.full((rows, 2), 0.5, dtype=torch.float64),
        )
    return [bool(count) for count in accepted], masses[0].numpy()


@pytest.mark.parametrize("sampling", ["same", "greedy"])
@given(pair=pairs())
def test_the_enumerated_output_is_distributed_as_the_target(
    sampling: DraftSampling, pair: tuple[FloatArray, FloatArray]
) -> None:
    """Integrate over both uniforms: the test flips at one threshold, a replacement follows its masses."""
    target, draft = pair
    proposals = proposal_probs(draft, sampling)
    wanted = position_distribution(target, draft, draft_sampling=sampling)
    chances = np.zeros_like(target)
    for token in np.flatnonzero(proposals):
        threshold = float(wanted.accept[token])
        tests = [threshold * (1 - ROUNDING), min(threshold * (1 + ROUNDING), BELOW_ONE)]
        (below, above), masses = accept_one(target, proposals, sampling == "greedy", [int(token)] * 2, tests)
        assert below == (threshold > 0)
        if threshold < 1 - ROUNDING or target[token] >= proposals[token]:
            assert above == (target[token] >= proposals[token])
        chances[token] += proposals[token] * threshold
        if not above:
            if wanted.rejected > 1e-3:  # what is left of nearly equal ones is their rounding
                np.testing.assert_allclose(masses[1] / masses[1].sum(), wanted.residual, atol=ROUNDING)
            chances += proposals[token] * (1 - threshold) * masses[1] / masses[1].sum()
    np.testing.assert_allclose(chances, target, atol=ROUNDING)


def test_rounding_that_leaves_no_residual_falls_back_on_the_target() -> None:
    """The draft's mass is larger everywhere, by rounding alone: what it rejects is still drawn from the target."""
    target = np.array([0.25, 0.75])
    draft = target * (1 + 1e-7)
    accepted, masses = accept_one(target, draft, False, [0], [BELOW_ONE])
    assert accepted == [False]
    np.testing.assert_array_equal(masses[0], target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_certain", [False, True])
@pytest.mark.parametrize("follow", [0.0, 0.3, BELOW_ONE])
def test_a_large_vocabulary_puts_no_floor_under_the_residual(
    dtype: torch.dtype, is_certain: bool, follow: float
) -> None:
    target, draft = torch.zeros(1, 2, 100_000, dtype=dtype), torch.zeros(1, 1, 100_000, dtype=dtype)
    target[:, :, :2], draft[:, :, :2] = torch.tensor([0.6, 0.4]), torch.tensor([0.8, 0.2])
    accepted, following = accept_by_ratio(
        torch.tensor([[0]]),
        None if is_certain else draft,
        target,
        torch.tensor([1]),
        double([[0.99]]),
        double([[follow, follow]]),
    )
    assert (accepted.tolist(), following.tolist()) == ([0], [1])


def test_rows_stop_at_their_own_number_of_drafts() -> None:
    """Of three drafts that would all pass, a row that has 0, 1, 2 or 3 accepts as many, and its bonus follows."""
    target = torch.eye(4, dtype=torch.float64)[None].repeat(4, 1, 1)
    drafts = torch.tensor([[0, 1, 2]] * 4)
    drafted = torch.tensor([0, 1, 2, 3])
    halves = torch.full((4, 4), 0.5, dtype=torch.float64)
    for probs in (None, torch.nn.functional.one_hot(drafts, 4).double()):
        found = accept_by_ratio(drafts, probs, target, drafted, halves[:, :3], halves)
        assert [column.tolist() for column in found] == [[0, 1, 2, 3]] * 2
    found = accept_by_match(drafts, torch.tensor([[0, 1, 2, 3]] * 4), drafted)
    assert [column.tolist() for column in found] == [[0, 1, 2, 3]] * 2


def test_a_rejection_cuts_off_what_follows() -> None:
    assert accepted_run(torch.tensor([[True, False, True]]), torch.tensor([3])).tolist() == [1]
    assert accepted_run(torch.zeros(2, 0, dtype=torch.bool), torch.tensor([0, 0])).tolist() == [0, 0]
    accepted, following = accept_by_match(torch.tensor([[5, 6, 7]]), torch.tensor([[5, 9, 7, 8]]), torch.tensor([3]))
    assert (accepted.tolist(), following.tolist()) == ([1], [9])


def test_without_drafts_the_bonus_is_drawn_from_the_target() -> None:
    target = double([[[0.25, 0.75]], [[0.25, 0.75]]])
    nothing = torch.zeros(2, 0, dtype=torch.long)
    accepted, following = accept_by_ratio(
        nothing, None, target, torch.tensor([0, 0]), torch.zeros(2, 0), double([[0.2], [0.3]])
    )
    assert (accepted.tolist(), following.tolist()) == ([0, 0], [0, 1])


def test_forced_rates_decide_alone() -> None:
    drafts, own = torch.tensor([[1, 2], [1, 2], [1, 2]]), torch.tensor([[7, 8, 9]] * 3)
    uniforms = double([[0.9, 0.0], [0.1, 0.5], [0.1, 0.49]])
    accepted, following = accept_forced(drafts, own, torch.tensor([2, 2, 2]), uniforms, double([0.9, 0.5, 0.1]))
    assert (accepted.tolist(), following.tolist()) == ([0, 1, 2], [7, 8, 9])
