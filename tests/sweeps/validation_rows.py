"""Rows of validation.csv made up by hand, with figures that fit each other."""

from __future__ import annotations

from typing import Any

from specgauge.sweeps.store.rows import columns
from specgauge.sweeps.store.schema import ValidationRow

UNCOMPARED = (
    "tokens_per_round_predicted", "tokens_per_round_counted", "acceptance_error", "acceptance_error_low",
    "acceptance_error_high", "speedup_predicted", "error", "texts_same", "texts_tied", "texts_differ",
)  # fmt: skip
"""What a row lacks whose acceptance was forced."""
FORCED = "acceptance is forced by coin at given rates"


def validation_row(**changes: Any) -> dict[str, Any]:
    """Pair p at batch size 1, context 64, γ = 2: S 1.65 predicted, 1.53 from counts, 1.5 measured."""
    plain: dict[str, Any] = {
        "pair": "p", "mode": "eager", "sampling": "greedy", "draft_sampling": "same", "acceptance_rule": "ratio",
        "batch_size": 1, "context": 64, "gamma": 2, "blocks": 2, "rounds": 40, "tokens": 128, "lossless": True,
        "why_not_lossless": None, "t_overhead_s": 0.001, "overhead_from": "other contexts", "t_accept_rest_s": 0.0005,
        "t_round_s": 0.02, "tokens_per_round_predicted": 2.2, "tokens_per_round_counted": 2.0,
        "acceptance_error": 0.1, "acceptance_error_low": -0.05, "acceptance_error_high": 0.25,
        "speedup_predicted": 1.65, "speedup_from_counts": 1.53, "speedup_measured": 1.5, "speedup_measured_low": 1.4,
        "speedup_measured_high": 1.6, "cost_error": 0.02, "error": 0.1, "speedup_whole": 1.4,
        "plain_over_generate": 1.1, "plain_over_loop": 1.05, "rounds_counted": 64, "rounds_expected": 63.5,
        "rounds_standard_errors": 0.5, "rounds_agree": True, "texts_same": 1, "texts_tied": 1, "texts_differ": 0,
    }  # fmt: skip
    return dict.fromkeys(columns(ValidationRow)) | plain | changes


def forced_row(**changes: Any) -> dict[str, Any]:
    """The same where acceptance was forced by coin."""
    return validation_row(**(dict.fromkeys(UNCOMPARED) | {"lossless": False, "why_not_lossless": FORCED} | changes))


def policy_row(**changes: Any) -> dict[str, Any]:
    """`svip` in the same cell: S 1.56 replayed, 1.58 from counts, 1.6 measured, 4 % over the best fixed γ, 2."""
    plain: dict[str, Any] = {
        "gamma": None, "policy": "svip", "blocks": 2, "rounds": 40, "tokens_per_round_predicted": None,
        "tokens_per_round_counted": None, "acceptance_error": None, "acceptance_error_low": None,
        "acceptance_error_high": None, "speedup_predicted": 1.56, "speedup_from_counts": 1.58,
        "speedup_measured": 1.6, "speedup_measured_low": 1.5, "speedup_measured_high": 1.7,
        "cost_error": -0.0125, "error": -0.025, "rounds_counted": 40, "rounds_expected": None,
        "rounds_standard_errors": None, "rounds_agree": None, "mean_gamma": 2.25, "gamma_switches": 12,
        "early_stop_checks": 70,
        "t_early_stop_check_s": 0.0001, "best_fixed_gamma": 2, "over_best_fixed": 1.04, "over_best_fixed_low": 1.01,
        "over_best_fixed_high": 1.07, "off_path": "measured", "error_low": -0.04, "error_high": 0.01,
    }  # fmt: skip
    return validation_row(**(plain | changes))
