"""Which rows of validation.csv are warned of, and the worst of each; the wording is in the snapshot."""

from __future__ import annotations

from collections.abc import Callable
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
SLOWER = {"speedup_predicted": 1.2, "speedup_measured": 0.75, "speedup_measured_low": 0.7}
FASTER = {
    "speedup_predicted": 0.9, "speedup_measured": 1.1, "speedup_measured_low": 1.05, "speedup_measured_high": 1.2,
}  # fmt: skip
TEXTS = {"texts_same": 10, "texts_tied": 3, "texts_differ": 0}
AT_64 = {("p", "greedy, batch size 1, context 64"): "3 of 4 blocks left out: out of time"}
AT_65 = {("p", "greedy, batch size 1, context 65"): "oom: full"}


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, **changes}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(), row(cost_error=-0.08)],
        [row(**dict.fromkeys(("plain_over_generate", "rounds_agree", "rounds_expected", "cost_error")))],
        [row(**SLOWER, speedup_measured_high=1.0), row(speedup_predicted=1.2), row(speedup_predicted=None)],
        [row(**SLOWER | {"speedup_predicted": 1.019}, speedup_measured_high=0.8)],
    ],
    ids=["nothing decoded", "as it should be", "unknown", "interval on both sides of 1", "hardly on one side"],
)
def test_what_is_passed_over(rows: list[dict[str, Any]]) -> None:
    assert list(decoding_warnings(rows, {})) == []
    assert list(text_warnings([*rows, row(**TEXTS)])) == []


WORST = {
    "not_decoded": ([], AT_64 | AT_65),
    "prediction_contradicted": ([row(**FASTER, context=65), row(**SLOWER, speedup_measured_high=0.8)], {}),
    "slow_baseline": ([row(plain_over_generate=0.9499), row(plain_over_generate=0.7, context=65)], {}),
    "rounds_unexpected": (
        [
            row(rounds_agree=False, rounds_expected=12.0),
            row(rounds_agree=False, rounds_counted=15, rounds_expected=12.04, gamma=3, batch_size=4),
        ],
        {},
    ),
    "cost_error": ([row(cost_error=0.0801, gamma=3), row(cost_error=-0.25, gamma=4)], {}),
    "not_lossless": ([row(), row(lossless=False, why_not_lossless="acceptance is forced", sampling="t1")], {}),
}
"""By code: rows and reasons, the worst one last but for what was not decoded."""


def test_one_warning_a_kind_for_the_worst(snapshot: Callable[[str, str], None]) -> None:
    lines = []
    for code, (rows, reasons) in WORST.items():
        (found,) = decoding_warnings(rows, reasons)
        assert found.code == code
        lines += [f"{code}: {found.message}", f"  -> {found.remedy}"]
    (texts,) = text_warnings([row(**TEXTS | {"texts_differ": 1}), row(**TEXTS | {"texts_differ": 2}, context=128)])
    policy = row(**TEXTS | {"texts_differ": 2}, gamma=None, policy="svip")
    lines += [one.message for one in (texts, *text_warnings([policy])) if one.code == "texts_differ"]
    (other,) = decoding_warnings([row(**FASTER)], {})
    (few,) = decoding_warnings([row(rounds_agree=False, rounds_counted=3, rounds_expected=0.0)], {})
    snapshot("validation_warnings", "\n".join([*lines, other.message, few.message, ""]))


def test_one_warning_a_kind_and_pair() -> None:
    reasons = {("p", "here"): "a", ("q", "there"): "b", ("p", "elsewhere"): "c"}
    rows = [row(pair=pair, cost_error=size, plain_over_generate=0.5) for pair in "pq" for size in (0.1, 0.2)]
    assert [(one.code, one.message[5]) for one in decoding_warnings(rows, reasons)] == [
        ("not_decoded", "p"), ("not_decoded", "q"), ("slow_baseline", "p"), ("cost_error", "p"),
        ("slow_baseline", "q"), ("cost_error", "q"),
    ]  # fmt: skip
