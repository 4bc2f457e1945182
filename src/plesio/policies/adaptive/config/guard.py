"""What counts as divergence."""

from dataclasses import dataclass

from plesio.policies.adaptive.config.numbers import RECENT, require_number
from plesio.policies.fields import require_whole

__all__ = ["GuardConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What counts as divergence.

    Attributes:
        window: Reviews that levels and noise are taken from.
        noise_factor: Standard deviations of its noise by which a figure must be above its level.
        loss_rise: Share of its level by which the loss must be above it as well.
        worst_rise: The same for the worst worker's loss.
        speed_jump: Times its level that the parameters' speed must reach as well.
        norm_jump: Times its level that the gradient's norm must reach as well.
        early_rise: Share by which a loss must be above the highest one so far while no level is known.
        refused_share: Refused gradients a step, of all workers together, in two reviews in succession.
        rearm_reviews: Reviews after an alarm without another.
        spike_jump: How far beyond those of a worker's last steps the norm or loss of one is extraordinary (`spike`).
        spike_shift: The same for medians of five.
        clipped_share: Share of a worker's steps in a review whose gradients were extraordinary.
        rate_jump: Times the highest learning rate so far that one step may raise it to.

    Raises:
        PolicySpecError: A value out of its range.
    """

    window: int = 24
    noise_factor: float = 6.0
    loss_rise: float = 0.1
    worst_rise: float = 0.5
    speed_jump: float = 2.0
    norm_jump: float = 3.0
    early_rise: float = 2.0
    refused_share: float = 0.25
    rearm_reviews: int = 4
    spike_jump: float = 2.0
    spike_shift: float = 1.5
    clipped_share: float = 0.25
    rate_jump: float = 2.5

    def __post_init__(self) -> None:
        require_whole("adaptive", "guard.window", self.window, minimum=4 * RECENT)
        require_number("adaptive", "guard.noise_factor", self.noise_factor, above=0.0)
        require_number("adaptive", "guard.loss_rise", self.loss_rise, above=0.0)
        require_number("adaptive", "guard.worst_rise", self.worst_rise, above=0.0)
        require_number("adaptive", "guard.speed_jump", self.speed_jump, above=1.0)
        require_number("adaptive", "guard.norm_jump", self.norm_jump, above=1.0)
        require_number("adaptive", "guard.early_rise", self.early_rise, above=0.0)
        require_number("adaptive", "guard.refused_share", self.refused_share, above=0.0)
        require_whole("adaptive", "guard.rearm_reviews", self.rearm_reviews, minimum=1)
        require_number("adaptive", "guard.spike_jump", self.spike_jump, above=1.0)
        require_number("adaptive", "guard.spike_shift", self.spike_shift, above=1.0)
        require_number("adaptive", "guard.clipped_share", self.clipped_share, above=0.0)
        require_number("adaptive", "guard.rate_jump", self.rate_jump, above=1.0)
