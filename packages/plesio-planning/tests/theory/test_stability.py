import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio_planning.theory.dynamics import delayed_descent, iterations_to, noise_floor
from plesio_planning.theory.stability import (
    constant_staleness,
    first_unstable_staleness,
    spectral_radius,
    stability_limit,
)

stalenesses = st.integers(0, 60)
momenta = st.floats(0.0, 0.99)


def test_reference_values():
    """studies/reference.md, theorem 9."""
    assert first_unstable_staleness(step=0.01, momentum=0.9) == 12
    assert first_unstable_staleness(step=0.1, momentum=0.9) == 1
    assert first_unstable_staleness(step=0.1) == 16


@given(staleness=stalenesses)
def test_without_momentum_it_is_the_closed_form(staleness: int):
    expected = 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))
    assert stability_limit(staleness=staleness) == pytest.approx(expected, rel=1e-12)


@given(momentum=momenta)
def test_without_staleness_it_is_heavy_balls(momentum: float):
    """2(1+β) (Polyak 1964); with a staleness of 1 it is 1-β, where the roots' product is 1."""
    assert stability_limit(staleness=0, momentum=momentum) == pytest.approx(2 * (1 + momentum))
    assert stability_limit(staleness=1, momentum=momentum) == pytest.approx(1 - momentum)


@given(staleness=stalenesses, momentum=momenta)
def test_it_falls_with_staleness_and_from_one_on_with_momentum(staleness: int, momentum: float):
    limit = stability_limit(staleness=staleness, momentum=momentum)
    assert stability_limit(staleness=staleness + 1, momentum=momentum) < limit
    if staleness:
        assert limit <= stability_limit(staleness=staleness) * (1 + 1e-12)


@given(staleness=stalenesses, momentum=momenta)
def test_the_companion_polynomials_roots_are_inside_the_circle_just_below_the_limit(staleness: int, momentum: float):
    limit = stability_limit(staleness=staleness, momentum=momentum)
    setting = {"staleness": staleness, "momentum": momentum}
    assert spectral_radius(step=limit * 1.01, **setting) > 1
    assert spectral_radius(step=limit, **setting) == pytest.approx(1, abs=1e-9)
    assert spectral_radius(step=limit * 0.99, **setting) < 1


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("staleness", [0, 1, 2, 7, 20, 50])
def test_direct_simulation_shrinks_below_the_limit_and_grows_above(staleness: int, momentum: float):
    """Between two thirds of 40,000 steps and their end, 1 % to either side of the limit."""
    limit = stability_limit(staleness=staleness, momentum=momentum)

    def growth(step: float) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(delayed_descent(step=step, staleness=staleness, momentum=momentum, num_steps=8000))
        middle, end = error[3000:5000].max(), error[-2000:].max()
        return end / middle if math.isfinite(end) and middle > 0 else (0.0 if middle == 0 else math.inf)

    assert growth(0.98 * limit) < 1
    assert growth(1.02 * limit) > 1


@settings(max_examples=30)
@given(staleness=st.integers(0, 20), share=st.floats(0.1, 0.9), momentum=st.floats(0.0, 0.9))
def test_the_spectral_radius_is_the_rate_of_the_simulation(staleness: int, share: float, momentum: float):
    """An upper bound for every run, but for a power of the number of steps where roots coincide."""
    step = share * stability_limit(staleness=staleness, momentum=momentum)
    radius = spectral_radius(step=step, staleness=staleness, momentum=momentum)
    error = np.abs(delayed_descent(step=step, staleness=staleness, momentum=momentum, num_steps=2000))
    tail = error[1000:1100].max()
    if tail > 1e-250:
        assert math.log(tail) / 1000 <= math.log(radius) + 0.03


def test_staleness_costs_what_the_reference_says():
    """studies/reference.md, study 3, has them with a transient; here the long run alone, 2 % off."""
    for staleness, iterations in {0: 463, 1: 932, 5: 3271, 10: 6229, 20: 12152, 50: 29927}.items():
        assert iterations_to(1e-4, condition=100.0, staleness=staleness) == pytest.approx(iterations, rel=0.02)


def test_the_noise_floor_is_the_variance_of_a_simulation():
    """5 % for 2000 runs: the relative standard error of a variance is √(2/2000), 3 %."""
    random, step, staleness = np.random.default_rng(1), 0.1, 5
    past = [np.zeros(2000) for _ in range(staleness + 1)]
    for _ in range(600):
        past.append(past[-1] - step * (past[-1 - staleness] + random.normal(size=2000)))
    assert noise_floor(step=step, staleness=staleness) == pytest.approx(float(past[-1].var()), rel=0.1)
    assert noise_floor(step=0.3, staleness=0) == pytest.approx(0.3 / 1.7)


def test_the_bound_says_limit_and_rate():
    bound = constant_staleness(learning_rate=0.05, curvature=2.0, staleness=16)
    assert bound.also["your αλ"] == pytest.approx(0.1)
    assert bound.also["largest learning rate"] == pytest.approx(bound.value / 2)
    assert bound.also["change of the error in a step, at your αλ"] > 1


@pytest.mark.parametrize("bad", [{"staleness": -1}, {"staleness": 1, "momentum": 1.0}])
def test_impossible_settings_are_refused(bad: dict[str, float]):
    with pytest.raises(ConfigError, match="write 0 or more"):
        stability_limit(**bad)  # type: ignore[arg-type]
