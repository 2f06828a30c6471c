from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.validate import RatioError, ratio_error
from specgauge.sweeps.analysis.counted_rounds import CountedBlock
from specgauge.sweeps.analysis.validation import (
    OTHER_CONTEXTS,
    SAME_CONTEXT,
    acceptance_error,
    measured_interval,
    overheads,
    summarise,
)
from specgauge.sweeps.store.schema import DecodedKey
from tests.sweeps.decoded import Batch, key
from tests.sweeps.made import known
from tests.sweeps.validation_rows import forced_row, validation_row

BLOCK = CountedBlock(
    gamma=2,
    block=0,
    rounds=10,
    tokens_per_round=2.0,
    t_plain_step_s=1.0,
    t_round_s=1.5,
    t_decode_s=1.0,
    t_costs_s=1.5,
    t_verify_s=0.5,
    t_draft_catch_up_s=0.0625,
    catch_up_share=0.25,
    t_accept_rest_s=0.0,
)


def block(overhead_s: float = 0.0, number: int = 0, **changes: Any) -> CountedBlock:
    return replace(BLOCK, block=number, t_round_s=1.5 + overhead_s, **changes)


def fit(blocks: Mapping[DecodedKey, Sequence[CountedBlock]], *keys: DecodedKey, replicates: int = 0) -> Any:
    found = overheads(blocks, keys or blocks, replicates=replicates, seed=0)
    return {place: (float(one.t_overhead_s[0]), one.fitted_from) for place, one in found.items()}


def test_epsilon_comes_from_the_other_contexts() -> None:
    assert fit({}, key()) == fit({key(): []}) == {}
    assert fit({key(): [block(0.25), block(0.5, 1), block(-0.25, 2)]}) == {key(): (0.25, SAME_CONTEXT)}
    near, far, never = key(), key(start_context=128), key(start_context=256)
    blocks = {near: [block(0.25)], far: [block(0.5), block(0.75, 1)], never: []}
    assert fit(blocks, near, far, never) == {
        near: (0.625, OTHER_CONTEXTS),
        far: (0.25, OTHER_CONTEXTS),
        never: (0.5, OTHER_CONTEXTS),
    }


@pytest.mark.parametrize("other", [{"pair": "q"}, {"mode": "compile"}, {"sampling": "t1"}, {"batch_size": 2}])
def test_epsilon_is_not_carried_to_what_it_depends_on(other: dict[str, Any]) -> None:
    assert fit({key(): [block(0.25)]}, key(**other), key(**other, start_context=128)) == {}


def test_epsilon_is_carried_to_other_ways_of_drawing_and_verifying() -> None:
    match = key(acceptance_rule="match", draft_sampling="greedy")
    far = key(acceptance_rule="match", start_context=128)
    assert fit({key(): [block(0.25)]}, match, far) == {match: (0.25, SAME_CONTEXT), far: (0.25, OTHER_CONTEXTS)}


def test_replicates_draw_blocks_with_every_gamma_in_them() -> None:
    """Two blocks, three γ each: a replicate has block 0 twice, block 1 twice, or one of each; the median is by hand."""
    first = [block(one, 0, gamma=gamma) for gamma, one in enumerate((0.0, 0.25, 0.5), start=1)]
    second = [block(one, 1, gamma=gamma) for gamma, one in enumerate((1.0, 1.25, 1.5), start=1)]
    found = overheads({key(): first + second}, [key()], replicates=200, seed=3)[key()].t_overhead_s
    assert found.shape == (201,)
    assert found[0] == 0.75
    values, counts = np.unique(found[1:], return_counts=True)
    assert values.tolist() == [0.25, 0.75, 1.25]
    assert counts[1] == pytest.approx(100, abs=30)


def test_blocks_of_fewer_gammas_count_with_those_they_have() -> None:
    blocks = [block(0.0, 0), block(0.5, 0, gamma=3), block(1.0, 1)]
    found = overheads({key(): blocks}, [key()], replicates=100, seed=0)[key()].t_overhead_s
    assert found[0] == 0.5
    assert set(found[1:].tolist()) == {0.25, 0.5, 1.0}
    alone = overheads({key(): [block(0.25)]}, [key()], replicates=10, seed=0)[key()].t_overhead_s
    assert alone.tolist() == [0.25] * 11


def predicted(committed: Sequence[float], starts: Sequence[float]) -> RenewalResult:
    """Sums by prompt at γ = 1 and γ = 2; those of γ = 1 are of no use."""
    shape = (len(starts), 2)
    rounds = np.array([[99.0, one] for one in starts])
    survival = np.zeros((*shape, 2))
    survival[:, 1, 0] = np.array(committed) - np.array(starts)
    others: dict[str, Any] = dict.fromkeys(
        ("lost_bonus", "tested", "accepted", "tested_overlap", "catch_ups"), np.zeros(shape)
    )
    sizes: dict[str, Any] = {"gammas": np.array([1, 2]), "gamma_max": 2, "tokens": np.zeros(len(starts), dtype=int)}
    return RenewalResult(rounds=rounds, starts=rounds, survival=survival, time_s=None, **sizes, **others)


def rounds(*batches: Batch) -> pd.DataFrame:
    return pd.DataFrame([row for batch in batches for arm in ("plain", "speculate:2") for row in batch.rounds(arm)])


def error(decoded: pd.DataFrame, *, gamma_max: int = 2, limit: int = 12) -> RatioError | None:
    return acceptance_error(decoded, predicted([8.0, 9.0], [4.0, 4.0]), [3, 5], 2, gamma_max=gamma_max, limit=limit)


def test_acceptance_error_is_by_prompt() -> None:
    """Predicted: prompts 3 and 5 commit 17 in 8 rounds. Decoded: both 11 tokens in the 5 rounds of 12 tokens."""
    found = known(error(rounds(Batch(prompts=(3, 5), max_new_tokens=12))))
    assert found == ratio_error({3: (8.0, 4.0), 5: (9.0, 4.0)}, {3: (11.0, 5.0), 5: (11.0, 5.0)})
    assert (found.first, found.second) == (17 / 8, 11 / 5)
    assert found.value == pytest.approx(17 / 8 / (11 / 5) - 1, rel=1e-14)
    # repetitions of a prompt are one cluster
    batches = [Batch(prompts=(3,), max_new_tokens=12), Batch(prompts=(3,), max_new_tokens=12, accepts=(1,))]
    assert error(rounds(*batches)) == ratio_error({3: (8.0, 4.0), 5: (9.0, 4.0)}, {3: (11.0 + 10.0, 5.0 + 5.0)})


def test_acceptance_is_counted_where_gamma_was_not_shrunk_and_the_largest_has_room() -> None:
    """Starts at 1, 4, 5, 8, 9: with 7 positions left (of 11 after the first) those at 1, 4 and 5."""
    decoded = rounds(Batch(prompts=(3,), max_new_tokens=12))
    with_room = known(error(decoded, gamma_max=7))
    assert with_room.second == 7 / 3
    shrunk = known(error(decoded.assign(gamma=decoded["gamma"].where(decoded["round"] > 0, 1))))
    assert shrunk.second == 8 / 4
    assert error(decoded, gamma_max=12) is error(decoded[decoded["gamma_asked"] == 0]) is error(decoded[:0]) is None


def test_measured_speedup_pools_blocks() -> None:
    """Ω = (2·10 + 3·30)/40 = 11/4, plain (1·10 + 2·30)/40 = 7/4, round (2·10 + 4·30)/40 = 7/2: S = 11/8."""
    blocks = [
        replace(BLOCK, rounds=10, tokens_per_round=2.0, t_plain_step_s=1.0, t_round_s=2.0),
        replace(BLOCK, rounds=30, tokens_per_round=3.0, t_plain_step_s=2.0, t_round_s=4.0, block=1),
    ]
    value, low, high = measured_interval(blocks, confidence=0.9, replicates=200, seed=0)
    assert value == 11 / 8
    assert low < 1.0 < 11 / 8 < 1.5 < high  # either block alone, and wider: two blocks know little
    assert measured_interval(blocks, confidence=0.9, replicates=200, seed=0) == (value, low, high)
    equal = measured_interval([block(0.5), block(0.5, 1), block(0.5, 2)], confidence=0.9, replicates=50, seed=0)
    assert equal == pytest.approx((1.0, 1.0, 1.0), rel=1e-14)
    alone = measured_interval([block(0.5)], confidence=0.9, replicates=50, seed=0)
    assert alone == pytest.approx((1.0, math.nan, math.nan), nan_ok=True)


def test_measured_intervals_cover_as_often_as_they_say() -> None:
    """Four blocks whose tokens vary by 10 % and times by 3 %; 200 experiments at 90 %."""
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        noise = generator.normal(0.0, (0.1, 0.03, 0.03), (4, 3))
        blocks = [
            replace(
                BLOCK,
                rounds=int(generator.integers(20, 35)),
                tokens_per_round=2.0 * math.exp(tokens - 0.005),
                t_plain_step_s=math.exp(plain),
                t_round_s=1.5 * math.exp(round_),
            )
            for tokens, plain, round_ in noise
        ]
        _, low, high = measured_interval(blocks, confidence=0.9, replicates=100, seed=0)
        covered += low <= 2 / 1.5 <= high
    assert 0.8 <= covered / 200 <= 0.97


def test_errors_are_means_and_worst_of_absolute_values() -> None:
    rows = [
        validation_row(error=0.1, cost_error=-0.03),
        validation_row(gamma=3, error=-0.02, cost_error=0.01),
        validation_row(context=256, error=0.03, cost_error=0.02),
    ]
    found = known(summarise(rows))
    assert (found.cells, found.rows, found.forced) == (2, 3, 0)
    assert vars(known(found.speedup)) == pytest.approx({"mean": 0.05, "worst": 0.1, "count": 3})
    assert vars(known(found.cost)) == pytest.approx({"mean": 0.02, "worst": 0.03, "count": 3})


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(-0.1, 0.1, 1), (0.01, 0.1, 0), (-0.2, -0.01, 0), (0.0, 0.1, 1), (1e-12, 0.1, 1), (-0.1, 0.0, 1)],
)
def test_an_interval_holds_zero_up_to_rounding(low: float, high: float, holds: int) -> None:
    found = known(summarise([validation_row(acceptance_error_low=low, acceptance_error_high=high)]))
    assert (found.acceptance_provenance, found.acceptance_agrees) == (1, holds)


def test_what_is_unknown_is_not_counted() -> None:
    lacking = dict.fromkeys(("acceptance_error_low", "acceptance_error_high", "rounds_agree", "speedup_whole"))
    rows = [validation_row(**lacking), validation_row(gamma=3, rounds_agree=False, speedup_whole=0.9)]
    found = known(summarise(rows))
    assert (found.acceptance_provenance, found.rounds_known, found.rounds_agree) == (1, 1, 0)
    assert (found.whole_low, found.whole_high) == (0.9, 0.9)


NOTHING = dict.fromkeys(("error", "cost_error", "speedup_predicted", "speedup_from_counts", "speedup_measured"))
CASES = {
    "several rows": [validation_row(error=0.1, cost_error=-0.03), validation_row(context=256, error=0.03)],
    "one row": [validation_row(error=-0.034, cost_error=0.012)],
    "without costs": [validation_row(error=-0.034, cost_error=None)],
    "forced": [forced_row(), forced_row(gamma=3, cost_error=-0.04)],
    "too short": [validation_row(**NOTHING)],
}


def test_the_line_and_the_mapping_say_the_same(snapshot: Callable[[str, str], None]) -> None:
    assert summarise([]) is None
    lines = []
    for name, rows in CASES.items():
        found = known(summarise(rows))
        content = json.loads(json.dumps(found.as_mapping(), allow_nan=False))
        assert (content["text"], content["rows"]) == (found.text(), len(rows))
        lines.append(f"{name}: {found.text()}")
    forced = known(summarise([forced_row(cost_error=None)]))
    content = forced.as_mapping()
    assert (content["forced"], content["speedup_error_mean"], content["cost_error_worst"]) == (1, None, None)
    snapshot("validation_summary", "\n".join([*lines, ""]))
