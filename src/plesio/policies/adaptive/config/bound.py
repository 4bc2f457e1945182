"""How fast the slack grows, how large it becomes, and what counts as unstable."""

from dataclasses import dataclass

from plesio.policies.adaptive.config.numbers import RECENT, require_number
from plesio.policies.fields import require_whole

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

    first_slack: int = 3
    largest_slack: int = 7
    patience: int = 3
    back_off: int = 12
    window: int = 24
    noise_factor: float = 5.0
    loss_rise: float = 0.05
    metric_fall: float = 0.01
    norm_jump: float = 3.0

    def __post_init__(self) -> None:
        require_whole("adaptive", "feedback.first_slack", self.first_slack, minimum=0)
        require_whole("adaptive", "feedback.largest_slack", self.largest_slack, minimum=0)
        require_whole("adaptive", "feedback.patience", self.patience, minimum=1)
        require_whole("adaptive", "feedback.back_off", self.back_off, minimum=1)
        require_whole("adaptive", "feedback.window", self.window, minimum=2 * RECENT)
        require_number("adaptive", "feedback.noise_factor", self.noise_factor, above=0.0)
        require_number("adaptive", "feedback.loss_rise", self.loss_rise, above=0.0)
        require_number("adaptive", "feedback.metric_fall", self.metric_fall, above=0.0)
        require_number("adaptive", "feedback.norm_jump", self.norm_jump, above=1.0)
