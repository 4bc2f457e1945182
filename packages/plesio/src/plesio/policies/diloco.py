"""DiLoCo: workers train alone for H steps, and an outer optimizer steps the shared parameters by what they came to.

Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv 2311.08105). With the
shared parameters θ, from which all workers set out, and θ_m, which worker m has after H local steps,

    G = mean of θ - θ_m          the outer gradient
    v <- μ v + G                 θ <- θ - η (G + μ v)          Nesterov's momentum, as torch.optim.SGD has it

and every worker goes on from θ. The state of the workers' own optimizers is never sent. θ is what is evaluated and
saved. With η = 1 and μ = 0 it is the mean of the workers, and the policy is local SGD.

*Streaming* (Douillard et al. 2025, "Streaming DiLoCo", arXiv 2501.18512). The tensors are divided into P fragments, and
every H/P steps the next fragment is exchanged, so the links carry a P-th at a time. With a delay of τ steps an exchange
runs behind the next τ steps; at its end a worker takes θ <- α θ_own + (1 - α) θ_shared, so it keeps a share α of its
steps meanwhile. (Without a delay it takes θ_shared, whatever α is.)

    H 6, fragments 2, delay 1    clock  1  2  3  4  5  6  7  8  9  10
    contributes fragment                      0        1        0
    merges fragment                              0        1         0

*Radial-directional averaging* (``merge=rda``; "Decoupled DiLoCo", arXiv 2604.21428): tensor by tensor, the mean of the
outer gradients' lengths in the mean of their directions. A plain mean of gradients that disagree is shorter than they.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from plesio.core.errors import PolicySpecError
from plesio.core.within import ABOVE_0, AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies.barrier import BarrierMachine
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.outer_rule import OuterRule
from plesio.policies.policy import MergeKind, Policy, PolicyMachine

__all__ = ["DiLoCo"]

_ALPHA = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DiLoCo(Policy):
    """Workers train alone for ``local_steps``; the mean of what they came to is the gradient of an outer optimizer.

    Args:
        local_steps: H, a worker's steps between two exchanges of a tensor.
        outer: The outer optimizer: SGD with Nesterov's momentum, or with plain momentum.
        outer_lr: η, its learning rate.
        outer_momentum: μ, its momentum, 0 to below 1.
        fragments: P, groups of whole tensors that are exchanged in turn; it divides ``local_steps``.
        delay: τ, steps behind which an exchange is hidden, at most those between two exchanges; 0 waits for it.
        alpha: α, the share of its own parameters that a worker keeps at a merge; only with a delay.
        merge: ``mean`` of the outer gradients, or ``rda``: the mean of their lengths in the mean of their directions.
        compression: Compression of outer gradients.

    Raises:
        PolicySpecError: A value that is out of range, or exchanges that do not fit between each other.

    >>> policy = DiLoCo(local_steps=30, fragments=3, delay=5)
    >>> policy.spec, policy.period, policy.bound, policy.merges_at(15), policy.fragments_at(20)
    ('diloco:30,fragments=3,delay=5', 10, 14, 10, (1,))
    """

    name: ClassVar[str] = "diloco"
    _argument: ClassVar[str | None] = "local_steps"
    can_be_stage: ClassVar[bool] = True

    local_steps: Annotated[int, AT_LEAST_1] = 30
    outer: Literal["nesterov", "sgd"] = "nesterov"
    outer_lr: Annotated[float, ABOVE_0] = 0.7
    outer_momentum: Annotated[float, Within(0, 1, without="high")] = 0.9
    fragments: Annotated[int, AT_LEAST_1] = 1
    delay: Annotated[int, AT_LEAST_0] = 0
    alpha: Annotated[float, Within(0, 1, without="high")] = _ALPHA
    merge: MergeKind = "mean"
    compression: Compression = NO_COMPRESSION

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.local_steps % self.fragments:
            raise PolicySpecError(
                f"diloco: {self.local_steps} local steps cannot be divided among {self.fragments} fragments; write a "
                f"number of fragments that divides {self.local_steps}"
            )
        if self.delay > self.period:
            raise PolicySpecError(
                f"diloco: delay {self.delay} is above the {self.period} steps between two exchanges, so two would be "
                f"in flight; write a delay of {self.period} or less"
            )
        if self.alpha != _ALPHA and not self.delay:
            raise PolicySpecError(
                "diloco: alpha is what a worker keeps of its steps behind an exchange, and without a delay there are "
                "none; leave it out, or write a delay"
            )
        if self.merge == "rda" and self.compression.keeps_residual:
            raise PolicySpecError(
                "diloco: merge=rda sends directions, and what is left out of one cannot be added to the next; write "
                f"compress={self.compression.spec.partition('+')[0]}+no_feedback, or leave merge out"
            )

    @property
    def period(self) -> int:
        """Local steps between two exchanges, each of the next fragment: H/P."""
        return self.local_steps // self.fragments

    @property
    def outer_step(self) -> OuterRule:
        """The outer optimizer."""
        return OuterRule(kind=self.outer, rate=self.outer_lr, momentum=self.outer_momentum, num_steps=self.local_steps)

    @property
    def own_share(self) -> float:
        """α; 0 without a delay."""
        return self.alpha if self.delay else 0.0

    def fragments_at(self, clock: int) -> tuple[int, ...]:
        """Return the fragment that is exchanged after step ``clock``."""
        return ((clock // self.period - 1) % self.fragments,)

    def start(self, *, clock: int = 0) -> PolicyMachine:
        return BarrierMachine(period=self.period, delay=self.delay, clock=clock)
