import math

import numpy as np
import pytest

from plesio_planning.studies import consistency
from plesio_planning.studies.delayed_descent import LateUpdates, descend
from plesio_planning.studies.models.consistency import Consistency


def alone(**inputs: float) -> Consistency:
    """One situation; its maps have no other."""
    ratio, cv, slowdown = inputs.get("ratio", 1.0), inputs.get("cv", 0.3), inputs.get("slowdown", 1.0)
    return consistency(ratios=(ratio,), cvs=(cv,), slowdowns=(slowdown,), **inputs)  # type: ignore[arg-type]


def test_a_barrier_is_charged_to_whoever_waits_at_it():
    """Without communication and without variation nobody waits; with variation only barriers do."""
    even, uneven = alone(ratio=0.0, cv=0.0).at, alone(ratio=0.0, cv=0.6).at
    bsp = even.best_of("BSP")
    assert bsp.time_s == pytest.approx(bsp.computing_s)
    waits = uneven.best_of("BSP")
    assert waits.time_s > 1.5 * waits.computing_s
    free = uneven.best_of("asynchronous")
    assert free.time_s < 1.1 * free.computing_s


def test_who_wins_where():
    """Every account agrees: a barrier where all is even, local steps where communication is dear, slack where steps
    vary and it is cheap.
    """
    assert alone(ratio=0.01, cv=0.0).at.winner.family == "BSP"
    assert alone(ratio=10.0, cv=0.1).at.winner.family == "local SGD"
    assert alone(ratio=0.01, cv=0.6).at.winner.family in ("SSP", "asynchronous")


def test_hidden_communication_ties():
    """All of it behind a step: local steps have nothing left to save, and the strictest wins."""
    at = alone(ratio=1.0, cv=0.0, overlap=1.0).at
    assert at.winner.family == "BSP"
    assert at.gain == 1
    local = [each for each in at.contenders if each.spec == "local_sgd:2"]
    assert local[0].time_s < 1.05 * at.best_of("BSP").time_s


def test_ssp_settles_at_the_pace_of_a_worker_that_is_slow_for_good():
    answer = consistency(ratios=(0.01,), cvs=(0.1,), slowdowns=(1.0, 4.0), ratio=0.01, cv=0.1)
    even, slow = answer.persistent
    assert slow.best_of("BSP").time_s / even.best_of("BSP").time_s == pytest.approx(4.0, rel=0.15)
    assert slow.best_of("SSP").time_s > 0.9 * slow.best_of("BSP").time_s
    assert slow.rebalanced_s < 1.3 * even.best_of("BSP").time_s
    assert slow.rebalanced_s < min(each.time_s for each in slow.contenders)


def test_ssp_helps_against_transient_stragglers():
    at = alone(ratio=0.01, cv=0.6).at
    assert at.best_of("SSP").time_s < 0.8 * at.best_of("BSP").time_s


def test_the_variance_of_delayed_updates_is_the_delay_equations():
    """Eight workers in turn have a constant staleness of 7; within a tenth of ``(1 + sin aT) / (2a cos aT)``."""
    step, noise, delay = 0.4, 0.3, 7
    one, rate = np.array([1.0]), 0.4 / 8
    going = descend(
        eigenvalues=one,
        start=0.1 * one,
        updates=LateUpdates.of(np.full(400_000, delay), steps=step / 8),
        target=0.0,
        noise=noise,
        random=np.random.default_rng(0),
    )
    angle = rate * delay
    expected = (step / 8 * noise) ** 2 * (1 + math.sin(angle)) / (2 * rate * math.cos(angle))
    assert np.square(going.distance[1000:]).mean() == pytest.approx(expected, rel=0.1)


def test_the_title_names_what_helps_against_a_slow_worker() -> None:
    def title(slowdowns: tuple[float, ...]) -> str:
        return consistency(ratios=(1.0,), cvs=(0.0,), slowdowns=slowdowns, periods=(2,), bounds=(1,)).charts()[2].title

    assert title((1.0,)) == "Where nobody is slow for good, there is nothing to rebalance"
    assert title((1.0, 4.0)).startswith("Against a worker that is 4 times slower for good, ")


def test_curves_end_at_the_target_when_the_contenders_are_there():
    answer = alone()
    for spec, curve in answer.curves.items():
        (contender,) = [each for each in answer.at.contenders if each.spec == spec]
        times_s, losses = list(curve), list(curve.values())
        assert times_s == sorted(times_s)
        assert times_s[-1] == pytest.approx(contender.time_s, rel=0.02)
        assert losses[-1] <= 1.001e-3 < losses[0]
