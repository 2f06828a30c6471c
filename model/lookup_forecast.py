"""What the length of a lookup's match says of its drafts, learnt from recorded texts: the stopping rule's forecast.

A draft model is judged by position; a lookup by where its round starts. So rounds of γ_max drafts are followed along
each text, and every judged draft of theirs is a sample, with confidence z from the tokens that agreed before it
(`lookups.confidence`), r and e from the rounds before, as a decoder has them:

    z, this draft    judged drafts                        1 if accepted
    next draft       accepted ones, another offered       1 if that is accepted as well
    first draft      rounds with an offer                 1 if their first is accepted

    forecast = fit_lookup_forecast(texts, gamma_max=6)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specgauge.model.acceptance_forecast import (
    AcceptanceForecast,
    History,
    by_confidence,
    least_squares,
    rising_fit,
    with_weights,
)
from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.lookups import confidence
from specgauge.model.replay_texts import LookupStarts, ReplayTexts


@dataclass(frozen=True, kw_only=True)
class _Round:
    """The drafts of one round that are judged, (K,)."""

    agreeing: IntArray
    accepted: FloatArray


def fit_lookup_forecast(
    texts: ReplayTexts, gamma_max: int, *, memory: float = 0.9, prior_weight: float = 4.0
) -> AcceptanceForecast:
    """Fit on rounds of `gamma_max` drafts along all texts; without a single offer, that nothing is ever accepted.

    Raises ValueError for texts of a draft model.
    """
    if texts.lookups is None:
        raise ValueError("lookup forecast: found texts of a draft model; allowed are those of lookups")
    followed = [_rounds(texts, texts.lookups, text, gamma_max) for text in range(texts.prompts.size)]
    offers = [one for rounds in followed for one in rounds if one is not None]
    if not offers:
        return by_confidence([0.0], [0.0], 0.0, memory=memory, prior_weight=prior_weight)
    accepted = np.concatenate([one.accepted for one in offers])
    places, values = rising_fit(confidence(np.concatenate([one.agreeing for one in offers])), accepted)
    flat = by_confidence(places, values, float(accepted.mean()), memory=memory, prior_weight=prior_weight)
    samples = _Samples()
    for rounds in followed:
        samples.follow(flat, rounds)
    return samples.fitted(flat)


def _rounds(texts: ReplayTexts, lookups: LookupStarts, text: int, gamma_max: int) -> list[_Round | None]:
    """The rounds of one text in turn, None where nothing is offered."""
    size, limit = int(texts.judged.lengths[text]), int(texts.judged.limits[text])
    rounds: list[_Round | None] = []
    position = 0
    while position < size:
        offered = max(0, min(gamma_max, int(lookups.offered[text, position]), limit - position - 1))
        run = min(offered, int(lookups.matching[text, position]), size - position)
        judged = min(run + 1, offered, size - position)
        if judged:
            rounds.append(
                _Round(
                    agreeing=int(lookups.matched[text, position]) + np.arange(judged),
                    accepted=(np.arange(judged) < run).astype(np.float64),
                )
            )
        else:
            rounds.append(None)
        position += run + 1
    return rounds


class _Samples:
    """Features and outcomes, collected text by text."""

    def __init__(self) -> None:
        self._first: list[tuple[list[float], float]] = []
        self._this: list[tuple[list[float], float]] = []
        self._next: list[tuple[list[float], float]] = []

    def follow(self, forecast: AcceptanceForecast, rounds: list[_Round | None]) -> None:
        """Take in the rounds of a text, r and e as they stand before each."""
        history = forecast.start(1)
        for one in rounds:
            if one is None:
                history = forecast.faded(history, np.ones(1, dtype=np.int64))
                continue
            history = self._judge(forecast, history, one)

    def _judge(self, forecast: AcceptanceForecast, history: History, one: _Round) -> History:
        means = forecast.means(history)
        r, e = float(means.confidence[0]), float(means.accepted[0])
        z = forecast.confidence(confidence(one.agreeing))
        self._first.append(([1.0, r, e], float(one.accepted[0])))
        self._this += [([1.0, float(own), r, e], float(hit)) for own, hit in zip(z, one.accepted, strict=True)]
        after = zip(z[:-1], one.accepted[1:], strict=True)
        self._next += [([1.0, float(own), r, e], float(hit)) for own, hit in after]
        ones = np.ones((z.size, 1))
        return forecast.judged(history, z[:, None], one.accepted[:, None], ones)

    def fitted(self, forecast: AcceptanceForecast) -> AcceptanceForecast:
        """The forecast with weights by least squares, those of the next draft as of this one where none followed."""
        first, this = _weights(self._first), _weights(self._this)
        after = _weights(self._next) if self._next else this
        return with_weights(forecast, first=first, this=this, after=after)


def _weights(samples: list[tuple[list[float], float]]) -> list[float]:
    features = np.array([own for own, _ in samples])
    wanted = np.array([hit for _, hit in samples])
    return least_squares(features, wanted, np.ones(wanted.size))
