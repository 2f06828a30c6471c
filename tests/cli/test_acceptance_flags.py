"""The acceptance options: one of them, each with its own meaning."""

import numpy as np
import pytest

from specgauge.cli.parsing import AcceptanceFlags, acceptance_from_flags


def test_each_option_gives_its_profile_and_its_gammas() -> None:
    alpha = acceptance_from_flags(AcceptanceFlags(alpha=0.5), None)
    assert alpha.gammas == [1, 2, 3, 4, 5, 6, 7, 8]
    assert alpha.inputs == {"alpha": 0.5}
    for flags in (
        AcceptanceFlags(rates=".75,.5,.25"),
        AcceptanceFlags(counts="4:3,2,1"),
        AcceptanceFlags(histogram="1,1,1,1"),
    ):
        given = acceptance_from_flags(flags, None)
        assert given.gammas == [1, 2, 3]
        assert given.profile.survival.tolist() == [0.75, 0.5, 0.25]
    conditional = acceptance_from_flags(AcceptanceFlags(conditional_rates=".5,1"), "2:4:2")
    assert conditional.gammas == [2, 4]
    assert conditional.profile.survival.tolist() == [0.5, 0.5]
    measured = acceptance_from_flags(AcceptanceFlags(tokens_per_round="1.5,2.5"), "1,4")
    np.testing.assert_allclose(measured.profile.tokens_per_round([1, 4]), [1.5, 2.5], rtol=1e-12)
    totals = acceptance_from_flags(AcceptanceFlags(counts="208/260/52"), "5")
    assert totals.profile.tokens_per_round([5]) == pytest.approx([5.0])
    assert totals.inputs == {"accepted": 208, "drafted": 260, "rounds": 52}


@pytest.mark.parametrize(
    ("flags", "gamma", "message"),
    [
        (
            AcceptanceFlags(),
            None,
            "acceptance: found none, allowed: exactly one of --alpha, --rates, --conditional-rates",
        ),
        (AcceptanceFlags(alpha=0.5, rates=".5"), None, "acceptance: found --alpha, --rates, allowed: exactly one"),
        (AcceptanceFlags(rates=".5,.6"), None, "rates: found 0.5 at position 1 and 0.6 at position 2"),
        (AcceptanceFlags(rates=".5,high"), None, r"--rates \(item 2\): found 'high'"),
        (AcceptanceFlags(counts="16,12"), None, "--counts: found '16,12', allowed: ROUNDS:A1,A2,… .*--histogram"),
        (AcceptanceFlags(counts="5/4"), None, "--counts: found '5/4'"),
        (AcceptanceFlags(counts="4:5"), None, r"accepted \(position 1\): found 5 for 4 rounds"),
        (AcceptanceFlags(tokens_per_round="2"), None, "--gamma: found none beside --tokens-per-round"),
        (AcceptanceFlags(tokens_per_round="2,3"), "4", "--tokens-per-round: found 2 values for 1 gammas"),
        (
            AcceptanceFlags(tokens_per_round="6"),
            "4",
            r"tokens_per_round: found 6 at gamma 4, allowed: at most gamma \+ 1",
        ),
        (AcceptanceFlags(alpha=0.5), "0:3", "--gamma: found 0, allowed: at least 1"),
    ],
)
def test_bad_options_are_one_clear_line(flags: AcceptanceFlags, gamma: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        acceptance_from_flags(flags, gamma)
