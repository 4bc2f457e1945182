"""The controller on trial: its test of a change by the loss's trend, and its beliefs about what a step is worth."""

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EVIDENCE = Path(__file__).parents[4] / "benchmarks" / "evidence"
NOISE = 0.01


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EVIDENCE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "progress"]:
        del sys.modules[name]


def losses(*, clock: int, num: int, lost: float, seed: int) -> list[Any]:
    """Losses of a run that makes steps worth ``1 - lost`` from ``clock`` on, one a review."""
    from progress.trend import Point

    chance = random.Random(seed)
    found = []
    for review in range(num):
        at = 16 * (review + 1)
        steps = at if at <= clock else clock + (at - clock) * (1 - lost)
        found.append(Point(at, math.exp(-steps / 200) + chance.gauss(0.0, NOISE), NOISE))
    return found


def fails(*, lost: float, seed: int) -> bool:
    from progress.trend import Trial

    points = losses(clock=96, num=12, lost=lost, seed=seed)
    trial = Trial(tuple(points[:6]))
    for point in points[6:]:
        trial.add(point)
        if trial.exceeds(0.01, margin=trial.mean_fall / 2):
            return True
    return False


def test_a_change_that_costs_nothing_is_next_to_never_taken_back():
    assert sum(fails(lost=0.0, seed=seed) for seed in range(200)) <= 2


def test_a_change_that_ends_all_progress_is_taken_back():
    assert sum(fails(lost=1.5, seed=seed) for seed in range(50)) >= 45


@pytest.fixture
def worth() -> Any:
    from progress.numbers import Numbers
    from progress.worth import Reading, Worth

    worth = Worth(Numbers())
    worth.observe(Reading(clock=16, num_steps=16, learning_rate=0.1, num_workers=4), momentum=0.0)
    return worth


def local(period: int) -> Any:
    from progress.worth import Setting

    return Setting.of(period=period, delay=0)


def test_more_slack_is_worth_less(worth: Any):
    by_slack = [worth.of(local(period), drift=period - 1) for period in (2, 4, 8, 16)]
    assert [mean for mean, _ in by_slack] == sorted((mean for mean, _ in by_slack), reverse=True)
    assert worth.of(local(1), drift=0) == (0.0, 0.0)


def test_what_failed_is_believed_to_lose_as_much_and_what_is_looser_more(worth: Any):
    failed, looser = local(4), local(8)
    worth.fail(failed, drift=3, lost=0.5)
    assert worth.of(failed, drift=3)[0] == pytest.approx(-0.5)
    assert worth.of(looser, drift=7)[0] < -0.5


def test_a_trial_that_passes_leaves_less_doubt(worth: Any):
    setting = local(4)
    before = worth.of(setting, drift=3)
    worth.passed(setting, drift=3, found=(math.log(0.7), 0.05))
    mean, deviation = worth.of(setting, drift=3)
    assert deviation < before[1]
    assert math.log(0.7) < mean < before[0]
