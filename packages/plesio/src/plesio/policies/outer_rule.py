"""The rule by which the mean of local steps' results becomes a step of the shared parameters.

`plesio.runtime.worker.exchange.outer_step` carries it out.
"""

from dataclasses import dataclass
from typing import Literal

OuterKind = Literal["average", "sgd", "nesterov", "adam"]

OUTER_BETA2 = 0.99
"""Share of the squares of progress that ``adam`` keeps (Reddi et al. 2021, "Adaptive Federated Optimization")."""
OUTER_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterRule:
    """A rule of outer steps; equal rules go on with each other's momentum.

    Attributes:
        kind: ``average``: the moving average of the progress by local step; ``sgd`` and ``nesterov``: torch's SGD, with
            the progress of a round as its negative gradient; ``adam``: torch's Adam, the same.
        rate: Factor of the step.
        momentum: Share of the velocity that a step keeps; Adam's first beta.
        num_steps: Local steps of a whole round, of ``sgd`` and ``nesterov``: a shorter one has its share of momentum.
    """

    kind: OuterKind
    rate: float
    momentum: float = 0.0
    num_steps: int = 1
