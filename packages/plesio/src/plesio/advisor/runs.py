"""The terms of a race: runs, candidates with their prices and runs, the goal, the budget; and the rehearsal."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from plesio.advisor.candidates import Candidate
from plesio.advisor.curve import ProgressCurve, curve_of
from plesio.advisor.price import Price
from plesio.core.results import RunResult

USUAL_SCATTER, PRIOR_SEEDS = 0.1, 2
"""Guess of the scatter of two candidates' log time ratio with one seed; and the seeds that the guess counts as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The end of a rehearsal's run.

    Attributes:
        result: Its figures; None if it was cut off before there were any.
        samples: Samples that it trained on.
        virtual_s: Seconds of training, in virtual time.
        real_s: Seconds that it took this machine.
        problem: Reason for which it could not be finished; None if it was.
        whole: Whether it went on to the end of its schedule.
    """

    result: RunResult | None
    samples: float
    virtual_s: float
    real_s: float
    problem: str | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Rehearsed):
    """A rehearsal's run with its progress, which is None if it was cut off or failed."""

    curve: ProgressCurve | None

    @classmethod
    def of(cls, rehearsed: Rehearsed, *, by_loss: bool) -> "Run":
        """Add the curve of a rehearsal."""
        figures = {one.name: getattr(rehearsed, one.name) for one in fields(rehearsed)}
        failed = rehearsed.result is None or rehearsed.problem is not None
        return cls(**figures, curve=None if failed else curve_of(figures["result"], by_loss=by_loss))

    @property
    def shares(self) -> tuple[float, ...]:
        """The last shares of the batch that the policy dealt, by rank; empty is equal shares."""
        decisions = () if self.result is None else self.result.decisions
        dealt = [decision["shares"] for decision in decisions if decision.get("shares")]
        return tuple(dealt[-1]) if dealt else ()


class Rehearsal(Protocol):
    """Runs the user's code under a policy, in the virtual world."""

    @property
    def by_loss(self) -> bool:
        """True if the training loss counts, and not a metric."""
        ...

    @property
    def most_samples(self) -> float:
        """The samples of a whole run; inf if unknown."""
        ...

    @property
    def sample_s(self) -> float:
        """Seconds of this machine that a sample is expected to take."""
        ...

    def run(
        self, policy: str, *, seed: int, servers: int | None, until_samples: float, within_s: float, budget_s: float
    ) -> Rehearsed:
        """Do one run.

        Args:
            policy: Its text.
            seed: Its seed.
            servers: Servers of the store; as usual without.
            until_samples: Samples at which it ends at the latest.
            within_s: Virtual seconds after which it is cut off.
            budget_s: Seconds of this machine after which it is cut off.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Budget:
    """The seconds of this machine that runs may take: ``whole_s`` from the beginning on."""

    whole_s: float
    now_s: Callable[[], float]
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.now_s()

    @property
    def spent_s(self) -> float:
        return self.now_s() - self.began_s

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds that are left of this share of the whole."""
        return max(0.0, share * self.whole_s - self.spent_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal that runs are timed to.

    Attributes:
        level: Level of the curves; larger is better.
        target: Metric that was asked for, if the level is that; else None.
        samples: Samples that bsp takes to the level.
        complete: Whether bsp was run as long as its schedule is.
    """

    level: float
    target: float | None
    samples: float
    complete: bool


@dataclass(slots=True, kw_only=True)
class RacingCandidate:
    """A candidate in the race: its price, and its runs by seed."""

    candidate: Candidate
    price: Price
    runs: dict[int, Run] = field(default_factory=dict)

    @property
    def spec(self) -> str:
        return self.candidate.spec

    def seconds(self, level: float) -> dict[int, float]:
        """Return the seconds to the level by seed; inf if a run did not reach it."""
        return {seed: math.inf if run.curve is None else run.curve.seconds_to(level) for seed, run in self.runs.items()}

    def samples(self, level: float) -> float:
        """Return the mean samples to the level over the seeds that reached it; inf if none did."""
        found = [run.curve.samples_to(level) for run in self.runs.values() if run.curve is not None]
        finite = [one for one in found if math.isfinite(one)]
        return statistics.fmean(finite) if finite else math.inf

    def geometric_mean_s(self, level: float) -> float:
        """Return the geometric mean of the seconds to the level over the seeds; inf if any run did not come to it."""
        seconds = list(self.seconds(level).values())
        if not seconds or not all(0 < one < math.inf for one in seconds):
            return math.inf
        return math.exp(statistics.fmean(map(math.log, seconds)))

    def log_ratios(self, other: "RacingCandidate", level: float) -> list[float]:
        """Return the log ratios of the seconds to the level to another's, over the seeds in which both reached it."""
        own, theirs = self.seconds(level), other.seconds(level)
        return [
            math.log(own[seed] / theirs[seed])
            for seed in sorted(own.keys() & theirs.keys())
            if 0 < own[seed] < math.inf and 0 < theirs[seed] < math.inf
        ]

    @property
    def problem(self) -> str | None:
        return next((run.problem for run in self.runs.values() if run.problem), None)


def scatter_of(entries: Sequence[RacingCandidate], level: float) -> float:
    """Return the scatter of a log ratio to `bsp`, the first, over seeds: one figure for all, because each has few."""
    base, *others = entries
    squares, freedom = PRIOR_SEEDS * USUAL_SCATTER**2, PRIOR_SEEDS
    for entry in others:
        ratios = entry.log_ratios(base, level)
        if len(ratios) > 1:
            squares += (len(ratios) - 1) * statistics.variance(ratios)
            freedom += len(ratios) - 1
    return math.sqrt(squares / freedom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """The outcome of a race.

    Attributes:
        goal: Goal that runs were timed to.
        entries: All candidates, `bsp` first; those that were not run have prices alone.
        shortfalls: The checked winners' final metric below bsp's, by spec; negative is better.
        spent_s: Seconds of this machine.
        prospect: If only bsp reached the level: the candidate that would be sooner, by its too short run, with its
            seconds.
    """

    goal: Goal
    entries: tuple[RacingCandidate, ...]
    shortfalls: Mapping[str, float]
    spent_s: float
    prospect: tuple[str, float] | None = None

    @property
    def num_runs(self) -> int:
        return sum(len(entry.runs) for entry in self.entries)
