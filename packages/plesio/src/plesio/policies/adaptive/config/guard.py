"""Limits of the guard against divergence."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import ABOVE_0, ABOVE_1, AT_LEAST_1, Within
from plesio.policies.adaptive.config.numbers import RECENT
from plesio.policies.fields import check_policy

__all__ = ["GuardConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """Limits beyond which a run counts as diverging.

    Attributes:
        window: Reviews from which levels and noise are computed.
        noise_factor: Standard deviations of its noise by which a figure must be above its level.
        loss_rise: Share of its level by which the loss must be above it as well.
        worst_rise: The same for the worst worker's loss.
        speed_jump: Multiple of its level that the parameters' speed must reach as well.
        norm_jump: Multiple of its level that the gradient's norm must reach as well.
        early_rise: Share by which a loss must be above the highest one so far while no level is known.
        refused_share: Refused gradients a step, of all workers together, in two reviews in succession.
        rearm_reviews: Reviews after an alarm without another.
        spike_jump: Distance beyond the figures of a worker's last steps at which its norm or loss is extraordinary
            (`spike`).
        spike_shift: The same for medians of five.
        clipped_share: Share of a worker's steps in a review whose gradients were extraordinary.
        rate_jump: Multiple of the highest learning rate so far to which one step may raise it.
    """

    window: Annotated[int, Within(4 * RECENT)] = 24
    noise_factor: Annotated[float, ABOVE_0] = 6.0
    loss_rise: Annotated[float, ABOVE_0] = 0.1
    worst_rise: Annotated[float, ABOVE_0] = 0.5
    speed_jump: Annotated[float, ABOVE_1] = 2.0
    norm_jump: Annotated[float, ABOVE_1] = 3.0
    early_rise: Annotated[float, ABOVE_0] = 2.0
    refused_share: Annotated[float, ABOVE_0] = 0.25
    rearm_reviews: Annotated[int, AT_LEAST_1] = 4
    spike_jump: Annotated[float, ABOVE_1] = 2.0
    spike_shift: Annotated[float, ABOVE_1] = 1.5
    clipped_share: Annotated[float, ABOVE_0] = 0.25
    rate_jump: Annotated[float, ABOVE_1] = 2.5

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: guard.")
