"""The roofline as a source of costs: each part is a step of its model, everything broadcasts."""

import numpy as np
import pytest

from specgauge.model.costs import CostSource
from specgauge.model.roofline.costs import RooflineCosts
from specgauge.model.roofline.step_time import Efficiency, step_time_s, step_work
from specgauge.model.settings import Provenance
from tests.model.roofline_cases import deployed

TARGET, DRAFT = deployed("llama-2-7b"), deployed("tinyllama-1.1b")
SOURCE: CostSource = RooflineCosts(target=TARGET, draft=DRAFT)


def test_a_decode_step_is_its_bytes_over_the_bandwidth() -> None:
    costs = SOURCE.costs(1, 1000, [4])
    assert float(costs.t_decode_s) == float(step_work(TARGET, batch_size=1, context=1000).memory_bytes) / 2.039e12
    assert costs.provenance.tolist() == [int(Provenance.PREDICTED)]
    assert costs.t_overhead_s is None


def test_a_large_verification_is_bound_by_arithmetic() -> None:
    work = step_work(TARGET, batch_size=64, context=0, tokens=9)
    assert SOURCE.costs(64, 0, [8]).t_verify_s.tolist() == [float(work.flops) / 312e12]


def test_a_draft_chain_is_the_sum_of_its_steps_while_the_context_grows() -> None:
    costs = SOURCE.costs([[1], [8]], [100, 900], [1, 3])
    assert costs.t_decode_s.shape == (2, 2)
    assert costs.t_draft_total_s.shape == costs.t_verify_s.shape == (2, 2, 2)
    own = RooflineCosts(target=DRAFT)
    steps = [own.costs([[1], [8]], np.array([100, 900]) + step, [1]).t_decode_s for step in range(3)]
    assert costs.t_draft_total_s == pytest.approx(np.stack([steps[0], sum(steps)], axis=-1), rel=1e-15)


def test_the_catch_up_is_what_a_second_token_adds_and_nothing_costs_nothing() -> None:
    work = [step_work(DRAFT, batch_size=8, context=100, tokens=tokens) for tokens in (1, 2)]
    one, two = (float(step_time_s(each, DRAFT)) for each in work)
    assert SOURCE.costs(8, 100, [1]).t_draft_catch_up_s == pytest.approx(two - one, rel=1e-9)
    free = RooflineCosts(target=TARGET).costs(8, 100, [1, 2])
    assert (free.t_draft_total_s.tolist(), free.t_draft_catch_up_s) == ([0.0, 0.0], None)


def test_fitted_efficiencies_make_every_part_longer() -> None:
    fitted = RooflineCosts(target=TARGET, draft=DRAFT, efficiency=Efficiency(bandwidth_fraction=0.5, launch_s=1e-4))
    costs, bounds = fitted.costs(1, 1000, [1, 4]), SOURCE.costs(1, 1000, [1, 4])
    assert float(costs.t_decode_s) > 2 * float(bounds.t_decode_s) + 32e-4
    assert np.all(costs.t_draft_total_s > 2 * bounds.t_draft_total_s)
