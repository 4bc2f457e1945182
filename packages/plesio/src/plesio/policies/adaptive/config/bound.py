"""How fast the slack grows, how large it becomes, and what counts as unstable."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import ABOVE_0, ABOVE_1, AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies.adaptive.config.numbers import RECENT
from plesio.policies.fields import check_policy

__all__ = ["BoundTunerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTunerConfig:
    """How fast the slack grows, how large it becomes, and what counts as unstable.

    Attributes:
        first_slack: The one to begin with; a power of two less one is a rung, others are rounded down.
        largest_slack: The largest one ever advised; rounded down likewise.
        patience: Stable reviews before the slack grows by a rung, and the least number between two cuts.
        back_off: Reviews after the first cut before the rung that failed is tried again; doubled by every further cut.
        window: Values of a figure that its noise is taken from.
        noise_factor: Standard deviations of its noise by which a figure must be off its level.
        loss_rise: Share of its level by which the loss must have risen as well.
        metric_fall: Share of its level by which the metric must have fallen as well.
        norm_jump: Times its level that the gradient's norm must reach.

    Raises:
        PolicySpecError: A value out of its range.
    """

    first_slack: Annotated[int, AT_LEAST_0] = 3
    largest_slack: Annotated[int, AT_LEAST_0] = 7
    patience: Annotated[int, AT_LEAST_1] = 3
    back_off: Annotated[int, AT_LEAST_1] = 12
    window: Annotated[int, Within(2 * RECENT)] = 24
    noise_factor: Annotated[float, ABOVE_0] = 5.0
    loss_rise: Annotated[float, ABOVE_0] = 0.05
    metric_fall: Annotated[float, ABOVE_0] = 0.01
    norm_jump: Annotated[float, ABOVE_1] = 3.0

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: feedback.")
