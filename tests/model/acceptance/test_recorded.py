"""Recorded columns to a_t and o_t by rule, texts padded, what they say of themselves; and recorded lookups."""

from __future__ import annotations

import itertools
import math
from typing import Any
from unittest.mock import ANY

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
    acceptance_and_overlap,
    alpha_accepted,
    alpha_overlap,
    are_lookups,
    chain_check,
    needed_columns,
    pad_texts,
    recorded_overlaps,
    recorded_rounds,
    repeated_ngram_share,
)
from specgauge.model.acceptance.renewal import renewal
from specgauge.model.acceptance.renewal_lookups import renewal_by_start
from specgauge.model.sensitivity import alpha_from_tokens_per_round
from specgauge.model.stats.bootstrap import batch_numbers, sum_by_prompt
from tests.model.made import made_costs

# Three positions of the published three-token example, draft (.1, .1, .8), target (.2, .4, .4), y = A, B, C;
# at the fourth y lies outside the recomputed support.
NAN = float("nan")
TABLE: dict[str, list[float]] = {
    "token": [0, 1, 2, 1],
    "target_prob": [0.2, 0.4, 0.4, NAN],
    "draft_prob": [0.1, 0.1, 0.8, NAN],
    "overlap_ratio": [0.6] * 4,
    "overlap_match": [0.38] * 4,
    "draft_argmax": [2] * 4,
    "draft_argmax_target_prob": [0.4] * 4,
}


@pytest.mark.parametrize(
    ("rule", "draft_sampling", "acceptance", "overlaps"),
    [
        ("ratio", "same", [0.5, 0.25, 1.0, 0.6], 0.6),
        ("match", "same", [0.1, 0.1, 0.8, 0.38], 0.38),
        ("ratio", "greedy", [0, 0, 1, 0], 0.4),
        ("match", "greedy", [0, 0, 1, 0], 0.4),
    ],
)
def test_acceptance_and_overlap_by_rule_with_the_overlap_for_nulls(
    rule: str, draft_sampling: str, acceptance: list[float], overlaps: float
) -> None:
    a, o = acceptance_and_overlap(TABLE, acceptance_rule=rule, draft_sampling=draft_sampling)
    np.testing.assert_allclose(a, acceptance, rtol=1e-15)
    np.testing.assert_allclose(o, [overlaps] * 4, rtol=1e-15)
    # o is the mean of a over the target's distribution of y
    assert a[:3] @ [0.2, 0.4, 0.4] == pytest.approx(overlaps, abs=1e-15)


def test_a_target_probability_of_zero_is_null_and_float32_rounding_is_clipped() -> None:
    columns = TABLE | {"target_prob": [0.0, 0.4, 0.4, NAN], "draft_prob": [0.1, 0.1, 1 + 1e-7, NAN]}
    for rule, row, value in (("ratio", 0, 0.6), ("match", 2, 1.0)):
        assert acceptance_and_overlap(columns, acceptance_rule=rule, draft_sampling="same")[0][row] == value


@pytest.mark.parametrize(
    ("change", "rule", "draft_sampling", "place"),
    [
        ({}, "ration", "same", "acceptance_rule: expected .*'ratio'.*got 'ration'"),
        ({}, "ratio", "gredy", "draft_sampling: expected .*'greedy'.*got 'gredy'"),
        ({"draft_prob": [0.1, 0.1, 1.1, NAN]}, "match", "same", r"acceptance column draft_prob: .* outside \[0, 1\]"),
        ({"overlap_match": None}, "match", "same", "expected the column 'overlap_match'"),
        ({"draft_argmax": None}, "match", "greedy", "got no 'draft_argmax'"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    change: dict[str, object], rule: str, draft_sampling: str, place: str
) -> None:
    columns = {name: values for name, values in (TABLE | change).items() if values is not None}
    with pytest.raises(ValueError, match=place):
        acceptance_and_overlap(columns, acceptance_rule=rule, draft_sampling=draft_sampling)  # type: ignore[arg-type]


def test_the_estimates_of_one_alpha() -> None:
    # 208 of 260 drafts accepted; only 242 were tested, the rest stood behind a rejection.
    assert alpha_accepted([150, 58], [170, 72]) == 208 / 242
    assert alpha_accepted([0.0], [0.0]) is None
    assert alpha_overlap(np.array([0.5, 0.7, 0.9])) == pytest.approx(0.7)
    assert alpha_overlap(np.array([])) is None


def test_the_three_estimates_agree_when_acceptance_is_constant_and_differ_when_it_is_not() -> None:
    def estimates(a: np.ndarray) -> list[float]:
        result = renewal(a, a, [a.size], [False], [4], 4)
        omega = alpha_from_tokens_per_round(result.tokens_per_round(), 4)[0]
        found = (alpha_overlap(a), alpha_accepted(result.accepted, result.tested), omega)
        return [float(value or 0) for value in found]

    assert estimates(np.full((1, 50), 0.7)) == pytest.approx([0.7] * 3, abs=1e-12)
    mixed = estimates(np.tile([1.0] * 10 + [0.1] * 5, 10)[None])
    assert len({round(value, 2) for value in mixed}) == 3


ROWS: dict[str, Any] = {
    "prompt": [2, 0, 0, 2, 0, 0],
    "repetition": [0, 1, 0, 0, 1, 1],
    "position": [1, 2, 0, 0, 0, 1],
    "end_reason": ["eos", "length", "length", "eos", "length", "length"],
    "columns": {"a": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "token": [1, 2, 3, 4, 5, 6]},
}


def test_texts_are_sorted_and_padded_with_zeros() -> None:
    texts = pad_texts(**ROWS)
    assert texts.prompts.tolist() == [0, 0, 2]
    assert texts.repetitions.tolist() == [0, 1, 0]
    assert texts.lengths.tolist() == [1, 3, 2]
    assert texts.ended_by_eos.tolist() == [False, False, True]
    assert texts.columns["a"].tolist() == [[0.3, 0, 0], [0.5, 0.6, 0.2], [0.4, 0.1, 0]]
    assert texts.columns["token"].tolist() == [[3, 0, 0], [5, 6, 2], [4, 1, 0]]
    assert texts.columns["token"].dtype == np.int64


def test_sums_by_prompt() -> None:
    assert sum_by_prompt([[1, 2], [10, 20], [100, 200]], [5, 1, 5]).tolist() == [[10, 20], [101, 202]]
    with pytest.raises(ValueError, match="expected one per text"):
        sum_by_prompt([1.0, 2.0], [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": [1, 3, 0, 0, 0, 1]}, "prompt 0, repetition 1: expected position 2 .*, got 3"),
        ({"position": [1, 1, 0, 0, 0, 1]}, "prompt 0, repetition 1: expected position 2 .*, got 1"),
        ({"position": [1, 2, 0, 2, 0, 1]}, "prompt 2, repetition 0: expected position 0 .*, got 1"),
        ({"end_reason": ["eos"] + ["length"] * 5}, "expected one end_reason .*got 'eos'"),
        ({"end_reason": ["stop"] * 6}, "expected one end_reason of eos, length .*got 'stop'"),
        ({"columns": {"a": [1.0]}}, r"acceptance column a: expected \(6,\) as prompt has, got shape \(1,\)"),
        ({"repetition": [0]}, "acceptance column repetition"),
    ],
)
def test_tables_that_are_no_texts_are_one_line_errors(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        pad_texts(**(ROWS | change))
    assert "\n" not in str(caught.value)


def test_blocks_of_the_same_prompts_have_one_number_in_whatever_order_they_stand() -> None:
    assert batch_numbers([(3, 5), (1, 2), (5, 3), (2, 2), (3, 5, 5)]).tolist() == [0, 1, 0, 2, 0]
    assert batch_numbers([]).tolist() == []


@pytest.mark.parametrize(
    ("accepted", "overlap", "tested", "variance", "errors", "deviation", "consistent"),
    [
        # differences (1, 2, 3): sum 6, standard error √3 · 1; then (1, 1.5, 2)
        ([2.0, 3.0, 4.0], [1.0] * 3, [10.0] * 3, 0.0, 6 / math.sqrt(3), 0.2, True),
        ([2.0, 2.5, 3.0], [1.0] * 3, [10.0] * 3, 0.0, 4.5 / (math.sqrt(3) / 2), 0.15, False),
        ([5.0, 5.0], [4.0, 4.0], [10.0, 10.0], 0.0, None, 0.1, False),  # all prompts alike: no error, but found
        ([0.0], [0.0], [0.0], 0.0, None, None, True),
        ([5.0], [4.0], [10.0], 2.5, None, 0.1, True),
        # 6 prompts of 64 positions, overlaps of .001 and nothing accepted: .384 short, all prompts alike
        ([0.0] * 6, [0.064] * 6, [64.0] * 6, 384 * 0.001 * 0.999, -0.384 / math.sqrt(0.383616), -0.001, True),
        # overlaps of .1 of which nothing is accepted are 38.4 short: 6.5 standard errors, no chance
        ([0.0] * 6, [6.4] * 6, [64.0] * 6, 384 * 0.1 * 0.9, -38.4 / math.sqrt(34.56), -0.1, False),
        # rounding of identical models
        ([100.0, 120.0, 90.0], [100 - 1e-5, 120 - 1.2e-5, 90 - 9e-6], [100.0, 120.0, 90.0], 0.0, ANY, 1e-7, True),
    ],
)
def test_deviation_in_clustered_standard_errors_by_hand(
    accepted: list[float],
    overlap: list[float],
    tested: list[float],
    variance: float,
    errors: float | None,
    deviation: float | None,
    consistent: bool,
) -> None:
    check = chain_check(accepted, overlap, tested, largest_variance=variance)
    wanted = [value if value is None or value is ANY else pytest.approx(value) for value in (errors, deviation)]
    assert [check.standard_errors, check.deviation_per_position] == wanted
    assert check.consistent == consistent


@pytest.mark.parametrize("overlap", [0.01, 0.3, 0.97])
def test_own_texts_of_two_prompts_are_rarely_accused(overlap: float) -> None:
    # two prompts alone spread by chance: |t| > 4 with one degree of freedom in 16 % of all runs
    generator = np.random.default_rng(5)
    accepted = (generator.random((500, 2, 100)) < overlap).sum(axis=2)
    means, variance = np.full(2, 100 * overlap), 200 * overlap * (1 - overlap)
    accused = [not chain_check(run, means, np.full(2, 100), largest_variance=variance).consistent for run in accepted]
    assert np.mean(accused) < 0.01


def test_repeated_ngrams_by_hand() -> None:
    tokens = 10_000 * np.array([[1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 6], [7, 7, 7, 7, 7, 7], [1, 2, 0, 0, 0, 0]])
    # bigrams: (12, 21, 12, 21, 12) has 2 of 5 distinct; six 7s have 1 of 5; the last text has 1 of 1
    for n, shares in ((1, [4 / 6, 0, 5 / 6, 0]), (2, [0.6, 0, 0.8, 0]), (4, [1 / 3, 0, 2 / 3, math.nan])):
        assert repeated_ngram_share(tokens, [6, 6, 6, 2], n).tolist() == pytest.approx(shares, nan_ok=True)
    for lengths, n, message in (([2], 0, "n: expected .*got 0"), ([3], 2, "lengths"), ([2, 2], 2, "lengths")):
        with pytest.raises(ValueError, match=message):
            repeated_ngram_share([[1, 2]], lengths, n)


# One text of four positions. Start 0 proposes three tokens of which two agree; 1 proposes none; 2 proposes three, both
# that the text has left agree; 3 proposes two that do not.
LOOKUPS: dict[str, list[float]] = {
    "token": [5, 6, 7, 8],
    "proposed_length": [3, 0, 3, 2],
    "match_length": [2, 0, 2, 0],
    "target_prob": [0.5, 0.25, 0.75, 0.125],
    "rejected_target_prob": [0.0625, NAN, NAN, 0.375],
}


def padded(**changes: list[float]) -> PaddedTexts:
    columns = {name: np.array(values) for name, values in (LOOKUPS | changes).items()}
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
    assert [are_lookups(columns) for columns in (LOOKUPS, ["token", "target_prob"])] == [True, False]
    assert set(needed_columns(LOOKUPS)) == set(LOOKUPS)
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
    columns = {name: values for name, values in (LOOKUPS | change).items() if values is not None}
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
