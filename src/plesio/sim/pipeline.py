"""The 1F1B pipeline, operation by operation, with any times of stages and microbatches.

Theory of operation. Stage i of p does its operations in a fixed order (Narayanan et al. 2019, PipeDream-Flush; 2021,
section 2.2): ``min(p-1-i, m)`` forwards to fill the pipeline, then a forward and a backward in turn, then the backwards
that are left. So every time is a maximum of two sums, one over what the stage did before, one over what it is sent:

    F[i,j] begins at max(stage i free, F[i-1,j] ended + send)
    B[i,j] begins at max(stage i free, B[i+1,j] ended + send)       B[p-1,j]: F[p-1,j] ended

With equal times and no sends a batch takes ``(m + p - 1)(f + b)``, of which ``(p - 1)(f + b)`` are each stage's bubble
(Huang et al. 2019, section 2.3). A send does not keep the stage busy, and links are not shared.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plesio.sim.compiled import compiled

__all__ = ["PipelineSchedule", "simulate_one_forward_one_backward"]

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineSchedule:
    """When every stage does what.

    Attributes:
        forward_end_s: Virtual seconds at which a microbatch's forward has ended, (stages, microbatches).
        backward_end_s: The same of its backward.
        busy_s: Seconds that each stage computes, (stages,).
    """

    forward_end_s: Times
    backward_end_s: Times
    busy_s: Times

    @property
    def end_s(self) -> float:
        """Seconds of the whole batch."""
        return float(self.backward_end_s.max())

    @property
    def bubble_share(self) -> float:
        """Share of all stages' time in which they wait."""
        return 1.0 - float(self.busy_s.mean()) / self.end_s


def simulate_one_forward_one_backward(
    forward_s: ArrayLike, backward_s: ArrayLike, *, send_s: ArrayLike = 0.0
) -> PipelineSchedule:
    """Times of a batch in a 1F1B pipeline without interleaving.

    >>> pipeline = simulate_one_forward_one_backward(np.full((4, 8), 1.0), np.full((4, 8), 2.0))
    >>> pipeline.end_s, round(pipeline.bubble_share, 4)  # (8 + 3) x 3; 3/11
    (33.0, 0.2727)

    Args:
        forward_s: Seconds of each forward, (stages, microbatches).
        backward_s: Seconds of each backward, (stages, microbatches).
        send_s: Seconds from a stage to the next and back, one for all or one for each of the ``stages - 1`` borders.

    Raises:
        ValueError: Shapes that do not fit, or times that are negative or not finite.
    """
    forward_s = np.ascontiguousarray(forward_s, dtype=np.float64)
    backward_s = np.ascontiguousarray(backward_s, dtype=np.float64)
    if forward_s.ndim != 2 or forward_s.size == 0 or forward_s.shape != backward_s.shape:
        raise ValueError(f"forward_s {forward_s.shape}, backward_s {backward_s.shape}; both (stages, microbatches)")
    sends_s = np.ascontiguousarray(np.broadcast_to(np.asarray(send_s, float), len(forward_s) - 1))
    for times_s in (forward_s, backward_s, sends_s):
        if not (np.isfinite(times_s).all() and (times_s >= 0).all()):
            raise ValueError("a time is below 0 or not finite; write seconds, 0 or more")
    forward_end_s, backward_end_s = np.empty_like(forward_s), np.empty_like(forward_s)
    _one_forward_one_backward(forward_s, backward_s, sends_s, forward_end_s, backward_end_s)
    busy_s = forward_s.sum(axis=1) + backward_s.sum(axis=1)
    return PipelineSchedule(forward_end_s=forward_end_s, backward_end_s=backward_end_s, busy_s=busy_s)


@compiled
def _one_forward_one_backward(
    forward_s: Times, backward_s: Times, sends_s: Times, forward_end_s: Times, backward_end_s: Times
) -> None:
    num_stages, num_microbatches = forward_s.shape
    forward_end_s[:] = -1.0  # not yet known
    backward_end_s[:] = -1.0
    free_s = np.zeros(num_stages)
    done = np.zeros(num_stages, np.int64)  # operations of each stage
    while done.min() < 2 * num_microbatches:
        for i in range(num_stages):
            while done[i] < 2 * num_microbatches:
                warm_up = min(num_stages - 1 - i, num_microbatches)
                in_turn = done[i] - warm_up
                if in_turn < 0:
                    is_forward, j = True, done[i]
                elif in_turn < 2 * (num_microbatches - warm_up):
                    is_forward = in_turn % 2 == 0
                    j = in_turn // 2 + (warm_up if is_forward else 0)
                else:
                    is_forward, j = False, done[i] - num_microbatches
                input_s, send_s = 0.0, 0.0
                if is_forward and i > 0:
                    input_s, send_s = forward_end_s[i - 1, j], sends_s[i - 1]
                elif not is_forward and i < num_stages - 1:
                    input_s, send_s = backward_end_s[i + 1, j], sends_s[i]
                if input_s < 0:
                    break
                start_s = max(free_s[i], input_s + send_s)
                if is_forward:
                    free_s[i] = forward_end_s[i, j] = start_s + forward_s[i, j]
                else:
                    free_s[i] = backward_end_s[i, j] = start_s + backward_s[i, j]
                done[i] += 1
