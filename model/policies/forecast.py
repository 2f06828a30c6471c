"""Forecasts of acceptance from what a policy has seen: the draft's signals, or how far a lookup agreed.

    z_t              acceptance at the draft's largest probability: a rising step-by-step fit, straight between steps
    r, e             running means of z and of acceptance over the positions tested so far in this call; they fade, and
                     begin at the mean over texts
    this  draft      a_t     ~ 1, z_t, r, e
    next  draft      a_{t+1} ~ 1, z_t, r, e       given that this one was accepted
    first draft      a_t     ~ 1, r, e            before anything of the round is seen; given that one is offered

each by least squares (weights: a_t for the next draft, 1 otherwise; a little ridge), cut to [0, 1].

A draft model is tested by position; of lookups rounds of γ_max drafts are followed along each text, and every tested
draft is a sample, with z from the tokens that agreed before it, and r and e from the rounds before.

    forecast = fit_forecast(texts)
    forecast.this_draft(forecast.confidence(top_probs), forecast.means(forecast.start(calls=1)))

L calls, B rows of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.lookups import confidence
from specgauge.model.checks import FloatArray, IntArray, probabilities
from specgauge.model.replay.texts import LookupStarts, ReplayTexts
from specgauge.model.sampling import uniforms

BINS = 16
"""Equal shares of positions, ranked by confidence, in which acceptance is counted."""
_RIDGE = 1e-3
_ACCEPTANCE_DRAWS = 1 << 20
"""The purpose of the uniforms that decide acceptance in e while fitting; _ACCEPTANCE_DRAWS + replicate."""
_REPLICATES = 4
_Samples = list[tuple[list[float], float]]
"""Features of tested drafts, and whether each was accepted."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Faded sums over the positions tested so far, (L,) each."""

    tested: FloatArray
    confidence: FloatArray
    accepted: FloatArray


@dataclass(frozen=True, kw_only=True)
class Means:
    """r and e, (L,) each."""

    confidence: FloatArray
    accepted: FloatArray


@dataclass(frozen=True, kw_only=True)
class AcceptanceForecast:
    """A fitted forecast."""

    top_probs: tuple[float, ...]
    """Rising: where the fit of z has its steps."""
    acceptance: tuple[float, ...]
    """z there, never falling."""
    mean: float
    """Mean acceptance over positions, where a call begins."""
    this_weights: tuple[float, ...]
    """Of 1, z, r, e."""
    next_weights: tuple[float, ...]
    first_weights: tuple[float, ...]
    """Of 1, r, e."""
    memory: float = 0.9
    """What a tested position leaves of earlier ones."""
    prior_weight: float = 4.0
    """How many tested positions the mean counts for."""

    def __post_init__(self) -> None:
        """Raise ValueError for steps that do not rise, an acceptance that falls, and values outside [0, 1]."""
        places, values = probabilities("top_probs", self.top_probs), probabilities("acceptance", self.acceptance)
        if places.ndim != 1 or not places.size or places.shape != values.shape:
            raise ValueError(f"forecast: expected as many, got {places.size} top_probs, {values.size} acceptance")
        if bool((np.diff(places) <= 0).any()) or bool((np.diff(values) < 0).any()):
            raise ValueError("forecast: expected rising top_probs and acceptance, got steps out of order")
        probabilities("forecast: mean", self.mean)
        probabilities("forecast: memory", self.memory)
        if self.prior_weight <= 0:
            raise ValueError(f"forecast: expected above 0, got prior_weight {self.prior_weight:g}")

    def confidence(self, top_probs: FloatArray) -> FloatArray:
        """Z, in the shape of the draft's largest probabilities; NaN stays."""
        return np.asarray(np.interp(top_probs, self.top_probs, self.acceptance), dtype=np.float64)

    def start(self, calls: int) -> History:
        """Nothing tested yet."""
        return History(tested=np.zeros(calls), confidence=np.zeros(calls), accepted=np.zeros(calls))

    def means(self, history: History) -> Means:
        """R and e of a history."""
        total = self.prior_weight + history.tested
        lean = self.prior_weight * self.mean
        return Means(confidence=(lean + history.confidence) / total, accepted=(lean + history.accepted) / total)

    def first_draft(self, means: Means) -> FloatArray:
        """(L,) P(the first draft of a round is accepted)."""
        one, r, e = self.first_weights
        return _probability(one + r * means.confidence + e * means.accepted)

    def this_draft(self, confidence: FloatArray, means: Means) -> FloatArray:
        """(L, B) P(the draft that z (L, B) belongs to is accepted), given those before it."""
        return _with_confidence(self.this_weights, confidence, means)

    def next_draft(self, confidence: FloatArray, means: Means) -> FloatArray:
        """(L, B) P(the draft after the one that z (L, B) belongs to is accepted), given that this one is."""
        return _with_confidence(self.next_weights, confidence, means)

    def after(self, history: History, confidence: FloatArray, accepted: FloatArray, rows: FloatArray) -> History:
        """K more positions tested in turn, each in `rows` (K, L) rows, z and acceptance (K, L) summed over those rows.

        Where no row tested a position, nothing fades.
        """
        kept = np.where(rows > 0, self.memory, 1.0)
        later = np.ones((rows.shape[0] + 1, rows.shape[1]))
        later[:-1] = np.cumprod(kept[::-1], axis=0)[::-1]
        return History(
            tested=later[0] * history.tested + (later[1:] * rows).sum(axis=0),
            confidence=later[0] * history.confidence + (later[1:] * confidence).sum(axis=0),
            accepted=later[0] * history.accepted + (later[1:] * accepted).sum(axis=0),
        )

    def faded(self, history: History, passed: IntArray) -> History:
        """After `passed` (L,) positions of which nothing was seen."""
        kept = self.memory**passed
        return History(
            tested=kept * history.tested, confidence=kept * history.confidence, accepted=kept * history.accepted
        )


def _with_confidence(weights: tuple[float, ...], confidence: FloatArray, means: Means) -> FloatArray:
    one, z, r, e = weights
    return _probability((one + r * means.confidence + e * means.accepted)[:, None] + z * confidence)


def _probability(values: FloatArray) -> FloatArray:
    """Cut to [0, 1]; NaN stays."""
    return np.asarray(np.minimum(np.maximum(values, 0.0), 1.0), dtype=np.float64)


def fit_forecast(texts: ReplayTexts, *, seed: int = 0) -> AcceptanceForecast:
    """Fit on all positions of `texts`, on the path.

    e is learnt from drawn acceptances, as a decoder sees accepted drafts and not their probability.

    Raises:
        ValueError: texts without a position.
    """
    inside, acceptance = texts.inside, texts.acceptance
    if not bool(inside.any()):
        raise ValueError("forecast: expected at least one, got no position to learn from")
    steps, values = rising_fit(texts.top_probs[inside], acceptance[inside])
    mean = float(np.clip(acceptance[inside].mean(), 0.0, 1.0))
    return _fitted(by_confidence(steps, values, mean), texts, seed)


def by_confidence(top_probs: ArrayLike, acceptance: ArrayLike, mean: float) -> AcceptanceForecast:
    """The forecast that goes by z alone, and before the first draft by r; top_probs and acceptance (K,) are its steps.

    Raises:
        ValueError: as `AcceptanceForecast`.
    """
    return AcceptanceForecast(
        top_probs=tuple(np.asarray(top_probs, dtype=np.float64).tolist()),
        acceptance=tuple(np.asarray(acceptance, dtype=np.float64).tolist()),
        mean=mean,
        this_weights=(0.0, 1.0, 0.0, 0.0),
        next_weights=(0.0, 1.0, 0.0, 0.0),
        first_weights=(0.0, 1.0, 0.0),
    )


def _fitted(forecast: AcceptanceForecast, texts: ReplayTexts, seed: int) -> AcceptanceForecast:
    acceptance, inside = texts.acceptance, texts.inside
    count, longest = acceptance.shape
    z = forecast.confidence(texts.top_probs)
    draws = uniforms(
        seed,
        texts.prompts[:, None, None],
        texts.repetitions[:, None, None],
        np.arange(longest)[:, None],
        _ACCEPTANCE_DRAWS + np.arange(_REPLICATES),
    )
    passed = draws < acceptance[:, :, None]
    features = np.ones((longest, count * _REPLICATES, 4))
    history = forecast.start(count * _REPLICATES)
    for t in range(longest):
        own = np.repeat(z[:, t], _REPLICATES)
        features[t, :, 1] = own
        means = forecast.means(history)
        features[t, :, 2], features[t, :, 3] = means.confidence, means.accepted
        accepted_here = passed[:, t].reshape(1, -1).astype(np.float64)
        history = forecast.after(history, own[None], accepted_here, np.ones((1, own.size)))
    here = np.repeat(inside, _REPLICATES, axis=0).T
    accepted = np.repeat(acceptance, _REPLICATES, axis=0).T
    following = here[1:]
    first = least_squares(features[here][:, [0, 2, 3]], accepted[here], np.ones(int(here.sum())))
    this = least_squares(features[here], accepted[here], np.ones(int(here.sum())))
    after = least_squares(features[:-1][following], accepted[1:][following], accepted[:-1][following])
    return replace(forecast, this_weights=this, next_weights=after, first_weights=first)


def least_squares(features: FloatArray, wanted: FloatArray, weights: FloatArray) -> tuple[float, ...]:
    """Weighted, with a ridge on slopes around their means; the weighted mean alone where there is no weight."""
    total = float(weights.sum())
    if total <= 0:
        return (float(wanted.mean()) if wanted.size else 0.0, *[0.0] * (features.shape[1] - 1))
    slopes = features[:, 1:]
    centre, level = weights @ slopes / total, float(weights @ wanted / total)
    spread = slopes - centre
    normal = (spread * weights[:, None]).T @ spread / total + _RIDGE * np.eye(slopes.shape[1])
    found = np.linalg.solve(normal, (spread * weights[:, None]).T @ (wanted - level) / total)
    return (float(level - found @ centre), *found.tolist())


def rising_fit(top_probs: FloatArray, acceptance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means in `BINS` shares of ranked positions, made to rise (pool adjacent violators): (K,) places and values."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(top_probs, kind="stable")
    bins = (np.arange(order.size) * min(BINS, order.size)) // order.size
    sizes = np.bincount(bins).astype(np.float64)
    places = np.bincount(bins, weights=top_probs[order]) / sizes
    means = np.bincount(bins, weights=acceptance[order]) / sizes
    distinct, index = np.unique(np.round(places, 12), return_inverse=True)
    total = np.bincount(index, weights=sizes)
    pooled = np.bincount(index, weights=means * sizes) / total
    rising = isotonic_regression(pooled, weights=total).x
    return np.clip(distinct, 0.0, 1.0), np.clip(np.maximum.accumulate(rising), 0.0, 1.0)


def fit_lookup_forecast(texts: ReplayTexts, gamma_max: int) -> AcceptanceForecast:
    """Fit on rounds of `gamma_max` drafts along all texts; without a single offer, that nothing is ever accepted.

    Raises:
        ValueError: texts of a draft model.
    """
    if texts.lookups is None:
        raise ValueError("lookup forecast: expected those of lookups, got texts of a draft model")
    followed = [_rounds(texts, texts.lookups, text, gamma_max) for text in range(texts.prompts.size)]
    offers = [one for rounds in followed for one in rounds if one[0].size]
    if not offers:
        return by_confidence([0.0], [0.0], 0.0)
    agreeing, accepted = (np.concatenate(values) for values in zip(*offers, strict=True))
    places, values = rising_fit(confidence(agreeing), accepted)
    flat = by_confidence(places, values, float(accepted.mean()))
    first, this, following = _Samples(), _Samples(), _Samples()
    for rounds in followed:
        history = flat.start(1)
        for agreeing, accepted in rounds:
            if not agreeing.size:
                history = flat.faded(history, np.ones(1, dtype=np.int64))
                continue
            means = flat.means(history)
            r, e = float(means.confidence[0]), float(means.accepted[0])
            z, hits = flat.confidence(confidence(agreeing)), accepted.tolist()
            features = [[1.0, float(own), r, e] for own in z]
            first.append(([1.0, r, e], hits[0]))
            this += zip(features, hits, strict=True)
            following += zip(features[:-1], hits[1:], strict=True)
            history = flat.after(history, z[:, None], accepted[:, None], np.ones((z.size, 1)))
    next_weights = _weights(following or this)
    return replace(flat, first_weights=_weights(first), this_weights=_weights(this), next_weights=next_weights)


def _rounds(texts: ReplayTexts, lookups: LookupStarts, text: int, gamma_max: int) -> list[tuple[IntArray, FloatArray]]:
    """The tested drafts of one text's rounds: tokens that agreed before each, and whether it is accepted, (K,)."""
    size, limit = int(texts.ends.lengths[text]), int(texts.ends.limits[text])
    rounds = []
    position = 0
    while position < size:
        offered = max(0, min(gamma_max, int(lookups.offered[text, position]), limit - position - 1))
        run = min(offered, int(lookups.matching[text, position]), size - position)
        tested = np.arange(min(run + 1, offered, size - position))
        rounds.append((lookups.matched[text, position] + tested, (tested < run).astype(np.float64)))
        position += run + 1
    return rounds


def _weights(samples: _Samples) -> tuple[float, ...]:
    features, wanted = (np.array(column) for column in zip(*samples, strict=True))
    return least_squares(features, wanted, np.ones(wanted.size))
