import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.clock import MonotonicClock
from plesio.core.errors import ConfigError, DataError, PlesioError
from plesio.runtime.pacing import Constant, EmpiricalTrace, Gamma, LogNormal, Pacer, Pareto, Stalls, StepTime


class SteppedClock(MonotonicClock):
    """Time passes only while somebody sleeps; every sleep ends late by a fixed amount."""

    def __init__(self, *, late_s: float = 0.0) -> None:
        self.at_s = 100.0
        self.late_s = late_s
        self.num_sleeps = 0

    def now_s(self) -> float:
        return self.at_s

    def sleep_s(self, duration_s: float) -> None:
        assert duration_s > 0
        self.num_sleeps += 1
        self.at_s += duration_s + self.late_s


def draws(step_time: StepTime, *, seed: int = 0, worker: int = 0, speed: float = 1.0, num: int = 4000) -> np.ndarray:
    pacer = Pacer(step_time=step_time, speed=speed, seed=seed, worker=worker)
    return np.array([pacer.draw_s(step) for step in range(num)])


DISTRIBUTIONS = [
    Constant(mean_s=0.012),
    LogNormal(mean_s=0.012, cv=0.5),
    Pareto(min_s=0.01, shape=3.0),
    EmpiricalTrace(durations_s=(0.01, 0.02, 0.03)),
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


def test_lognormal_draws_have_the_mean_and_cv_asked_for():
    sample = draws(LogNormal(mean_s=0.02, cv=0.3))
    # Standard error of the mean: 0.3 / sqrt(4000) = 0.5 %; of the cv about 1.3 %. Five of them each.
    assert sample.mean() == pytest.approx(0.02, rel=0.025)
    assert sample.std() / sample.mean() == pytest.approx(0.3, rel=0.065)


def test_gamma_draws_have_the_mean_and_cv_asked_for():
    sample = draws(Gamma(mean_s=0.02, cv=0.5))
    # Standard error of the mean: 0.5 / sqrt(4000) = 0.8 %; of the cv about 1.3 %. Five of them each.
    assert sample.mean() == pytest.approx(0.02, rel=0.04)
    assert sample.std() / sample.mean() == pytest.approx(0.5, rel=0.065)


def test_stalls_lengthen_as_many_steps_as_asked_for():
    sample = draws(Stalls(steps=Constant(mean_s=0.01), probability=0.1, factor=10.0))
    assert set(sample) == {0.01, 0.1}
    assert (sample == 0.1).mean() == pytest.approx(0.1, abs=0.024)  # standard error 0.5 %, five of them


def test_pareto_draws_follow_the_tail_asked_for():
    sample = draws(Pareto(min_s=0.01, shape=2.0))
    assert sample.min() >= 0.01
    # P(x > 2 min) = 1/4; standard error 0.7 %, five of them.
    assert (sample > 0.02).mean() == pytest.approx(0.25, abs=0.035)


def test_a_trace_is_drawn_with_replacement():
    assert set(draws(EmpiricalTrace(durations_s=(0.01, 0.02)), num=100)) == {0.01, 0.02}


@given(late_s=st.floats(0, 0.001), spent_s=st.floats(0, 0.012), drawn_s=st.floats(1e-6, 0.012))
def test_a_step_ends_at_its_duration_and_no_later_than_one_late_wake_up(late_s: float, spent_s: float, drawn_s: float):
    clock = SteppedClock(late_s=late_s)
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


def test_a_trace_file_has_one_duration_a_line(tmp_path: Path):
    path = tmp_path / "steps.txt"
    path.write_text("# measured on a T4\n18.3 ms\n\n0.02 s  # slow\n")
    assert EmpiricalTrace.read(path).durations_s == pytest.approx((0.0183, 0.02))


def test_a_trace_file_may_be_csv_with_a_seconds_column(tmp_path: Path):
    path = tmp_path / "steps.csv"
    path.write_text("step,seconds\n0,0.5\n1,0.25\n")
    assert EmpiricalTrace.read(path).durations_s == (0.5, 0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("18.3 ms\n17\n", 'line 2: "17" is not a duration'),
        ("step,second\n0,0.5\n", 'did you mean "second"'),
        ("step,seconds\n0,fast\n", "line 2"),
        ("step,seconds\n0\n", "line 2"),
        ("seconds\n-1\n", "a duration is -1"),
        ("seconds\n", "empty"),
        (None, "cannot read"),
    ],
)
def test_a_bad_trace_file_is_refused_with_its_path_and_line(tmp_path: Path, text: str | None, message: str):
    path = tmp_path / "steps.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        EmpiricalTrace.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(mean_s=0),
        lambda: Constant(mean_s=float("inf")),
        lambda: LogNormal(mean_s=0, cv=1),
        lambda: LogNormal(mean_s=1, cv=-1),
        lambda: Pareto(min_s=0, shape=2),
        lambda: Pareto(min_s=1, shape=1),
        lambda: EmpiricalTrace(durations_s=()),
        lambda: EmpiricalTrace(durations_s=(float("nan"),)),
        lambda: Pacer(step_time=Constant(mean_s=1), speed=0, seed=0, worker=0),
    ],
)
def test_impossible_values_are_refused(make: type[PlesioError]):
    with pytest.raises(ConfigError, match=r"write|needs"):
        make()
