from __future__ import annotations

from typing import Any

import pytest

from specgauge.sweeps.analysis.validation_warnings import decoding_warnings, text_warnings
from specgauge.sweeps.store.rows import columns
from specgauge.sweeps.store.schema import ValidationRow

ROW = dict.fromkeys(columns(ValidationRow)) | {
    "pair": "p", "sampling": "greedy", "batch_size": 1, "context": 64, "gamma": 2, "lossless": True,
    "plain_over_generate": 0.95, "rounds_counted": 10, "rounds_expected": 9.0, "rounds_agree": True,
    "speedup_from_counts": 1.2, "speedup_measured": 1.25, "cost_error": 0.08,
}  # fmt: skip


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, **changes}


def warnings(*rows: dict[str, Any], **reasons: str) -> list[tuple[str, str, str]]:
    """Code, message and remedy of each; reasons by context of cells that were not decoded."""
    places = {("p", f"greedy, batch size 1, context {words[1:]}"): reason for words, reason in reasons.items()}
    return [(one.code, one.message, one.remedy) for one in decoding_warnings(rows, places)]


def test_what_is_as_it_should_be_is_passed_over() -> None:
    assert warnings() == []
    assert warnings(row(), row(cost_error=-0.08)) == []
    unknown = dict.fromkeys(("plain_over_generate", "rounds_agree", "rounds_expected", "cost_error"))
    assert warnings(row(**unknown)) == []


def test_cells_that_were_not_decoded() -> None:
    remedy = (
        "where time ran out, raise verify.max_seconds or limits.run_seconds, else see to the reason; then run the same "
        "command again, which goes on"
    )
    assert warnings(_64="oom: full") == [
        (
            "not_decoded",
            "pair p: 1 cell was decoded in part or not at all, first greedy, batch size 1, context 64: oom: full",
            remedy,
        )
    ]
    ((_, message, _),) = warnings(_64="3 of 4 blocks left out: out of time", _65="oom: full")
    assert message == (
        "pair p: 2 cells were decoded in part or not at all, first greedy, batch size 1, context 64: 3 of "
        "4 blocks left out: out of time"
    )


def test_a_prediction_that_decoding_contradicts() -> None:
    """Only where the interval is wholly on the other side of 1; the worst is told."""
    slower = {"speedup_predicted": 1.2, "speedup_measured": 0.75, "speedup_measured_low": 0.7}
    doubtful = row(**slower, speedup_measured_high=1.0)
    hardly = row(**slower | {"speedup_predicted": 1.019}, speedup_measured_high=0.8)
    assert warnings(hardly, doubtful, row(speedup_predicted=1.2), row(speedup_predicted=None)) == []
    faster = row(
        speedup_predicted=0.9, speedup_measured=1.1, speedup_measured_low=1.05, speedup_measured_high=1.2, context=65
    )
    remedy = (
        "trust what was decoded there; then find out which is wrong: cost_error and acceptance_error in "
        "validation.csv tell"
    )
    assert warnings(faster, row(**slower, speedup_measured_high=0.8)) == [
        (
            "prediction_contradicted",
            "pair p, sampling greedy, batch size 1, context 64, γ = 2: the measured costs predict that it pays (S = 1.20), "
            "decoding says otherwise (0.75, interval 0.70–0.80)",
            remedy,
        )
    ]
    ((_, message, _),) = warnings(faster)
    assert "predict that it does not pay (S = 0.90), decoding says otherwise (1.10, interval 1.05–1.20)" in message


def test_a_slow_plain_loop() -> None:
    assert warnings(row(plain_over_generate=0.9499), row(plain_over_generate=0.7, context=65)) == [
        (
            "slow_baseline",
            "pair p, sampling greedy, batch size 1, context 65: the plain loop has 0.70 × the tokens a second of "
            "transformers' generate; against a slow baseline speculation looks better than it is",
            "compare with generate's own speed in validation.csv (plain_over_generate)",
        )
    ]


def test_rounds_that_were_not_expected() -> None:
    few = row(rounds_agree=False, rounds_counted=10, rounds_expected=12.0)
    many = row(rounds_agree=False, rounds_counted=15, rounds_expected=12.04, gamma=3, batch_size=4)
    assert warnings(few, many) == [
        (
            "rounds_unexpected",
            "pair p, sampling greedy, batch size 4, context 64, γ = 3: the decoder took 15 rounds where its own texts' "
            "acceptance says 12.0: one of the two is wrong",
            "load both models in float32; if it stays, report it as a bug with the run directory",
        )
    ]
    ((_, message, _),) = warnings(few, row(rounds_agree=False, rounds_counted=3, rounds_expected=0.0))
    assert "the decoder took 3 rounds where its own texts' acceptance says 0.0" in message


@pytest.mark.parametrize(("error", "percent"), [(0.0801, "+8.0 %"), (-0.25, "-25.0 %")])
def test_costs_that_missed(error: float, percent: str) -> None:
    assert warnings(row(cost_error=0.08), row(cost_error=error, gamma=4)) == [
        (
            "cost_error",
            "pair p, sampling greedy, batch size 1, context 64, γ = 4: the measured costs give S = 1.20 for the rounds counted, "
            f"measured was 1.25 ({percent})",
            "close other programs, let the machine cool down, and measure again with --fresh",
        )
    ]


def test_texts_that_are_not_the_targets() -> None:
    why = "acceptance is forced by coin at given rates"
    assert warnings(row(), row(lossless=False, why_not_lossless=why, sampling="t1")) == [
        (
            "not_lossless",
            f"pair p, sampling t1, batch size 1, context 64: {why}, so the texts decoded are not the target's and say "
            "nothing about the draft",
            "set verify.acceptance to null to decode as the models decide",
        )
    ]


def test_one_warning_a_kind_and_pair() -> None:
    reasons = {("p", "here"): "a", ("q", "there"): "b", ("p", "elsewhere"): "c"}
    rows = [row(pair=pair, cost_error=size, plain_over_generate=0.5) for pair in "pq" for size in (0.1, 0.2)]
    found = [(one.code, one.message.partition(",")[0].partition(":")[0]) for one in decoding_warnings(rows, reasons)]
    assert found == [
        ("not_decoded", "pair p"), ("not_decoded", "pair q"),
        ("slow_baseline", "pair p"), ("cost_error", "pair p"),
        ("slow_baseline", "pair q"), ("cost_error", "pair q"),
    ]  # fmt: skip


def test_greedy_texts_that_rounding_does_not_explain_are_told_for_the_worst_row() -> None:
    counts = {"texts_same": 10, "texts_tied": 3, "texts_differ": 0}
    assert list(text_warnings([row(), row(**counts)])) == []
    worst = row(**counts | {"texts_differ": 2}, gamma=None, policy="svip", context=128)
    (found,) = text_warnings([row(**counts | {"texts_differ": 1}), worst])
    assert found.as_mapping() == {
        "code": "texts_differ",
        "message": "pair p, sampling greedy, batch size 1, context 128, policy svip: 2 of 15 greedy texts leave plain "
        "decoding's where rounding does not explain it: they are not the target's",
        "remedy": "load both models in float32; if it stays, report it as a bug with the run directory "
        "(requests.parquet, against_plain)",
    }
    (fixed,) = text_warnings([row(**counts | {"texts_differ": 1})])
    assert ", γ = 2: 1 of 14 greedy texts" in fixed.message
