"""The forecast of lookups: rounds followed along texts, rates by agreement, and what has nothing to learn from."""

from __future__ import annotations

import numpy as np
import pytest

from specgauge.model.acceptance.lookups import confidence
from specgauge.model.policies.forecast import AcceptanceForecast, fit_lookup_forecast
from tests.model.lookup_cases import looked_up
from tests.model.replay_cases import made_texts


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


def test_fewer_drafts_are_judged_where_gamma_or_a_limit_cuts_them() -> None:
    """γ_max 2 judges two of four drafts; the limit leaves one at the last start."""
    texts = looked_up([[4, 0, 0, 4, 4]], [[4, 0, 0, 2, 1]])
    assert fit_lookup_forecast(texts, 2).mean == 1.0  # 2 of 2, then 1 of 1 with 2 positions left
    assert fit_lookup_forecast(texts, 4).mean == 1.0  # 4 of 4: the text ends
    assert fit_lookup_forecast(looked_up([[4, 0, 0, 4, 4]], [[1, 0, 0, 1, 1]]), 4).mean == pytest.approx(2 / 3)


def test_nothing_offered_forecasts_nothing_accepted() -> None:
    forecast = fit_lookup_forecast(looked_up([[0, 0, 0]], [[0, 0, 0]]), 3)
    assert (forecast.mean, by_agreement(forecast, 1, 3)) == (0.0, [0.0, 0.0])


def test_a_draft_model_has_a_forecast_of_its_own() -> None:
    with pytest.raises(ValueError, match="lookup forecast: found texts of a draft model"):
        fit_lookup_forecast(made_texts([[0.5, 0.5]]), 2)
