"""The fit finds what made the data, cross-validation leaves out what it says, predictions carry their error."""

from dataclasses import replace

import numpy as np
import pytest

from specgauge.model.roofline.calibration import (
    FEWEST_DRAFTS,
    FORMS,
    SUM,
    MeasuredSteps,
    calibrate,
    carried_launch,
    cross_validate,
    fit_drafts,
    fit_efficiency,
    held_out_error,
    impossible_pairs,
    line_fit,
    measured_steps,
    rms_error,
    roofline_fit,
    unidentified,
)
from specgauge.model.roofline.step_time import Efficiency, step_time_s, step_work
from tests.model.roofline_cases import deployed

TRUTH = Efficiency(bandwidth_fraction=0.8, flops_fraction=0.45, launch_s=1.5e-4)
BATCHES = np.array([1, 4, 16, 64])[:, np.newaxis, np.newaxis]
CONTEXTS = np.array([500, 4000])[:, np.newaxis]
TOKENS = np.array([1, 5])


def synthetic(truth: Efficiency = TRUTH, *, model: str = "llama-3.1-8b", noise: float = 0.0) -> MeasuredSteps:
    deployment = deployed(model)
    exact = step_time_s(step_work(deployment, batch_size=BATCHES, context=CONTEXTS, tokens=TOKENS), deployment, truth)
    wobble = np.exp(noise * np.random.default_rng(7).standard_normal(exact.shape))
    return measured_steps(deployment, batch_size=BATCHES, context=CONTEXTS, tokens=TOKENS, time_s=exact * wobble)


def close(found: Efficiency, truth: Efficiency, rel: float) -> None:
    for name in ("bandwidth_fraction", "flops_fraction", "launch_s", "token_s"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=rel, abs=1e-12), name


def test_the_fit_recovers_the_numbers_that_made_the_data() -> None:
    close(fit_efficiency([synthetic()]), TRUTH, rel=1e-5)
    close(fit_efficiency([synthetic(), synthetic(model="qwen2.5-0.5b")]), TRUTH, rel=1e-5)
    truth = replace(TRUTH, token_s=2e-5)
    form = next(form for form in FORMS if "token_s" in form.free and form.base == Efficiency())
    close(fit_efficiency([synthetic(truth)], form), truth, rel=1e-4)


def test_one_wild_measurement_does_not_bend_the_fit() -> None:
    steps = synthetic()
    wild = steps.time_s.copy()
    wild[5] *= 3
    close(fit_efficiency([replace(steps, time_s=wild)]), TRUTH, rel=0.05)


def test_held_out_error_is_that_of_the_noise() -> None:
    exact, noisy = calibrate([synthetic()]), calibrate([synthetic(noise=0.01)])
    assert exact.held_out_error is not None
    assert noisy.held_out_error is not None
    assert exact.held_out_error < 1e-5
    assert 0.002 < noisy.held_out_error < 0.03


def test_cross_validation_never_shows_a_fit_what_it_must_predict() -> None:
    seen: list[tuple[set[int], set[int]]] = []

    def spy(groups: object) -> object:
        assert isinstance(groups, list)
        known = {int(value) for group in groups for value in group.batch_size}

        def predict(steps: MeasuredSteps) -> object:
            seen.append((known, set(steps.batch_size.tolist())))
            return steps.time_s * 1.5

        return predict

    held = cross_validate([synthetic(), synthetic(model="qwen2.5-0.5b")], spy)  # type: ignore[arg-type]
    assert [len(pair[0] & pair[1]) for pair in seen] == [0] * 8
    assert all(pair[0] | pair[1] == {1, 4, 16, 64} for pair in seen)
    assert [part.mean_abs_error for part in held] == pytest.approx([0.5, 0.5])
    assert held[0].by_value() == pytest.approx({1: 0.5, 4: 0.5, 16: 0.5, 64: 0.5})
    assert held[0].worst_abs_error == pytest.approx(0.5)


def test_a_group_without_the_value_left_out_keeps_all_its_rows() -> None:
    small = synthetic(model="qwen2.5-0.5b")
    held = cross_validate([synthetic(), small.take(small.batch_size < 16)], roofline_fit())
    assert [part.steps.time_s.size for part in held] == [16, 8]
    assert all(np.isfinite(part.predicted_s).all() for part in held)


def test_the_line_recovers_a_line() -> None:
    deployment = deployed("llama-3.1-8b")
    batch, context = BATCHES[..., 0], CONTEXTS[..., 0]
    time_s = 3e-3 + 2e-5 * batch + 5e-9 * batch * context
    steps = measured_steps(deployment, batch_size=batch, context=context, tokens=1, time_s=time_s)
    held = cross_validate([steps], line_fit)[0]
    assert held.worst_abs_error < 1e-9


def one_sequence() -> MeasuredSteps:
    deployment = deployed("llama-3.1-8b")
    contexts = np.array([500, 4000, 16000, 64000])
    exact = step_time_s(step_work(deployment, batch_size=1, context=contexts), deployment, TRUTH)
    return measured_steps(deployment, batch_size=1, context=contexts, tokens=1, time_s=exact)


def test_numbers_that_no_step_depends_on_are_named() -> None:
    """One sequence, one token: no measured time feels the FLOP rate."""
    calibration = calibrate([one_sequence()], by="batch_size")
    assert calibration.unidentified == ("flops_fraction",)
    assert calibration.held_out == ()
    assert calibration.held_out_error is None
    assert calibrate([synthetic()]).unidentified == ()


def test_too_few_steps_are_refused() -> None:
    steps = synthetic()
    few = steps.take(np.arange(steps.time_s.size) < 2)
    with pytest.raises(ValueError, match=r"^measured steps: expected at least 3, .* got 2$"):
        fit_efficiency([few])
    with pytest.raises(ValueError, match=r"^batch_size: expected at least two values, .* got \[1\]$"):
        cross_validate([steps.take(steps.batch_size == 1)], roofline_fit())


def test_pairs_that_imply_more_than_the_bandwidth_are_found() -> None:
    deployment = deployed("llama-2-7b")
    needed_s = 524_288 * 1000 / 2.039e12
    steps = measured_steps(
        deployment,
        batch_size=1,
        context=[1000, 2000, 3000, 3000],
        tokens=[1, 1, 1, 2],
        time_s=[0.01, 0.01 + 2 * needed_s, 0.01 + 2.5 * needed_s, 0.02],
    )
    ((first, second, rate),) = impossible_pairs(steps)
    assert (first, second) == (1, 2)
    assert rate == pytest.approx(2 * 2.039e12)
    falling = measured_steps(deployment, batch_size=1, context=[1000, 2000], tokens=1, time_s=[0.02, 0.01])
    assert impossible_pairs(falling) == [(0, 1, float("inf"))]


def test_a_target_or_a_row_is_left_out_whole() -> None:
    """Two machines that differ: what is left out is predicted by the other, off by their launch costs alone."""
    slow = replace(TRUTH, launch_s=3e-4)
    groups = [synthetic(), synthetic(slow, model="qwen2.5-0.5b")]
    first, second = cross_validate(groups, roofline_fit(), by="target")
    np.testing.assert_allclose(first.predicted_s, step_time_s(groups[0].work(), groups[0].deployment, slow), rtol=1e-3)
    np.testing.assert_allclose(
        second.predicted_s, step_time_s(groups[1].work(), groups[1].deployment, TRUTH), rtol=1e-3
    )
    assert len(set(groups[0].labels("row"))) == 8  # four batch sizes, two contexts; both token counts together
    assert not set(groups[0].labels("row")) & set(groups[1].labels("row"))


def test_the_error_of_a_ratio_leaves_out_what_both_parts_share() -> None:
    """Odd batch sizes take 1.1 times as long in both parts, and T_verify besides 1.02 times at one context."""
    steps = synthetic()
    slower = np.where(np.isin(steps.batch_size, (4, 64)), 1.1, 1.0) * np.where(
        (steps.tokens > 1) & (steps.context == 500), 1.02, 1.0
    )
    steps = replace(steps, time_s=steps.time_s * slower)
    rows = [(steps.take(steps.tokens == 1), steps.take(steps.tokens > 1))]
    found = held_out_error(rows, SUM, by="batch_size")
    assert found.held_out == "batch_size"
    assert found.ratio < 0.5 * min(found.decode, found.verify)
    assert 0.02 < found.mean < found.worst < 0.2


def test_a_carried_launch_cost_is_kept_and_the_fractions_are_fitted() -> None:
    found = fit_efficiency([synthetic()], carried_launch(TRUTH.launch_s))
    close(found, TRUTH, rel=1e-5)
    assert fit_efficiency([synthetic()], carried_launch(1e-4)).launch_s == 1e-4


def test_fractions_end_at_the_peak_and_say_so() -> None:
    """A device in whose multiprocessors nothing is faster than its peak; a CPU's cache may be."""
    faster = replace(TRUTH, bandwidth_fraction=1.3)
    steps = synthetic(faster)
    found = fit_efficiency([steps])
    assert found.bandwidth_fraction == pytest.approx(1.0, abs=1e-3)
    assert "bandwidth_fraction" in unidentified([steps], found)
    machine = replace(steps.deployment, hardware=replace(steps.deployment.hardware, multiprocessors=None))
    work = step_work(machine, batch_size=steps.batch_size, context=steps.context, tokens=steps.tokens)
    cached = replace(steps, deployment=machine, time_s=step_time_s(work, machine, faster))
    assert fit_efficiency([cached]).bandwidth_fraction == pytest.approx(1.3, rel=1e-4)


def drafting(off: float = 1.0, efficiency: Efficiency = TRUTH) -> MeasuredSteps:
    """A draft's steps at two contexts, `off` at every second batch size."""
    steps = synthetic(efficiency, model="llama-3.2-1b")
    one = steps.take(steps.tokens == 1)
    uneven = np.isin(one.batch_size, (4, 64))
    return replace(one, time_s=one.time_s * np.where(uneven, off, 1 / off))


def test_what_drafts_take_beyond_their_work_is_fitted() -> None:
    fast = fit_drafts([drafting(efficiency=replace(TRUTH, launch_s=5e-5))], TRUTH)
    drawing = fit_drafts([drafting(efficiency=replace(TRUTH, launch_s=2e-4, token_s=1e-5))], TRUTH)
    assert fast is not None
    assert drawing is not None
    assert (fast.efficiency.launch_s, fast.efficiency.token_s) == pytest.approx((5e-5, 0.0), rel=1e-3, abs=1e-9)
    assert (drawing.efficiency.launch_s, drawing.efficiency.token_s) == pytest.approx((2e-4, 1e-5), rel=1e-3)
    assert drawing.efficiency.bandwidth_fraction == TRUTH.bandwidth_fraction
    assert (drawing.same_draft.held_out, drawing.other_draft, drawing.error < 1e-3) == ("batch_size", None, True)


def test_drafts_that_no_fit_foretells_better_keep_the_numbers_of_their_target() -> None:
    steps = drafting(1.1)
    assert rms_error([steps], TRUTH) == pytest.approx(np.log(1.1), rel=1e-9)
    assert fit_drafts([steps], TRUTH) is None


def test_few_times_of_drafts_or_of_one_place_tell_no_error() -> None:
    steps = drafting(efficiency=replace(TRUTH, launch_s=5e-5))
    assert steps.time_s.size == FEWEST_DRAFTS
    assert fit_drafts([steps.take(np.arange(FEWEST_DRAFTS) > 0)], TRUTH) is None
    alike = np.full(FEWEST_DRAFTS, float(steps.time_s[0]))
    one = measured_steps(steps.deployment, batch_size=1, context=500, tokens=1, time_s=alike)
    assert fit_drafts([one], TRUTH) is None
