"""How fast the shared parameters go between two reviews."""

import math
from collections.abc import Sequence

import pytest

from plesio.policies import Reviewed
from plesio.policies.adaptive.readings.review import Movement


def at(clock: int, *positions: Sequence[float], summed_rate: float = 1.0) -> dict[int, Reviewed]:
    return {
        worker: Reviewed(
            worker=worker,
            clock=clock,
            samples=(),
            compute_s=(),
            blocked_s=(),
            position=tuple(position),
            summed_rate=summed_rate,
        )
        for worker, position in enumerate(positions)
    }


def test_it_is_the_way_of_the_mean_over_workers_over_the_rates():
    movement = Movement()
    assert math.isnan(movement.take(at(16, (0.0, 0.0), (2.0, 0.0))))
    assert movement.take(at(32, (3.0, 5.0), (5.0, 3.0), summed_rate=0.5)) == pytest.approx(5.0 / 0.5)
    assert movement.take(at(48, (9.0, 4.0), (-1.0, 4.0))) == 0.0  # they have gone apart


@pytest.mark.parametrize("num_steps", [8, 16, 24, 48])
@pytest.mark.parametrize("power", [0.5, 1.0], ids=["noise", "one direction"])
def test_reviews_of_any_length_are_alike_within_a_third(num_steps: int, power: float):
    movement = Movement()
    movement.take(at(100, (0.0,)))
    way = 16 * (num_steps / 16) ** power
    speed = movement.take(at(100 + num_steps, (way,), summed_rate=0.1 * num_steps))
    assert 10 / 1.32 < speed < 10 * 1.32


def test_without_a_position_before_or_now_or_a_rate_it_is_not_known():
    movement = Movement()
    movement.take(at(16, (0.0,), (0.0,)))
    assert math.isnan(movement.take(at(32, (), ())))
    assert math.isnan(movement.take(at(48, (1.0,), (1.0,))))
    assert movement.take(at(64, (2.0,), (2.0,))) == 1.0
    assert math.isnan(movement.take(at(80, (2.0,), (2.0,), summed_rate=0.0)))
    movement.forget()
    assert math.isnan(movement.take(at(96, (3.0,), (3.0,))))
    assert math.isnan(movement.take(at(112, (math.nan,), (3.0,))))
