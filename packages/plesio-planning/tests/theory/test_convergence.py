from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio_planning.theory.bound import Bound
from plesio_planning.theory.convergence import (
    asynchronous_average_staleness,
    asynchronous_nonconvex,
    compressed_gradients,
    delayed_strongly_convex,
    error_feedback,
    local_sgd,
    synchronous_sgd,
)
from plesio_planning.theory.gradient_noise import critical_batch, gradient_noise_scale

rates = st.floats(1e-4, 0.2)


def test_values_by_hand():
    bound = synchronous_sgd(
        smoothness=2, distance=3, gradient_variance=8, learning_rate=0.25, batch_size=4, num_steps=100
    )
    assert bound.parts == pytest.approx({"start": 9 / (2 * 0.25 * 0.5 * 100), "noise": 0.25 * 8 / (2 * 0.5 * 4)})
    bound = asynchronous_nonconvex(
        smoothness=2, gap=5, gradient_variance=3, learning_rate=0.01, max_staleness=4, num_steps=1000
    )
    assert bound.parts == pytest.approx({"start": 1.0, "noise": 0.06, "staleness": 2 * 0.0004 * 4 * 3})
    assert compressed_gradients(gap=5, learning_rate=0.5, error=0.2, num_steps=100).value == pytest.approx(0.24)
    assert critical_batch(min_steps=100, noise_scale=500, batch_size=250).value == pytest.approx(300)
    assert gradient_noise_scale(covariance_trace=8, squared_gradient_norm=2) == 4


@pytest.mark.parametrize(
    ("function", "bad", "good"),
    [
        (synchronous_sgd, {"learning_rate": 0.5, "smoothness": 2}, {"learning_rate": 0.49, "smoothness": 2}),
        (asynchronous_nonconvex, {"learning_rate": 0.2, "max_staleness": 4}, {"learning_rate": 0.16}),
        (local_sgd, {"learning_rate": 0.26}, {"learning_rate": 0.25}),
        (compressed_gradients, {"learning_rate": 1.1}, {"learning_rate": 1.0}),
        (delayed_strongly_convex, {"strong_convexity": 2.0}, {"strong_convexity": 1.0}),
        (error_feedback, {"kept_share": 1.1}, {"kept_share": 1.0}),
    ],
)
def test_a_premise_that_fails_is_named_with_what_would_satisfy_it(
    function: Callable[..., Bound], bad: dict[str, float], good: dict[str, float]
):
    with pytest.raises(ConfigError, match=r"does not hold \(.* against .*\); write a "):
        function(**bad)
    assert all(condition.holds for condition in function(**good).conditions)


def test_the_remedy_of_lians_premise_is_its_limit():
    largest = asynchronous_nonconvex().also["largest learning rate"]
    asynchronous_nonconvex(learning_rate=largest * (1 - 1e-9))
    with pytest.raises(ConfigError, match=f"at most {largest:.4g}"):
        asynchronous_nonconvex(learning_rate=largest * (1 + 1e-9))


@given(rate=rates, staleness=st.integers(0, 5))
def test_staleness_never_makes_a_bound_better(rate: float, staleness: int):
    rate /= 50  # within Lian's premise
    pair = (staleness, staleness + 1)
    for before, after in (
        [asynchronous_nonconvex(learning_rate=rate, max_staleness=each).value for each in pair],
        [asynchronous_average_staleness(mean_staleness=each).value for each in pair],
        [delayed_strongly_convex(max_staleness=each).value for each in pair],
    ):
        assert before <= after


@given(rate=rates)
def test_without_staleness_local_steps_or_compression_nothing_is_paid_for_them(rate: float):
    assert asynchronous_nonconvex(learning_rate=rate, max_staleness=0).parts["staleness"] == 0
    assert local_sgd(learning_rate=rate, period=1).parts["drift"] == 0
    assert error_feedback(learning_rate=rate, kept_share=1.0).parts["compression"] == 0
    assert compressed_gradients(learning_rate=rate, error=0.0).parts["compression"] == 0


@given(rate=rates, batch=st.integers(1, 1000), steps=st.integers(1, 10**6))
def test_more_samples_and_more_steps_never_make_the_synchronous_bound_worse(rate: float, batch: int, steps: int):
    value = synchronous_sgd(learning_rate=rate, batch_size=batch, num_steps=steps).value
    assert synchronous_sgd(learning_rate=rate, batch_size=batch + 1, num_steps=steps).value <= value
    assert synchronous_sgd(learning_rate=rate, batch_size=batch, num_steps=steps + 1).value <= value


def test_late_noise_is_not_more_noise():
    """The part with σ² does not know the staleness (Arjevani et al. 2020)."""
    assert delayed_strongly_convex(max_staleness=0).parts["noise"] == delayed_strongly_convex().parts["noise"]


def _sgd(*, period: int, num_workers: int, rate: float, num_steps: int, num_runs: int) -> float:
    """Mean of f(x̄) = x̄²/2 over runs of local SGD from 1, with gradients of variance 1."""
    random = np.random.default_rng(0)
    x, total = np.ones((num_runs, num_workers)), np.zeros(num_runs)
    for t in range(num_steps):
        total += x.mean(axis=1)
        x -= rate * (x + random.normal(size=x.shape))
        if (t + 1) % period == 0:
            x[:] = x.mean(axis=1, keepdims=True)
    return float(np.mean((total / num_steps) ** 2 / 2))


@pytest.mark.parametrize(("period", "rate"), [(1, 0.01), (1, 0.2), (10, 0.05), (50, 0.2)])
def test_simulated_sgd_stays_below_its_bounds(period: int, rate: float):
    error = _sgd(period=period, num_workers=4, rate=rate, num_steps=300, num_runs=200)
    setting = {"distance": 1.0, "gradient_variance": 1.0, "learning_rate": rate, "num_steps": 300}
    assert error <= local_sgd(**setting, num_workers=4, period=period).value
    if period == 1:
        assert error <= synchronous_sgd(**setting, batch_size=4).value


@pytest.mark.parametrize("feedback", [True, False])
def test_simulated_compression_stays_below_its_bound(feedback: bool):
    """Top-1 of ten coordinates on a quadratic; without feedback ε is the largest error that was made."""
    curvature, rate, num_steps = np.linspace(0.1, 1.0, 10), 0.02, 2000
    x, lost, errors, squares, moments = np.ones(10), np.zeros(10), [], [], []
    gap = float((curvature * x**2).sum() / 2)
    for _ in range(num_steps):
        gradient = curvature * x
        squares.append(float(gradient @ gradient))
        wanted = rate * gradient + (lost if feedback else 0)
        sent = np.where(np.arange(10) == np.abs(wanted).argmax(), wanted, 0.0)
        lost = wanted - sent
        errors.append(float(np.linalg.norm(lost)) / rate)
        moments.append(squares[-1])
        x = x - sent
    setting = {"smoothness": 1.0, "gap": gap, "learning_rate": rate, "num_steps": num_steps}
    bound = (
        error_feedback(**setting, gradient_second_moment=max(moments), kept_share=0.1)
        if feedback
        else compressed_gradients(**setting, error=max(errors))
    )
    assert np.mean(squares) <= bound.value


@given(noise=st.floats(1e-3, 1e6), batch=st.integers(1, 10**6))
def test_steps_and_samples_trade_along_mccandlishs_hyperbola(noise: float, batch: int):
    bound = critical_batch(min_steps=100.0, noise_scale=noise, batch_size=batch)
    steps, samples = bound.value / 100.0 - 1, bound.also["samples"] / bound.also["fewest samples"] - 1
    assert bound.value >= 100
    if min(steps, samples) > 1e-6:
        assert steps * samples == pytest.approx(1, rel=1e-6)
