"""Local SGD: workers train alone for H steps, then average what they have become.

Stich 2019, "Local SGD Converges Fast and Communicates Little"; as *periodic averaging* it goes back to McDonald et al.
2010 and Zinkevich et al. 2010. An exchange every H steps sends 1/H of the bytes of BSP; the price is that the replicas
drift apart between two exchanges, by an amount that grows with H and the learning rate.

With a delay of d steps the exchange runs behind the next d steps (Wang et al. 2020, "Overlap Local-SGD"): a worker
contributes its delta at clock c, goes on, and after step c + d adds the difference between the mean delta and its own,
so what it learned meanwhile is kept. Communication then costs no time until it takes longer than d steps.

On the collective local steps may be short and their mean taken long, in two step sizes (Karimireddy et al. 2020,
"SCAFFOLD", section 3; Reddi et al. 2021, "Adaptive Federated Optimization"): with an inner rate a, local steps take the
share a of the learning rate, and what they come to on average is taken 1/a times, smoothed by a momentum (Wang et al.
2020, "SlowMo"). Training goes as fast, and replicas drift apart by less: see
`plesio.runtime.worker.exchange.outer_step`.

If the optimizer divides by the size of its gradients, as Adam does, ``moments=mean`` keeps its moments as they would be
if it had seen the mean gradient of all workers: `plesio.runtime.worker.exchange.mean_moments`.

On the collective the deltas may be compressed (`plesio.policies.compression`), as in Basu et al. 2019,
"Qsparse-local-SGD", whose error feedback is between exchanges, not between steps.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.errors import PolicySpecError
from plesio.core.within import AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies.barrier import BarrierMachine
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.fields import require_moments_met, require_sent_in_full
from plesio.policies.outer_rule import OuterRule
from plesio.policies.policy import ExchangeKind, MomentsKind, Policy, PolicyMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSGD(Policy):
    """Every ``period`` steps the workers' parameters are averaged, ``delay`` steps behind the training.

    Args:
        period: H, local steps between two exchanges.
        delay: d, steps between starting an exchange and merging its result, at most ``period``; 0 waits for it.
        exchange: ``collective`` (default) or ``store``.
        inner_rate: Share of the learning rate that local steps take; what they come to counts 1/inner_rate times.
        momentum: Momentum of the steps that are made of it, 0 to below 1.
        moments: Memory of Adam, AdamW, RMSprop or Adagrad: that of a worker's ``own`` gradients (default), or of the
            ``mean`` of all.
        compression: Compression of deltas; none on the store.

    Raises:
        PolicySpecError: A value that is out of range, an unknown exchange, or a compression or rate on the store.

    >>> policy = LocalSGD(period=8, delay=4)
    >>> policy.spec, policy.bound, policy.merges_at(12)
    ('local_sgd:8,delay=4', 11, 8)
    """

    name: ClassVar[str] = "local_sgd"
    _argument: ClassVar[str | None] = "period"

    period: Annotated[int, AT_LEAST_1] = 8
    delay: Annotated[int, AT_LEAST_0] = 0
    exchange: ExchangeKind = "collective"
    inner_rate: Annotated[float, Within(0, 1, without="low")] = 1.0
    momentum: Annotated[float, Within(0, 1, without="high")] = 0.0
    moments: MomentsKind = "own"
    compression: Compression = NO_COMPRESSION

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.delay > self.period:
            raise PolicySpecError(
                f"local_sgd: delay {self.delay} is above period {self.period}, so two exchanges would be in flight; "
                f"write a delay of {self.period} or less"
            )
        if self.exchange == "store":
            require_moments_met("local_sgd", moments=self.moments)
            if self.outer_step is not None:
                raise PolicySpecError(
                    "local_sgd: the store adds up what workers come to; leave inner_rate and momentum out, or use "
                    "exchange=collective"
                )
            require_sent_in_full("local_sgd", compress=self.compression.spec)

    @property
    def can_be_stage(self) -> bool:
        """True on the collective."""
        return self.exchange == "collective"

    @property
    def outer_step(self) -> OuterRule | None:
        """The rule of two step sizes, where local steps are short or their mean has a momentum."""
        if self.inner_rate == 1 and self.momentum == 0:
            return None
        return OuterRule(kind="average", rate=1 / self.inner_rate, momentum=self.momentum)

    def start(self, *, clock: int = 0) -> PolicyMachine:
        return BarrierMachine(period=self.period, delay=self.delay, clock=clock)
