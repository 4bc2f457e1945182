"""Parameters of the slack that is found by trying."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import ABOVE_0, ABOVE_1, AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies.adaptive.config.numbers import RECENT
from plesio.policies.fields import check_policy

__all__ = ["BoundTunerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTunerConfig:
    """Growth and limits of the slack, and the limits beyond which training counts as unstable.

    Attributes:
        first_slack: Slack to begin with, in steps. A power of two less one is a rung; other values are rounded down.
        largest_slack: Largest slack ever advised, in steps; rounded down likewise.
        patience: Stable reviews before the slack grows by a rung, and the least number between two cuts.
        back_off: Reviews after the first cut before the rung that failed is tried again; every further cut doubles it.
        window: Values of a figure that its noise is computed from.
        noise_factor: Standard deviations of its noise by which a figure must be off its level.
        loss_rise: Share of its level by which the loss must have risen as well.
        metric_fall: Share of its level by which the metric must have fallen as well.
        norm_jump: Multiple of its level that the gradient's norm must reach.
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
