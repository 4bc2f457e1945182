import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.step_time import (
    Constant,
    EmpiricalTrace,
    LogNormal,
    Pareto,
    RackSlowdowns,
    Slowdowns,
    Stalls,
    StepTime,
)
from plesio.runtime.worker.pacing import Pacer
from plesio.testing import FakeClock


@dataclass
class Kept(RackSlowdowns):
    """Remembers when it was asked."""

    asked_s: list[float]

    def factor_at(self, at_s: float) -> float:
        self.asked_s.append(at_s)
        return 3.0


def draws(step_time: StepTime, *, seed: int = 0, worker: int = 0, speed: float = 1.0, num: int = 4000) -> np.ndarray:
    pacer = Pacer(step_time=step_time, speed=speed, seed=seed, worker=worker)
    return np.array([pacer.draw_s(step) for step in range(num)])


DISTRIBUTIONS = [
    Constant(mean_s=0.012),
    LogNormal(mean_s=0.012, cv=0.5),
    Pareto(min_s=0.01, shape=3.0),
    EmpiricalTrace(durations_s=(0.01, 0.02, 0.03)),
    Stalls(steps=LogNormal(mean_s=0.012, cv=0.5), probability=0.1, factor=4.0),
]


@pytest.mark.parametrize("step_time", DISTRIBUTIONS)
def test_draws_are_repeatable_and_speed_divides_them(step_time: StepTime):
    first = draws(step_time, seed=3, worker=1, num=50)
    assert first.tolist() == draws(step_time, seed=3, worker=1, num=50).tolist()
    assert draws(step_time, seed=3, worker=1, speed=0.25, num=50) == pytest.approx(4 * first)


@pytest.mark.parametrize("step_time", DISTRIBUTIONS[1:])
def test_workers_and_seeds_have_independent_streams(step_time: StepTime):
    streams = [draws(step_time, seed=seed, worker=worker) for seed, worker in ((0, 0), (0, 1), (1, 0))]
    # 4,000 independent pairs: the correlation has standard deviation 0.016 (heavier tails: less is known; 6 of them).
    correlations = np.corrcoef(streams)[np.triu_indices(3, k=1)]
    assert np.abs(correlations).max() < 0.1


@pytest.mark.parametrize("step_time", DISTRIBUTIONS)
def test_speed_stalls_and_slowdowns_multiply(step_time: StepTime):
    slowdowns = Slowdowns(factor=3.0, every_s=2.0, lasting_s=1.0).of_rack(1, seed=5)
    plain, slowed = (
        Pacer(step_time=step_time, speed=0.5, slowdowns=each, seed=5, worker=2) for each in (None, slowdowns)
    )
    moments = np.linspace(0.0, 20.0, 200)
    factors = [slowdowns.factor_at(at_s) for at_s in moments]
    assert set(factors) == {1.0, 3.0}
    for step, (at_s, factor) in enumerate(zip(moments, factors, strict=True)):
        assert slowed.draw_s(step, at_s=at_s) == factor * plain.draw_s(step)


@pytest.mark.parametrize(("began_s", "asked_s"), [(None, [0.0, 0.5]), (40.0, [60.0, 60.5])])
def test_a_rack_is_asked_when_the_step_begins_since_the_run_began(began_s: float | None, asked_s: list[float]):
    kept = Kept([])
    clock = FakeClock()
    pacer = Pacer(step_time=Constant(mean_s=0.1), slowdowns=kept, seed=0, worker=0, clock=clock, began_s=began_s)
    assert pacer.pace(0, started_s=100.0) == pytest.approx(0.3)
    assert clock.at_s == pytest.approx(100.3)
    clock.at_s = 100.6
    pacer.pace(1, started_s=100.5)
    assert kept.asked_s == asked_s


def test_workers_of_a_rack_are_slow_at_the_same_moments_and_others_at_others():
    slowdowns = Slowdowns(factor=3.0, every_s=2.0, lasting_s=1.0)
    pacers = [
        Pacer(
            step_time=Constant(mean_s=0.1),
            slowdowns=slowdowns.of_rack(rack, seed=0),
            seed=0,
            worker=worker,
            clock=FakeClock(),
            began_s=0.0,
        )
        for worker, rack in enumerate((0, 0, 1))
    ]
    first, same, other = ([pacer.pace(step, started_s=step * 0.25) for step in range(400)] for pacer in pacers)
    assert first == same
    assert first != other


@given(late_s=st.floats(0, 0.001), spent_s=st.floats(0, 0.012), drawn_s=st.floats(1e-6, 0.012))
def test_a_step_ends_at_its_duration_and_no_later_than_one_late_wake_up(late_s: float, spent_s: float, drawn_s: float):
    clock = FakeClock(late_s=late_s)
    pacer = Pacer(step_time=Constant(mean_s=drawn_s), seed=0, worker=0, clock=clock)
    started_s = clock.at_s
    clock.at_s += spent_s
    arrived_s = clock.at_s
    assert pacer.pace(0, started_s=started_s) == drawn_s
    end_s = clock.at_s - started_s
    overran = arrived_s - (started_s + drawn_s)
    if overran > 0:
        assert clock.num_sleeps == 0
        assert (pacer.overruns.num_overruns, pacer.overruns.total_s) == (1, overran)
    else:
        assert drawn_s - 1e-9 <= end_s <= drawn_s + late_s + 2e-6
        assert pacer.overruns.num_overruns == 0
    assert pacer.overruns.steps == 1


def test_pacing_on_the_real_clock_is_never_early_and_spends_its_time_asleep():
    pacer = Pacer(step_time=LogNormal(mean_s=0.01, cv=0.2), seed=0, worker=0)
    cpu_s = time.process_time()
    began_s = time.perf_counter()
    for step in range(20):
        started_s = time.perf_counter()
        duration_s = pacer.pace(step, started_s=started_s)
        assert time.perf_counter() - started_s >= duration_s
    assert time.process_time() - cpu_s < 0.5 * (time.perf_counter() - began_s)


def test_an_impossible_speed_is_refused():
    with pytest.raises(ConfigError, match="speed is 0; write a number of more than 0"):
        Pacer(step_time=Constant(mean_s=1), speed=0, seed=0, worker=0)
