"""Recorded lookups: what they say of acceptance, by start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specgauge.model.acceptance.lookups import RecordedLookups, recorded_lookups
from specgauge.model.acceptance.recorded_rounds import are_lookups, needed_columns, recorded_overlaps, recorded_rounds
from specgauge.model.acceptance.texts import PaddedTexts, pad_texts

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


def lookups() -> RecordedLookups:
    return recorded_lookups(padded().columns)


def test_survival_is_certain_and_its_mean_is_the_targets_own() -> None:
    survival, ahead = lookups().by_start([4], 3)
    assert survival[0].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]]
    # the third draft of start 0 fails at position 2, where the target gave it .0625
    assert ahead[0].tolist() == [[0.5, 0.25, 0.0625], [0, 0, 0], [0.75, 0.125, 0], [0.375, 0, 0]]
    assert [values.shape for values in lookups().by_start([4], 1)] == [(1, 4, 1)] * 2
    survival, ahead = lookups().by_start([4], 2)
    assert ahead[0].tolist() == [[0.5, 0.25], [0, 0], [0.75, 0.125], [0.375, 0]]


def test_unknown_probabilities_are_what_happened() -> None:
    recorded = recorded_lookups(padded(target_prob=[NAN, 0.25, 0.75, 0.125], rejected_target_prob=[NAN] * 4).columns)
    _, ahead = recorded.by_start([4], 3)
    assert ahead[0, 0].tolist() == [1.0, 0.25, 0.0]
    assert ahead[0, 3].tolist() == [0.0, 0.0, 0.0]


def test_overlap_is_that_of_the_first_draft_where_there_is_one() -> None:
    assert lookups().overlap[0].tolist() == pytest.approx([0.5, NAN, 0.75, 0.375], nan_ok=True)
    assert recorded_overlaps(padded(), acceptance_rule="ratio", draft_sampling="same").tolist() == [0.5, 0.75, 0.375]


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


def test_columns_tell_lookups_from_draft_models() -> None:
    assert are_lookups(TABLE)
    assert not are_lookups(["token", "target_prob"])
    assert set(needed_columns(TABLE)) == set(TABLE)
    assert "draft_argmax" in needed_columns(["token"])


def test_what_cannot_have_been_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="found no column 'match_length'; needed are proposed_length, match_length"):
        recorded_lookups({name: values for name, values in TABLE.items() if name != "match_length"})
    with pytest.raises(ValueError, match="match_length: found more than proposed_length"):
        recorded_lookups(padded(match_length=[4, 0, 2, 0]).columns)
    with pytest.raises(ValueError, match="target_prob: found a value outside"):
        recorded_lookups(padded(target_prob=[0.5, 2, 0.75, 0.125]).columns)
    with pytest.raises(ValueError, match="found shape"):
        replace(lookups(), match_length=np.zeros((1, 3), dtype=np.int64))
