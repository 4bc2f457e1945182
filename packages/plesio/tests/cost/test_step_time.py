"""The distributions draw what they promise; racks are slow together, and everything multiplies."""

from pathlib import Path

import numpy as np
import pytest

from plesio.core.errors import ConfigError, DataError, PlesioError
from plesio.cost.step_time import Constant, EmpiricalTrace, Gamma, LogNormal, Pareto, Slowdowns, Stalls, StepTime

NUM_DRAWS = 4000


def draws(step_time: StepTime) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(0))
    return np.array([step_time.sample_s(generator) for _ in range(NUM_DRAWS)])


MEANS = {
    # A mean's standard error is cv / sqrt(4000); five of them are allowed.
    "constant": (Constant(mean_s=0.02), 0.02, 0.0),
    "lognormal": (LogNormal(mean_s=0.02, cv=0.3), 0.02, 0.3),
    "gamma": (Gamma(mean_s=0.02, cv=0.5), 0.02, 0.5),
    "exponential": (Gamma(mean_s=0.02, cv=1.0), 0.02, 1.0),
    # mean = min shape / (shape - 1), cv = 1 / sqrt(shape (shape - 2))
    "pareto": (Pareto(min_s=0.02, shape=4.0), 0.02 * 4 / 3, 8**-0.5),
    "trace": (EmpiricalTrace(durations_s=(0.01, 0.02, 0.06)), 0.03, 0.72),
    # mean = (1 - p) + p f = 1.9 of the steps', E[x²] = (0.9 + 0.1 * 100) of theirs
    "stalls": (Stalls(steps=Constant(mean_s=0.01), probability=0.1, factor=10.0), 0.019, (10.9 / 1.9**2 - 1) ** 0.5),
    # 1.25 times the lognormal's mean; E[x²] = (0.75 + 0.25 * 4)(1 + cv²), of (1.25 mean)²
    "stalls of lognormal": (
        Stalls(steps=LogNormal(mean_s=0.02, cv=0.3), probability=0.25, factor=2.0),
        0.025,
        (1.75 * 1.09 / 1.25**2 - 1) ** 0.5,
    ),
}


@pytest.mark.parametrize("what", MEANS)
def test_draws_have_the_mean_and_the_spread_asked_for(what: str):
    step_time, mean_s, cv = MEANS[what]
    sample = draws(step_time)
    assert sample.mean() == pytest.approx(mean_s, rel=5 * cv / NUM_DRAWS**0.5 + 1e-12)
    # A spread's own error depends on the fourth moment; for the heaviest tails here (Pareto) that is infinite.
    assert sample.std() / sample.mean() == pytest.approx(cv, rel=0.25, abs=1e-12)


def test_stalls_lengthen_as_many_steps_as_asked_for():
    sample = draws(Stalls(steps=Constant(mean_s=0.01), probability=0.1, factor=10.0))
    assert set(sample) == {0.01, 0.1}
    assert (sample == 0.1).mean() == pytest.approx(0.1, abs=0.024)  # standard error 0.5 %, five of them


def test_stalls_compose_with_stalls():
    garbage = Stalls(steps=Constant(mean_s=1.0), probability=0.5, factor=2.0)
    assert set(draws(Stalls(steps=garbage, probability=0.5, factor=10.0))) == {1.0, 2.0, 10.0, 20.0}


def test_pareto_draws_follow_the_tail_asked_for():
    sample = draws(Pareto(min_s=0.01, shape=2.0))
    assert sample.min() >= 0.01
    # P(x > 2 min) = 1/4; standard error 0.7 %, five of them.
    assert (sample > 0.02).mean() == pytest.approx(0.25, abs=0.035)


def test_a_trace_is_drawn_with_replacement():
    assert set(draws(EmpiricalTrace(durations_s=(0.01, 0.02)))) == {0.01, 0.02}


SLOWDOWNS = Slowdowns(factor=3.0, every_s=20.0, lasting_s=5.0)
MOMENTS = np.arange(0.0, 50_000.0, 0.5)


def slow_at(rack: int, *, seed: int = 0) -> np.ndarray:
    one = SLOWDOWNS.of_rack(rack, seed=seed)
    factors = np.array([one.factor_at(float(at_s)) for at_s in MOMENTS])
    assert set(factors) == {1.0, 3.0}
    return factors > 1.0


def test_a_rack_is_slow_as_often_and_as_long_as_asked_for():
    slow = slow_at(0)
    assert not slow[0]
    begins = np.flatnonzero(~slow[:-1] & slow[1:])
    # 2,000 cycles of 25 s, less those that fall between two looks: 4.8 % of slowdowns, and 1.2 % of what is between
    # them, are too short. Cycles have standard deviation 20.6 s, so their number has 1.8 %; five of it.
    assert len(begins) == pytest.approx(2000 * (1 - 0.06), rel=0.09)
    # The share of time is lasting / (every + lasting); its standard deviation is 2.5 % here; five of it.
    assert slow.mean() == pytest.approx(0.2, rel=0.125)


def test_racks_and_seeds_are_slow_independently_of_each_other():
    correlations = np.corrcoef([slow_at(0), slow_at(1), slow_at(0, seed=1)])[np.triu_indices(3, k=1)]
    # Slowness is forgotten as exp(-t (1/20 + 1/5)), so 50,000 s are worth 12,500 independent pairs: 0.9 %; five of it.
    assert np.abs(correlations).max() < 0.045


def test_who_shares_a_rack_sees_the_same_whiles_in_whichever_order_they_ask():
    forward, backward = (SLOWDOWNS.of_rack(2, seed=7) for _ in range(2))
    moments = MOMENTS[:2000].tolist()
    seen = [forward.factor_at(at_s) for at_s in moments]
    assert [backward.factor_at(at_s) for at_s in reversed(moments)] == seen[::-1]


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
        lambda: Gamma(mean_s=1, cv=0),
        lambda: Pareto(min_s=0, shape=2),
        lambda: Pareto(min_s=1, shape=1),
        lambda: EmpiricalTrace(durations_s=()),
        lambda: EmpiricalTrace(durations_s=(float("nan"),)),
        lambda: Stalls(steps=Constant(mean_s=1), probability=1.1, factor=2),
        lambda: Stalls(steps=Constant(mean_s=1), probability=0.1, factor=0.5),
        lambda: Slowdowns(factor=0.5, every_s=1, lasting_s=1),
        lambda: Slowdowns(factor=2, every_s=0, lasting_s=1),
        lambda: Slowdowns(factor=2, every_s=1, lasting_s=float("inf")),
    ],
)
def test_impossible_values_are_refused(make: type[PlesioError]):
    with pytest.raises(ConfigError, match=r"write|needs"):
        make()
