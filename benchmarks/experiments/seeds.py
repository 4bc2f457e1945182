"""Figures of runs that differ in the seed alone."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from plesio.core.results import RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Values over seeds.

    Attributes:
        std: Sample standard deviation (n - 1).
    """

    values: tuple[float, ...]
    mean: float
    std: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Summarise two values or more."""
        listed = tuple(values)
        return cls(values=listed, mean=statistics.fmean(listed), std=statistics.stdev(listed))

    def text(self, form: str) -> str:
        """``mean ± standard deviation``.

        >>> Spread.of([1.0, 3.0]).text(".1f")
        '2.0 ± 1.4'
        """
        return f"{self.mean:{form}} ± {self.std:{form}}"


def policies_of(runs: Sequence[RunResult]) -> list[str]:
    """Return the policies, in the order of the runs."""
    return list(dict.fromkeys(run.policy for run in runs))


def over_seeds(runs: Sequence[RunResult], policy: str, figure: Callable[[RunResult], float]) -> Spread:
    """Return a figure of one policy's runs, in the order of the seeds."""
    return Spread.of(figure(run) for run in sorted(runs, key=lambda run: run.seed) if run.policy == policy)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
