"""The document of `predict` by gamma: every number against the formula, the choice, and what is refused."""

import json

import pytest

from specgauge.cli.parsing import AcceptanceFlags, acceptance_from_flags
from specgauge.cli.prediction_rows import RoundTimes, predict_rows
from specgauge.cli.prediction_text import rows_text
from specgauge.model.costs import AutoregressiveDraft, LookupDraft
from specgauge.model.sensitivity import sensitivities

TIMES = RoundTimes(t_decode_s=1.0, t_verify_s=[1.0], draft=AutoregressiveDraft(t_draft_s=0.1))
ALPHA = acceptance_from_flags(AcceptanceFlags(alpha=0.8), "1:8")


def test_rows_carry_inputs_and_results() -> None:
    document = predict_rows(ALPHA, TIMES)
    row = document["rows"][0]
    assert (row["gamma"], row["alpha"], row["t_decode_s"], row["t_verify_s"]) == (1, 0.8, 1.0, 1.0)
    assert row["tokens_per_round"] == pytest.approx(1.8, rel=1e-15)
    assert row["speedup"] == pytest.approx(1.8 / 1.1, rel=1e-15)
    assert row["break_even_alpha"] == pytest.approx(0.1, rel=1e-12)
    assert row["break_even_draft_total_s"] == pytest.approx(0.8, rel=1e-12)
    assert (row["best_gamma"], row["recommended_gamma"]) == (6, 5)
    assert (document["best_gamma"], document["recommended_gamma"]) == (6, 5)
    assert document["speculation_pays"] is True
    assert row["t_verify_known"] == "assumed flat"
    assert document["label"] == "optimistic: overhead not measured"
    json.dumps(document, allow_nan=False)


def test_one_gamma_has_nothing_to_choose_and_nothing_assumed_flat() -> None:
    document = predict_rows(acceptance_from_flags(AcceptanceFlags(alpha=0.8), "3"), TIMES)
    assert document["best_gamma"] is None
    assert document["rows"][0]["t_verify_known"] == "given"
    assert document["rows"][0]["recommended_gamma"] is None


def test_lists_by_gamma_an_overhead_and_a_batch() -> None:
    times = RoundTimes(
        t_decode_s=1.0, t_verify_s=[1.0, 2.0], t_draft_total_s=[0.25, 0.5], t_draft_catch_up_s=0.5, t_overhead_s=0.125
    )
    document = predict_rows(acceptance_from_flags(AcceptanceFlags(rates=".5,.5"), None), times, batch_size=2)
    first, second = document["rows"]
    assert (first["t_round_s"], second["t_round_s"]) == (1.25 + 0.375 + 0.125, 2.5 + 0.375 + 0.125)
    assert second["throughput_tokens_per_s"] == 2 * 2.0 / 3.0
    assert second["time_per_token_s"] == 1.5
    assert document["label"] is None
    assert first["t_verify_known"] == "given"
    assert document["one_alpha"]["misleads"] is True


def test_a_perfect_alpha_that_never_breaks_even_is_null() -> None:
    times = RoundTimes(t_decode_s=1.0, t_verify_s=[5.0], draft=LookupDraft())
    document = predict_rows(acceptance_from_flags(AcceptanceFlags(alpha=0.8), "1:2"), times, wanted_speedup=9.0)
    assert [row["break_even_alpha"] for row in document["rows"]] == [None, None]
    assert document["speculation_pays"] is False
    assert document["at_recommended"]["required_alpha"] is None
    assert "speculation does not pay: S is at most 1 at every gamma" in rows_text(document)


def test_a_latency_limit_leaves_what_is_under_it() -> None:
    document = predict_rows(ALPHA, TIMES, max_itl_s=1.25)
    assert [row["within_limits"] for row in document["rows"]] == [True, True, *[False] * 6]
    assert document["best_gamma"] == 2
    nothing = predict_rows(ALPHA, TIMES, max_itl_s=0.5)
    assert (nothing["best_gamma"], nothing["speculation_pays"], nothing["at_recommended"]) == (0, False, None)
    assert "no gamma is within --max-itl: decode plainly" in rows_text(nothing)
    slow = RoundTimes(t_decode_s=1.0, t_verify_s=[5.0], draft=AutoregressiveDraft(t_draft_s=0.1))
    assert "at every gamma within the limit" in rows_text(predict_rows(ALPHA, slow, max_itl_s=5.25))


def test_sensitivities_know_that_a_lookup_has_one_step() -> None:
    times = RoundTimes(t_decode_s=1.0, t_verify_s=[1.0], draft=LookupDraft(t_lookup_s=0.1))
    at = predict_rows(acceptance_from_flags(AcceptanceFlags(alpha=0.8), "4"), times)["at_recommended"]
    expected = sensitivities(0.8, times.costs([4]), draft_steps=1)
    assert at["sensitivities"]["per_t_draft_s"] == pytest.approx(float(expected.per_t_draft_s[0]), rel=1e-9)


def test_text_shows_the_choice_the_doubts_and_the_marks() -> None:
    text = rows_text(predict_rows(ALPHA, TIMES, wanted_speedup=2.5))
    assert "best gamma 6 (S = 2.470); recommended 5 (S = 2.460), the smallest within 1 %" in text
    assert "T_verify was given once and is assumed flat over gamma" in text
    assert "S is optimistic: overhead not measured" in text
    assert "for S = 2.5 at gamma 5: alpha 0.807 is needed" in text
    extrapolated = rows_text(predict_rows(acceptance_from_flags(AcceptanceFlags(counts="9:6,5"), "1:3"), TIMES))
    assert "acceptance extrapolated" in extrapolated
    assert "acceptance: counts, taken at gamma 2; maximum-likelihood alpha 0.733" in extrapolated


@pytest.mark.parametrize(
    ("t_decode_s", "t_verify_s", "t_draft_s", "found"),
    [
        (19.05, 0.041, 0.0016, "T_verify is 41 ms at gamma 1, a decode step 19050 ms: check the units"),
        (0.01905, 41.0, 0.0016, "T_verify is 41000 ms at gamma 1, a decode step 19.05 ms: check the units"),
        (0.01905, 0.041, 1.6, "C is 1600 ms at gamma 1, a decode step 19.05 ms: check the units"),
        (1.0, 0.49, 0.1, "T_verify is 490 ms at gamma 1"),
        (1.0, 0.5, 10.0, None),
        (1.0, 20.0, 0.0, None),
        (1.0, 20.1, 0.0, "T_verify is 20100 ms at gamma 1"),
        (1.0, 1.0, 20.1, "C is 20100 ms at gamma 1"),
    ],
)
def test_a_time_without_its_unit_is_pointed_out(
    t_decode_s: float, t_verify_s: float, t_draft_s: float, found: str | None
) -> None:
    draft = AutoregressiveDraft(t_draft_s=t_draft_s)
    text = rows_text(predict_rows(ALPHA, RoundTimes(t_decode_s=t_decode_s, t_verify_s=[t_verify_s], draft=draft)))
    lines = [line for line in text.splitlines() if "check the units" in line]
    assert len(lines) == (found is not None)
    assert (found or "") in "".join(lines)


def test_so_is_one_of_a_part_that_may_be_left_out() -> None:
    draft = AutoregressiveDraft(t_draft_s=0.1)
    times = RoundTimes(t_decode_s=1.0, t_verify_s=[1.0], draft=draft, t_draft_catch_up_s=21.0, t_overhead_s=30.0)
    text = rows_text(predict_rows(ALPHA, times))
    assert "the catch-up is 21000 ms at gamma 1, a decode step 1000 ms: check the units" in text
    assert "overhead is 30000 ms at gamma 1, a decode step 1000 ms: check the units" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"t_verify_s": [1.0, 2.0]}, "--t-verify: found 2 values for 8 gammas, allowed: one for each, or one for all"),
        ({"t_decode_s": 0.0}, "--t-decode: found 0, allowed: seconds, above 0"),
        ({"draft": None}, "draft cost: found both or neither of --t-draft and --t-draft-total"),
        ({"draft": None, "t_draft_total_s": [1.0]}, "--t-draft-total: found 1 values for 8 gammas"),
        ({"t_overhead_s": -1.0}, "--t-overhead: found -1, allowed: seconds, at least 0"),
    ],
)
def test_bad_times_are_one_clear_line(changes: dict[str, object], message: str) -> None:
    times = RoundTimes(**{**vars(TIMES), **changes})
    with pytest.raises(ValueError, match=message):
        predict_rows(ALPHA, times)
