import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio_planning.theory.changing_bound import changing_bound, chosen_bound, staleness_of_lead, varying_staleness
from plesio_planning.theory.chosen_staleness import in_flight_sgd, scheduled_sgd, worst_descent
from plesio_planning.theory.convergence import asynchronous_nonconvex
from plesio_planning.theory.stability import stability_limit

EACH = 12
schedules = st.lists(st.tuples(st.integers(0, EACH - 1), st.floats(1e-4, 2e-3)), min_size=1, max_size=5)


def _by_update(schedule: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Every update's bound and rate; as many under the first bound once more before the start."""
    whole = [schedule[0], *schedule]
    return [bound for bound, _ in whole for _ in range(EACH)], [rate for _, rate in whole for _ in range(EACH)]


@given(schedule=schedules)
def test_the_parts_are_the_sums_over_all_updates(schedule: list[tuple[int, float]]):
    bounds, rates = _by_update(schedule)
    updates = range(EACH, len(bounds))
    total = sum(rates[t] for t in updates)
    windows = sum(rates[t] * sum(rates[j] ** 2 for j in range(t - bounds[t], t)) for t in updates)
    bound = changing_bound(
        smoothness=2,
        gap=3,
        gradient_variance=5,
        bounds=tuple(s for s, _ in schedule),
        learning_rates=tuple(rate for _, rate in schedule),
        num_steps_each=EACH,
    )
    assert bound.parts == pytest.approx(
        {
            "start": 2 * 3 / total,
            "noise": 2 * 5 * sum(rates[t] ** 2 for t in updates) / total,
            "staleness": 2 * 4 * 5 * windows / total,
        }
    )


@given(schedule=schedules)
def test_the_premise_is_the_largest_over_all_updates(schedule: list[tuple[int, float]]):
    whole = [*schedule, schedule[-1]]  # what follows the last bound is under it
    bounds, rates = _by_update(whole)
    reached = [
        sum(rates[t] * bounds[t] for t in range(j + 1, len(bounds)) if t - bounds[t] <= j)
        for j in range(EACH, len(bounds) - EACH)
    ]
    expected = max(
        rate * 2 * (1 + 2 * 2 * each) for rate, each in zip(rates[EACH : len(bounds) - EACH], reached, strict=True)
    )
    setting = {"bounds": tuple(s for s, _ in schedule), "learning_rates": tuple(rate for _, rate in schedule)}
    bound = changing_bound(smoothness=2, **setting, num_steps_each=EACH)  # type: ignore[arg-type]
    assert bound.conditions[1].value == pytest.approx(expected)


@given(staleness=st.integers(0, 40), rate=st.floats(1e-4, 0.01), phases=st.integers(1, 4))
def test_a_bound_that_does_not_change_is_lians(staleness: int, rate: float, phases: int):
    same = changing_bound(bounds=(staleness,) * phases, learning_rates=(rate,), num_steps_each=100)
    lian = asynchronous_nonconvex(max_staleness=staleness, learning_rate=rate, num_steps=100 * phases)
    assert same.parts == pytest.approx(lian.parts)
    assert same.conditions[1].value == pytest.approx(lian.conditions[0].value)


@given(bounds=st.lists(st.integers(0, 50), min_size=1, max_size=6), smoothness=st.floats(0.1, 10))
def test_rates_by_the_bounds_in_force_suffice_and_cost_their_harmonic_mean(bounds: list[int], smoothness: float):
    larger = [max(pair) for pair in zip(bounds, [*bounds[1:], bounds[-1]], strict=True)]
    bound = changing_bound(
        smoothness=smoothness,
        gap=7,
        bounds=tuple(bounds),
        learning_rates=tuple(1 / (math.sqrt(2) * smoothness * (1 + s)) for s in larger),
        num_steps_each=50,
    )
    harmonic = len(larger) / sum(1 / (1 + s) for s in larger)
    assert bound.parts["start"] == pytest.approx(2 * math.sqrt(2) * smoothness * 7 * harmonic / (50 * len(bounds)))


def test_the_remedies_satisfy_the_premise():
    with pytest.raises(ConfigError, match=r"write learning_rates of at most 0\.04323$"):
        changing_bound(learning_rates=(0.05,))
    changing_bound(learning_rates=(0.0432,))
    with pytest.raises(ConfigError, match=r"write learning_rates of at most 0\.04159, 0\.04159, 0\.1414, 0\.7071$"):
        changing_bound(learning_rates=(0.05, 0.05, 0.05, 0.1))
    changing_bound(learning_rates=(0.04159, 0.04159, 0.1414, 0.7071))
    with pytest.raises(ConfigError, match="write a num_steps_each of at least 16"):
        changing_bound(num_steps_each=15)
    with pytest.raises(ConfigError, match="learning_rates has 2 values for 4 bounds; write 1, or 4"):
        changing_bound(learning_rates=(0.01, 0.02))
    with pytest.raises(ConfigError, match=r"write a learning_rate of at most 0\.04323"):
        chosen_bound(learning_rate=0.0433)


def test_a_rate_fit_for_each_bound_is_not_fit_for_the_bound_that_follows():
    """Updates under the first bound are in the windows of the second."""
    with pytest.raises(ConfigError, match="does not hold"):
        changing_bound(bounds=(0, 16), learning_rates=(0.9, 0.04))
    changing_bound(bounds=(16, 0), learning_rates=(0.04, 0.9))


@pytest.mark.parametrize(
    ("bounds", "rates"),
    [
        ((0, 40), (0.015,)),
        ((40, 0, 40, 0), (0.0172, 0.0172, 0.0172, 0.7)),
        ((2, 16, 4, 0), (0.0415, 0.0415, 0.14, 0.7)),
        ((0, 0, 0, 0, 0, 0, 0, 0, 0, 40), (0.01,)),
    ],
)
def test_simulated_sgd_stays_below_the_bound(bounds: tuple[int, ...], rates: tuple[float, ...]):
    error = scheduled_sgd(learning_rates=rates, bounds=bounds, num_steps_each=500, num_runs=100)
    setting = {"bounds": bounds, "learning_rates": rates, "num_steps_each": 500}
    assert error <= changing_bound(gap=math.log(2) / 2, **setting).value  # type: ignore[arg-type]


def _harmful(*, step: float, bound: int, num_steps: int, num_runs: int = 40) -> float:
    """Mean squared gradient on x²/2 where, having seen all updates, somebody uses the iterate that does most harm."""
    random = np.random.default_rng(0)
    x = np.zeros((num_steps + 1, num_runs))
    for t in range(num_steps):
        window = x[max(t - bound, 0) : t + 1]
        late = np.where(x[t] > 0, window.min(axis=0), window.max(axis=0))
        x[t + 1] = x[t] - step * (late + random.choice((-1.0, 1.0), size=num_runs))
    return float(np.mean(x[:-1] ** 2))


def test_who_has_seen_all_updates_stays_below_the_bound_of_rules():
    bound, num_steps = 16, 4000
    step = chosen_bound(max_bound=bound).also["largest learning rate"] * (1 - 1e-9)
    error = _harmful(step=step, bound=bound, num_steps=num_steps)
    constant = in_flight_sgd(
        step=step, num_workers=bound, max_staleness=bound, num_steps=num_steps, peeks=False, num_runs=40
    )
    allowed = chosen_bound(gap=1e-9, max_bound=bound, learning_rate=step, num_steps=num_steps)
    assert 1.2 * constant < error <= allowed.value


def test_who_sees_gradients_in_flight_breaks_both():
    bound, num_steps = 256, 4000
    step = chosen_bound(max_bound=bound, learning_rate=1e-6).also["largest learning rate"] * (1 - 1e-9)
    setting = {"step": step, "num_workers": 128, "max_staleness": bound, "num_steps": num_steps, "num_runs": 10}
    allowed = chosen_bound(gap=1e-9, max_bound=bound, learning_rate=step, num_steps=num_steps).value
    assert in_flight_sgd(**setting, peeks=False) < allowed / 5  # type: ignore[arg-type]
    assert in_flight_sgd(**setting, peeks=True) > 2 * allowed  # type: ignore[arg-type]


def test_a_rate_beyond_the_premise_can_diverge():
    """At 2.5 times the premise's limit, which is beyond the exact one of constant staleness."""
    step = 2.5 * chosen_bound(max_bound=16).also["largest learning rate"]
    assert max(map(abs, worst_descent(step=step, max_staleness=16, num_steps=2000)[-50:])) > 1e6


def _swings(step: float, staleness: int) -> tuple[float, float]:
    """The largest error early in a descent whose staleness changes as badly as we know, and at its end."""
    period = 4 * (staleness + 1)
    error = np.abs(worst_descent(step=step, max_staleness=staleness, num_steps=150 * period))
    return float(error[50 * period : 53 * period].max()), float(error[-3 * period :].max())


@pytest.mark.parametrize("staleness", [0, 1, 2, 5, 12, 30])
def test_the_worst_changes_converge_at_yorkes_limit(staleness: int):
    limit = varying_staleness(max_staleness=staleness).value
    early, late = _swings(limit, staleness)
    assert late < 0.5 * early or late < 1e-12
    assert limit < stability_limit(staleness=staleness)


@pytest.mark.parametrize("staleness", [2, 5, 12, 30])
def test_changes_make_diverge_what_converges_with_constant_staleness(staleness: int):
    early, late = _swings(0.97 * stability_limit(staleness=staleness), staleness)
    assert late > 1.1 * early


def _stalest(choices: list[int], *, lead: int, num_workers: int) -> int:
    """The largest staleness where each choice lets a worker pull and begin a step, if its lead allows it, or push."""
    clocks, pulled, version, stalest = [0] * num_workers, [-1] * num_workers, 0, 0
    for choice in choices:
        worker = choice % num_workers
        if pulled[worker] >= 0:
            stalest = max(stalest, version - pulled[worker])
            clocks[worker], pulled[worker], version = clocks[worker] + 1, -1, version + 1
        elif clocks[worker] - min(clocks) <= lead:
            pulled[worker] = version
    return stalest


@given(
    num_workers=st.integers(1, 5), lead=st.integers(0, 3), choices=st.lists(st.integers(0, 4), min_size=1, max_size=300)
)
def test_no_schedule_under_a_lead_makes_an_update_staler(num_workers: int, lead: int, choices: list[int]):
    allowed = staleness_of_lead(lead, num_workers=num_workers)
    assert _stalest(choices, lead=lead, num_workers=num_workers) <= allowed


@pytest.mark.parametrize(("num_workers", "lead"), [(2, 0), (3, 2), (5, 4)])
def test_a_schedule_makes_an_update_as_stale_as_its_lead_allows(num_workers: int, lead: int):
    """Worker 0 is ahead as far as it may when it pulls, and behind as far as the others may leave it when it pushes."""
    others = [worker for worker in range(1, num_workers) for _ in range(2)]  # each pulls and pushes
    choices = [0, 0] * lead + [0] + others * (2 * lead + 1) + [0]
    assert _stalest(choices, lead=lead, num_workers=num_workers) == staleness_of_lead(lead, num_workers=num_workers)
