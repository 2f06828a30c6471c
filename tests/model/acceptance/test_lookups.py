"""Recorded lookups: what they say of acceptance, by start, and what their rounds spend on verification."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.acceptance.lookups import (
    draft_share_replicates,
    lookup_overlap,
    lookup_survival,
    max_drafts_distribution,
    mean_verify_s,
)
from specgauge.model.acceptance.recorded import (
    PaddedTexts,
    are_lookups,
    needed_columns,
    pad_texts,
    recorded_overlaps,
    recorded_rounds,
)
from specgauge.model.acceptance.renewal_lookups import renewal_by_start
from tests.model.made import made_costs

NAN = float("nan")
# One text of four positions. Start 0 proposes three tokens of which two agree; 1 proposes none; 2 proposes three, both
# that the text has left agree; 3 proposes two that do not.
TABLE: dict[str, list[float]] = {
    "token": [5, 6, 7, 8],
    "proposed_length": [3, 0, 3, 2],
    "match_length": [2, 0, 2, 0],
    "target_prob": [0.5, 0.25, 0.75, 0.125],
    "rejected_target_prob": [0.0625, NAN, NAN, 0.375],
}


def padded(**changes: list[float]) -> PaddedTexts:
    columns = {name: np.array(values) for name, values in (TABLE | changes).items()}
    return pad_texts([0] * 4, [0] * 4, range(4), ["length"] * 4, columns)


def test_survival_is_certain_and_its_mean_is_the_targets_own_or_what_happened() -> None:
    survival, ahead = lookup_survival(padded().columns, [4], 3)
    assert survival[0].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]]
    # the third draft of start 0 fails at position 2, where the target gave it .0625
    assert ahead[0].tolist() == [[0.5, 0.25, 0.0625], [0, 0, 0], [0.75, 0.125, 0], [0.375, 0, 0]]
    assert lookup_survival(padded().columns, [4], 2)[1].tolist() == ahead[:, :, :2].tolist()
    unknown = padded(target_prob=[NAN, 0.25, 0.75, 0.125], rejected_target_prob=[NAN] * 4)
    assert lookup_survival(unknown.columns, [4], 3)[1][0, [0, 3]].tolist() == [[1.0, 0.25, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("rule", ["ratio", "match"])
@pytest.mark.parametrize("draft_sampling", ["same", "greedy"])
def test_rounds_of_lookups_are_the_same_under_every_rule(rule: str, draft_sampling: str) -> None:
    result = recorded_rounds(padded(), acceptance_rule=rule, draft_sampling=draft_sampling, gammas=[1, 3])
    # γ = 1: 0 → 2 → the last position, plain; γ = 3: 0 → 3, plain
    assert result.rounds.tolist() == [[2.0, 2.0]]
    assert result.starts.tolist() == [[1.0, 1.0]]
    assert result.survival[0].tolist() == [[0.5, 0, 0], [0.5, 0.25, 0.0625]]
    assert result.rounds_by_drafts is not None
    assert result.rounds_by_drafts[0].tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


def test_columns_tell_lookups_from_draft_models_and_overlap_is_that_of_the_first_draft() -> None:
    assert [are_lookups(columns) for columns in (TABLE, ["token", "target_prob"])] == [True, False]
    assert set(needed_columns(TABLE)) == set(TABLE)
    assert "draft_argmax" in needed_columns(["token"])
    assert recorded_overlaps(padded(), acceptance_rule="ratio", draft_sampling="same").tolist() == [0.5, 0.75, 0.375]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"match_length": None}, "'match_length' is missing"),
        ({"match_length": [4, 0, 2, 0]}, "match_length: expected at most proposed_length"),
        ({"target_prob": [0.5, 2, 0.75, 0.125]}, "target_prob: expected .*got a value outside"),
    ],
)
def test_what_cannot_have_been_recorded_is_refused(change: dict[str, object], place: str) -> None:
    columns = {name: values for name, values in (TABLE | change).items() if values is not None}
    with pytest.raises(ValueError, match=place):
        lookup_overlap(columns)  # type: ignore[arg-type]


COSTS = made_costs([2, 4], t_decode_s=[1.0] * 2, t_draft_total_s=[[0.1, 0.1]] * 2, t_verify_s=[[1.5, 2.5]] * 2)
"""The same in the estimate and in one replicate."""


@given(
    weights=st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any),
    rows=st.integers(1, 4),
)
def test_the_widest_of_independent_rows_is_that_of_all_combinations(weights: list[int], rows: int) -> None:
    single = np.array(weights) / sum(weights)
    expected = np.zeros(len(weights))
    for drafts in itertools.product(range(len(weights)), repeat=rows):
        expected[max(drafts)] += np.prod(single[list(drafts)])
    assert max_drafts_distribution(single, rows) == pytest.approx(expected, abs=1e-12)


def test_verification_is_averaged_over_the_drafts_that_rounds_have() -> None:
    shares = np.zeros((2, 2, 5))
    shares[:, 0, [0, 2]] = 0.25, 0.75
    shares[:, 1, [0, 1, 3, 4]] = 0.5, 0.25, 0.125, 0.125
    found = mean_verify_s(COSTS, shares, batch_size=1)
    # T_verify(1) lies half way between decode and T_verify(2), T_verify(3) half way between the measured two
    assert found[0].tolist() == [0.25 * 1 + 0.75 * 1.5, 0.5 * 1 + 0.25 * 1.25 + 0.125 * 2 + 0.125 * 2.5]
    assert found[1].tolist() == found[0].tolist()
    # of two rows both must find nothing for the block to stay plain
    found = mean_verify_s(COSTS, shares, batch_size=2)
    assert found[0, 0] == pytest.approx(0.0625 * 1 + 0.9375 * 1.5, abs=1e-12)


def test_shares_are_pooled_over_prompts_and_drawn_with_them() -> None:
    # two texts of four positions, γ_max 2: the first finds nothing anywhere, the second two drafts that always fail
    survival, offered = np.zeros((2, 4, 2)), [[0] * 4, [2] * 4]
    result = renewal_by_start(survival, survival, offered, [4, 4], [False, False], [1, 2], 2).by_prompt([0, 1])
    assert result.starts.tolist() == [[3, 3], [3, 3]]
    weights = np.array([[2, 0], [0, 2], [1, 1]])
    shares = draft_share_replicates(result, weights)
    assert shares.shape == (4, 2, 3)
    assert shares[0].tolist() == [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]
    assert shares[3].tolist() == shares[0].tolist()
    # deviations are widened for the two prompts and clipped to shares: all or nothing
    assert shares[1].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert shares[2].tolist() == [[0, 1, 0], [0, 0, 1]]
