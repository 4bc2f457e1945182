"""A run whose policy changes while it trains, as data; `plesio.report.explanation.explain` computes it.

A *span* is a stretch between two answers of a policy that adapts, or a stage of a schedule; a *chapter* is made of the
spans between two changes.
"""

import statistics
from dataclasses import dataclass
from typing import Literal

from plesio.policies.adaptive.compared import ComparedSetting, TrialEnd
from plesio.report.curves import Curve
from plesio.report.statistics import Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of what the workers did from one step to the next.

    Attributes:
        clock: Clock of the last step before it.
        shares: Share of each round by rank; empty is equal shares.
        restored: Whether the workers went back to a state that they had kept.
        restored_to: Its clock; None where it is not known.
        compared: The settings that were compared, the best first; empty where none were.
        trial_end: How the trial of the change ended; None where it did not, or there was none.
        trial_ended: Clock of the last step before the answer that ended it, or left the policy with no end of it.
        pace_s: Seconds that a step with an equal share took just before, by rank; empty where not known.
    """

    clock: int
    at_s: float
    before: str
    policy: str
    shares: tuple[float, ...]
    reshared: bool
    restored: bool
    restored_to: int | None
    reason: str
    compared: tuple[ComparedSetting, ...] = ()
    trial_end: TrialEnd | None = None
    trial_ended: int | None = None
    pace_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedReview:
    """An answer of the policy to the reports of all workers, also where it left everything as it was.

    Attributes:
        clock: Clock of the last step before the answer held.
    """

    clock: int
    at_s: float
    policy: str
    reason: str
    inputs: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """The steps between two changes.

    Attributes:
        begin: Clock after whose step it begins.
        end: Clock of its last step.
        slack: Steps that a worker trains without the others' updates.
        shares: Shares by rank; empty is equal shares.
        change: What began it; None of the first.
        latest: The latest review that left it in force; None where there was none.
        bsp_step_s: The same under bsp with equal shares, predicted; None under a policy that predicts nothing.
        saved_s: Seconds that its steps took less than that; below 0 where they took more.
        saved_so_far_s: The same from the beginning of the run.
        steps_made: Steps of each worker that made any, in the order of ranks, on the store; else empty.
        num_exchanges: Exchanges among all workers that began; on the store, of the furthest worker.
        num_compressed: Those of them that were sent compressed.
        bytes_saved: Bytes that bsp would have sent beyond the chapter's.
    """

    begin: int
    end: int
    begin_s: float
    end_s: float
    policy: str
    slack: int
    shares: tuple[float, ...]
    change: Change | None
    latest: ExplainedReview | None
    step_s: float
    bsp_step_s: float | None
    saved_s: float
    saved_so_far_s: float
    steps_made: tuple[int, ...]
    num_exchanges: int
    num_compressed: int
    bytes_saved: float

    @property
    def num_steps(self) -> int:
        return self.end - self.begin

    @property
    def took_s(self) -> float:
        """Seconds of training from its beginning to its end, with the exchange that ended it."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpan:
    """Steps under one policy and one set of shares.

    Attributes:
        begin: Clock after whose step it begins.
        end: Clock of its last step.
        slack: Steps that a worker trains without the others' updates, H + d - 1.
        shares: Shares by rank; empty is equal shares.
        bsp_step_s: Predicted, under bsp with equal shares; None under a policy that predicts nothing.
    """

    begin: int
    end: int
    policy: str
    slack: int
    shares: tuple[float, ...] = ()
    step_s: float
    bsp_step_s: float | None = None

    @property
    def num_steps(self) -> int:
        return self.end - self.begin

    @property
    def saved_s(self) -> float:
        """Seconds saved against bsp; below 0 where it was slower, and 0 where nothing is predicted."""
        return 0.0 if self.bsp_step_s is None else self.num_steps * (self.bsp_step_s - self.step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The gradients of a pair of sampled steps.

    Attributes:
        clock: Clock of the review that told of them.
        norm: Norm of one worker's gradient, root mean square over workers and both steps.
        noise_scale: Variance of one sample's gradient over the squared norm of the mean one, in samples (McCandlish et
            al. 2018); None where noise hides the mean.
    """

    clock: int
    norm: float
    noise_scale: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOutcome:
    """One run, measured; times in seconds of training.

    Attributes:
        num_evaluations: Also those that had no finite metric.
        final_metric: Metric of the last evaluation; None where it is not known or not finite.
        last_metrics: Metrics of the last three evaluations; empty where there are too few to smooth, or one is not
            finite.
        to_target_s: Moment of the first evaluation that reached the target; None if none did, or there is no target.
        smooth_to_target_s: The same by the smoothed curve; None also where there is none.
        metrics: The finite evaluations over seconds of training.
        smooth_metrics: The smoothed curve; empty where there are too few to smooth.
        cross_rack_bytes: Sent from rack to rack, where that is known.
    """

    wall_s: float
    samples: int
    num_evaluations: int
    final_metric: float | None
    last_metrics: tuple[float, ...]
    to_target_s: float | None
    smooth_to_target_s: float | None
    metrics: Curve
    smooth_metrics: Curve
    bytes_sent: int
    cross_rack_bytes: int

    @property
    def end_metric(self) -> float | None:
        """Mean of the last three evaluations, or the last one where there are too few to smooth."""
        return statistics.fmean(self.last_metrics) if self.last_metrics else self.final_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One run from its beginning to its end; times in seconds of training.

    Attributes:
        outcome: What it came to, measured.
        bsp: What the same training came to under bsp; None where that was not run.
        num_seeds: Seeds that both were run with, where that is known.
        over_seeds: The final metric's difference from bsp over all seeds; None where it is not known.
        how_to_know: What to type to have bsp beside it; empty where that is there.
        server_bytes: The part of all bytes that is messages between workers and servers, not collectives.
        saved_s: Seconds that its steps took less than bsp's by prediction, which is of step time and not of progress.
        first_reason: Why the policy first answered as it did; empty if it was never asked.
        began_slow: True if it began under the policy for slow links.
        chapters: Empty where no step was finished.
        reviews: All answers of the policy, in order.
    """

    policy: str
    task: str
    world: str
    seed: int
    num_workers: int
    status: str
    error: str | None
    num_steps: int
    metric_name: str
    metric_goal: Literal["max", "min"]
    target: float | None
    outcome: MeasuredOutcome
    bsp: MeasuredOutcome | None
    num_seeds: int
    over_seeds: Difference | None
    how_to_know: str
    server_bytes: int
    saved_s: float
    bytes_saved: float
    first_reason: str
    began_slow: bool
    chapters: tuple[Chapter, ...]
    spans: tuple[PolicySpan, ...]
    reviews: tuple[ExplainedReview, ...]
    losses: tuple[tuple[int, float], ...]
    noises: tuple[Noise, ...]

    @property
    def predicts(self) -> bool:
        return any(chapter.bsp_step_s is not None for chapter in self.chapters)

    @property
    def changes(self) -> tuple[Chapter, ...]:
        return self.chapters[1:]

    @property
    def steps_s(self) -> float:
        """Seconds that the steps took, without the changes."""
        return sum(chapter.num_steps * chapter.step_s for chapter in self.chapters)

    @property
    def predicted_bsp_s(self) -> float:
        """Seconds that the steps would have taken under bsp by prediction."""
        return self.steps_s + self.saved_s
