import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from specgauge.model.checks import FloatArray
from specgauge.model.decision import costs_from_blocks, estimate_speedup, ratio_text, summarise
from specgauge.model.speedup import speedups
from specgauge.model.stats.bootstrap import Blocks, draw_blocks, draw_prompts, ratio_replicates
from tests.model.made import made_acceptance

GAMMAS = [1, 2, 4]


def flat_arms(blocks: int = 3) -> dict[str, Blocks]:
    """Arms without noise: C(k) = k, verify 10 + γ, decode 10, a first step of two tokens 1.5."""
    ones = np.ones((blocks, 2))
    arms: dict[str, Blocks] = {"decode": 10 * ones, "draft": ones[:, :, None] * np.arange(1.0, 5.0)}
    arms |= {f"verify:{gamma}": (10.0 + gamma) * ones for gamma in GAMMAS}
    arms["draft_catch_up"] = 1.5 * ones
    return arms


def test_costs_are_medians_of_the_arms() -> None:
    draws = draw_blocks(3, 4, 0)
    costs = costs_from_blocks(flat_arms(), GAMMAS, draws)
    assert costs.t_decode_s.tolist() == [10.0] * 5
    assert costs.t_draft_total_s[0].tolist() == [1, 2, 4]
    assert costs.t_verify_s[3].tolist() == [11, 12, 14]
    np.testing.assert_array_equal(costs.t_draft_catch_up_s, [0.5] * 5)
    quicker = costs_from_blocks(flat_arms() | {"draft_catch_up": np.full((3, 2), 0.5)}, GAMMAS, draws)
    np.testing.assert_array_equal(quicker.t_draft_catch_up_s, [0.0] * 5)
    without = {name: blocks for name, blocks in flat_arms().items() if name != "draft_catch_up"}
    assert costs_from_blocks(without, GAMMAS, draws).t_draft_catch_up_s is None


def test_tokens_per_round_stay_between_one_and_gamma_plus_one() -> None:
    costs = costs_from_blocks(flat_arms(), [1], draw_blocks(3, 2, 0))
    found = speedups(costs, made_acceptance([[1.9], [2.3], [0.8]], np.zeros((3, 1))))
    assert found[:, 0].tolist() == pytest.approx([19 / 12, 20 / 12, 10 / 12])


@pytest.mark.parametrize(
    ("speedups", "measured", "recommended"),
    [
        ([1.395, 1.40, 1.2], (), 1),
        ([1.395, 1.40, 1.2], (2,), 2),
        ([1.395, 1.40, 1.399], (2, 4), 2),
        ([1.395, 1.40, 1.2], (1, 2), 1),
        ([1.395, 1.40, 1.2], (4,), 1),  # decoded, and not as good
        ([1.40, 1.38, 1.39], (2, 4), 4),  # of two decoded, the one as good as the best
    ],
)
def test_of_gammas_as_good_as_the_best_one_that_was_decoded_is_recommended(
    speedups: list[float], measured: tuple[int, ...], recommended: int
) -> None:
    decoded = {gamma: np.full(5, speedups[GAMMAS.index(gamma)]) for gamma in measured}
    found = summarise(np.tile(speedups, (5, 1)), GAMMAS, measured=decoded)
    assert found.recommended_gamma == recommended


def test_an_interval_holds_its_estimate_and_open_ends_are_short() -> None:
    replicates = np.repeat(np.linspace(1.5, 1.6, 100)[:, None], 3, axis=1)
    found = summarise(np.vstack([np.array([[1.4, 1.55, 1.7]]), replicates]), GAMMAS)
    assert found.low is not None
    assert found.high is not None
    assert found.low.tolist() == pytest.approx([1.4, 1.50495, 1.50495], abs=1e-4)
    assert found.high.tolist() == pytest.approx([1.59505, 1.59505, 1.7], abs=1e-4)
    assert [ratio_text(one) for one in (0.21, 99.49, 99.5, 9.4e11)] == ["0.21", "99.49", ">99", ">99"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: costs_from_blocks(flat_arms(), [1, 3], draw_blocks(3, 2, 0)), "expected 'verify:3' among decode, dra"),
        (
            lambda: costs_from_blocks(flat_arms() | {"verify:5": np.ones((3, 2))}, [5], draw_blocks(3, 2, 0)),
            "expected at least 5 marks in 'draft'.*, got 4",
        ),
        (lambda: summarise(np.ones((4, 2)), GAMMAS), r"expected shape \(1 \+ replicates, 3\)"),
        (lambda: summarise(np.full((4, 3), np.nan), GAMMAS), "an unknown S in the estimate"),
        (lambda: summarise(np.ones((4, 3)), GAMMAS, confidence=1.0), "confidence: "),
    ],
)
def test_what_does_not_fit_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_summary_by_hand() -> None:
    rows = np.array([[1.2, 1.3, 1.295], [1.1, 1.3, 1.4], [1.3, 1.2, 1.1], [1.0, 1.4, 1.4], [0.9, 1.5, 1.0]])
    found = summarise(rows, GAMMAS)
    np.testing.assert_array_equal(found.p_best, [0.25, 0.5, 0.25])
    np.testing.assert_array_equal(found.p_pays, [0.5, 1.0, 0.75])
    losses = [
        [1 - 1.1 / 1.4, 1 - 1.3 / 1.4, 0],
        [0, 1 - 1.2 / 1.3, 1 - 1.1 / 1.3],
        [1 - 1 / 1.4, 0, 0],
        [0.4, 0, 1 / 3],
    ]
    assert found.expected_loss == pytest.approx(np.mean(losses, axis=0), rel=1e-12)
    assert (found.best_gamma, found.recommended_gamma) == (2, 2)
    assert found.p_any_worthwhile == 1.0
    assert found.decision.verdict == "speculate"
    assert found.decision.reason == "P(S > 1) = 1.000 at gamma 2"


def test_the_interval_is_the_central_ninety_per_cent() -> None:
    rows = np.concatenate([[50.0], np.arange(101.0)])[:, None] + 1
    found = summarise(rows, [3])
    assert found.low == pytest.approx(np.array([6]), rel=1e-12)
    assert found.high == pytest.approx(np.array([96]), rel=1e-12)
    assert summarise(rows, [3], confidence=0.5).low == pytest.approx(np.array([26]), rel=1e-12)


@pytest.mark.parametrize(
    ("share_over_1", "share_over_101", "decision"),
    [
        (0.95, 0.95, "speculate"),
        (0.94, 0.94, "undecided"),
        (0.94, 0.05, "do not speculate"),
        (0.06, 0.06, "undecided"),
        (0.05, 0.05, "do not speculate"),
        (0.0, 0.0, "do not speculate"),
    ],
)
def test_decisions_at_their_thresholds(share_over_1: float, share_over_101: float, decision: str) -> None:
    drawn = np.full(100, 0.9)
    drawn[: round(100 * share_over_1)] = 1.005
    drawn[: round(100 * share_over_101)] = 1.2
    found = summarise(np.concatenate([[1.0], drawn])[:, None], [2])
    assert found.decision.verdict == decision


def test_limits_mask_candidates_out() -> None:
    rows = np.tile([1.2, 1.5, 1.6], (11, 1))
    found = summarise(rows, GAMMAS, allowed=[True, True, False])
    assert (found.best_gamma, found.recommended_gamma) == (2, 2)
    np.testing.assert_array_equal(found.p_best, [0, 1, 0])
    nothing = summarise(rows, GAMMAS, allowed=[False] * 3)
    assert (nothing.decision.verdict, nothing.best_gamma, nothing.p_best) == ("do not speculate", 0, None)
    assert nothing.decision.reason == "no gamma keeps the limits"
    assert nothing.low is not None
    rows = np.full((6, 3), np.nan)  # one block or prompt
    rows[0] = [1.2, 1.3, 1.4]
    unknown = summarise(rows, GAMMAS)
    assert (unknown.decision.verdict, unknown.recommended_gamma) == ("undecided", 4)
    assert [unknown.low, unknown.high, unknown.p_best, unknown.p_any_worthwhile] == [None] * 4


def simulated_cover(
    generator: np.random.Generator, blocks: int, prompts: int, noise_of: tuple[float, float, float], spread: float
) -> bool:
    """One experiment with known truth: does the 90 % interval of S(3) cover it?

    Times are lognormal around their medians, with an effect of the block on all arms, one on each arm, and noise;
    a prompt's mean of accepted drafts has a beta distribution, of which a prompt's rounds are a sample.
    """
    shared_noise, block_noise, sample_noise = noise_of
    shared = generator.normal(0, shared_noise, (blocks, 1))

    def noise() -> NDArray[np.float64]:
        own = generator.normal(0, block_noise, (blocks, 1)) + generator.normal(0, sample_noise, (blocks, 5))
        return np.asarray(np.exp(shared + own))

    arms: dict[str, Blocks] = {"decode": 10.0 * noise(), "verify:3": 13.0 * noise()}
    arms["draft"] = np.array([2.0, 4.0, 6.0]) * noise()[:, :, None]
    means = 3 * generator.beta(0.6 / spread, 0.4 / spread, prompts)
    starts = generator.integers(10, 40, prompts).astype(np.float64)
    committed = starts * (1 + means + generator.normal(0, 1, prompts) / np.sqrt(starts))
    draws, weights = draw_blocks(blocks, 250, int(generator.integers(2**32))), draw_prompts(prompts, 250, 0)
    omega = ratio_replicates(committed[:, None], starts[:, None], weights)
    costs = costs_from_blocks(arms, [3], draws)
    acceptance = made_acceptance(omega, np.zeros(omega.shape), gammas=np.array([3]))
    found = estimate_speedup(costs, acceptance, batch_size=1)
    assert found.low is not None
    assert found.high is not None
    return bool(found.low[0] <= (1 + 3 * 0.6) * 10 / (6 + 13) <= found.high[0])


@pytest.mark.parametrize(("blocks", "prompts"), [(3, 8), (6, 24), (8, 32)])
@pytest.mark.parametrize(
    ("noise_of", "spread"),
    [((0.03, 0.03, 0.03), 0.001), ((0.0, 0.0, 0.06), 0.001), ((0.003, 0.003, 0.01), 0.2), ((0.02, 0.03, 0.03), 0.05)],
    ids=["blocks", "samples", "prompts", "mixed"],
)
def test_nominal_ninety_per_cent_intervals_cover_85_to_97_per_cent(
    blocks: int, prompts: int, noise_of: tuple[float, float, float], spread: float
) -> None:
    generator = np.random.default_rng(20)
    covered = [simulated_cover(generator, blocks, prompts, noise_of, spread) for _ in range(200)]
    assert 0.85 <= np.mean(covered) <= 0.97


def test_blocks_shared_by_all_arms_cancel_in_the_speed_up() -> None:
    """Drift common to all arms moves no S: with independent draws per arm its interval would be wide."""
    drift = np.exp(np.linspace(-0.2, 0.2, 6))[:, None] * np.ones((1, 5))
    arms: dict[str, Blocks] = {
        "decode": 10 * drift,
        "draft": drift[:, :, None] * np.array([1.0]),
        "verify:1": 11 * drift,
    }
    draws = draw_blocks(6, 200, 0)
    acceptance = made_acceptance(np.full((201, 1), 1.8), np.zeros((201, 1)))
    np.testing.assert_allclose(speedups(costs_from_blocks(arms, [1], draws), acceptance), 1.5, rtol=1e-12)


def _spread(value: float, deviation: float, seed: int) -> FloatArray:
    """(1 + R,) lognormal around a value, the estimate first."""
    quantiles = np.random.default_rng(seed).permutation((np.arange(4000) + 0.5) / 4000)
    return value * np.exp(deviation * np.concatenate([[0.0], norm.ppf(quantiles)]))


@pytest.mark.parametrize(
    ("predicted", "measured", "verdict", "speedup"),
    [
        ((1.2, 0.02), None, "speculate", 1.2),
        ((1.2, 0.03), (1.1, 0.03), "speculate", math.sqrt(1.2 * 1.1)),  # alike: half way
        ((1.2, 0.04), (1.17, 0.02), "speculate", 1.2 ** (1 / 5) * 1.17 ** (4 / 5)),  # by their variances
        ((2.44, 0.03), (0.96, 0.03), "undecided", math.sqrt(2.44 * 0.96)),
        ((1.17, 0.04), (0.98, 0.02), "undecided", None),
        ((0.97, 0.02), (1.20, 0.02), "undecided", math.sqrt(0.97 * 1.2)),
        ((2.4, 0.03), (1.6, 0.03), "speculate", math.sqrt(2.4 * 1.6)),  # both say that it pays
        ((0.8, 0.02), (0.95, 0.01), "do not speculate", None),
        ((1.02, 0.05), (1.05, 0.01), "speculate", None),  # a prediction alone would not tell
    ],
)
def test_one_decision_from_prediction_and_measurement(
    predicted: tuple[float, float], measured: tuple[float, float] | None, verdict: str, speedup: float | None
) -> None:
    beside = {} if measured is None else {3: _spread(*measured, seed=1)}
    found = summarise(_spread(*predicted, seed=0)[:, None], [3], measured=beside)
    assert found.decision.verdict == verdict
    assert found.predicted[0] == predicted[0]
    if speedup is not None:
        assert found.speedup[0] == pytest.approx(speedup, rel=2e-3)
    if measured is not None:
        assert min(predicted[0], measured[0]) <= found.speedup[0] <= max(predicted[0], measured[0])


def test_a_contradiction_is_named_with_both_figures_and_widens_the_interval() -> None:
    found = summarise(_spread(2.44, 0.025, 0)[:, None], [3], measured={3: _spread(0.96, 0.03, 1)})
    assert found.contradicts
    assert found.decision.reason == (
        "prediction and measurement disagree at gamma 3: predicted 2.44 (2.34 to 2.54), measured 0.96 (0.91 to 1.01); "
        "decode more texts, or measure with nothing beside it"
    )
    assert found.low is not None
    assert found.high is not None
    # tau^2 = (log(2.44/.96)^2 - .025^2 - .03^2) / 2, of the mean of two tau^2 / 2
    half = 1.6449 * math.sqrt((math.log(2.44 / 0.96) ** 2 - 0.025**2 - 0.03**2) / 4)
    assert math.log(found.high[0] / found.low[0]) / 2 == pytest.approx(half, rel=0.03)


def test_replicates_that_were_drawn_together_tell_what_prediction_and_measurement_share() -> None:
    predicted = _spread(1.2, 0.03, 0)
    noise = _spread(1.0, 0.02, 1) / 1.0
    same_blocks = summarise(predicted[:, None], [3], measured={3: predicted * noise}, drawn_together=True)
    assert same_blocks.speedup == pytest.approx([1.2])
    assert same_blocks.low == pytest.approx(same_blocks.predicted_low)
    # apart: half of the variance of each
    other = summarise(predicted[:, None], [3], measured={3: _spread(1.22, 0.03, 2)}, drawn_together=True)
    assert other.low is not None
    assert other.high is not None
    assert other.speedup == pytest.approx([math.sqrt(1.2 * 1.22)], rel=0.002)
    assert math.log(other.high[0] / other.low[0]) / (2 * 1.645) == pytest.approx(0.03 / math.sqrt(2), rel=0.1)


def test_a_difference_of_under_a_hundredth_contradicts_nothing() -> None:
    for measured, contradicts in ((1.211, False), (1.214, True)):
        found = summarise(_spread(1.2, 1e-5, 0)[:, None], [3], measured={3: _spread(measured, 1e-5, 1)})
        assert found.contradicts is contradicts


def test_a_gamma_that_was_not_decoded_moves_with_the_nearest_one_that_was() -> None:
    predicted = np.stack([_spread(value, 0.04, 0) for value in (1.3, 1.2, 1.1)], axis=1)
    found = summarise(predicted, [1, 3, 8], measured={3: _spread(0.9, 0.02, 1), 5: _spread(9.0, 0.1, 2)})
    np.testing.assert_allclose(found.speedup / found.predicted, found.speedup[1] / 1.2, rtol=1e-12)
    assert found.speedup[1] < 1.2
    alone = summarise(predicted, [1, 3, 8], measured={})
    assert alone.speedup.tolist() == [1.3, 1.2, 1.1]
    assert not alone.contradicts


@pytest.mark.parametrize(("own", "other"), [(0.03, 0.03), (0.05, 0.02), (0.02, 0.06)])
def test_two_estimates_share_at_most_what_the_better_known_one_varies_by(own: float, other: float) -> None:
    """Of equal values: w = v_p / (v_p + v_m), and a covariance of min(v_p, v_m)."""
    found = summarise(_spread(1.2, own, 0)[:, None], [3], measured={3: _spread(1.2, other, 1)})
    assert found.low is not None
    assert found.high is not None
    weight = own**2 / (own**2 + other**2)
    variance = (1 - weight) ** 2 * own**2 + weight**2 * other**2 + 2 * weight * (1 - weight) * min(own, other) ** 2
    assert math.log(found.high[0] / found.low[0]) / 2 == pytest.approx(1.6449 * math.sqrt(variance), rel=0.03)


def test_a_prediction_without_an_interval_decides_nothing_and_names_what_was_measured() -> None:
    unknown = np.vstack([[1.3], np.full((4000, 1), np.nan)])
    found = summarise(unknown, [3], measured={3: _spread(1.1, 0.01, 1)})
    reason = "one block or one prompt says nothing about others; measured 1.10 (1.08 to 1.12) at gamma 3"
    assert (found.decision.verdict, found.decision.reason) == ("undecided", reason)
    with pytest.raises(ValueError, match="measured: expected S above 0 at gamma 3, got 0"):
        summarise(unknown, [3], measured={3: np.zeros(4001)})


def test_what_threads_wait_for_each_other_widens_s_and_leaves_costs() -> None:
    """Flat blocks are exact; a spread of .2 of log S is all there is, the same at every γ."""
    draws = draw_blocks(3, 4000, 0)
    acceptance = made_acceptance(np.full((4001, 3), 1.5), np.zeros((4001, 3)), gammas=np.array(GAMMAS))
    exact, wide = (
        speedups(costs_from_blocks(flat_arms(), GAMMAS, draws, waiting_spread=spread), acceptance)
        for spread in (0.0, 0.2)
    )
    assert wide[0].tolist() == exact[0].tolist()
    logs = np.log(wide[1:] / exact[1:])
    assert logs.std(axis=0) == pytest.approx([0.2] * 3, rel=0.03)
    assert np.ptp(logs, axis=1).max() < 1e-12
