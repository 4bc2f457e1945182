"""The spans of an adaptive run: between two answers of the policy, with what a step took and would have taken.

Two figures are told of each span, as means over workers and steps:

    step_s      measured: seconds computing and seconds blocked, from the reviews that cover the span's steps
    bsp_step_s  predicted: what a step would have taken under bsp with equal shares

The prediction is the policy's own (``bsp.step_s``), of the answer at the span's end, which has seen its steps; at the
end of a run, of the last answer; where no exchange had been measured by then, of the first that knew of one.

It is for the shares of that answer. Under bsp a step ends with its slowest worker. So from one set of shares to another
a step's time differs by the mean, over steps, of the longest computing with these shares less that with those; this
much is added to bring it to equal shares. Where bsp with equal shares is what was in force nothing need be predicted:
it took what it took.
"""

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plesio.core.results import RunResult
from plesio.policies import EventLog, Resumed, Reviewed, Steer, parse_policy
from plesio.policies.adaptive.readings.review import GradientPairs
from plesio.policies.adaptive.system.setting import COARSE_STEPS, IN_LOW_RANK, SYNCHRONOUS
from plesio.report.explanation.model import Noise, PolicySpan

BSP_STEP_S = f"{SYNCHRONOUS.spec}.step_s"
"""Name of the prediction for bsp among the figures of an answer (`ComparedSetting`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRound:
    """A review of all workers, and the policy's answer; None where the run ended before.

    Attributes:
        reviews: Reviews in the order of workers; empty where a new group of workers went on without being reviewed.
    """

    reviews: tuple[Reviewed, ...]
    steer: Steer | None

    @property
    def decides(self) -> bool:
        """True if the policy decided something here; a new group of workers that goes on as before decides nothing."""
        return self.steer is not None and (bool(self.reviews) or self.steer.policy != self.steer.before)

    @property
    def pace_s(self) -> tuple[float, ...]:
        """Mean seconds that a step with an equal share took, by rank."""
        return tuple(statistics.fmean(pace) for pace in zip(*_paces(self.reviews).values(), strict=True))


class RecordedClock:
    """Training time at a step: on the straight line between the recorded losses, which have both."""

    def __init__(self, run: RunResult, *, num_steps: int) -> None:
        known: Mapping[float, float] = {0.0: 0.0, **{point.clock: point.at_s for point in run.losses}}
        self._points = sorted({**known, max(num_steps, *known): run.wall_s}.items())

    def at_s(self, clock: float) -> float:
        """Return the seconds of training when the step that ends at ``clock`` was finished."""
        place = bisect_right(self._points, (clock, float("inf")))
        if place == len(self._points):
            return self._points[-1][1]
        (before, before_s), (after, after_s) = itertools.islice(self._points, place - 1, place + 1)
        return before_s + (after_s - before_s) * (clock - before) / (after - before)


def slack_of(spec: str) -> int:
    """Return the steps that a worker goes on without news of the others; in low rank and 4 bits as `Setting` has it.

    >>> [slack_of(spec) for spec in ("bsp", "local_sgd:8,delay=4", "ssp:7,period=1", "bsp,compress=powersgd:4")]
    [0, 11, 1, 1]
    """
    for setting in (IN_LOW_RANK, COARSE_STEPS):
        if spec == setting.spec:
            return setting.slack
    policy = parse_policy(spec)
    return int(policy.period if policy.exchange == "store" else policy.bound)


def read_answers(log: EventLog) -> tuple[ReviewRound, ...]:
    answers: list[ReviewRound] = []
    open_reviews: dict[int, Reviewed] = {}
    for entry in log.entries:
        if isinstance(entry.event, Reviewed):
            open_reviews[entry.event.worker] = entry.event
        if isinstance(entry.event, Resumed):
            open_reviews = {}  # the policy drops them: they are of a group that is no more
        for action in entry.actions:
            if isinstance(action, Steer):
                answers.append(ReviewRound(reviews=_in_order(open_reviews), steer=action))
                open_reviews = {}
    if open_reviews:
        answers.append(ReviewRound(reviews=_in_order(open_reviews), steer=None))
    return tuple(answers)


def read_spans(
    answers: Sequence[ReviewRound], *, num_steps: int, at_s: Callable[[int], float]
) -> tuple[PolicySpan, ...]:
    """Return the spans of a run of ``num_steps`` steps; ``at_s`` is the time at a clock, for spans without a review."""
    steers = [answer.steer for answer in answers if answer.steer is not None]
    steps = _Steps(answers)
    clocks = [steer.clock for steer in steers]
    # a new group may go on before the clock from which the answer before it was to hold
    begins = [0, *(min(clocks[place:]) for place in range(len(clocks))), num_steps]
    spans: list[PolicySpan] = []
    for asked, answered, begin, end in zip(
        [None, *steers], [*steers, None], begins[:-1], (min(clock, num_steps) for clock in begins[1:]), strict=True
    ):
        if begin >= end:
            continue
        spec = asked.policy if asked else steers[0].before if steers else SYNCHRONOUS.spec
        slack, shares = slack_of(spec), asked.shares if asked else ()
        step_s = steps.measured_s(begin, end)
        if step_s is None:
            step_s = (at_s(end) - at_s(begin)) / (end - begin)
        is_bsp = spec == SYNCHRONOUS.spec and not shares
        answer = answered if asked is None or (answered and BSP_STEP_S in dict(answered.inputs)) else asked
        bsp_step_s = None if is_bsp else steps.bsp_step_s(begin, end, answer=_informed(answer, steers))
        if bsp_step_s is None and spans and not is_bsp:
            bsp_step_s = spans[-1].bsp_step_s
        spans.append(
            PolicySpan(
                begin=begin,
                end=end,
                policy=spec,
                slack=slack,
                shares=shares,
                step_s=step_s,
                bsp_step_s=step_s if bsp_step_s is None else bsp_step_s,
            )
        )
    return tuple(spans)


def noises_of(answers: Sequence[ReviewRound]) -> tuple[Noise, ...]:
    """Compute what the sampled gradients tell, of the reviews that complete a pair of them."""
    pairs = GradientPairs()
    noises = []
    for answer in answers:
        if not answer.reviews:
            continue
        reviews = {review.worker: review for review in answer.reviews}
        figures = pairs.take(reviews)
        if figures is not None and math.isfinite(figures.norm_sq):
            scale = figures.noise_scale if math.isfinite(figures.noise_scale) else None
            noises.append(
                Noise(clock=answer.reviews[0].clock, norm=math.sqrt(max(0.0, figures.norm_sq)), noise_scale=scale)
            )
    return tuple(noises)


class _Steps:
    """Times that the reviews tell of each step, by its clock."""

    def __init__(self, answers: Sequence[ReviewRound]) -> None:
        self._measured_s: dict[int, float] = {}
        self._pace_s: dict[int, tuple[float, ...]] = {}
        for answer in answers:
            self._measured_s |= _measured(answer.reviews)
            self._pace_s |= _paces(answer.reviews)

    def measured_s(self, begin: int, end: int) -> float | None:
        """Return the mean over the workers and the steps from one clock to another; None without a review of them."""
        told = [self._measured_s[clock] for clock in range(begin + 1, end + 1) if clock in self._measured_s]
        return statistics.fmean(told) if told else None

    def bsp_step_s(self, begin: int, end: int, *, answer: Steer | None) -> float | None:
        """Return what ``answer`` predicts for bsp, brought to equal shares by the steps from one clock to another."""
        predicted_s = None if answer is None else dict(answer.inputs).get(BSP_STEP_S)
        if answer is None or predicted_s is None or not answer.shares:
            return predicted_s
        pace_s = [self._pace_s[clock] for clock in range(begin + 1, end + 1) if clock in self._pace_s]
        if any(len(step) != len(answer.shares) for step in pace_s) or not pace_s:
            return None
        parts = [share * len(answer.shares) for share in answer.shares]
        longest_s = [max(pace * part for pace, part in zip(step, parts, strict=True)) for step in pace_s]
        return predicted_s + statistics.fmean(map(max, pace_s)) - statistics.fmean(longest_s)


def _in_order(reviews: Mapping[int, Reviewed]) -> tuple[Reviewed, ...]:
    return tuple(review for _, review in sorted(reviews.items()))


def _clocks(reviews: Sequence[Reviewed]) -> range:
    """Return the clocks of the steps that all reviews tell of."""
    num_steps = min((len(review.compute_s) for review in reviews), default=0)
    clock = reviews[0].clock if reviews else 0
    return range(clock - num_steps + 1, clock + 1)


def _measured(reviews: Sequence[Reviewed]) -> dict[int, float]:
    clocks = _clocks(reviews)
    return {
        clock: statistics.fmean(review.compute_s[place] + review.blocked_s[place] for review in reviews)
        for place, clock in zip(range(-len(clocks), 0), clocks, strict=True)
    }


def _paces(reviews: Sequence[Reviewed]) -> dict[int, tuple[float, ...]]:
    """Return each worker's seconds of computing in each step, brought to an equal share of the step's samples."""
    clocks = _clocks(reviews)
    paces = {}
    for place, clock in zip(range(-len(clocks), 0), clocks, strict=True):
        mean = statistics.fmean(review.samples[place] for review in reviews)
        paces[clock] = tuple(
            review.compute_s[place] * (mean / review.samples[place] if review.samples[place] else 1.0)
            for review in reviews
        )
    return paces


def _informed(answer: Steer | None, steers: Sequence[Steer]) -> Steer | None:
    """Return this answer, or the first after it that predicted bsp's steps; this one if none did."""
    if answer is None:
        return None
    later = (one for one in steers if one.clock >= answer.clock)
    return next((one for one in later if BSP_STEP_S in dict(one.inputs)), answer)
