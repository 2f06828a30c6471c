"""The document of a plan where recorded acceptance says more than a rate: lookups, replicates, and warnings."""

from typing import Any

import numpy as np
import pytest

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.profiles import profile_from_alpha
from specgauge.model.settings import Provenance
from specgauge.sweeps.foretell.document import Plan, plan_document
from specgauge.sweeps.foretell.machine import planned_pair


def recorded(shares: list[list[float]], rows: int = 1) -> Acceptance:
    """1.5 tokens a round at gamma 1 and 2, and how many drafts rounds verify; (1 + R, …) with `rows`."""
    omega = np.full((rows, 2), 1.5)
    omega[1:] += np.linspace(-0.2, 0.2, rows - 1)[:, np.newaxis]
    return Acceptance(
        gammas=np.array([1, 2]),
        tokens_per_round=omega,
        full_acceptance=np.full((rows, 2), 0.5),
        provenance=np.full(2, int(Provenance.MEASURED)),
        draft_count_distribution=np.broadcast_to(np.array(shares), (rows, 2, 3)),
    )


def document(acceptance: Acceptance, hardware: str = "b200-sxm", **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "pair": planned_pair("llama-2-7b", "ngram", hardware),
        "acceptance": acceptance,
        "given": {"source": "run"},
        "batch_sizes": [1, 64],
        "contexts": [1024],
    }
    return plan_document(Plan(**{**given, **changes}))


def test_lookups_that_find_nothing_verify_as_a_plain_step() -> None:
    """Half of the rounds at gamma 2 draft nothing: T_verify is half way from T_decode to that of two drafts."""
    every, half = (
        document(recorded([[0.0, 1.0, 0.0], [nothing, 0.0, 1 - nothing]]))["points"][0] for nothing in (0.0, 0.5)
    )
    one, two = every["by_gamma"][1], half["by_gamma"][1]
    assert two["t_verify_s"] == pytest.approx((every["t_decode_s"] + one["t_verify_s"]) / 2, rel=1e-12)
    assert two["speedup"] == pytest.approx(1.5 * half["t_decode_s"] / two["t_verify_s"], rel=1e-12)


def test_the_schedule_takes_lookups_into_account() -> None:
    found = document(recorded([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    assert found["contexts"][0]["pays"] == [[1, 64]]  # rounds cost a plain step and yield 1.5 tokens
    assert found["contexts"][0]["schedule"] == [{"first": 1, "last": 64, "gamma": 1}]


def test_replicates_of_the_acceptance_widen_the_interval() -> None:
    """200 replicates of Omega from 1.3 to 1.7 beside the error of times."""
    whole = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    sure, unsure = (document(recorded(whole, rows), "a100-80gb-sxm")["points"][0] for rows in (1, 201))
    assert unsure["high"] - unsure["low"] > 1.5 * (sure["high"] - sure["low"]) > 0
    assert sure["speedup"] == unsure["speedup"]


def test_a_batch_size_asked_twice_is_planned_once() -> None:
    found = document(profile_from_alpha(0.7).at([1]), batch_sizes=[8, 1, 8])
    assert found["batch_sizes"] == [1, 8] == [point["batch_size"] for point in found["points"]]


def test_a_context_beyond_a_models_own_is_warned_of() -> None:
    pair = planned_pair("llama-3.1-8b", "tinyllama-1.1b", "a100-80gb-sxm")
    found = document(profile_from_alpha(0.7).at([1]), pair=pair, contexts=[1024, 200_000])
    assert found["warnings"][:2] == [
        "context 200000 is beyond the 131072 tokens that llama-3.1-8b was made for",
        "context 200000 is beyond the 2048 tokens that tinyllama-1.1b was made for",
    ]


def test_other_vocabularies_are_warned_of() -> None:
    pair = planned_pair("llama-3.1-8b", "tinyllama-1.1b", "b200-sxm")
    found = document(profile_from_alpha(0.7).at([1]), pair=pair)
    assert found["warnings"] == [
        "S is optimistic: overhead not measured",
        "vocabularies of 32000 and 128256 tokens: a draft must have its target's tokenizer",
    ]
    padded = planned_pair("qwen2.5-72b", "qwen2.5-0.5b", "b200-sxm")  # 152,064 and 151,936 rows of one tokenizer
    assert len(document(profile_from_alpha(0.7).at([1]), pair=padded)["warnings"]) == 1


@pytest.mark.parametrize("max_itl_s", [None, 0.03, 0.012])
def test_a_point_has_the_gamma_of_the_schedule(max_itl_s: float | None) -> None:
    """Batch sizes beyond those that a long schedule is computed at are among them where they were asked for."""
    found = plan_document(
        Plan(
            pair=planned_pair("llama-3.1-8b", "llama-3.2-1b", "h100-sxm", tensor_parallel=4),
            acceptance=profile_from_alpha(0.78).at(range(1, 9)),
            given={"source": "alpha", "alpha": 0.78},
            batch_sizes=[1, 3, 8, 63, 64, 299, 300, 601, 703, 997],
            contexts=[16, 1024, 8192],
            max_itl_s=max_itl_s,
        )
    )
    steps = {one["context"]: one["schedule"] for one in found["contexts"]}
    points = [one for one in found["points"] if one["fits"]]
    assert len({one["gamma"] for one in points}) > 2
    for point in points:
        (gamma,) = {
            step["gamma"] for step in steps[point["context"]] if step["first"] <= point["batch_size"] <= step["last"]
        }
        assert point["gamma"] == gamma


def test_contexts_computed_together_and_apart_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "acceptance": profile_from_alpha(0.7).at([1, 3]),
        "contexts": [64, 4096, 512],
        "pair": planned_pair("gemma-2-9b", "layers:4", "a100-80gb-sxm"),
    }
    together = document(**given)
    monkeypatch.setattr("specgauge.sweeps.foretell.document._TOGETHER", 1)
    assert document(**given) == together
    places = [(point["context"], point["batch_size"]) for point in together["points"]]
    assert places == [(64, 1), (64, 64), (4096, 1), (4096, 64), (512, 1), (512, 64)]
    alone = document(**{**given, "contexts": [512], "batch_sizes": [64]})["points"]
    assert alone[0]["by_gamma"] == together["points"][-1]["by_gamma"]
