"""Bulk synchronous parallel: every step ends in an exchange that waits for everyone.

Valiant 1990, "A bridging model for parallel computation". For SGD it is the minibatch method: N workers with batches of
b samples take the step of one worker with N·b samples, because the mean of their mean gradients is the same. So it
converges as sequential SGD does, and runs at the pace of the slowest worker. On the ``collective`` exchange it is
PyTorch's own DistributedDataParallel (Li et al. 2020); on the ``store`` it is the synchronous parameter server, which
workers may join and leave, and there a step may leave the slowest workers behind (`plesio.policies.backup`). On the
collective the gradients may be compressed (`plesio.policies.compression`), or sent by one of torch's own hooks
(`plesio.policies.torch_hook`).
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.errors import PolicySpecError
from plesio.core.within import AT_LEAST_0
from plesio.policies.backup import BackupMachine
from plesio.policies.barrier import BarrierMachine
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.fields import require_sent_in_full, write_spec
from plesio.policies.policy import ExchangeKind, Policy, PolicyMachine, UpdateKind
from plesio.policies.torch_hook import TorchHook


@dataclass(frozen=True, slots=True, kw_only=True)
class BSP(Policy):
    """All workers finish a step, their gradients are averaged, and all begin the next from equal parameters.

    Args:
        exchange: ``collective`` (default) or ``store``.
        compression: Compression of gradients; none on the store.
        hook: torch's own hook of DDP that sends it instead.
        backup: b, workers that a step does not wait for; on the store only. Their gradients of the step are dropped.

    Raises:
        PolicySpecError: An unknown exchange, a compression or hook on the store, both of them, or backup workers on the
            collective.

    >>> BSP(exchange="store").spec, BSP(exchange="store", backup=1).spec
    ('bsp,exchange=store', 'bsp,backup=1')
    """

    name: ClassVar[str] = "bsp"
    update: ClassVar[UpdateKind] = "gradient"

    exchange: ExchangeKind = "collective"
    compression: Compression = NO_COMPRESSION
    hook: TorchHook | None = None
    backup: Annotated[int, AT_LEAST_0] = 0

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.exchange == "store":
            require_sent_in_full("bsp", compress=self.compression.spec)
        if self.hook is not None and (self.exchange == "store" or self.compression != NO_COMPRESSION):
            raise PolicySpecError(
                f"bsp: hook={self.hook.spec} is DDP's, which sends all gradients by it; leave compress and exchange out"
            )
        if self.backup and self.exchange != "store":
            raise PolicySpecError("bsp: a collective waits for all workers; backup workers need exchange=store")

    @property
    def spec(self) -> str:
        """``bsp`` and what differs from the defaults; backup workers imply the store."""
        return write_spec(self, argument=None, without=("exchange",) if self.backup else ())

    @property
    def bound(self) -> float:
        """0; with backup workers none, for those that are left behind fall behind."""
        return math.inf if self.backup else 0

    @property
    def synchronous(self) -> bool:
        """True if every exchange waits for all live workers."""
        return not self.backup

    @property
    def can_be_stage(self) -> bool:
        """On the collective."""
        return self.exchange == "collective"

    def start(self, *, clock: int = 0) -> PolicyMachine:
        return BackupMachine(backup=self.backup, clock=clock) if self.backup else BarrierMachine(period=1, clock=clock)
