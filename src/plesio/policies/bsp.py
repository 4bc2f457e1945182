"""Bulk synchronous parallel: every step ends in an exchange that waits for everyone.

Valiant 1990, "A bridging model for parallel computation". For SGD it is the minibatch method: N workers with batches of
b samples take the step of one worker with N·b samples, because the mean of their mean gradients is the same. So it
converges as sequential SGD does, and runs at the pace of the slowest worker. On the ``collective`` exchange it is
PyTorch's own DistributedDataParallel (Li et al. 2020); on the ``store`` it is the synchronous parameter server, which
workers may join and leave.
"""

from dataclasses import dataclass
from typing import ClassVar

from plesio.policies.barrier import BarrierMachine
from plesio.policies.fields import require_one_of, write_spec
from plesio.policies.policy import EXCHANGES, ExchangeKind, Machine, UpdateKind
from plesio.policies.schedule import PeriodicSchedule
from plesio.policies.weighting import UNWEIGHTED, Weighting

__all__ = ["BSP"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BSP(PeriodicSchedule):
    """All workers finish a step, their gradients are averaged, and all begin the next from equal parameters.

    Args:
        exchange: ``collective`` (default) or ``store``.

    Raises:
        PolicySpecError: An unknown exchange.

    >>> BSP(exchange="store").spec
    'bsp,exchange=store'
    """

    name: ClassVar[str] = "bsp"
    update: ClassVar[UpdateKind] = "gradient"
    bound: ClassVar[float] = 0
    period: ClassVar[int] = 1
    delay: ClassVar[int] = 0
    weighting: ClassVar[Weighting] = UNWEIGHTED
    synchronous: ClassVar[bool] = True

    exchange: ExchangeKind = "collective"

    def __post_init__(self) -> None:
        require_one_of("bsp", "exchange", self.exchange, known=EXCHANGES)

    @property
    def spec(self) -> str:
        """``bsp`` and what differs from the defaults."""
        return write_spec("bsp", options={"exchange": None if self.exchange == "collective" else self.exchange})

    def start(self) -> Machine:
        """A barrier at every step."""
        return BarrierMachine(period=1)
