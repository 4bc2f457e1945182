"""Error feedback: what an exchange did not send is added to the next update, so nothing is lost, only late.

With residual e, update x and codec C (Seide et al. 2014; Karimireddy et al. 2019, algorithm 2):

    send C(x + e),        e <- x + e - C(x + e)

Summed up, what was sent and the residual are all the updates: `sum(sent) + e = sum(x)`. A biased codec then costs a
delay and not a bias.

**The guard.** The residual holds updates of the past. Where updates become smaller (the learning rate falls, the loss
flattens out) it may outweigh them. When its norm exceeds ``limit`` times the moving average of the updates' norms, the
rank asks for a *flush*: the next exchange sends x + e in full, on all ranks, and the residual is zero. It is counted,
and never silently dropped.
"""

import torch
from torch import Tensor


class ErrorFeedback:
    """One rank's residual.

    Args:
        limit: Largest ratio of the residual's norm to the updates' average norm (`Compression.residual_limit`).
        smoothing: Share of the moving average that each update leaves in place; 0.9 looks back ten updates or so.

    >>> feedback = ErrorFeedback(limit=2.0)
    >>> x = feedback.compensate(torch.tensor([3.0, 1.0]))
    >>> feedback.keep(x - torch.tensor([3.0, 0.0]))  # the second number was not sent
    >>> feedback.compensate(torch.tensor([0.0, 1.0]))
    tensor([0., 2.])
    """

    def __init__(self, *, limit: float, smoothing: float = 0.9) -> None:
        self.limit = limit
        self.residual: Tensor | None = None
        """e; None is zero."""
        self.residual_norm = 0.0
        self._smoothing = smoothing
        self._average = 0.0
        self._weight = 0.0

    @property
    def average_norm(self) -> float:
        return self._average / self._weight if self._weight else 0.0

    @property
    def ratio(self) -> float:
        if self.residual_norm == 0:
            return 0.0
        return self.residual_norm / self.average_norm if self.average_norm else float("inf")

    @property
    def exceeded(self) -> bool:
        return self.ratio > self.limit

    def compensate(self, update: Tensor) -> Tensor:
        """Add the residual to the finite ``update``, in place, and return it."""
        norm = _norm(update)
        self._average = self._smoothing * self._average + (1 - self._smoothing) * norm
        self._weight = self._smoothing * self._weight + (1 - self._smoothing)
        return update if self.residual is None else update.add_(self.residual)

    def keep(self, residual: Tensor | None) -> None:
        """Make ``residual`` what is added to the next update; None is zero."""
        self.residual = residual
        self.residual_norm = 0.0 if residual is None else _norm(residual)


def _norm(tensor: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor))
    # squares above 1e38 overflow in float32; double precision takes six times as long
    return norm if norm < float("inf") else float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
