"""The model against published numbers, at the tolerances their rounding leaves."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import ArrayLike

from specgauge.cli.predict import predict_table
from specgauge.model.acceptance.profiles import (
    profile_from_tokens_per_round,
    profile_from_totals,
)
from specgauge.model.checks import FloatArray
from specgauge.model.costs import DraftKind
from specgauge.model.overhead import fit_overhead
from specgauge.model.sensitivity import alpha_from_tokens_per_round
from specgauge.model.speedup import best_gamma, recommended_gamma, round_time_s, speedup, tokens_per_round_iid

GOLDEN = Path(__file__).parent
MAGICDEC = GOLDEN / "magicdec.csv"
GAMMAS = np.arange(1, 33)


def leviathan_speedup(alpha: ArrayLike, gamma: ArrayLike, cost_ratio: ArrayLike) -> FloatArray:
    """S where T_verify = T_decode and epsilon = 0: Omega / (gamma c + 1); arXiv 2211.17192, theorem 3.8."""
    return np.asarray(tokens_per_round_iid(alpha, gamma) / (np.asarray(gamma) * np.asarray(cost_ratio) + 1))


def test_magicdec_speedups_without_overhead_and_with_one_for_each_gpu() -> None:
    errors = predict_table(MAGICDEC)["errors"]
    assert errors["rows"] == 59
    assert errors["mean_abs_error"] == pytest.approx(0.0338, abs=2e-4)
    document = predict_table(MAGICDEC, fit_overhead_by="gpu")
    fit = document["fit"]
    rows = {name: group["rows"] for name, group in fit["groups"].items()}
    assert rows == {"8xL40": 3, "4xH100": 3, "8xH100": 6, "8xA100": 47}
    assert fit["groups"]["8xA100"]["t_overhead_s"] == pytest.approx(1.43e-3, abs=5e-6)
    assert fit["mean_abs_error"] == pytest.approx(0.0031, abs=5e-5)
    assert fit["loo_mean_abs_error"] == pytest.approx(0.0032, abs=5e-5)
    assert document["errors"]["mean_abs_error"] == pytest.approx(fit["mean_abs_error"], rel=1e-12)


def test_leviathan_expected_speedups() -> None:
    frame = pd.read_csv(GOLDEN / "leviathan_t5xxl.csv")
    expected = leviathan_speedup(frame["acceptance_rate"], frame["gamma"], frame["cost_ratio"])
    np.testing.assert_allclose(expected, frame["speedup_expected"], atol=0.07)


@pytest.mark.parametrize(
    ("alpha", "gamma", "operations", "expected"),
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_leviathan_table_1(alpha: float, gamma: int, operations: float, expected: float) -> None:
    # arithmetic per committed token against plain decoding with a draft that costs none: theorem 3.11
    assert (gamma + 1) / float(tokens_per_round_iid(alpha, gamma)) == pytest.approx(operations, abs=0.005)
    assert float(leviathan_speedup(alpha, gamma, 0.0)) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(
    ("cost", "best", "recommended"),
    [(0.05, [3, 4, 6, 8, 13], [3, 4, 5, 7, 11]), (0.1, [2, 3, 4, 6, 10], [2, 3, 4, 5, 8])],
)
def test_best_and_recommended_gamma(cost: float, best: list[int], recommended: list[int]) -> None:
    alphas = np.array([0.5, 0.6, 0.7, 0.8, 0.9])[:, np.newaxis]
    t_round = round_time_s(t_draft_total_s=DraftKind("autoregressive", cost).total_s(GAMMAS), t_verify_s=1.0)
    gain = speedup(tokens_per_round_iid(alphas, GAMMAS), t_decode_s=1.0, t_round_s=t_round)
    assert best_gamma(gain, GAMMAS).tolist() == best
    assert recommended_gamma(gain, GAMMAS).tolist() == recommended


def test_snapkv_self_speculation() -> None:
    alpha = float(alpha_from_tokens_per_round(3.41, 3))
    assert alpha == pytest.approx(0.894, abs=5e-4)
    predicted = tokens_per_round_iid(alpha, [4, 5, 6])
    np.testing.assert_allclose(predicted, [4.05, 4.62, 5.13], atol=0.006)
    np.testing.assert_allclose(predicted, [4.03, 4.55, 5.07], rtol=0.016)


def test_multi_token_prediction_heads_are_not_one_alpha() -> None:
    gammas, measured = [1, 2, 3, 4, 6], [1.94, 2.77, 3.47, 4.03, 4.85]
    errors = tokens_per_round_iid(0.94, gammas) / measured - 1
    np.testing.assert_allclose(100 * errors, [0, 1.9, 5.3, 10.1, 20.8], atol=0.06)
    np.testing.assert_allclose(
        profile_from_tokens_per_round(gammas, measured).at(gammas).tokens_per_round, measured, rtol=1e-12
    )


def test_accepted_over_drafted_falls_with_gamma_while_alpha_does_not() -> None:
    gammas = np.array([1, 2, 4, 7, 10])
    alphas = alpha_from_tokens_per_round(1 + gammas * [0.802, 0.718, 0.580, 0.450, 0.359], gammas)
    np.testing.assert_allclose(alphas, 0.80, atol=0.01)


def test_208_of_260_drafts_accepted_in_52_rounds() -> None:
    profile = profile_from_totals(accepted=208, drafted=260, rounds=52)
    t_round = round_time_s(t_draft_total_s=5 * 0.001614, t_verify_s=[0.04108, 0.01905])  # T_decode by mistake
    s = speedup(profile.at([5]).tokens_per_round, t_decode_s=0.01905, t_round_s=t_round)
    assert s == pytest.approx([1.94, 3.51], abs=0.005)


def test_a_measured_speedup_below_the_predicted_one_implies_an_overhead() -> None:
    parts = 0.03903 + 0.06354
    s = speedup(3.762, t_decode_s=0.02795, t_round_s=parts)
    assert float(s) == pytest.approx(1.025, abs=5e-4)
    fit = fit_overhead(
        [3.762], t_decode_s=[0.02795], t_costs_s=[parts], t_verify_s=[0.06354], speedup_measured=[0.931], groups=["a"]
    )
    assert float(fit.t_overhead_s[0]) == pytest.approx(0.0104, abs=5e-5)
