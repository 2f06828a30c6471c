import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgauge.model.sampling import (
    SamplingSettings,
    active_processors,
    chain_name,
    disguised_greedy,
    processed_logits,
    processed_probs,
)

FIVE = np.log([0.1, 0.4, 0.05, 0.25, 0.2])


def kept(probs: NDArray[np.float64]) -> list[int]:
    return [int(index) for index in np.flatnonzero(probs)]


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
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.0001),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("min_tokens_to_keep", 0),
        ("min_tokens_to_keep", 1.0),
    ],
)
def test_values_that_cannot_be_honoured_are_one_line_errors(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^sampling\.{field}: found .*; allowed is ") as caught:
        SamplingSettings(**{field: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_plain_softmax() -> None:
    np.testing.assert_allclose(processed_probs(FIVE, SamplingSettings()), [0.1, 0.4, 0.05, 0.25, 0.2], rtol=1e-14)


def test_temperature_zero_is_one_hot_at_the_lowest_index_of_the_maximum() -> None:
    rows = [[0.0, 1.0, 1.0], [2.0, 2.0, 2.0], [-1.0, -3.0, 0.5]]
    assert processed_probs(rows, SamplingSettings(temperature=0)).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_temperature_squares_the_odds_at_one_half() -> None:
    np.testing.assert_allclose(
        processed_probs(np.log([1, 3]), SamplingSettings(temperature=0.5)), [0.1, 0.9], rtol=1e-14
    )


def test_top_k_keeps_what_ties_with_the_kth() -> None:
    logits = [1.0, 3.0, 2.0, 2.0, 0.0]
    assert kept(processed_probs(logits, SamplingSettings(top_k=2))) == [1, 2, 3]
    assert kept(processed_probs(logits, SamplingSettings(top_k=1))) == [1]
    assert kept(processed_probs([0.0, 1.0, 1.0], SamplingSettings(top_k=1))) == [1, 2]
    assert kept(processed_probs(logits, SamplingSettings(top_k=99))) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    assert kept(processed_probs(FIVE, SamplingSettings(top_p=0.6))) == [1, 3]
    assert kept(processed_probs(FIVE, SamplingSettings(top_p=0.66))) == [1, 3, 4]
    np.testing.assert_allclose(
        processed_probs(FIVE, SamplingSettings(top_p=0.6)), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], rtol=1e-14
    )


def test_top_p_sorts_stably_upwards_so_of_equal_tokens_the_higher_ids_stay() -> None:
    assert kept(processed_probs([0.0, 0.0, 0.0, 0.0], SamplingSettings(top_p=0.5))) == [2, 3]
    assert kept(processed_probs([0.0, 1.0, 1.0], SamplingSettings(top_p=0.1))) == [2]


def test_min_p_is_a_fraction_of_the_top_probability() -> None:
    assert kept(processed_probs(FIVE, SamplingSettings(min_p=0.3))) == [1, 3, 4]
    assert kept(processed_probs(FIVE, SamplingSettings(min_p=1.0))) == [1]


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}])
def test_no_filter_goes_below_min_tokens_to_keep(filters: dict[str, float]) -> None:
    settings = SamplingSettings(min_tokens_to_keep=3, **filters)  # type: ignore[arg-type]
    assert kept(processed_probs(FIVE, settings)) == [1, 3, 4]


def test_filters_work_on_what_the_processor_before_them_left() -> None:
    # top-k leaves (.4, .25, .2)/.85 = (.47, .29, .24): the two largest hold .76 >= .75, of the raw ones only .65.
    assert kept(processed_probs(FIVE, SamplingSettings(top_k=3, top_p=0.75))) == [1, 3]
    assert kept(processed_probs(FIVE, SamplingSettings(top_p=0.75))) == [1, 3, 4]
    # at temperature .5 the odds are squared before top-p looks: (.16, .0625, .04, .01, .0025)/.275.
    assert kept(processed_probs(FIVE, SamplingSettings(temperature=0.5, top_p=0.58))) == [1]


def test_repetition_penalty_once_per_token_by_sign_with_padding_and_foreign_ids_left_out() -> None:
    settings = SamplingSettings(repetition_penalty=2.0)
    logits = [4.0, -1.0, 0.0, 3.0]
    assert processed_logits(logits, settings, [0, 1, 0, -1, 9]).tolist() == [2.0, -2.0, 0.0, 3.0]
    assert processed_logits([logits, logits], settings, [[0, -1], [3, 2]]).tolist() == [[2, -1, 0, 3], [4, -1, 0, 1.5]]
    assert processed_logits(logits, settings, []).tolist() == logits
    with pytest.raises(ValueError, match="history: found none"):
        processed_logits(logits, settings)
    with pytest.raises(ValueError, match="integer token ids"):
        processed_logits(logits, settings, [0.5])


def test_repetition_penalty_moves_the_argmax_of_the_published_case() -> None:
    # logits always A = 2.0, B = 1.5, penalty 2: A, then B (A counts 1.0), then B again at .75 < 1.0 -> A.
    settings = SamplingSettings(temperature=0, repetition_penalty=2.0)
    assert processed_probs([2.0, 1.5], settings, []).tolist() == [1, 0]
    assert processed_probs([2.0, 1.5], settings, [0]).tolist() == [0, 1]
    assert processed_probs([2.0, 1.5], settings, [0, 1]).tolist() == [1, 0]


@pytest.mark.parametrize(("logits", "penalty"), [([1.0, 2.0], 1e-320), ([-10.0, -20.0], 1e308)])
def test_a_repetition_penalty_that_overflows_is_refused(logits: list[float], penalty: float) -> None:
    with pytest.raises(ValueError, match=r"^sampling\.repetition_penalty: found 1e.*, which overflows float64 logits;"):
        processed_probs(logits, SamplingSettings(repetition_penalty=penalty), [0, 1])


def test_masked_logits_stay_masked_and_dtype_is_kept() -> None:
    logits = np.array([0.0, -np.inf, 1.0], dtype=np.float32)
    for settings in (SamplingSettings(top_k=2), SamplingSettings(temperature=0.5, top_p=0.9, min_p=0.2)):
        probs = processed_probs(logits, settings, dtype=np.float32)
        assert probs.dtype == np.float32
        assert probs[1] == 0
    assert processed_probs(logits, SamplingSettings()).dtype == np.float64


@pytest.mark.parametrize("row", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_logits_without_a_law_are_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match="every row needs a finite maximum"):
        processed_probs([[0.0, 1.0], row], SamplingSettings())


def test_bad_shape_dtype_and_overflowing_temperature_are_refused() -> None:
    with pytest.raises(ValueError, match=r"allowed is \(\.\.\., V\)"):
        processed_probs(1.0, SamplingSettings())
    with pytest.raises(ValueError, match="allowed are float32 and float64"):
        processed_probs([1.0], SamplingSettings(), dtype=np.float16)
    with pytest.raises(ValueError, match="use 0 for greedy"):
        processed_probs([5.0, 1.0], SamplingSettings(temperature=1e-308))
    with pytest.raises(ValueError, match="use 0 for greedy"):
        processed_probs([5.0, 1.0], SamplingSettings(temperature=1e-50), dtype=np.float32)


@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=12),
    st.one_of(st.none(), st.integers(1, 12)),
    st.one_of(st.none(), st.floats(0.01, 1)),
    st.one_of(st.none(), st.floats(0, 1)),
    st.integers(1, 3),
)
def test_the_chain_is_a_law_that_keeps_the_maximum_and_odds(
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
        ({"top_p": 0.5, "min_tokens_to_keep": 2}, [0.2, 0.5, 0.3], None),
        ({"top_p": 0.5}, [[0.2, 0.5, 0.3], [0.4, 0.3, 0.3]], None),
        ({"min_p": 0.7}, [0.2, 0.5, 0.3], "min_p 0.7 removes every token but the maximum"),
        ({"temperature": 1e-4}, [0.2, 0.5, 0.3], "temperature 0.0001 leaves the maximum all the probability"),
        ({"temperature": 1e-4}, [0.2, 0.4, 0.4], None),
        ({}, [0.0, 1.0], "the model gives one token all the probability"),
        ({}, [0.2, 0.8], None),
        ({"repetition_penalty": 1.5, "top_k": 1}, [0.2, 0.8], "top_k 1"),
    ],
)
def test_disguised_greedy(settings: dict[str, float], probs: list[float], reason: str | None) -> None:
    found = disguised_greedy(SamplingSettings(**settings), probs)  # type: ignore[arg-type]
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found)
