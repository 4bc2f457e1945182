"""How long a step takes: distributions, and what makes steps longer now and then.

Everything here multiplies. A worker of speed v whose step takes x at speed 1, stalls by a factor of f, and begins while
its rack is slow by a factor of r, needs ``x f r / v`` seconds:

    distribution    `Constant`, `LogNormal`, `Gamma`, `Pareto`, `EmpiricalTrace`: what a step takes at speed 1
    stalls          `Stalls`, around a distribution: one step of one worker (garbage collection, a page from disk)
    slowdowns       `Slowdowns`: all workers of a rack for a while (a switch, the cooling, a neighbour's job)
    speed           a worker's own, for good (another machine)

Generators and moments are arguments: `plesio.runtime.worker.pacing` has the streams, and says when a step begins.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from plesio.core.errors import ConfigError, DataError, nearest
from plesio.core.files import read_text
from plesio.core.units import parse_seconds


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
        """Return the mean."""
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
        """Read the durations in a text file, one a line with its unit (``18.3 ms``).

        A CSV file works as well: its first line names the columns, and the column ``seconds`` is read. Empty lines and
        comments after a ``#`` are skipped.

        Raises:
            DataError: The file is missing or empty, or a line is not a duration.
        """
        given = read_text(path, "the step-time trace").splitlines()
        lines = [(number, line.split("#")[0].strip()) for number, line in enumerate(given, start=1)]
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
class Slowdowns:
    """Whiles in which all workers of a rack take ``factor`` times as long for a step.

    Each rack is normal and slow in turn, beginning normal, for durations that are exponentially distributed and
    independent of each other and of other racks: a telegraph process, slow for ``lasting / (every + lasting)`` of the
    time. Correlated slowness, unlike `Stalls`: those who could help out are slow as well.

    Attributes:
        factor: How many times as long a step takes that begins while its rack is slow; it keeps that to its end.
        every_s: Mean from the end of one slowdown to the beginning of the next.
        lasting_s: Mean length of a slowdown.
    """

    factor: float
    every_s: float
    lasting_s: float

    def __post_init__(self) -> None:
        _require(1 <= self.factor < math.inf, what="factor", value=self.factor, instead="write 1 or more")
        _require(0 < self.every_s < math.inf, what="every", value=self.every_s, instead="write more than 0")
        _require(0 < self.lasting_s < math.inf, what="lasting", value=self.lasting_s, instead="write more than 0")

    def of_rack(self, rack: int, *, seed: int) -> "RackSlowdowns":
        """Return when ``rack`` is slow in the run of ``seed``."""
        return RackSlowdowns(self, rack=rack, seed=seed)


_RACK_STREAM = 1
"""Apart from the streams of steps, which have no spawn key."""


class RackSlowdowns:
    """When one rack is slow: a function of seed, rack and time alone, whoever asks and in whichever order.

    >>> rack = Slowdowns(factor=3.0, every_s=20.0, lasting_s=5.0).of_rack(0, seed=0)
    >>> [rack.factor_at(at_s) for at_s in (0.0, 30.0, 50.0)]
    [1.0, 3.0, 1.0]
    """

    def __init__(self, slowdowns: Slowdowns, *, rack: int, seed: int) -> None:
        self._slowdowns = slowdowns
        self._generator = np.random.Generator(
            np.random.Philox(np.random.SeedSequence(seed, spawn_key=(_RACK_STREAM, rack)))
        )
        self._changes_s: list[float] = [self._generator.exponential(slowdowns.every_s)]
        """Beginning and end of each slowdown, as far as anybody has asked."""

    def factor_at(self, at_s: float) -> float:
        """Return how many times as long a step takes that begins ``at_s`` seconds after the run began."""
        changes_s = self._changes_s
        while changes_s[-1] <= at_s:
            slow = len(changes_s) % 2 == 1
            mean_s = self._slowdowns.lasting_s if slow else self._slowdowns.every_s
            changes_s.append(changes_s[-1] + self._generator.exponential(mean_s))
        return self._slowdowns.factor if bisect_right(changes_s, at_s) % 2 == 1 else 1.0
