"""When a gradient is out of the ordinary."""

from dataclasses import dataclass

from plesio.core.errors import PolicySpecError
from plesio.policies.adaptive.config.numbers import require_number
from plesio.policies.fields import require_whole

__all__ = ["GradientMonitorConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMonitorConfig:
    """When the gradient is out of the ordinary, and for how long consistency is kept tight then.

    Attributes:
        trigger: Times its moving average that a variance must reach.
        norm_trigger: The same for the norm (not squared).
        release: Times its moving average below which a figure is ordinary again: the hysteresis.
        window: Readings with figures in the moving average; nothing is said before half of them are there.
        noise_factor: Standard deviations of its own noise (of its logarithm) that a figure must exceed as well.
        hold_reviews: Reviews for which the slack is ``tight_slack``, at least.
        regrow_reviews: Reviews for which each larger slack is kept after that.
        tight_slack: What is allowed when something is out of the ordinary. Not 0: bursts of variance are common once
            the loss is small, and where the network is slow every strict step costs several.
        largest_slack: The last one before there is no objection.

    Raises:
        PolicySpecError: A value out of its range.
    """

    trigger: float = 2.5
    norm_trigger: float = 2.0
    release: float = 1.5
    window: int = 8
    noise_factor: float = 3.0
    hold_reviews: int = 4
    regrow_reviews: int = 2
    tight_slack: int = 3
    largest_slack: int = 15

    def __post_init__(self) -> None:
        require_number("adaptive", "gradient.release", self.release, above=0.0)
        require_number("adaptive", "gradient.trigger", self.trigger, above=1.0)
        require_number("adaptive", "gradient.norm_trigger", self.norm_trigger, above=1.0)
        require_number("adaptive", "gradient.noise_factor", self.noise_factor, above=0.0)
        require_whole("adaptive", "gradient.window", self.window, minimum=4)
        require_whole("adaptive", "gradient.hold_reviews", self.hold_reviews, minimum=1)
        require_whole("adaptive", "gradient.regrow_reviews", self.regrow_reviews, minimum=1)
        require_whole("adaptive", "gradient.tight_slack", self.tight_slack, minimum=0)
        require_whole("adaptive", "gradient.largest_slack", self.largest_slack, minimum=max(1, self.tight_slack))
        if self.release > min(self.trigger, self.norm_trigger**2):
            raise PolicySpecError(
                f"adaptive: gradient.release is {self.release:g}, above what triggers "
                f"({min(self.trigger, self.norm_trigger**2):g}); write less"
            )
