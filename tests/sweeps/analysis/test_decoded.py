from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from specgauge.model.arms import Arm
from specgauge.sweeps.analysis.decoded import request_figures


def request(arm: str, tokens: int = 5, **changes: Any) -> dict[str, Any]:
    """A row of a batch that took 1 s of prefill and 4 s to decode."""
    plain = {
        "block": 0, "arm": arm, "gamma": Arm.parse(arm).gamma, "row": 0, "prompt": 0, "tokens": [1] * tokens,
        "prefill_s": 1.0, "decode_s": 4.0, "rounds": tokens - 1, "expected_rounds": None, "lossless": True,
        "expected_starts": None, "expected_committed": None,
        "why_not_lossless": None, "against_plain": None,
    }  # fmt: skip
    return {**plain, **changes}


def figures(rows: Sequence[dict[str, Any]], gamma: int = 2) -> dict[str, Any]:
    return request_figures(pd.DataFrame(rows))[gamma]


def test_whole_requests_count_prefills_and_ragged_ends() -> None:
    """Plain: 8 tokens in 5 s. γ = 2: 9 tokens in 2 + 1 s, its prefill twice as long; rows of a batch share its time."""
    rows = [
        request("plain", 5, row=0),
        request("plain", 3, row=1),
        request("speculate:2", 5, row=0, prefill_s=2.0, decode_s=1.0),
        request("speculate:2", 4, row=1, prefill_s=2.0, decode_s=1.0),
    ]
    found = figures(rows)
    assert found["tokens"] == 9
    assert found["speedup_whole"] == pytest.approx((9 / 3) / (8 / 5), rel=1e-14)


def test_blocks_that_an_arm_lacks_are_not_held_against_it() -> None:
    rows = [request("plain"), request("plain", block=1, decode_s=400.0), request("speculate:2", block=0)]
    assert figures(rows)["speedup_whole"] == 1.0
    assert figures([request("speculate:2")])["speedup_whole"] is None


def test_baselines_are_medians_over_blocks() -> None:
    """Plain: 4 tokens after the first in 4 s; generate takes 2, 4 and 8 s, the loop 5 s in one block."""
    rows = [request("plain", block=block) for block in range(4)]
    rows += [request("generate", block=block, decode_s=s, rounds=None) for block, s in enumerate((2.0, 4.0, 8.0))]
    rows += [request("loop", block=3, decode_s=5.0), request("speculate:2")]
    found = figures(rows)
    assert (found["plain_over_generate"], found["plain_over_loop"]) == (1.0, 1.25)
    # rows of a batch are added up: plain writes 4 + 2 tokens after the first ones, generate 4 + 4, in 4 s each
    rows = [request(arm, tokens, row=row) for arm, row, tokens in [("plain", 0, 5), ("plain", 1, 3)]]
    rows += [request("generate", 5, row=row, rounds=None) for row in (0, 1)] + [request("speculate:2")]
    assert (figures(rows)["plain_over_generate"], figures(rows)["plain_over_loop"]) == (0.75, None)


def test_rounds_are_held_against_those_expected_by_prompt() -> None:
    """Prompts 0 and 1 take 2 and 1 rounds too many, prompt 2 takes 3 too few: 0 in all."""
    counts = [(0, 5, 4.5), (0, 6, 4.5), (1, 5, 4.0), (2, 5, 8.0)]
    rows = [
        request("speculate:2", prompt=prompt, block=number, rounds=rounds, expected_rounds=expected)
        for number, (prompt, rounds, expected) in enumerate(counts)
    ]
    found = figures(rows)
    assert (found["rounds_counted"], found["rounds_expected"]) == (21, 21.0)
    assert (found["rounds_standard_errors"], found["rounds_agree"]) == (0.0, True)
    rows[3]["expected_rounds"] = 5.0
    assert figures(rows)["rounds_standard_errors"] == pytest.approx(3 / (3**0.5 * 1.0), rel=1e-14)


def test_texts_are_counted_by_how_they_stand_to_plain_decoding_and_one_lossy_row_makes_all_lossy() -> None:
    standings = ["same", "tie", "same", None, "differs", "same"]
    rows = [request("speculate:12", block=block, against_plain=standing) for block, standing in enumerate(standings)]
    lossy: dict[str, Any] = {"lossless": False, "why_not_lossless": "forced"}
    found = request_figures(pd.DataFrame([*rows, request("speculate:3"), request("speculate:3", row=1, **lossy)]))
    assert list(found) == [3, 12]
    assert [found[12][name] for name in ("texts_same", "texts_tied", "texts_differ", "lossless")] == [3, 1, 1, True]
    assert (found[3]["lossless"], found[3]["why_not_lossless"], found[3]["rounds_counted"]) == (False, "forced", 8)
    assert not {"texts_same", "rounds_expected", "rounds_agree"} & set(found[3]), "nobody asked, nobody expected"
