from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.acceptance.estimate import (
    RecordedColumns,
    acceptance_probability,
    alpha_judged,
    alpha_omega,
    alpha_overlap,
    fill_nulls,
    null_count,
    overlap,
    recorded_columns,
)
from specgauge.model.acceptance.renewal import renewal

# Three positions of the published three-token example, draft (.1, .1, .8), target (.2, .4, .4), y = A, B, C;
# at the fourth y lies outside the recomputed support.
TABLE: dict[str, list[float | None]] = {
    "token": [0, 1, 2, 1],
    "target_prob": [0.2, 0.4, 0.4, None],
    "draft_prob": [0.1, 0.1, 0.8, None],
    "overlap_ratio": [0.6] * 4,
    "overlap_match": [0.38] * 4,
    "draft_argmax": [2] * 4,
    "draft_argmax_target_prob": [0.4] * 4,
}


def recorded() -> RecordedColumns:
    return recorded_columns(TABLE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "draft_sampling", "acceptance", "overlaps"),
    [
        ("ratio", "same", [0.5, 0.25, 1.0, np.nan], 0.6),
        ("match", "same", [0.1, 0.1, 0.8, np.nan], 0.38),
        ("ratio", "greedy", [0, 0, 1, 0], 0.4),
        ("match", "greedy", [0, 0, 1, 0], 0.4),
    ],
)
def test_acceptance_and_overlap_by_rule(
    rule: str, draft_sampling: str, acceptance: list[float], overlaps: float
) -> None:
    found = acceptance_probability(recorded(), acceptance_rule=rule, draft_sampling=draft_sampling)
    np.testing.assert_allclose(found, acceptance, rtol=1e-15)
    means = overlap(recorded(), acceptance_rule=rule, draft_sampling=draft_sampling)
    np.testing.assert_allclose(means, [overlaps] * 4, rtol=1e-15)
    # o is the mean of a over the target's law of y
    assert found[:3] @ [0.2, 0.4, 0.4] == pytest.approx(overlaps, abs=1e-15)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_overlap_is_the_mean_of_acceptance_under_the_target(seed: int, vocabulary: int) -> None:
    generator = np.random.default_rng(seed)
    target, draft = generator.dirichlet(np.full(vocabulary, 0.5), 2)
    argmax = int(draft.argmax())
    columns = RecordedColumns(
        token=np.arange(vocabulary),
        target_prob=target,
        draft_prob=draft,
        overlap_ratio=np.full(vocabulary, np.minimum(target, draft).sum()),
        overlap_match=np.full(vocabulary, target @ draft),
        draft_argmax=np.full(vocabulary, argmax),
        draft_argmax_target_prob=np.full(vocabulary, target[argmax]),
    )
    for rule in ("ratio", "match"):
        for draft_sampling in ("same", "greedy"):
            a = acceptance_probability(columns, acceptance_rule=rule, draft_sampling=draft_sampling)
            o = overlap(columns, acceptance_rule=rule, draft_sampling=draft_sampling)
            known = ~np.isnan(a)
            assert a[known] @ target[known] == pytest.approx(o[0], abs=1e-12)


def test_nulls_are_counted_and_filled_with_the_overlap() -> None:
    a = acceptance_probability(recorded(), acceptance_rule="ratio", draft_sampling="same")
    assert null_count(a) == 1
    assert null_count(a, [True, True, True, False]) == 0
    assert fill_nulls(a, [0.6] * 4).tolist() == [0.5, 0.25, 1.0, 0.6]


def test_a_target_probability_of_zero_is_null_not_a_division() -> None:
    columns = replace(recorded(), target_prob=np.array([0.0, 0.4, 0.4, np.nan]))
    a = acceptance_probability(columns, acceptance_rule="ratio", draft_sampling="same")
    assert np.isnan(a).tolist() == [True, False, False, True]


def test_float32_rounding_is_clipped_and_more_is_refused() -> None:
    over = replace(recorded(), draft_prob=np.array([0.1, 0.1, 1 + 1e-7, np.nan]))
    assert acceptance_probability(over, acceptance_rule="match", draft_sampling="same")[2] == 1
    with pytest.raises(ValueError, match=r"acceptance column draft_prob: found a value outside \[0, 1\]"):
        replace(recorded(), draft_prob=np.array([0.1, 0.1, 1.1, np.nan]))


@pytest.mark.parametrize(
    ("rule", "draft_sampling", "message"),
    [
        ("ration", "same", "acceptance_rule: found 'ration'; allowed are ratio, match; did you mean 'ratio'"),
        ("ratio", "gredy", "draft_sampling: found 'gredy'; allowed are same, greedy; did you mean 'greedy'"),
    ],
)
def test_unknown_rules_name_the_nearest(rule: str, draft_sampling: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        acceptance_probability(recorded(), acceptance_rule=rule, draft_sampling=draft_sampling)
    with pytest.raises(ValueError, match=message):
        overlap(recorded(), acceptance_rule=rule, draft_sampling=draft_sampling)


def test_missing_and_misshapen_columns_are_named() -> None:
    with pytest.raises(ValueError, match="found no column 'overlap_match'"):
        recorded_columns({name: values for name, values in TABLE.items() if name != "overlap_match"})  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"draft_argmax: found shape \(2,\); allowed is token's \(4,\)"):
        replace(recorded(), draft_argmax=np.array([1, 1]))


def test_alpha_overlap_counts_every_position_once() -> None:
    assert alpha_overlap([[0.5, 0.7], [0.9, 9.0]], [[True, True], [True, False]]) == pytest.approx(0.7)
    assert alpha_overlap([]) is None


def test_alpha_judged_is_accepted_over_accepted_plus_rejected() -> None:
    # 208 of 260 drafts accepted; only 242 were judged, the rest stood behind a rejection.
    assert alpha_judged([150, 58], [170, 72]) == 208 / 242
    assert alpha_judged([0.0], [0.0]) is None


def test_alpha_omega_inverts_tokens_per_round() -> None:
    # SnapKV self-speculation: Ω(3) = 3.41 is α = .894, which gives 4.05, 4.62, 5.13 at 4, 5, 6.
    alpha = float(alpha_omega(3.41, 3))
    assert alpha == pytest.approx(0.894, abs=5e-4)
    for gamma, omega in ((4, 4.05), (5, 4.62), (6, 5.13)):
        assert sum(alpha**i for i in range(gamma + 1)) == pytest.approx(omega, abs=5e-3)


def test_the_three_estimates_agree_when_acceptance_is_constant_and_differ_when_it_is_not() -> None:
    constant = np.full((1, 50), 0.7)
    result = renewal(constant, constant, [50], [False], [4], 4)
    assert alpha_overlap(constant) == pytest.approx(0.7, abs=1e-12)
    assert alpha_judged(result.judged_accepted, result.judged) == pytest.approx(0.7, abs=1e-12)
    assert alpha_omega(result.tokens_per_round(), [4])[0] == pytest.approx(0.7, abs=1e-12)
    runs = np.tile([1.0] * 10 + [0.1] * 5, 10)[None]
    mixed = renewal(runs, runs, [150], [False], [4], 4)
    estimates = [alpha_overlap(runs), alpha_judged(mixed.judged_accepted, mixed.judged)]
    estimates.append(float(alpha_omega(mixed.tokens_per_round(), [4])[0]))
    assert len({round(float(value or 0), 2) for value in estimates}) == 3
