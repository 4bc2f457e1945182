"""Workers of any speed on any machine: the real gradient is computed, then the step is paced to a drawn duration.

A pacer never makes a step shorter. Where the machine needs longer for the gradient than the recipe drew, the step is an
*overrun*; the counts show it, and a result with many of them describes this machine and not the recipe.
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from plesio.core.arguments import check_fields
from plesio.core.clock import Clock, MonotonicClock
from plesio.core.within import ABOVE_0, AT_LEAST_0, SEED
from plesio.cost.step_time import RackSlowdowns, StepTime


@dataclass(slots=True)
class Overruns:
    """Steps whose gradient took longer than the recipe drew, and by how much in all."""

    steps: int = 0
    num_overruns: int = 0
    total_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Pacer:
    """The pacer that makes one worker's steps take the times of its distribution.

    The draw for a step is a function of (seed, worker, step) alone: repeatable, and independent between workers and
    of the order in which steps are asked for. Only ``slowdowns`` ask when the step begins.

    Args:
        step_time: Durations of a worker of speed 1.
        speed: Relative speed; a worker of speed 0.5 takes twice as long.
        slowdowns: When the worker's rack is slow; None if it never is.
        seed: Seed of the run.
        began_s: When the run began, on that clock, for ``slowdowns``; None is when this worker's first step begins,
            which is the same moment for all workers that begin together.

    >>> from plesio.cost.step_time import Constant
    >>> Pacer(step_time=Constant(mean_s=0.02), speed=0.5, seed=0, worker=3).draw_s(17)
    0.04
    """

    step_time: StepTime
    speed: Annotated[float, ABOVE_0] = 1.0
    slowdowns: RackSlowdowns | None = None
    seed: Annotated[int, SEED]
    worker: Annotated[int, AT_LEAST_0]
    clock: Clock = field(default_factory=MonotonicClock)
    began_s: float | None = None
    overruns: Overruns = field(default_factory=Overruns, init=False)

    def __post_init__(self) -> None:
        check_fields(self, "Pacer: ")

    def draw_s(self, step: int, *, at_s: float = 0.0) -> float:
        """Return the seconds that step ``step`` of this worker takes if it begins ``at_s`` seconds after the run."""
        sequence = np.random.SeedSequence((self.seed, self.worker, step))
        duration_s = self.step_time.sample_s(np.random.Generator(np.random.Philox(sequence))) / self.speed
        return duration_s if self.slowdowns is None else duration_s * self.slowdowns.factor_at(at_s)

    def step_s(self, step: int, *, started_s: float) -> float:
        """Return the seconds that step ``step`` takes if it begins at ``started_s``, on the pacer's clock."""
        if self.began_s is None:
            self.began_s = started_s
        return self.draw_s(step, at_s=started_s - self.began_s)

    def pace(self, step: int, *, started_s: float, relative_size: float = 1.0, share: float = 1.0) -> float:
        """Return when the step's duration since ``started_s`` (on the pacer's clock) has passed; count an overrun.

        Args:
            step: Its number.
            started_s: When it began.
            relative_size: Its samples over a usual step's; its duration is in proportion.
            share: The share of the step that is done here, where its stages are on several workers.

        Returns:
            The drawn duration in seconds.
        """
        duration_s = relative_size * share * self.step_s(step, started_s=started_s)
        deadline_s = started_s + duration_s
        late_s = self.clock.now_s() - deadline_s
        self.overruns.steps += 1
        if late_s > 0:
            self.overruns.num_overruns += 1
            self.overruns.total_s += late_s
            return duration_s
        self.clock.sleep_until_s(deadline_s, share=share)
        return duration_s
