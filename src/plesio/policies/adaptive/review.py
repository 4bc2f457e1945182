"""When workers report and when the answer holds; and how their reports become one `Reading`.

A worker reports after the step that ends at the *review's* clock, goes on, and takes the answer after the step that
ends at the clock from which it *holds*. Both are named by the answer before, so all ranks know them without asking, and
all change at the same clock: a collective that one of them starts, all start.

The answer must be there when it is wanted, or somebody waits. It can be given once the slowest worker has reported:

    setting period H, delay d         review                   holds
    no delay                          two steps before         after an averaging: everybody has been in it
    delay d                           at an averaging's start  when it is merged: it is complete, so all have reported

So a review makes nobody wait for anybody that the setting in force does not make wait already.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plesio.policies.adaptive.gradient import GradientSample, gradient_figures
from plesio.policies.adaptive.reading import GradientFigures, Reading
from plesio.policies.adaptive.setting import Setting
from plesio.policies.events import Reviewed
from plesio.policies.fields import require_whole
from plesio.policies.steered import LEAD

__all__ = ["FIRST_CLOCK", "FIRST_REVIEW", "GradientPairs", "Movement", "ReviewConfig", "next_review", "put_together"]

FIRST_REVIEW = 2
"""Clock of the first review: slow workers should not be waited for for long."""
FIRST_CLOCK = FIRST_REVIEW + LEAD
_FIRST_INTERVAL = 4
"""Steps between the first reviews, while half of the steps so far are fewer than `ReviewConfig.every`."""
_USUAL_STEPS = 16
"""Between two reviews, to which speeds are brought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewConfig:
    """How often workers report.

    Args:
        every: Steps between two reviews, at least; the period and delay in force may make it more. At the beginning
            they come sooner, after half as many steps as there have been.
        sample_every: Of so many steps, the gradients of the first two are sampled (32: 6 % of steps).
        sketch: Numbers in a sketch of a gradient.

    Raises:
        PolicySpecError: A value out of its range.
    """

    every: int = 16
    sample_every: int = 32
    sketch: int = 64

    def __post_init__(self) -> None:
        require_whole("adaptive", "review.every", self.every, minimum=4)
        require_whole("adaptive", "review.sample_every", self.sample_every, minimum=2)
        require_whole("adaptive", "review.sketch", self.sketch, minimum=8)

    def interval(self, since: int, *, trial: bool) -> int:
        """Steps to the next review after ``since`` steps, at least; half as many while a change is on trial.

        >>> [ReviewConfig().interval(since, trial=False) for since in (0, 5, 12, 20, 100)]
        [4, 4, 6, 10, 16]
        """
        most = self.every // 2 if trial else self.every
        return max(_FIRST_INTERVAL, min(most, since // 2))

    def samples_at(self, clock: int) -> bool:
        """Whether the gradient of the step that ends at ``clock`` is sampled.

        >>> [clock for clock in range(1, 70) if ReviewConfig().samples_at(clock)]
        [1, 2, 33, 34, 65, 66]
        """
        return (clock - 1) % self.sample_every < 2


def next_review(since: int, *, setting: Setting, every: int) -> tuple[int, int]:
    """Clock of the next review and clock at which its answer holds, if ``setting`` is in force after ``since``.

    >>> next_review(5, setting=Setting.of(period=1, delay=0), every=16)
    (19, 21)
    >>> next_review(21, setting=Setting.of(period=8, delay=4), every=16)
    (40, 44)
    """
    least = since + max(every, setting.delay + LEAD, 2 * LEAD)
    started = -(-(least - setting.delay) // setting.period) * setting.period
    holds = started + setting.delay
    return min(started, holds - LEAD), holds


class GradientPairs:
    """Collects the sampled gradients of reviews until a pair of consecutive steps is complete."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, GradientSample]] = {}

    def take(self, reviews: Mapping[int, Reviewed]) -> GradientFigures | None:
        """The figures of the newest complete pair, if these reviews completed one."""
        for worker, review in reviews.items():
            rows = self._rows.setdefault(worker, {})
            for clock, norm_sq, *sketch in review.gradients:
                rows[int(clock)] = GradientSample(norm_sq=norm_sq, sketch=tuple(sketch))
        workers = sorted(reviews)
        common = set.intersection(*(set(self._rows[worker]) for worker in workers))
        firsts = [clock for clock in common if clock + 1 in common]
        if not firsts:
            return None
        first = max(firsts)
        pairs = {worker: (self._rows[worker][first], self._rows[worker][first + 1]) for worker in workers}
        self._rows.clear()
        batches = [max(1.0, statistics.fmean(reviews[worker].samples)) for worker in workers]
        return gradient_figures(pairs, batch_samples=batches)


class Movement:
    """How fast the shared parameters go, by the sketches that workers send of theirs.

    Sketches are linear, so their mean is that of the mean parameters, and the difference of two that of the way. Over n
    steps of one rate a way is as long as n where all gradients point the same way, and as the root of n where they are
    noise. So speeds of reviews of other lengths than 16 steps are made comparable by n to the three quarters: between
    16 and 48 steps that is right within a third.

    >>> movement = Movement()
    >>> every = {"samples": (), "compute_s": (), "blocked_s": (), "summed_rate": 0.5}
    >>> places = {16: (1.0, 2.0), 32: (4.0, -2.0)}
    >>> [movement.take({0: Reviewed(worker=0, clock=n, position=place, **every)}) for n, place in places.items()]
    [nan, 10.0]
    """

    __slots__ = ("_before", "_clock")

    def __init__(self) -> None:
        self._before: tuple[float, ...] = ()
        self._clock = 0

    def take(self, reviews: Mapping[int, Reviewed]) -> float:
        """The length of the way since the reviews before, over the sum of the rates; NaN where it is not known."""
        clock = next(iter(reviews.values())).clock
        num_steps, self._clock = max(1, clock - self._clock), clock
        positions = [review.position for review in reviews.values()]
        before, self._before = self._before, tuple(map(statistics.fmean, zip(*positions, strict=True)))
        summed_rate = statistics.fmean(review.summed_rate for review in reviews.values())
        if not before or not self._before or summed_rate <= 0:
            return math.nan
        return math.dist(before, self._before) / summed_rate * math.pow(num_steps / _USUAL_STEPS, 0.25)

    def forget(self) -> None:
        """The parameters will leap: back, or to where what was under way is merged. Training has not come that way."""
        self._before = ()


def put_together(
    reviews: Mapping[int, Reviewed],
    *,
    gradient: GradientFigures | None,
    metric: float | None,
    speed: float = math.nan,
) -> Reading:
    """One reading of what all workers report at one clock."""
    any_review = next(iter(reviews.values()))
    losses = [review.loss for review in reviews.values() if not math.isnan(review.loss)]
    return Reading(
        clock=any_review.clock,
        num_steps=len(any_review.compute_s),
        learning_rate=any_review.learning_rate,
        loss=_mean(losses),
        worst_loss=max(losses, default=math.nan),
        typical_loss=statistics.median(losses) if losses else math.nan,
        loss_error=_standard_error(losses),
        num_workers=len(reviews),
        num_racks=len({review.rack for review in reviews.values()}),
        normalises=any_review.normalises,
        num_refused=sum(review.num_refused for review in reviews.values()),
        num_clipped=max(review.num_clipped for review in reviews.values()),
        gradient=gradient,
        speed=speed,
        metric=metric,
        progress=_mean([review.progress for review in reviews.values()]) if any_review.progress >= 0 else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _standard_error(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.stdev(finite) / math.sqrt(len(finite)) if len(finite) > 1 else math.nan
