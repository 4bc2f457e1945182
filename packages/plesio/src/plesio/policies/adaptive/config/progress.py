"""Parameters of the trials of changes."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import ABOVE_0, AT_LEAST_0, AT_LEAST_1, PROPER_SHARE, Within
from plesio.policies.fields import check_policy

__all__ = ["ProgressConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressConfig:
    """Length of a trial, and the progress that a change must keep up.

    Attributes:
        warm_up: Reviews of a run before there is any slack.
        window: Reviews before a change that show how training went.
        trial: Reviews after it in which it may fail.
        keeps: Least share of the former fall of the loss that must go on.
        most_kept: Largest share that must.
        noise_factor: Standard deviations by which the loss must be above the expected one to fail.
        least_rise: Share of the loss by which it must be above that as well.
        back_off: Reviews for which a failed change is barred; every further failure of its kind doubles it.
        rest: Least number of reviews after a failure in which nothing looser than the former setting is taken; if the
            run has had more reviews so far, that many.
    """

    warm_up: Annotated[int, AT_LEAST_0] = 3
    window: Annotated[int, Within(2)] = 4
    trial: Annotated[int, AT_LEAST_1] = 3
    keeps: Annotated[float, PROPER_SHARE] = 0.5
    most_kept: Annotated[float, PROPER_SHARE] = 0.8
    noise_factor: Annotated[float, ABOVE_0] = 3.0
    least_rise: Annotated[float, ABOVE_0] = 0.01
    back_off: Annotated[int, AT_LEAST_1] = 8
    rest: Annotated[int, AT_LEAST_0] = 2

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: progress.")
