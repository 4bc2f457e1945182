"""torch's own post-local SGD: gradients are averaged at every step of a warm-up, parameters every H steps after it.

Lin et al. 2020, "Don't use large mini-batches, use local SGD". A baseline to compare with: the hook, the averager and
the optimizer around the user's are torch's (``post_localSGD_hook``, ``PeriodicModelAverager``,
``PostLocalSGDOptimizer``). After the warm-up a worker's gradients are its own
(``post_local_gradient_allreduce=False``): torch's subgroups within a host are what ``hier:`` is for. Plesio's own way
to the same schedule is ``switch:bsp/local_sgd:H@WARMUP``, which runs in every world and goes on after a loss.

    warmup 2, period 3        clock  1  2  3  4  5  6  7
    gradients are averaged           x  x
    parameters are                         x        x       after the step
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.within import AT_LEAST_0, Within
from plesio.policies.barrier import BarrierMachine
from plesio.policies.policy import Policy, PolicyMachine
from plesio.policies.torch_hook import TorchHook


@dataclass(frozen=True, slots=True, kw_only=True)
class PostLocalSGD(Policy):
    """Gradients are averaged for ``warmup`` steps; then parameters every ``period`` steps, the first time at once.

    Args:
        period: H, local steps between two averagings, at least 2 (1 is more to send than BSP, for nothing).
        warmup: Steps before that.

    >>> policy = PostLocalSGD(period=3, warmup=2)
    >>> policy.spec, [clock for clock in range(1, 8) if policy.exchanges_at(clock)]
    ('post_local_sgd:3,warmup=2', [1, 2, 3, 6])
    """

    name: ClassVar[str] = "post_local_sgd"
    _argument: ClassVar[str | None] = "period"

    period: Annotated[int, Within(2)] = 8
    warmup: Annotated[int, AT_LEAST_0] = 0

    @property
    def hook(self) -> TorchHook:
        """DDP's treatment of gradients."""
        return TorchHook(form="post_local_sgd", start=self.warmup)

    def exchanges_at(self, clock: int) -> bool:
        """Return True if something is averaged in or after step ``clock``."""
        if clock <= self.warmup:
            return clock > 0
        return (clock - 1 - self.warmup) % self.period == 0  # as torch's averager counts, which begins at 0

    def start(self, *, clock: int = 0) -> PolicyMachine:
        return BarrierMachine(period=self.period, clock=clock)
