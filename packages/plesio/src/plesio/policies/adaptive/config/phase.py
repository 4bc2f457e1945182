"""Parameters of the phases of training."""

from dataclasses import dataclass
from typing import Annotated, Literal

from plesio.core.within import ABOVE_0, ABOVE_1, AT_LEAST_0, AT_LEAST_1, PROPER_SHARE
from plesio.policies.fields import check_policy

__all__ = ["Direction", "PhaseConfig"]


Direction = Literal["first", "last", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseConfig:
    """Strict phases, and their beginnings and ends; `plesio.policies.adaptive.training.phase` has the rules.

    Attributes:
        direction: Strict phases: ``first`` the critical one, ``last`` the final one, or ``both``.
        slack: Slack in steps of strict phases; the others allow any.
        rise: Multiple of its lowest value at which the learning rate begins a new cycle.
        jump_budget: Share of the last cycle's budget; a jump is over when it has spent as much.
        final_share: Share of its peak at which the learning rate is final.
        final_budget: Share of the cycle's budget that is left when the final phase begins.
        final_steps: Share of all steps that is strict at the end, if the number of steps is known.
        settled_loss: Share of the loss's fall that belongs to the newer half of a start when the start is over.
        settled_gradient: The same for the norm of the mean gradient.
        least_fall: Least share of its highest value by which a figure must fall, to count as falling.
        straightness: Least share of its fall in a figure's way up and down, to count as falling.
        noise_share: ‖E g‖² / ‖g‖² of a model that was trained before.
        start_steps: Steps after which a start in which nothing falls is over.
        setback: Share of its level by which the loss rises in a setback.
        setback_noise: Standard deviations by which it rises as well.
    """

    direction: Direction = "last"
    slack: Annotated[int, AT_LEAST_0] = 0
    rise: Annotated[float, ABOVE_1] = 1.1
    jump_budget: Annotated[float, PROPER_SHARE] = 0.05
    final_share: Annotated[float, PROPER_SHARE] = 0.12
    final_budget: Annotated[float, PROPER_SHARE] = 0.05
    final_steps: Annotated[float, PROPER_SHARE] = 0.1
    settled_loss: Annotated[float, PROPER_SHARE] = 0.25
    settled_gradient: Annotated[float, PROPER_SHARE] = 0.5
    least_fall: Annotated[float, PROPER_SHARE] = 0.15
    straightness: Annotated[float, PROPER_SHARE] = 0.5
    noise_share: Annotated[float, PROPER_SHARE] = 0.1
    start_steps: Annotated[int, AT_LEAST_1] = 128
    setback: Annotated[float, ABOVE_0] = 0.3
    setback_noise: Annotated[float, ABOVE_0] = 6.0

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: phase.")
