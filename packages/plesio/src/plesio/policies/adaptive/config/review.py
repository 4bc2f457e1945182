"""Parameters of the workers' reports."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import Within
from plesio.policies.fields import check_policy

__all__ = ["ReviewConfig"]


_FIRST_INTERVAL = 4
"""Least number of steps between two reviews: half of the steps so far is less at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewConfig:
    """Steps between the workers' reports, and steps whose gradients are sampled.

    Attributes:
        every: Steps between two reviews; more if the period and the delay in force need more, and fewer at the
            beginning: half of the steps so far.
        sample_every: Length of the stretches of steps, in each of which the first two gradients are sampled (32: 6 % of
            steps).
        sketch: Numbers in a sketch of a gradient.
    """

    every: Annotated[int, Within(4)] = 16
    sample_every: Annotated[int, Within(2)] = 32
    sketch: Annotated[int, Within(8)] = 64

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: review.")

    def interval(self, since: int, *, trial: bool) -> int:
        """Return the least number of steps from clock ``since`` to the next review; a trial halves ``every``.

        >>> [ReviewConfig().interval(since, trial=False) for since in (0, 5, 12, 20, 100)]
        [4, 4, 6, 10, 16]
        """
        most = self.every // 2 if trial else self.every
        return max(_FIRST_INTERVAL, min(most, since // 2))

    def samples_at(self, clock: int) -> bool:
        """Return True if the gradient of the step that ends at ``clock`` is sampled.

        >>> [clock for clock in range(1, 70) if ReviewConfig().samples_at(clock)]
        [1, 2, 33, 34, 65, 66]
        """
        return (clock - 1) % self.sample_every < 2
