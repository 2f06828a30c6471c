"""One rule for the contexts that a model has room for, before and after it is loaded."""

import pytest

from specgauge.configs.schema import check_context, check_text_context


def test_a_round_fits_exactly_and_not_with_one_token_more() -> None:
    check_context("m", context=93, gamma_max=6, max_context=100)
    with pytest.raises(ValueError, match=r"^m: grid\.context 94 .* need 101 positions, the model takes 100; .* is 93$"):
        check_context("m", context=94, gamma_max=6, max_context=100)


def test_a_limit_that_is_not_known_refuses_nothing() -> None:
    check_context("m", context=10**9, gamma_max=64, max_context=None)


def test_a_model_too_short_for_any_round_asks_for_a_smaller_gamma() -> None:
    with pytest.raises(ValueError, match=r"lower grid\.gamma$"):
        check_context("m", context=1, gamma_max=6, max_context=7)


def test_a_whole_text_fits_exactly_and_not_with_one_token_more() -> None:
    check_text_context("m", context=36, new_tokens=64, max_context=100)
    check_text_context("m", context=10**9, new_tokens=64, max_context=None)
    with pytest.raises(ValueError, match=r"^verify: found context 37, allowed: at most 36, since texts of 64 tokens "):
        check_text_context("m", context=37, new_tokens=64, max_context=100)
