import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.sampling import PURPOSES, inverse_cdf, uniforms

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


def test_uniform_in_the_unit_interval_by_chi_square() -> None:
    drawn = uniforms(11, np.arange(400)[:, None], 0, np.arange(500), "token").ravel()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    chi_square = float(((counts - 2000) ** 2 / 2000).sum())
    assert 99 - 5 * np.sqrt(198) < chi_square < 99 + 5 * np.sqrt(198)


@pytest.mark.parametrize("axis", range(5))
def test_neighbours_along_every_axis_are_uncorrelated(axis: int) -> None:
    fields = [np.array(5), np.arange(300)[:, None], np.array(1), np.arange(300), np.array(2)]
    neighbours = [field + (place == axis) for place, field in enumerate(fields)]
    one, two = (uniforms(*values).ravel() for values in (fields, neighbours))
    assert abs(float(np.corrcoef(one, two)[0, 1])) < 5 / np.sqrt(one.size)
    assert not (one == two).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 0, 0, 0), "seed: expected .*got -1"),
        ((0, 0.5, 0, 0, 0), "prompt: expected .*got 0.5"),
        ((0, 0, 0, 0, "bonsu"), r"got 'bonsu' .nearest: bonus."),
        ((0, 0, 0, 0, "zzz"), "purpose: expected one of token, draft, accept, residual, bonus, got 'zzz'$"),
    ],
)
def test_bad_arguments_are_one_line_errors(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        uniforms(*arguments)  # type: ignore[arg-type]


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
    ("probs", "u", "message"),
    [
        ([0.0, 0.0], 0.5, "got one whose total is 0"),
        ([0.5, -0.1], 0.5, "negative"),
        ([0.5, float("nan")], 0.5, "NaN"),
        ([0.5, 0.5], 1.0, r"outside \[0, 1\)"),
        ([0.5, 0.5], float("nan"), r"outside \[0, 1\)"),
    ],
)
def test_inverse_cdf_refuses_what_is_no_distribution(probs: list[float], u: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inverse_cdf(probs, u)
