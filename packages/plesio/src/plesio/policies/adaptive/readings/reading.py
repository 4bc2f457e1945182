"""The controller's input, one `Reading` a review with the figures of all workers; and a component's answer to it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["NO_OBJECTION", "ComponentAdvice", "GradientFigures", "Reading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientFigures:
    """Statistics of the workers' gradients on the sampled steps of a review; all are squared Euclidean norms.

    Attributes:
        norm_sq: Mean over workers of ‖g_i‖², the gradient of one worker's batch.
        mean_norm_sq: Unbiased estimate of ‖E g‖², the gradient without noise; below zero where noise hides it.
        within: tr Var(g) of one worker's gradient, estimated from pairs of its own consecutive steps.
        between: The same, estimated from the differences between workers in one step.
        noise_scale: tr Σ / ‖E g‖² in samples (McCandlish et al. 2018, "simple" noise scale); inf where noise hides it.
    """

    norm_sq: float
    mean_norm_sq: float
    within: float
    between: float
    noise_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Figures of all workers between two reviews.

    Attributes:
        clock: Clock of the review.
        num_steps: Steps since the last review.
        learning_rate: Learning rate of the first parameter group, at the end of these steps.
        loss: Mean over workers and steps; NaN if the user gives none.
        worst_loss: Mean of the worker with the highest; NaN if the user gives none.
        least_loss: Mean of the worker with the lowest; NaN if the user gives none.
        typical_loss: Median over the workers of their means; NaN if the user gives none.
        loss_error: Standard error of ``loss``: the scatter of the workers' means over the root of their number; NaN for
            one worker.
        losses: By step, the median of the workers' losses; empty if they are not known.
        num_workers: Number of workers that reported.
        num_racks: Number of their racks.
        normalises: True if the optimizer divides by the gradients' size, as Adam does, or may do so.
        shares_moments: True if the optimizer's moments can be kept, in local steps, at their values for the mean
            gradient.
        num_refused: `Reviewed.num_refused` of all workers.
        num_clipped: Steps whose gradient was extraordinary and scaled down, of the worker that had most of them.
        gradient: Statistics of the gradients; None if no step was sampled.
        speed: Distance of the parameters, averaged over the workers, from those at the last review, over the sum of the
            learning rates of the steps between, for reviews of 16 steps (`review.Movement`); NaN if it is not known.
        metric: The newest validation metric, with the sign in which higher is better; None if there is no news.
        progress: Share of the samples that are done, 0 to 1; None if their number is unknown.
        spent: Returns the seconds of all steps so far over those that the rest of the run is predicted to take with at
            most so much slack of single workers, and of racks; 0 if that is not known.
    """

    clock: int
    num_steps: int
    learning_rate: float
    loss: float = math.nan
    worst_loss: float = math.nan
    least_loss: float = math.nan
    typical_loss: float = math.nan
    losses: tuple[float, ...] = ()
    num_workers: int = 1
    num_racks: int = 1
    normalises: bool = False
    shares_moments: bool = False
    num_refused: int = 0
    num_clipped: int = 0
    gradient: GradientFigures | None = None
    speed: float = math.nan
    loss_error: float = math.nan
    metric: float | None = None
    progress: float | None = None
    spent: Callable[[float, float], float] = field(default=lambda slack, by_racks: 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentAdvice:
    """Advice of one component.

    Attributes:
        slack: Most steps that a worker may make without the others' updates (a period of H is a slack of H - 1, with a
            delay of d it is H + d - 1; a bound of s is s). 0 demands BSP, inf objects to nothing.
        reason: One clause for people, such as ``gradient variance is 3.1 times its average``.
        inputs: The numbers behind the advice, by name.
        by_racks: Slack if the workers of a rack step together, counted as the slack of single workers whose replicas
            would drift as far apart (`topology`); None if it is ``slack`` too.
        on_store: Slack if updates go through the store, and no worker steps on its own gradients alone; None if it is
            ``slack`` too.
        efficiency: Progress of a worker's own step, over that of a step with the mean gradient.
        rack_efficiency: The same for a rack's own step.
        store_efficiency: The same for a step on the store.
    """

    slack: float
    reason: str
    inputs: Mapping[str, float] = field(default_factory=dict)
    by_racks: float | None = None
    on_store: float | None = None
    efficiency: float = 1.0
    rack_efficiency: float = 1.0
    store_efficiency: float = 1.0

    @property
    def drift(self) -> float:
        """Largest drift of replicas of racks, in steps."""
        return self.slack if self.by_racks is None else self.by_racks

    @property
    def staleness(self) -> float:
        """Largest slack on the store, in steps."""
        return self.slack if self.on_store is None else self.on_store


NO_OBJECTION = ComponentAdvice(slack=math.inf, reason="no objection")
