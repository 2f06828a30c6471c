"""Forecasts of acceptance: running means by hand, and what is learnt from texts and lookups made to order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specgauge.model.acceptance.lookups import confidence
from specgauge.model.policies.forecast import AcceptanceForecast, fit_forecast, fit_lookup_forecast
from tests.model.policy_cases import PLAIN_FORECAST, looked_up, made_texts


def test_the_running_means_by_hand() -> None:
    forecast = replace(
        PLAIN_FORECAST, mean=0.5, first_weights=(0.1, 0.3, 0.6), this_weights=(0.0, 0.5, 0.25, 0.25), memory=0.5
    )
    history = forecast.start(2)
    assert forecast.first_draft(forecast.means(history)) == pytest.approx([0.1 + 0.3 * 0.5 + 0.6 * 0.5] * 2)
    # two positions in turn; the second call judges the first of them only, in two rows
    rows, passed = np.array([[1.0, 2.0], [1.0, 0.0]]), np.array([[1.0, 1.0], [0.0, 0.0]])
    history = forecast.after(history, np.array([[0.9, 1.4], [0.3, 0.0]]), passed, rows)
    r, e = (4 * 0.5 + 0.5 * 0.9 + 0.3) / 5.5, (4 * 0.5 + 0.5 + 0) / 5.5
    means = forecast.means(history)
    assert means.confidence == pytest.approx([r, (4 * 0.5 + 1.4) / 6])
    assert means.accepted == pytest.approx([e, (4 * 0.5 + 1) / 6])
    this = forecast.this_draft(np.array([[0.8], [np.nan]]), means)
    assert this[0, 0] == pytest.approx(0.4 + 0.25 * r + 0.25 * e)
    assert np.isnan(this[1, 0])
    faded = forecast.faded(history, np.array([2, 0]))
    assert faded.tested == pytest.approx([1.5 / 4, 2.0])
    assert faded.accepted == pytest.approx([0.5 / 4, 1.0])


def test_confidence_is_learnt_as_it_is_and_pooled_where_acceptance_falls() -> None:
    generator = np.random.default_rng(0)
    tops = generator.random((40, 60))
    forecast = fit_forecast(made_texts(tops**2, tops))
    grid = np.linspace(0.05, 0.95, 10)
    np.testing.assert_allclose(forecast.confidence(grid), grid**2, atol=0.02)
    assert np.isnan(forecast.confidence(np.array([np.nan]))).all()
    assert forecast.this_weights[1] == pytest.approx(1.0, abs=0.1)
    # positions are independent: what was seen says nothing of the next
    assert forecast.first_draft(forecast.means(forecast.start(1)))[0] == pytest.approx(1 / 3, abs=0.02)
    assert abs(forecast.next_weights[1]) < 0.1
    falling = np.linspace(0.0, 1.0, 200)[None]
    assert set(np.round(fit_forecast(made_texts(1 - falling, falling)).acceptance, 9)) == {0.5}


def test_texts_that_differ_teach_how_they_go_on() -> None:
    level = np.repeat(np.array([0.9, 0.1] * 10)[:, None], 50, axis=1)
    forecast = fit_forecast(made_texts(level, np.full(level.shape, 0.5)))
    rows, half = np.ones((8, 2)), np.full((8, 2), 0.5)
    history = forecast.after(forecast.start(2), half, np.array([[1.0, 0.0]] * 8), rows)
    went_well, went_badly = forecast.first_draft(forecast.means(history))
    assert went_well > 0.8
    assert went_badly < 0.2
    assert forecast.first_draft(forecast.means(forecast.start(1)))[0] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_texts_of_certain_acceptance_are_learnt_too(acceptance: float) -> None:
    texts = made_texts(np.full((2, 6), acceptance), np.full((2, 6), 0.7))
    forecast = fit_forecast(texts)
    means = forecast.means(forecast.start(1))
    assert forecast.first_draft(means)[0] == pytest.approx(acceptance, abs=1e-9)
    assert forecast.this_draft(np.array([[acceptance]]), means)[0, 0] == pytest.approx(acceptance, abs=1e-9)


def test_one_position_is_enough_and_neither_none_nor_those_of_lookups() -> None:
    assert fit_forecast(made_texts([[0.25]])).mean == 0.25
    with pytest.raises(ValueError, match=r"forecast: expected .*got no position"):
        fit_forecast(made_texts([[0.25]]).of_prompts([7]))
    with pytest.raises(ValueError, match=r"lookup forecast: expected .*got texts of a draft model"):
        fit_lookup_forecast(made_texts([[0.5, 0.5]]), 2)


def by_agreement(forecast: AcceptanceForecast, *tokens: int) -> list[float]:
    """P(accepted) of drafts before which so many tokens agreed, of a text that has gone as texts do."""
    means = forecast.means(forecast.start(1))
    return [float(rate) for rate in forecast.this_draft(forecast.confidence(confidence([tokens])), means)[0]]


def test_rates_by_agreement_are_learnt_from_rounds() -> None:
    """A match of 1 gives nothing, one of 3 gives everything: of three drafts at starts 0, 4, 8, …, none at others."""
    offered, matching, matched = np.zeros((3, 20, 16), dtype=np.int64)
    offered[:, ::4] = 3
    matching[::2, ::4] = 3
    matched[::2, ::4], matched[1::2, ::4] = 3, 1
    forecast = fit_lookup_forecast(looked_up(offered, matching, matched), 3)
    # 10 texts of 4 rounds of 3 accepted drafts, 10 of 4 rounds of one rejected draft
    assert forecast.mean == pytest.approx(12 / 16)
    assert forecast.confidence(confidence([0, 1, 3, 4, 5, 9])) == pytest.approx([0, 0, 1, 1, 1, 1], abs=1e-9)
    assert by_agreement(forecast, 1, 3, 5) == pytest.approx([0.0, 1.0, 1.0], abs=0.06)
    means = forecast.means(forecast.start(1))
    assert float(forecast.next_draft(np.ones((1, 1)), means)[0, 0]) == pytest.approx(1.0, abs=0.02)


def test_fewer_drafts_are_tested_where_gamma_or_a_limit_cuts_them_and_none_where_none_is_offered() -> None:
    """γ_max 2 tests two of four drafts; the limit leaves one at the last start."""
    texts = looked_up([[4, 0, 0, 4, 4]], [[4, 0, 0, 2, 1]])
    assert fit_lookup_forecast(texts, 2).mean == 1.0  # 2 of 2, then 1 of 1 with 2 positions left
    assert fit_lookup_forecast(texts, 4).mean == 1.0  # 4 of 4: the text ends
    assert fit_lookup_forecast(looked_up([[4, 0, 0, 4, 4]], [[1, 0, 0, 1, 1]]), 4).mean == pytest.approx(2 / 3)
    nothing = fit_lookup_forecast(looked_up([[0, 0, 0]], [[0, 0, 0]]), 3)
    assert (nothing.mean, by_agreement(nothing, 1, 3)) == (0.0, [0.0, 0.0])
