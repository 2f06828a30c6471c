import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.sampling import (
    PURPOSES,
    SamplingSettings,
    active_processors,
    chain_name,
    effectively_greedy,
    inverse_cdf,
    processed_logits,
    processed_probs,
    uniforms,
)

FIVE = np.log([0.1, 0.4, 0.05, 0.25, 0.2])
OVERFLOWS = r"^sampling\.repetition_penalty: found 1e.*, which overflows float64 logits;"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"temperature": 0}, "argmax"),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, "argmax"),
        ({"temperature": 0, "repetition_penalty": 1.2}, "repetition_penalty+argmax"),
        ({}, "draw"),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1, "repetition_penalty": 1}, "draw"),
        ({"temperature": 0.7, "top_p": 0.9}, "temperature+top_p+draw"),
        (
            {"min_p": 0.1, "top_p": 0.9, "top_k": 50, "temperature": 2.0, "repetition_penalty": 1.1},
            "repetition_penalty+temperature+top_k+top_p+min_p+draw",
        ),
    ],
)
def test_chain_name_lists_active_processors_in_order(settings: dict[str, float], name: str) -> None:
    assert chain_name(SamplingSettings(**settings)) == name  # type: ignore[arg-type]
    assert "+".join(active_processors(SamplingSettings(**settings))) == name.rpartition("+")[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.0001),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("min_tokens_to_keep", 0),
    ],
)
def test_values_that_cannot_be_honoured_are_one_line_errors(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^sampling\.{field}: expected .*, got .*") as caught:
        SamplingSettings(**{field: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_temperature() -> None:
    np.testing.assert_allclose(processed_probs(FIVE, SamplingSettings()), [0.1, 0.4, 0.05, 0.25, 0.2], rtol=1e-14)
    squared = processed_probs(np.log([1, 3]), SamplingSettings(temperature=0.5))
    np.testing.assert_allclose(squared, [0.1, 0.9], rtol=1e-14)
    rows = [[0.0, 1.0, 1.0], [2.0, 2.0, 2.0], [-1.0, -3.0, 0.5]]
    assert processed_probs(rows, SamplingSettings(temperature=0)).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


TIED = [1.0, 3.0, 2.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("logits", "settings", "stay"),
    [
        (TIED, {"top_k": 2}, [1, 2, 3]),  # what ties with the k-th
        (TIED, {"top_k": 99}, [0, 1, 2, 3, 4]),
        (FIVE, {"top_p": 0.6}, [1, 3]),  # the smallest set that reaches the mass
        (FIVE, {"top_p": 0.66}, [1, 3, 4]),
        ([0.0] * 4, {"top_p": 0.5}, [2, 3]),  # sorted stably upwards: of equal tokens the higher ids
        ([0.0, 1.0, 1.0], {"top_p": 0.1}, [2]),
        (FIVE, {"min_p": 0.3}, [1, 3, 4]),  # a fraction of the top probability
        (FIVE, {"top_k": 1, "min_tokens_to_keep": 3}, [1, 3, 4]),
        (FIVE, {"top_p": 0.01, "min_tokens_to_keep": 3}, [1, 3, 4]),
        (FIVE, {"min_p": 1.0, "min_tokens_to_keep": 3}, [1, 3, 4]),
        # top-k leaves (.4, .25, .2)/.85: the two largest hold .76 >= .75, of the raw ones only .65
        (FIVE, {"top_k": 3, "top_p": 0.75}, [1, 3]),
        (FIVE, {"top_p": 0.75}, [1, 3, 4]),
        # at temperature .5 the odds are squared before top-p: (.16, .0625, .04, .01, .0025)/.275
        (FIVE, {"temperature": 0.5, "top_p": 0.58}, [1]),
    ],
)
def test_filters_keep(logits: list[float], settings: dict[str, Any], stay: list[int]) -> None:
    probs = processed_probs(logits, SamplingSettings(**settings))
    assert np.flatnonzero(probs).tolist() == stay
    if "temperature" not in settings:
        raw = np.where(probs > 0, processed_probs(logits, SamplingSettings()), 0.0)
        np.testing.assert_allclose(probs, raw / raw.sum(), rtol=1e-14)


def test_repetition_penalty_once_per_token_by_sign_with_padding_and_foreign_ids_left_out() -> None:
    settings = SamplingSettings(repetition_penalty=2.0)
    logits = [4.0, -1.0, 0.0, 3.0]
    assert processed_logits(logits, settings, [0, 1, 0, -1, 9]).tolist() == [2.0, -2.0, 0.0, 3.0]
    assert processed_logits([logits, logits], settings, [[0, -1], [3, 2]]).tolist() == [[2, -1, 0, 3], [4, -1, 0, 1.5]]
    assert processed_logits(logits, settings, []).tolist() == logits
    # A = 2.0, B = 1.5: A, then B (A counts 1.0), then A again (B counts .75)
    greedy = SamplingSettings(temperature=0, repetition_penalty=2.0)
    assert [processed_probs([2.0, 1.5], greedy, past).tolist() for past in ([], [0], [0, 1])] == [
        [1, 0],
        [0, 1],
        [1, 0],
    ]


def test_masked_logits_stay_masked_and_dtype_is_kept() -> None:
    logits = np.array([0.0, -np.inf, 1.0], dtype=np.float32)
    for settings in (SamplingSettings(top_k=2), SamplingSettings(temperature=0.5, top_p=0.9, min_p=0.2)):
        probs = processed_probs(logits, settings, dtype=np.float32)
        assert probs.dtype == np.float32
        assert probs[1] == 0
    assert processed_probs(logits, SamplingSettings()).dtype == np.float64


@pytest.mark.parametrize(
    ("logits", "settings", "more", "message"),
    [
        ([[0.0, 1.0], [0.0, math.nan]], {}, {}, "expected a finite maximum in every row"),
        ([[0.0, 1.0], [-math.inf, -math.inf]], {}, {}, "expected a finite maximum in every row"),
        (1.0, {}, {}, r"logits: .*\(\.\.\., V\)"),
        ([1.0], {}, {"dtype": np.float16}, "dtype: .*float32 and float64"),
        ([5.0, 1.0], {"temperature": 1e-308}, {}, "use 0 for greedy"),
        ([5.0, 1.0], {"temperature": 1e-50}, {"dtype": np.float32}, "use 0 for greedy"),
        ([1.0], {"repetition_penalty": 2.0}, {}, "history: expected .*got none"),
        ([1.0], {"repetition_penalty": 2.0}, {"history": [0.5]}, "integer token ids"),
        ([1.0, 2.0], {"repetition_penalty": 1e-320}, {"history": [0, 1]}, OVERFLOWS),
        ([-10.0, -20.0], {"repetition_penalty": 1e308}, {"history": [0, 1]}, OVERFLOWS),
    ],
)
def test_logits_that_nothing_can_be_drawn_from_are_refused(
    logits: Any, settings: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        processed_probs(logits, SamplingSettings(**settings), **more)


@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=12),
    st.one_of(st.none(), st.integers(1, 12)),
    st.one_of(st.none(), st.floats(0.01, 1)),
    st.one_of(st.none(), st.floats(0, 1)),
    st.integers(1, 3),
)
def test_the_chain_is_a_distribution_that_keeps_the_maximum_and_odds(
    tenths: list[int], top_k: int | None, top_p: float | None, min_p: float | None, keep: int
) -> None:
    logits = np.array(tenths) / 10
    settings = SamplingSettings(top_k=top_k, top_p=top_p, min_p=min_p, min_tokens_to_keep=keep)
    probs = processed_probs(logits, settings)
    raw = processed_probs(logits, SamplingSettings())
    alive = probs > 0
    assert probs.sum() == pytest.approx(1, abs=1e-12)
    assert alive.sum() >= min(keep, len(tenths))
    assert logits[alive].max() == logits.max()
    np.testing.assert_allclose(probs[alive] * raw[alive].sum(), raw[alive], rtol=1e-12)
    assert logits[alive].min() >= logits[~alive].max(initial=-np.inf)


@pytest.mark.parametrize(
    ("settings", "probs", "reason"),
    [
        ({"temperature": 0}, [0.5, 0.5], None),
        ({"top_k": 1}, [0.2, 0.5, 0.3], "top_k 1 keeps only the maximum"),
        ({"top_k": 1}, [0.2, 0.4, 0.4], None),
        ({"top_k": 1, "min_tokens_to_keep": 2}, [0.2, 0.5, 0.3], None),
        (
            {"top_p": 0.5},
            [0.2, 0.5, 0.3],
            r"top_p 0.5 is at or below the top probability \(0.5\) and min_tokens_to_keep is 1",
        ),
        ({"top_p": 0.51}, [0.2, 0.5, 0.3], None),
        ({"top_p": 0.3}, [0.2, 0.4, 0.4], None),
        ({"top_p": 0.5}, [[0.2, 0.5, 0.3], [0.4, 0.3, 0.3]], None),
        ({"min_p": 0.7}, [0.2, 0.5, 0.3], "min_p 0.7 removes every token but the maximum"),
        ({"temperature": 1e-4}, [0.2, 0.5, 0.3], "temperature 0.0001 leaves the maximum all the probability"),
        ({}, [0.0, 1.0], "the model gives one token all the probability"),
        ({}, [0.2, 0.8], None),
        ({"repetition_penalty": 1.5, "top_k": 1}, [0.2, 0.8], "top_k 1"),
    ],
)
def test_disguised_greedy(settings: dict[str, Any], probs: list[float], reason: str | None) -> None:
    found = effectively_greedy(SamplingSettings(**settings), probs)
    assert (found is None) == (reason is None)
    assert re.search(reason or "", found or "")


MASK = 2**64 - 1


def reference_uniform(*fields: int) -> float:
    """SplitMix64's finaliser over Python integers, one field after the other."""

    def mix(state: int) -> int:
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        return state ^ (state >> 31)

    state = 0
    for field in fields:
        state = mix(state ^ mix(((field + 1) * 0x9E3779B97F4A7C15) & MASK))
    return (state >> 11) / 2**53


@given(st.lists(st.integers(0, MASK), min_size=5, max_size=5))
def test_equals_the_integer_reference_bit_for_bit(fields: list[int]) -> None:
    seed, prompt, repetition, position, purpose = fields
    assert float(uniforms(seed, prompt, repetition, position, purpose)) == reference_uniform(*fields)


def test_pinned_values_by_name_and_number_of_the_purpose() -> None:
    assert float(uniforms(0, 0, 0, 0, "token")) == 0.32702255134435954
    for name, number in PURPOSES.items():
        drawn = uniforms(0, 3, 0, np.arange(4), name)
        assert drawn.tolist() == [reference_uniform(0, 3, 0, t, number) for t in range(4)]


def test_broadcasts_and_a_row_draws_the_same_alone_and_in_a_batch() -> None:
    together = uniforms(7, np.arange(5)[:, None], 0, np.arange(6), "draft")
    assert together.shape == (5, 6)
    assert together[3].tolist() == uniforms(7, 3, 0, np.arange(6), "draft").tolist()
    assert uniforms(7, np.arange(5), 0, np.arange(0)[:, None], "draft").shape == (0, 5)


@pytest.mark.parametrize("axis", range(5))
def test_neighbours_along_every_axis_are_uncorrelated(axis: int) -> None:
    fields = [np.array(5), np.arange(300)[:, None], np.array(1), np.arange(300), np.array(2)]
    neighbours = [field + (place == axis) for place, field in enumerate(fields)]
    one, two = (uniforms(*values).ravel() for values in (fields, neighbours))
    assert abs(float(np.corrcoef(one, two)[0, 1])) < 5 / np.sqrt(one.size)
    assert not (one == two).any()


def test_inverse_cdf_takes_the_lowest_index_over_u_times_total_row_by_row() -> None:
    probs = [0.0, 0.25, 0.0, 0.75, 0.0]
    assert inverse_cdf(probs, [0.0, 0.2499, 0.25, 0.9999, 1 - 2**-53]).tolist() == [1, 1, 3, 3, 3]
    assert inverse_cdf([2.0, 6.0], [0.24, 0.25]).tolist() == [0, 1]
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    assert inverse_cdf(rows, 0.6).tolist() == [0, 1, 1]
    assert inverse_cdf(rows, [[0.0], [0.6]]).tolist() == [[0, 1, 0], [0, 1, 1]]
    assert inverse_cdf(rows[2:], [0.1, 0.9]).tolist() == [0, 1]


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0, 1e300)), min_size=1, max_size=8).filter(
        lambda masses: sum(masses) > 0
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_a_token_without_mass_is_never_drawn(masses: list[float], u: float) -> None:
    token = int(inverse_cdf(masses, u))
    assert masses[token] > 0
    assert int(inverse_cdf([masses], [u])[0]) == token


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uniforms(-1, 0, 0, 0, 0), "seed: expected .*got -1"),
        (lambda: uniforms(0, 0.5, 0, 0, 0), "prompt: expected .*got 0.5"),
        (lambda: uniforms(0, 0, 0, 0, "bonsu"), r"got 'bonsu' .nearest: bonus."),
        (lambda: uniforms(0, 0, 0, 0, "zzz"), "purpose: expected one of token, .*, bonus, got 'zzz'$"),
        (lambda: inverse_cdf([0.0, 0.0], 0.5), "got one whose total is 0"),
        (lambda: inverse_cdf([0.5, -0.1], 0.5), "negative"),
        (lambda: inverse_cdf([0.5, math.nan], 0.5), "NaN"),
        (lambda: inverse_cdf([0.5, 0.5], 1.0), r"outside \[0, 1\)"),
        (lambda: inverse_cdf([0.5, 0.5], math.nan), r"outside \[0, 1\)"),
    ],
)
def test_numbers_that_nothing_can_be_drawn_by_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
