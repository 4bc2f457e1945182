"""How often workers report, and which steps are sampled."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import Within
from plesio.policies.fields import check_policy

__all__ = ["ReviewConfig"]


_FIRST_INTERVAL = 4
"""Steps between two reviews, at least: between the first ones half of the steps so far are fewer."""


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

    every: Annotated[int, Within(4)] = 16
    sample_every: Annotated[int, Within(2)] = 32
    sketch: Annotated[int, Within(8)] = 64

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: review.")

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
