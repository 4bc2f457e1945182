"""Merges the reports of all workers into one `Reading`."""

import math
import statistics
from collections.abc import Mapping, Sequence

from plesio.policies.adaptive.readings.gradient_figures import GradientSample, gradient_figures
from plesio.policies.adaptive.readings.reading import GradientFigures, Reading
from plesio.policies.events import Reviewed

_USUAL_STEPS = 16
"""Steps between two reviews to which speeds are converted."""


class GradientPairs:
    """Collects the sampled gradients of reviews until a pair of consecutive steps is complete."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, GradientSample]] = {}

    def take(self, reviews: Mapping[int, Reviewed]) -> GradientFigures | None:
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
    """Measures the speed of the shared parameters, from the sketches of parameters that workers send.

    Sketches are linear, so their mean is the sketch of the mean parameters, and the difference of two is the sketch of
    the move between them. Over n steps at one learning rate the move is as long as n if all gradients point the same
    way, and as the root of n if they are noise. Speeds of reviews of other lengths than 16 steps are therefore made
    comparable by n to the three quarters: between 16 and 48 steps that is right within a third.

    >>> movement = Movement()
    >>> every = {"samples": (), "compute_s": (), "blocked_s": (), "summed_rate": 0.5}
    >>> places = {16: (1.0, 2.0), 32: (4.0, -2.0)}
    >>> [movement.take({0: Reviewed(worker=0, clock=n, position=place, **every)}) for n, place in places.items()]
    [nan, 10.0]
    """

    def __init__(self) -> None:
        self._before: tuple[float, ...] = ()
        self._clock = 0

    def take(self, reviews: Mapping[int, Reviewed]) -> float:
        """Return the length of the move since the last reviews, over the sum of the rates; NaN if it is not known."""
        clock = next(iter(reviews.values())).clock
        num_steps, self._clock = max(1, clock - self._clock), clock
        positions = [review.position for review in reviews.values()]
        before, self._before = self._before, tuple(map(statistics.fmean, zip(*positions, strict=True)))
        summed_rate = statistics.fmean(review.summed_rate for review in reviews.values())
        if not before or not self._before or summed_rate <= 0:
            return math.nan
        return math.dist(before, self._before) / summed_rate * math.pow(num_steps / _USUAL_STEPS, 0.25)

    def forget(self) -> None:
        """Forget the last position: the parameters will leap, which is no progress of training."""
        self._before = ()


def put_together(
    reviews: Mapping[int, Reviewed],
    *,
    gradient: GradientFigures | None,
    speed: float = math.nan,
) -> Reading:
    any_review = next(iter(reviews.values()))
    by_step = [review.losses for review in reviews.values()]
    losses = [review.loss for review in reviews.values() if not math.isnan(review.loss)]
    return Reading(
        clock=any_review.clock,
        num_steps=len(any_review.compute_s),
        learning_rate=any_review.learning_rate,
        loss=_mean(losses),
        least_loss=min(losses, default=math.nan),
        typical_loss=statistics.median(losses) if losses else math.nan,
        losses=tuple(map(statistics.median, zip(*by_step, strict=True))) if len({*map(len, by_step)}) == 1 else (),
        loss_error=_standard_error(losses),
        num_workers=len(reviews),
        num_racks=len({review.rack for review in reviews.values()}),
        normalises=any_review.normalises,
        accumulates=any_review.accumulates,
        shares_moments=any_review.shares_moments,
        num_refused=sum(review.num_refused for review in reviews.values()),
        num_clipped=max(review.num_clipped for review in reviews.values()),
        gradient=gradient,
        speed=speed,
        progress=_mean([review.progress for review in reviews.values()]) if any_review.progress >= 0 else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _standard_error(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.stdev(finite) / math.sqrt(len(finite)) if len(finite) > 1 else math.nan
