"""Workers of any speed on any machine: the real gradient is computed, then the step is paced to a drawn duration.

A pacer never makes a step shorter. Where the machine needs longer for the gradient than the recipe drew, the step is an
*overrun*; the counts say so, and a result with many of them describes this machine and not the recipe.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from plesio.core.clock import Clock, MonotonicClock
from plesio.core.errors import ConfigError, DataError, nearest
from plesio.core.units import parse_seconds

__all__ = ["Constant", "EmpiricalTrace", "Gamma", "LogNormal", "Overruns", "Pacer", "Pareto", "Stalls", "StepTime"]


class StepTime(Protocol):
    """A distribution of the seconds that one step takes a worker of speed 1."""

    def sample_s(self, generator: np.random.Generator) -> float:
        """Draw a duration in seconds."""
        ...


def _require(holds: bool, *, what: str, value: float, instead: str) -> None:
    if not holds:
        raise ConfigError(f"{what} is {value:g}; {instead}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Every step takes ``mean_s``."""

    mean_s: float

    def __post_init__(self) -> None:
        _require(0 < self.mean_s < math.inf, what="the mean step time", value=self.mean_s, instead="write more than 0")

    def sample_s(self, generator: np.random.Generator) -> float:
        """The mean."""
        return self.mean_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Steps that vary around ``mean_s`` with coefficient of variation ``cv`` (standard deviation over mean).

    The logarithm is normal with ``sigma² = ln(1 + cv²)`` and ``mu = ln(mean) - sigma²/2``, so that mean and cv are
    those of the duration itself.
    """

    mean_s: float
    cv: float

    def __post_init__(self) -> None:
        _require(0 < self.mean_s < math.inf, what="the mean step time", value=self.mean_s, instead="write more than 0")
        _require(0 <= self.cv < math.inf, what="cv", value=self.cv, instead="write 0 or more")

    def sample_s(self, generator: np.random.Generator) -> float:
        """Draw a duration in seconds."""
        variance = math.log1p(self.cv**2)
        return float(generator.lognormal(math.log(self.mean_s) - variance / 2, math.sqrt(variance)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Steps that vary around ``mean_s`` with coefficient of variation ``cv``, with a lighter tail than `LogNormal`'s.

    Shape ``1/cv²`` and scale ``mean cv²``; a cv of 1 is the exponential distribution.
    """

    mean_s: float
    cv: float

    def __post_init__(self) -> None:
        _require(0 < self.mean_s < math.inf, what="the mean step time", value=self.mean_s, instead="write more than 0")
        _require(0 < self.cv < math.inf, what="cv", value=self.cv, instead="write more than 0")

    def sample_s(self, generator: np.random.Generator) -> float:
        """Draw a duration in seconds."""
        return float(generator.gamma(1 / self.cv**2, self.mean_s * self.cv**2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Another distribution's steps, of which each stalls with ``probability`` and then takes ``factor`` times as long.

    Transient, unlike a worker's speed: garbage collection, a page from disk, a neighbour's burst.
    """

    steps: StepTime
    probability: float
    factor: float

    def __post_init__(self) -> None:
        _require(0 <= self.probability <= 1, what="probability", value=self.probability, instead="write 0 to 1")
        _require(1 <= self.factor < math.inf, what="factor", value=self.factor, instead="write 1 or more")

    def sample_s(self, generator: np.random.Generator) -> float:
        """Draw a duration in seconds."""
        duration_s = self.steps.sample_s(generator)
        return duration_s * self.factor if generator.random() < self.probability else duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pareto:
    """Steps that take at least ``min_s``, with a heavy tail: ``P(duration > x) = (min_s / x) ** shape``.

    A shape of 1 or less has no mean and is refused; below 2 the variance is infinite, which is the point.
    """

    min_s: float
    shape: float

    def __post_init__(self) -> None:
        _require(
            0 < self.min_s < math.inf, what="the shortest step time", value=self.min_s, instead="write more than 0"
        )
        _require(1 < self.shape < math.inf, what="shape", value=self.shape, instead="write more than 1")

    def sample_s(self, generator: np.random.Generator) -> float:
        """Draw a duration in seconds."""
        return self.min_s * (1.0 + float(generator.pareto(self.shape)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalTrace:
    """Steps drawn, with replacement, from durations that were measured somewhere."""

    durations_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.durations_s:
            raise ConfigError("the step-time trace is empty; it needs one duration or more")
        for duration_s in self.durations_s:
            _require(0 < duration_s < math.inf, what="a duration", value=duration_s, instead="write more than 0")

    def sample_s(self, generator: np.random.Generator) -> float:
        """Draw one of the durations."""
        return self.durations_s[int(generator.integers(len(self.durations_s)))]

    @classmethod
    def read(cls, path: Path) -> "EmpiricalTrace":
        """The durations in a text file, one a line with its unit (``18.3 ms``).

        A CSV file works as well: its first line names the columns, and the column ``seconds`` is read. Empty lines and
        what follows a ``#`` are skipped.

        Raises:
            DataError: The file is missing or empty, or a line is not a duration.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read the step-time trace {path}: {error}") from error
        lines = [(number, line.split("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1)]
        lines = [(number, line) for number, line in lines if line]
        if not lines:
            raise DataError(f"the step-time trace {path} is empty; write one duration a line, as in: 18.3 ms")
        column = _seconds_column(path, lines[0][1])
        rows = lines if column is None else lines[1:]
        try:
            return cls(durations_s=tuple(_duration_s(path, number, line, column=column) for number, line in rows))
        except ConfigError as error:
            raise DataError(f"{path}: {error}") from None


def _seconds_column(path: Path, header: str) -> int | None:
    columns = [name.strip() for name in header.split(",")]
    if columns[0][:1].isdigit() or columns[0][:1] in "+-.":
        return None
    if "seconds" not in columns:
        raise DataError(f'{path} has no column "seconds"; {nearest("seconds", columns)}')
    return columns.index("seconds")


def _duration_s(path: Path, number: int, line: str, *, column: int | None) -> float:
    try:
        return parse_seconds(line) if column is None else float(line.split(",")[column])
    except ConfigError as error:
        raise DataError(f"{path}, line {number}: {error}") from None
    except (ValueError, IndexError):
        raise DataError(f'{path}, line {number}: "{line}" has no number in the column "seconds"') from None


@dataclass(slots=True)
class Overruns:
    """Steps whose gradient took longer than the recipe drew, and by how much in all."""

    steps: int = 0
    num_overruns: int = 0
    total_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Pacer:
    """Makes one worker's steps take as long as its distribution says.

    The draw for a step is a function of (seed, worker, step) alone: repeatable, and independent between workers and
    of the order in which steps are asked for.

    Args:
        step_time: Durations of a worker of speed 1.
        speed: Relative speed; a worker of speed 0.5 takes twice as long.
        seed: Seed of the run.
        worker: Number of the worker; each has its own stream.
        clock: Tells the time and sleeps.

    >>> Pacer(step_time=Constant(mean_s=0.02), speed=0.5, seed=0, worker=3).draw_s(17)
    0.04
    """

    step_time: StepTime
    speed: float = 1.0
    seed: int
    worker: int
    clock: Clock = field(default_factory=MonotonicClock)
    overruns: Overruns = field(default_factory=Overruns, init=False)

    def __post_init__(self) -> None:
        _require(0 < self.speed < math.inf, what="the speed", value=self.speed, instead="write more than 0")

    def draw_s(self, step: int) -> float:
        """Seconds that step ``step`` of this worker takes."""
        sequence = np.random.SeedSequence((self.seed, self.worker, step))
        return self.step_time.sample_s(np.random.Generator(np.random.Philox(sequence))) / self.speed

    def pace(self, step: int, *, started_s: float) -> float:
        """Return when the step's duration since ``started_s`` (on the pacer's clock) has passed; count an overrun.

        Returns:
            The drawn duration in seconds.
        """
        duration_s = self.draw_s(step)
        deadline_s = started_s + duration_s
        late_s = self.clock.now_s() - deadline_s
        self.overruns.steps += 1
        if late_s > 0:
            self.overruns.num_overruns += 1
            self.overruns.total_s += late_s
            return duration_s
        self.clock.sleep_until_s(deadline_s)
        return duration_s
