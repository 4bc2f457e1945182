import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from plesio.policies.adaptive.config.phase import PhaseConfig
from plesio.policies.adaptive.readings.reading import ComponentAdvice, GradientFigures, Reading
from plesio.policies.adaptive.training.phase import PhaseDetector
from plesio.policies.adaptive.training.verdict import Direction, Phase

STEPS = 16


def gradient(mean_norm_sq: float, *, noise: float = 1.0) -> GradientFigures:
    return GradientFigures(
        norm_sq=max(mean_norm_sq, 0.0) + noise,
        mean_norm_sq=mean_norm_sq,
        within=noise,
        between=noise,
        noise_scale=noise / mean_norm_sq if mean_norm_sq > 0 else math.inf,
    )


def readings(
    *,
    rates: Sequence[float] | float,
    losses: Sequence[float] | None = None,
    metrics: Sequence[float | None] | None = None,
    gradients: Sequence[GradientFigures | None] | None = None,
    num_planned: int | None = None,
) -> list[Reading]:
    """One reading for each element; ``num_planned`` readings are all of the run, and None makes progress unknown."""
    figures: dict[str, Sequence[Any] | None] = {"loss": losses, "metric": metrics, "gradient": gradients}
    given_figures = {name: values for name, values in figures.items() if values is not None}
    num = len(rates) if isinstance(rates, Sequence) else len(next(iter(given_figures.values())))
    return [
        Reading(
            clock=STEPS * (number + 1),
            num_steps=STEPS,
            learning_rate=rates[number] if isinstance(rates, Sequence) else rates,
            progress=None if num_planned is None else (number + 1) / num_planned,
            **{name: values[number] for name, values in given_figures.items()},
        )
        for number in range(num)
    ]


def phases_of(run: Iterable[Reading], config: PhaseConfig | None = None) -> list[Phase]:
    """The phase after each reading."""
    detector = PhaseDetector(config or PhaseConfig())
    phases = []
    for reading in run:
        detector.observe(reading)
        phases.append(detector.phase)
    return phases


def changes(phases: Sequence[Phase]) -> list[tuple[int, Phase]]:
    """(number of the reading, phase) wherever the phase differs from the one before; a run begins critical."""
    pairs = itertools.pairwise(["critical", *phases])
    return [(number, after) for number, (before, after) in enumerate(pairs) if before != after]


def decay(num: int, *, start: float = 2.0, floor: float = 0.1, reviews: float = 2.0) -> list[float]:
    return [floor + (start - floor) * math.exp(-number / reviews) for number in range(num)]


def cosine(num: int, *, top: float = 1.0) -> list[float]:
    return [top * (1 + math.cos(math.pi * (number + 1) / num)) / 2 for number in range(num)]


def warm_up(num: int, *, top: float = 1.0) -> list[float]:
    return [top * (number + 1) / num for number in range(num)]


# The learning rate


def test_warm_up_is_critical_until_the_rate_rises_no_more():
    assert changes(phases_of(readings(rates=warm_up(6) + [1.0] * 20))) == [(6, "stable")]


def test_end_of_warm_up_ends_the_critical_phase_though_the_loss_still_falls():
    losses = decay(26, reviews=10)
    assert changes(phases_of(readings(rates=warm_up(6) + [1.0] * 20, losses=losses))) == [(6, "stable")]


def test_warm_up_that_ends_within_a_review_is_over_if_less_than_half_of_it_rose():
    assert changes(phases_of(readings(rates=[0.3, 0.6, 0.9, 1.0, 1.0, 1.0]))) == [(3, "stable")]
    assert changes(phases_of(readings(rates=[0.28, 0.56, 0.84, 1.0, 1.0, 1.0]))) == [(4, "stable")]


def test_warm_up_in_stairs_is_one_rise():
    stairs = [level / 5 for level in range(1, 6) for _ in range(4)]
    assert changes(phases_of(readings(rates=stairs + [1.0] * 20))) == [(21, "stable")]


def test_cosine_is_final_when_a_twentieth_of_its_sum_is_left():
    found = changes(phases_of(readings(rates=warm_up(4) + cosine(100))))
    assert [phase for _, phase in found] == ["stable", "final"]
    left = 1 - sum(cosine(100)[: found[1][0] - 4]) / sum(cosine(100))
    assert left == pytest.approx(0.05, abs=0.01)


def test_straight_line_is_final_when_a_twentieth_of_its_sum_is_left():
    line = [1 - (number + 1) / 100 for number in range(100)]
    found = changes(phases_of(readings(rates=warm_up(4) + line)))
    left = 1 - sum(line[: found[1][0] - 4]) / sum(line)
    assert left == pytest.approx(0.05, abs=0.01)


def test_step_of_a_step_decay_is_final_only_if_it_is_deep():
    rates = warm_up(4) + [1.0] * 20 + [0.3] * 20 + [0.09] * 20
    assert changes(phases_of(readings(rates=rates))) == [(4, "stable"), (44, "final")]


def test_constant_rate_is_final_when_little_progress_is_left():
    run = readings(rates=[0.1] * 100, num_planned=100)
    assert changes(phases_of(run))[-1] == (94, "final")  # 5 % is after the 95th; the next review counts by its middle


def test_without_progress_a_constant_rate_is_never_final():
    assert "final" not in phases_of(readings(rates=[0.1] * 500))


def test_progress_of_a_resumed_run_counts_from_where_it_was_resumed():
    whole = readings(rates=[0.1] * 100, num_planned=100)
    assert phases_of(whole[50:])[-8:] == ["stable"] * 5 + ["final"] * 3  # 1/20 of 50 readings


def test_final_phase_is_not_left_where_the_annealing_slows_down():
    floor = [0.1 + 0.9 * rate for rate in cosine(60)]
    found = phases_of(readings(rates=warm_up(4) + floor + [0.1] * 10))
    assert [phase for _, phase in changes(found)] == ["stable", "final"]


def test_restart_is_critical_and_then_has_a_final_phase_of_its_own():
    found = changes(phases_of(readings(rates=warm_up(4) + cosine(120) + cosine(120))))
    assert [phase for _, phase in found] == ["stable", "final", "critical", "stable", "final"]
    assert found[2][0] == 124
    assert found[3][0] - 124 == 3  # a twentieth of what is as much as 60 reviews at the full rate


def test_smaller_changes_of_the_rate_begin_no_cycle():
    rates = warm_up(4) + [1.0, 0.95] * 50
    assert changes(phases_of(readings(rates=rates))) == [(4, "stable")]


def test_rise_from_zero_is_one():
    assert changes(phases_of(readings(rates=[0.0, 0.5, 1.0, 1.0, 1.0]))) == [(3, "stable")]


# Loss, gradient and metric, where the rate says nothing


def test_start_is_critical_until_the_loss_has_made_most_of_its_fall():
    losses = decay(60, reviews=4)
    [(number, phase)] = changes(phases_of(readings(rates=0.1, losses=losses)))
    assert phase == "stable"
    assert 0.05 < (losses[number] - losses[-1]) / (losses[0] - losses[-1]) < 0.35


@settings(max_examples=10)
@given(reviews=st.floats(4, 50), unit=st.floats(1e-9, 1e9))
def test_start_ends_at_the_same_height_whatever_its_time_constant_and_unit(reviews: float, unit: float):
    losses = decay(160, start=unit, floor=0.01 * unit, reviews=reviews)
    found = changes(phases_of(readings(rates=0.1, losses=losses)))
    assert found[-1][1] == "stable"
    assert 0.05 < losses[found[-1][0]] / losses[0] < 0.25


@settings(max_examples=10)
@given(st.floats(1e-9, 1e9))
def test_unit_of_the_loss_does_not_matter(unit: float):
    losses = decay(30, reviews=3) + decay(30, reviews=3)
    plain, scaled = (readings(rates=0.1, losses=[factor * loss for loss in losses]) for factor in (1.0, unit))
    assert phases_of(plain) == phases_of(scaled)


def test_trained_model_is_stable_as_soon_as_the_loss_is_seen_not_to_fall():
    losses = [1.75, 1.80, 1.72, 1.78, 1.74, 1.76] * 5
    assert changes(phases_of(readings(rates=0.1, losses=losses))) == [(1, "stable")]


def test_slow_start_is_noticed_after_all():
    losses = [2.3, 2.28, 2.2, 2.0, 1.7, 1.4, 1.2, 1.0, 0.9, 0.8, *decay(40, start=0.7, reviews=3)]
    found = changes(phases_of(readings(rates=0.1, losses=losses)))
    assert [phase for _, phase in found] == ["stable", "critical", "stable"]


def test_start_waits_for_the_gradient_too():
    losses = decay(40, reviews=1)
    slow = [gradient(value**2) for value in decay(40, start=1.0, floor=0.0, reviews=10)]
    fast = [gradient(value**2) for value in decay(40, start=1.0, floor=0.0, reviews=1)]
    [(alone, _)] = changes(phases_of(readings(rates=0.1, losses=losses)))
    [(with_fast, _)] = changes(phases_of(readings(rates=0.1, losses=losses, gradients=fast)))
    [(with_slow, _)] = changes(phases_of(readings(rates=0.1, losses=losses, gradients=slow)))
    assert alone == with_fast < with_slow


def test_gradient_alone_tells_the_end_of_a_start():
    gradients = [gradient(value**2) for value in decay(40, start=2.0, floor=0.01, reviews=3)]
    [(number, phase)] = changes(phases_of(readings(rates=0.1, gradients=gradients)))
    assert phase == "stable"
    assert 2 < number < 16


def test_gradient_that_is_mostly_noise_is_a_trained_models():
    gradients = [gradient(0.02 * (-1) ** number) for number in range(20)]
    assert changes(phases_of(readings(rates=0.1, gradients=gradients))) == [(1, "stable")]


def test_metric_takes_their_place_when_it_is_all_there_is():
    rising = [1 - value for value in decay(40, start=0.9, floor=0.05, reviews=4)]
    news = [value if number % 4 == 3 else None for number, value in enumerate(rising)]
    [(number, phase)] = changes(phases_of(readings(rates=0.1, metrics=news)))
    assert phase == "stable"
    assert 4 < number < 30


def test_with_nothing_but_a_constant_rate_a_start_lasts_so_many_steps():
    config = PhaseConfig(start_steps=10 * STEPS)
    assert changes(phases_of(readings(rates=[0.1] * 30), config)) == [(9, "stable")]


def test_setback_is_a_start():
    losses = decay(40, reviews=3) + decay(40, reviews=3)
    found = changes(phases_of(readings(rates=0.1, losses=losses)))
    assert [phase for _, phase in found] == ["stable", "critical", "stable"]
    assert found[1][0] == 40  # a loss twice as far off as need be says so at once


def test_single_bad_review_is_no_setback():
    losses = [*decay(30, reviews=3), 0.6, *[0.1] * 20]
    assert len(changes(phases_of(readings(rates=0.1, losses=losses)))) == 1


def test_two_bad_reviews_are_one():
    losses = [*decay(30, reviews=3), 0.6, 0.6, *[0.1] * 20]
    assert [phase for _, phase in changes(phases_of(readings(rates=0.1, losses=losses)))] == [
        "stable", "critical", "stable",
    ]  # fmt: skip


# Hysteresis


@settings(max_examples=25)
@given(st.lists(st.floats(-0.05, 0.05), min_size=40, max_size=40))
def test_bounded_noise_does_not_make_a_trained_model_flap(noise: list[float]):
    """Within 5 % of its level a loss neither falls by 15 % nor rises by 30 %."""
    losses = [1.7 * (1 + error) for error in noise]
    assert changes(phases_of(readings(rates=0.1, losses=losses))) == [(1, "stable")]


@settings(max_examples=25)
@given(st.lists(st.floats(-0.1, 0.1), min_size=50, max_size=50), st.floats(2, 8))
def test_bounded_noise_does_not_make_a_start_flap(noise: list[float], reviews: float):
    losses = [value + error for value, error in zip(decay(50, floor=0.5, reviews=reviews), noise, strict=True)]
    found = changes(phases_of(readings(rates=0.1, losses=losses)))
    assert [phase for _, phase in found] in (["stable"], ["stable", "critical", "stable"])


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=100))
def test_worst_noise_cannot_change_the_phase_more_than_four_times_in_five_readings(losses: list[float]):
    """A setback needs four usual readings and one that is not; it leads to a start, with at most three changes more."""
    found = changes(phases_of(readings(rates=0.1, losses=losses)))
    assert len(found) <= 3 + 4 * (len(losses) / 5)


def test_heavy_tailed_noise_seldom_changes_the_phase():
    """Student's t with 3 degrees of freedom, 5 % of the level: 1,000 reviews, some of them ten deviations away."""
    rng = random.Random(0)
    noise = [rng.gauss(0, 1) / math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3) for _ in range(1_000)]
    losses = [1.7 * (1 + 0.05 * value) for value in noise]
    assert len(changes(phases_of(readings(rates=0.1, losses=losses)))) <= 5


@settings(max_examples=25)
@given(st.lists(st.floats(-1, 1), min_size=44, max_size=44))
def test_noise_of_the_gradient_says_nothing_once_the_schedule_has_spoken(noise: list[float]):
    run = readings(rates=warm_up(4) + [1.0] * 40, gradients=[gradient(value) for value in noise])
    assert changes(phases_of(run)) == [(4, "stable")]


# Anything at all

ANYTHING = st.builds(
    Reading,
    clock=st.integers(0, 2**40),
    num_steps=st.integers(0, 1_000),
    learning_rate=st.floats(),
    loss=st.floats(),
    worst_loss=st.floats(),
    num_refused=st.integers(0, 9),
    gradient=st.none()
    | st.builds(
        GradientFigures,
        norm_sq=st.floats(),
        mean_norm_sq=st.floats(),
        within=st.floats(),
        between=st.floats(),
        noise_scale=st.floats(),
    ),
    metric=st.none() | st.floats(),
    progress=st.none() | st.floats(),
)


@settings(max_examples=25)
@given(st.lists(ANYTHING, max_size=40), st.sampled_from(["first", "last", "both"]))
def test_any_readings_have_an_answer_and_always_the_same(run: list[Reading], direction: Direction):
    config = PhaseConfig(direction=direction, slack=3)

    def answers() -> list[tuple[Phase, ComponentAdvice]]:
        detector = PhaseDetector(config)
        return [(detector.phase, detector.observe(reading)) for reading in run]

    once = answers()
    assert once == answers()
    for _, advice in once:
        assert advice.slack in (3, math.inf)
        assert advice.reason
        assert all(math.isfinite(value) for value in advice.inputs.values())


@settings(max_examples=25)
@given(st.lists(ANYTHING, min_size=1, max_size=40))
def test_reason_changes_with_the_phase(run: list[Reading]):
    detector = PhaseDetector(PhaseConfig())
    before: tuple[Phase, str] = (detector.phase, "")
    for reading in run:
        advice = detector.observe(reading)
        if before[1] and detector.phase != before[0] and advice.reason != "the run is about to end":
            assert advice.reason != before[1]
        before = (detector.phase, advice.reason)


def test_long_start_keeps_its_memory_small():
    detector = PhaseDetector(PhaseConfig())
    for number in range(1_000):
        loss = 10.0 - math.log(1 + number) ** 1.01
        detector.observe(Reading(clock=number, num_steps=STEPS, learning_rate=0.1, loss=loss, gradient=gradient(loss)))
    assert detector._start is None or len(detector._start._falls["loss"].values) < 128


# Parameters


@pytest.mark.parametrize(
    ("direction", "slacks"),
    [
        ("first", {"critical": 2, "stable": math.inf, "final": math.inf}),
        ("last", {"critical": math.inf, "stable": math.inf, "final": 2}),
        ("both", {"critical": 2, "stable": math.inf, "final": 2}),
    ],
)
def test_direction_says_which_phases_are_strict(direction: Direction, slacks: dict[Phase, float]):
    detector = PhaseDetector(PhaseConfig(direction=direction, slack=2))
    seen = set()
    for reading in readings(rates=warm_up(4) + cosine(40)):
        advice = detector.observe(reading)
        assert advice.slack == slacks[detector.phase]
        seen.add(detector.phase)
    assert seen == set(slacks)


def test_direction_does_not_change_the_phases():
    run = readings(rates=warm_up(4) + cosine(40), losses=decay(44))
    first, last = (phases_of(run, PhaseConfig(direction=direction)) for direction in ("first", "last"))
    assert first == last


@pytest.mark.parametrize("rates", [[0.1] * 100, cosine(100)], ids=["constant", "cosine"])
def test_the_last_tenth_of_known_steps_is_strict_and_nothing_before_it(rates: list[float]):
    detector = PhaseDetector(PhaseConfig())
    slacks = [detector.observe(one).slack for one in readings(rates=rates, num_planned=100)]
    strict = [place for place, slack in enumerate(slacks) if slack == 0]
    assert strict == list(range(strict[0], 100))
    assert 88 <= strict[0] <= 91
