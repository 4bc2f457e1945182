"""Which phases are strict, and where they begin and end."""

from dataclasses import dataclass
from typing import Literal, get_args

from plesio.policies.adaptive.config.numbers import require_number
from plesio.policies.fields import require_one_of, require_whole

__all__ = ["Direction", "PhaseConfig"]


Direction = Literal["first", "last", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseConfig:
    """Which phases are strict, and where they begin and end; `plesio.policies.adaptive.training.phase` has the rules.

    Attributes:
        direction: Strict phases: ``first`` the critical one, ``last`` the final one, or ``both``.
        slack: What strict phases allow; the others allow anything.
        rise: Times its lowest value at which the learning rate begins a new cycle.
        jump_budget: Share of the last cycle's budget; when a jump has spent as much it is over.
        final_share: Share of its peak at which the learning rate is final.
        final_budget: Share of the cycle's budget that is left when the final phase begins.
        final_steps: Share of all steps that is strict at the end, where it is known how many there are.
        settled_loss: Share of the loss's fall that the newer half of a start holds when it is over.
        settled_gradient: The same for the norm of the mean gradient.
        least_fall: Share of its highest value by which a figure falls, if it does.
        straightness: Share of a figure's way up and down that is its fall, if it falls.
        noise_share: ‖E g‖² / ‖g‖² of a model that was trained before.
        start_steps: After so many, a start in which nothing falls is over.
        setback: Share of its level by which the loss rises in a setback.
        setback_noise: Standard deviations by which it rises as well.

    Raises:
        PolicySpecError: A value out of its range.
    """

    direction: Direction = "last"
    slack: int = 0
    rise: float = 1.1
    jump_budget: float = 0.05
    final_share: float = 0.12
    final_budget: float = 0.05
    final_steps: float = 0.1
    settled_loss: float = 0.25
    settled_gradient: float = 0.5
    least_fall: float = 0.15
    straightness: float = 0.5
    noise_share: float = 0.1
    start_steps: int = 128
    setback: float = 0.3
    setback_noise: float = 6.0

    def __post_init__(self) -> None:
        require_one_of("adaptive", "phase.direction", self.direction, known=get_args(Direction))
        require_whole("adaptive", "phase.slack", self.slack, minimum=0)
        require_whole("adaptive", "phase.start_steps", self.start_steps, minimum=1)
        require_number("adaptive", "phase.rise", self.rise, above=1.0)
        require_number("adaptive", "phase.setback", self.setback, above=0.0)
        require_number("adaptive", "phase.setback_noise", self.setback_noise, above=0.0)
        for share in (
            "jump_budget",
            "final_share",
            "final_budget",
            "final_steps",
            "settled_loss",
            "settled_gradient",
            "least_fall",
            "straightness",
            "noise_share",
        ):
            require_number("adaptive", f"phase.{share}", getattr(self, share), above=0.0, below=1.0)
