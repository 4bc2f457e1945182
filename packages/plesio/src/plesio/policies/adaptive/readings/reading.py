"""The controller's input: one `Reading` a review, with the figures of all workers."""

import math
from dataclasses import dataclass


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
        least_loss: Mean of the worker with the lowest; NaN if the user gives none.
        typical_loss: Median over the workers of their means; NaN if the user gives none.
        loss_error: Standard error of ``loss``: the scatter of the workers' means over the root of their number; NaN for
            one worker.
        losses: By step, the median of the workers' losses; empty if they are not known.
        num_workers: Number of workers that reported.
        num_racks: Number of their racks.
        normalises: True if the optimizer divides by the gradients' size, as Adam does, or may do so.
        accumulates: True if the optimizer never forgets a gradient, as Adagrad does not.
        shares_moments: True if the optimizer's moments can be kept, in local steps, at their values for the mean
            gradient.
        num_refused: `Reviewed.num_refused` of all workers.
        num_clipped: Steps whose gradient was extraordinary and scaled down, of the worker that had most of them.
        gradient: Statistics of the gradients; None if no step was sampled.
        speed: Distance of the parameters, averaged over the workers, from those at the last review, over the sum of the
            learning rates of the steps between, for reviews of 16 steps (`review.Movement`); NaN if it is not known.
        progress: Share of the samples that are done, 0 to 1; None if their number is unknown.
    """

    clock: int
    num_steps: int
    learning_rate: float
    loss: float = math.nan
    least_loss: float = math.nan
    typical_loss: float = math.nan
    losses: tuple[float, ...] = ()
    num_workers: int = 1
    num_racks: int = 1
    normalises: bool = False
    accumulates: bool = False
    shares_moments: bool = False
    num_refused: int = 0
    num_clipped: int = 0
    gradient: GradientFigures | None = None
    speed: float = math.nan
    loss_error: float = math.nan
    progress: float | None = None
