import math

import numpy as np
import pytest

from plesio_planning.studies import batch_scaling
from plesio_planning.studies.models.batch_scaling import BatchScaling
from plesio_planning.studies.noisy_descent import Bowl, estimate_noise_scale, steps_to_target


@pytest.fixture(scope="module")
def answer() -> BatchScaling:
    return batch_scaling(num_trials=4)


def test_reference_law(answer: BatchScaling):
    """studies/reference.md, study 15: steps = S_min (1 + B_noise/B), the critical batch found by measuring."""
    assert answer.critical_batch == pytest.approx(answer.mean_noise_scale, rel=0.1)
    for point in answer.points:
        assert point.fitted == pytest.approx(point.steps, rel=0.03)


def test_where_curvatures_are_equal_the_noise_scale_is_the_trace_over_the_squared_gradient():
    """Then tr(HΣ)/GᵀHG is tr Σ/‖G‖², and B_crit is B₀ (r₀/r - 1)/ln(r₀/r) for a loss that falls from r₀ to r."""
    alike = batch_scaling(condition_number=1.0, batches=(4, 16, 64, 256, 1024, 4096), target=0.1, num_trials=2)
    assert alike.mean_noise_scale == pytest.approx(alike.mean_simple_scale)
    expected = 16 * (10 - 1) / math.log(10)
    assert alike.critical_batch == pytest.approx(expected, rel=0.1)


def test_the_noise_scale_can_be_estimated_from_lengths_of_gradients(answer: BatchScaling):
    assert answer.first_noise_scale == pytest.approx(16.0)
    assert answer.estimated_noise_scale == pytest.approx(16.0, abs=2 * answer.estimated_error)
    rng = np.random.default_rng(3)
    bowl = Bowl.with_noise_scale(100.0, dimension=20, condition=10.0, rng=rng)
    value, error = estimate_noise_scale(bowl, small=10, large=1000, num_draws=4000, rng=rng)
    assert value == pytest.approx(100.0, abs=2 * error)
    assert error < 10


def test_linear_scaling_works_up_to_a_limit_which_warm_up_moves(answer: BatchScaling):
    without, with_it = (answer.largest("linear", warmup_steps=steps) for steps in (0, 10))
    assert 16 <= without < with_it < 4096
    assert answer.largest("none", warmup_steps=0) == 4096
    assert answer.largest("square-root", warmup_steps=0) > without
    by_rule = {
        rule: {one.batch: one.steps for one in answer.rules if one.rule == rule and one.warmup_steps == 0}
        for rule in ("linear", "none")
    }
    assert by_rule["linear"][without] < 0.3 * by_rule["none"][without]  # while it works, it is worth it


def test_other_starts_have_other_critical_batches_which_the_noise_scale_knows(answer: BatchScaling):
    found = [one.critical_batch for one in answer.problems]
    assert found[0] == answer.critical_batch
    assert max(found) > 1.5 * min(found)
    for one in answer.problems:
        assert one.critical_batch == pytest.approx(one.mean_noise_scale, rel=0.1)
        assert one.linear_limits[0] <= one.linear_limits[10]


def test_on_a_quadratic_warm_up_does_not_move_the_limit():
    rng = np.random.default_rng(0)
    bowl = Bowl.with_noise_scale(1e-12, dimension=10, condition=10.0, rng=rng)
    rows = [(length, warmup) for length in (1.9, 2.5) for warmup in (0.0, 10.0)]
    steps = steps_to_target(
        bowl,
        batches=np.full(4, 1.0),
        lengths=np.array([length for length, _ in rows]),
        warmup_steps=np.array([warmup for _, warmup in rows]),
        target=1e-8,
        most=400,
        rng=rng,
    )
    assert np.isfinite(steps[:2]).all()
    assert np.isinf(steps[2:]).all()
