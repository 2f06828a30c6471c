import math

import numpy as np
import pytest

from specgauge.model.acceptance.texts import chain_check, repeated_ngram_share


def test_deviation_in_clustered_standard_errors_by_hand() -> None:
    # differences (1, 2, 3): sum 6, standard error √3 · 1
    check = chain_check([2.0, 3.0, 4.0], [1.0, 1.0, 1.0], [10.0, 10.0, 10.0], largest_variance=0.0)
    assert check.standard_errors == pytest.approx(6 / math.sqrt(3), abs=1e-12)
    assert check.deviation_per_position == pytest.approx(0.2)
    assert check.consistent
    assert not chain_check([2.0, 2.5, 3.0], [1.0, 1.0, 1.0], [10.0, 10.0, 10.0], largest_variance=0.0).consistent


def test_texts_of_another_chain_are_found_and_own_texts_pass() -> None:
    generator = np.random.default_rng(0)
    overlap = generator.uniform(0.5, 0.9, (40, 200))
    accepted = (generator.random((40, 200)) < overlap).sum(axis=1)
    for shift, consistent in ((0.0, True), (0.03, False)):
        means = overlap - shift
        check = chain_check(
            accepted, means.sum(axis=1), np.full(40, 200), largest_variance=float((means * (1 - means)).sum())
        )
        assert check.consistent is consistent


def test_rounding_of_identical_models_is_no_deviation() -> None:
    judged = np.array([100.0, 120.0, 90.0])
    check = chain_check(judged, judged * (1 - 1e-7), judged, largest_variance=0.0)
    assert abs(check.standard_errors or 0) > 4
    assert check.consistent


def test_prompts_that_all_deviate_alike_have_no_standard_error_but_are_found() -> None:
    check = chain_check([5.0, 5.0], [4.0, 4.0], [10.0, 10.0], largest_variance=0.0)
    assert check.standard_errors is None
    assert not check.consistent


def test_the_spread_between_prompts_is_not_believed_below_the_variance_of_the_sum() -> None:
    # 6 prompts of 64 positions, every overlap .001 and nothing accepted: the sum is .384 short, all prompts alike
    judged, variance = np.full(6, 64.0), 384 * 0.001 * 0.999
    check = chain_check(np.zeros(6), 0.001 * judged, judged, largest_variance=variance)
    assert check.standard_errors == pytest.approx(-0.384 / math.sqrt(variance))
    assert check.consistent
    # overlaps of .1 of which nothing is accepted are 38.4 short: 6.5 standard errors, no chance
    assert not chain_check(np.zeros(6), 0.1 * judged, judged, largest_variance=384 * 0.1 * 0.9).consistent


@pytest.mark.parametrize("overlap", [0.01, 0.3, 0.97])
def test_own_texts_of_two_prompts_are_rarely_accused(overlap: float) -> None:
    # two prompts alone spread by chance: |t| > 4 with one degree of freedom in 16 % of all runs
    generator = np.random.default_rng(5)
    accepted = (generator.random((500, 2, 100)) < overlap).sum(axis=2)
    means, variance = np.full(2, 100 * overlap), 200 * overlap * (1 - overlap)
    accused = [not chain_check(run, means, np.full(2, 100), largest_variance=variance).consistent for run in accepted]
    assert np.mean(accused) < 0.01


def test_nothing_judged_and_a_single_prompt_say_unknown() -> None:
    assert chain_check([0.0], [0.0], [0.0], largest_variance=0.0).deviation_per_position is None
    one = chain_check([5.0], [4.0], [10.0], largest_variance=2.5)
    assert one.standard_errors is None
    assert one.deviation_per_position == pytest.approx(0.1)
    assert one.consistent


def test_repeated_ngrams_by_hand() -> None:
    tokens = np.array([[1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 6], [7, 7, 7, 7, 7, 7], [1, 2, 0, 0, 0, 0]])
    # bigrams: (12, 21, 12, 21, 12) has 2 of 5 distinct; six 7s have 1 of 5; the last text has 1 of 1
    assert repeated_ngram_share(tokens, [6, 6, 6, 2], 2).tolist() == [0.6, 0, 0.8, 0]
    assert repeated_ngram_share(tokens, [6, 6, 6, 3], 4).tolist()[:3] == [1 / 3, 0, 2 / 3]
    assert math.isnan(repeated_ngram_share(tokens, [6, 6, 6, 3], 4)[3])
    assert repeated_ngram_share(tokens, [6, 6, 6, 2], 1).tolist() == [4 / 6, 0, 5 / 6, 0]


def test_repeated_ngrams_equal_a_loop_over_tuples() -> None:
    generator = np.random.default_rng(1)
    tokens = generator.integers(0, 3, (20, 30)) * 1000
    lengths = generator.integers(0, 31, 20)
    found = repeated_ngram_share(tokens, lengths, 3)
    for row, length in enumerate(lengths):
        grams = [tuple(tokens[row, i : i + 3]) for i in range(length - 2)]
        if grams:
            assert found[row] == (len(grams) - len(set(grams))) / len(grams)
        else:
            assert math.isnan(found[row])


def test_texts_too_short_are_nan_and_bad_input_is_refused() -> None:
    assert np.isnan(repeated_ngram_share([[1, 2]], [2], 4)).all()
    with pytest.raises(ValueError, match="n: found 0"):
        repeated_ngram_share([[1, 2]], [2], 0)
    with pytest.raises(ValueError, match="lengths"):
        repeated_ngram_share([[1, 2]], [3], 2)
    with pytest.raises(ValueError, match="lengths"):
        repeated_ngram_share([[1, 2]], [2, 2], 2)
