"""How long a change is on trial, and what it must keep up."""

from dataclasses import dataclass

from plesio.policies.adaptive.config.numbers import require_number
from plesio.policies.fields import require_whole

__all__ = ["ProgressConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressConfig:
    """How long a change is on trial, and what it must keep up.

    Attributes:
        warm_up: Reviews of a run before there is any slack.
        window: Reviews before a change that say how training went.
        trial: Reviews after it in which it may fail.
        keeps: Least share of the former fall of the loss that must go on.
        most_kept: Largest share that must.
        noise_factor: Standard deviations by which the loss must be above what was expected.
        least_rise: Share of the loss by which it must be above that as well.
        back_off: Reviews for which what failed is barred; doubled by every further failure of its kind.
        rest: Reviews after a failure in which nothing looser than the setting before is taken; as many as there have
            been, if that is more.

    Raises:
        PolicySpecError: A value out of its range.
    """

    warm_up: int = 3
    window: int = 4
    trial: int = 3
    keeps: float = 0.5
    most_kept: float = 0.8
    noise_factor: float = 3.0
    least_rise: float = 0.01
    back_off: int = 8
    rest: int = 2

    def __post_init__(self) -> None:
        require_whole("adaptive", "progress.warm_up", self.warm_up, minimum=0)
        require_whole("adaptive", "progress.window", self.window, minimum=2)
        require_whole("adaptive", "progress.trial", self.trial, minimum=1)
        require_whole("adaptive", "progress.back_off", self.back_off, minimum=1)
        require_whole("adaptive", "progress.rest", self.rest, minimum=0)
        require_number("adaptive", "progress.keeps", self.keeps, above=0.0, below=1.0)
        require_number("adaptive", "progress.most_kept", self.most_kept, above=0.0, below=1.0)
        require_number("adaptive", "progress.noise_factor", self.noise_factor, above=0.0)
        require_number("adaptive", "progress.least_rise", self.least_rise, above=0.0)
