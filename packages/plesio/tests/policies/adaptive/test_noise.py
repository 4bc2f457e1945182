import functools
import math
from dataclasses import replace

import pytest

from plesio.policies.adaptive.config.noise import NoiseConfig
from plesio.policies.adaptive.readings.reading import NO_OBJECTION, ComponentAdvice, GradientFigures, Reading
from plesio.policies.adaptive.training.noise import NoiseMonitor


def reading(*, noise: float | None, signal: float = 1.0, normalises: bool = True, num_workers: int = 16) -> Reading:
    figures = None
    if noise is not None:
        figures = GradientFigures(
            norm_sq=noise + signal, mean_norm_sq=signal, within=noise, between=noise, noise_scale=8 * noise
        )
    return Reading(
        clock=16,
        num_steps=16,
        learning_rate=0.1,
        gradient=figures,
        normalises=normalises,
        num_workers=num_workers,
    )


def test_an_optimizer_that_does_not_normalise_loses_nothing():
    assert NoiseMonitor(NoiseConfig()).observe(reading(noise=100.0, normalises=False)) == NO_OBJECTION


def test_nothing_is_allowed_before_noise_is_known():
    monitor = NoiseMonitor(NoiseConfig())
    assert monitor.observe(reading(noise=None)).slack == 0
    assert monitor.observe(reading(noise=0.01)).slack == 0
    assert monitor.observe(reading(noise=0.01)).slack == math.inf
    assert monitor.observe(reading(noise=None)).slack == math.inf


@pytest.mark.parametrize(
    ("noise", "efficiency"), [(0.0, 1.0), (1.0, math.sqrt((1 + 1 / 16) / 2)), (15.0, math.sqrt((1 + 15 / 16) / 16))]
)
def test_noisy_gradients_make_local_steps_worth_less_and_the_noisiest_forbid_them(noise: float, efficiency: float):
    advice = NoiseMonitor(NoiseConfig(window=1)).observe(reading(noise=noise))
    assert advice.slack == (math.inf if efficiency > 0.5 else 0)
    assert advice.efficiency == advice.inputs["efficiency"] == pytest.approx(efficiency)
    assert advice.store_efficiency == (1.0 if efficiency > 0.5 else NoiseConfig().store_efficiency)


def test_nothing_but_noise_is_worth_the_root_of_the_workers():
    """Estimates of a small signal may be below zero."""
    advice = NoiseMonitor(NoiseConfig(window=1)).observe(reading(noise=1.0, signal=-0.01))
    assert advice.inputs["efficiency"] == pytest.approx(1 / 4)


def test_the_noisiest_of_the_last_figures_counts():
    monitor = NoiseMonitor(NoiseConfig(window=2))
    advices = [monitor.observe(reading(noise=noise)) for noise in (0.01, 9.0, 0.01, 0.01)]
    assert [advice.slack for advice in advices] == [0, 0, 0, math.inf]


def with_moments(
    noise: float, *, progress: float | None, num_workers: int = 16, num_racks: int = 1, num_steps: int = 640
) -> ComponentAdvice:
    """Return the advice after a review in a run of so many steps."""
    seen = reading(noise=noise, num_workers=num_workers)
    clock = round(num_steps * (progress or 0.1))
    seen = replace(seen, clock=clock, shares_moments=True, progress=progress, num_racks=num_racks)
    return NoiseMonitor(NoiseConfig(window=1)).observe(seen)


@pytest.mark.parametrize(
    ("noise", "num_workers", "progress", "slack"),
    [
        (0.1, 16, 0.1, 3),
        (0.1, 16, None, 3),
        (0.1, 16, 0.3, math.inf),
        (30.0, 16, 0.1, 0),
        (30.0, 16, None, 0),
        (2.9, 4, 0.1, 3),
        (3.1, 4, 0.1, 0),
        (1000.0, 4, 0.1, 0),
        (1000.0, 4, 0.3, math.inf),
        (30.0, 16, 0.3, 3),
        (1000.0, 16, 0.3, 3),
        (1000.0, 32, 0.3, 1),
    ],
)
def test_with_the_mean_s_moments_noise_forbids_the_beginning_and_leaves_little_later(
    noise: float, num_workers: int, progress: float | None, slack: float
):
    advice = with_moments(noise, num_workers=num_workers, progress=progress)
    assert advice.slack == slack
    assert advice.efficiency == 1.0, "a local step is as long as a synchronous one"
    assert advice.inputs["efficiency"] < 1.0
    priced = noise > 4 and num_workers > 4
    assert advice.store_efficiency == (NoiseConfig().store_efficiency if priced else 1.0)


@pytest.mark.parametrize(
    ("progress", "allowed"),
    [(0.1, [0, 0, 3, 3]), (None, [0, 0, 3, 3]), (0.5, [math.inf, math.inf, math.inf, math.inf])],
)
def test_a_rate_that_rises_forbids_the_beginning(progress: float | None, allowed: list[float]):
    """However clean gradients are; a rate that stays, or is back at what it was, does not rise."""
    monitor = NoiseMonitor(NoiseConfig(window=1))
    seen = replace(reading(noise=0.1), clock=64, shares_moments=True, progress=progress)
    monitor.observe(replace(seen, learning_rate=0.1))
    advices = [monitor.observe(replace(seen, learning_rate=rate)) for rate in (0.2, 0.3, 0.3, 0.25)]
    assert [advice.slack for advice in advices] == allowed
    assert ("while the rate rises" in advices[0].reason) == (allowed[0] == 0)
    assert monitor.observe(replace(seen, learning_rate=0.3)).slack == allowed[-1]


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_the_beginning_ends_when_it_has_cost_half_as_much_as_the_rest_will(rate: float):
    """Also while the rate rises, and for good; the store is still not for it."""
    asked: list[tuple[float, float]] = []
    monitor = NoiseMonitor(NoiseConfig(window=1))
    seen = replace(reading(noise=30.0, num_workers=4), clock=64, shares_moments=True, progress=0.1)
    monitor.observe(seen)

    def spent(slack: float, drift: float, *, share: float) -> float:
        asked.append((slack, drift))
        return share

    advices = [
        monitor.observe(replace(seen, learning_rate=rate, spent=functools.partial(spent, share=share)))
        for share in (0.49, 0.51, 0.3)
    ]
    assert [advice.slack for advice in advices] == [0, math.inf, math.inf]
    assert [advice.staleness for advice in advices] == [0, 0, 0]
    assert asked == [(math.inf, math.inf)] * 2


@pytest.mark.parametrize(("progress", "staleness"), [(0.1, 0), (None, 0), (0.24, 0), (0.25, math.inf), (0.9, math.inf)])
@pytest.mark.parametrize("shares_moments", [False, True])
def test_the_store_is_not_for_the_first_quarter(progress: float | None, staleness: float, *, shares_moments: bool):
    """However clean gradients are, and also where workers draw from different data."""
    for noise in (0.01, 30.0):
        seen = replace(reading(noise=noise), progress=progress, shares_moments=shares_moments)
        assert NoiseMonitor(NoiseConfig(window=1)).observe(seen).staleness == staleness
    differing = replace(of_data(between=3.0, normalises=True), progress=progress, shares_moments=shares_moments)
    assert NoiseMonitor(NoiseConfig(window=1)).observe(differing).staleness == staleness


@pytest.mark.parametrize("progress", [0.1, 0.5])
def test_in_a_short_run_they_are_not_relied_on(progress: float):
    """A short run has fewer than ten times as many steps as workers."""
    noisy = with_moments(30.0, progress=progress, num_steps=150)
    assert (noisy.slack, noisy.efficiency) == (0, noisy.inputs["efficiency"])
    calm = with_moments(0.5, progress=progress, num_steps=150)
    assert calm.slack == math.inf
    assert calm.efficiency == calm.inputs["efficiency"] < 1
    assert with_moments(0.5, progress=progress, num_steps=170).efficiency == 1


def test_racks_are_less_noisy_with_the_mean_s_moments_too():
    advice = with_moments(20.0, progress=0.3, num_racks=2)
    assert (advice.slack, advice.drift, advice.rack_efficiency) == (3, math.inf, 1.0)


def test_one_worker_is_on_its_own_anyhow():
    assert NoiseMonitor(NoiseConfig()).observe(reading(noise=9.0, num_workers=1)) == NO_OBJECTION


def of_data(*, between: float, normalises: bool = False) -> Reading:
    figures = GradientFigures(norm_sq=2.0, mean_norm_sq=1.0, within=1.0, between=between, noise_scale=9.0)
    return Reading(clock=16, num_steps=16, learning_rate=0.1, gradient=figures, normalises=normalises, num_workers=16)


def test_workers_whose_data_differ_are_kept_together_but_may_use_the_store():
    monitor = NoiseMonitor(NoiseConfig(window=2))
    advice = monitor.observe(of_data(between=3.0))
    assert (advice.slack, advice.staleness) == (1, math.inf)
    assert "data differ" in advice.reason
    assert monitor.observe(of_data(between=1.0)).slack == 1  # data stay what they are


def test_racks_whose_data_differ_are_kept_together_too():
    """Single workers are together already, since their gradients are too noisy."""
    noise = NoiseMonitor(NoiseConfig(window=1, least_efficiency=0.8))
    figures = GradientFigures(norm_sq=2.0, mean_norm_sq=1.0, within=0.4, between=1.0, noise_scale=9.0)
    seen = of_data(between=1.0, normalises=True)
    advice = noise.observe(replace(seen, gradient=figures, num_racks=2))
    assert (advice.slack, advice.drift, round(advice.rack_efficiency, 2)) == (0, 1, 0.97)


def test_between_few_workers_chance_is_larger():
    assert NoiseMonitor(NoiseConfig()).observe(of_data(between=1.75)) == NO_OBJECTION
