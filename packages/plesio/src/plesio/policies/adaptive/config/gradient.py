"""Parameters of the monitor of gradient statistics."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.errors import PolicySpecError
from plesio.core.within import ABOVE_0, ABOVE_1, AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies.fields import check_policy

__all__ = ["GradientMonitorConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMonitorConfig:
    """Limits beyond which a gradient is out of the ordinary, and the times for which slack is small then.

    Attributes:
        trigger: Multiple of its moving average that a variance must reach.
        norm_trigger: The same for the norm (not squared).
        release: Multiple of its moving average below which a figure is ordinary again: the hysteresis.
        window: Readings with figures in the moving average; before half of them are there, nothing is advised.
        noise_factor: Standard deviations of its own noise (of its logarithm) that a figure must exceed as well.
        hold_reviews: Least number of reviews at ``tight_slack``.
        regrow_reviews: Least number of reviews at each larger slack after that.
        tight_slack: Slack in steps while a figure is out of the ordinary. Not 0: bursts of variance are common once the
            loss is small, and on a slow network every strict step costs several.
        largest_slack: Largest slack in steps before all objection ends.
    """

    trigger: Annotated[float, ABOVE_1] = 2.5
    norm_trigger: Annotated[float, ABOVE_1] = 2.0
    release: Annotated[float, ABOVE_0] = 1.5
    window: Annotated[int, Within(4)] = 8
    noise_factor: Annotated[float, ABOVE_0] = 3.0
    hold_reviews: Annotated[int, AT_LEAST_1] = 4
    regrow_reviews: Annotated[int, AT_LEAST_1] = 2
    tight_slack: Annotated[int, AT_LEAST_0] = 3
    largest_slack: Annotated[int, AT_LEAST_1] = 15

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: gradient.")
        if self.largest_slack < self.tight_slack:
            raise PolicySpecError(
                f"adaptive: gradient.largest_slack is {self.largest_slack}; write {self.tight_slack} or more"
            )
        if self.release > min(self.trigger, self.norm_trigger**2):
            raise PolicySpecError(
                f"adaptive: gradient.release is {self.release:g}, above what triggers "
                f"({min(self.trigger, self.norm_trigger**2):g}); write less"
            )
