"""The servers of a schedule: what a shard keeps of updates, credit and waiting pulls, without the parameters.

A server's own part is what `plesio.runtime.server.shard_server` does. Checked as it goes: every update that is applied
is there, whole and for the first time, and versions count up by one.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field

from plesio.protocol.effects import AdmitOrder, ApplyOrder, CreditOrder, DropOrder, HaltOrder, Order, StayOrder
from plesio.protocol.to_server import PartArrived


@dataclass(frozen=True, slots=True)
class Pull:
    """A worker wants the parameters after its update at clock ``after``, when it has credit beyond ``clock``."""

    worker: int
    after: int
    clock: int
    number: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer."""

    version: int
    credit: int
    halted: bool
    number: int


@dataclass(slots=True)
class Server:
    """One server; ``begin`` makes it that of a new stage.

    Attributes:
        orders: Decided by server 0 and not carried out yet.
        parts: Of updates that have arrived here and that server 0 has not heard of.
    """

    orders: deque[Order] = field(default_factory=deque)
    parts: deque[PartArrived] = field(default_factory=deque)
    version: int = 0
    halted: bool = False
    pushes: set[tuple[int, int]] = field(default_factory=set)
    waiting: list[Pull] = field(default_factory=list)
    decided: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    credit: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def begin(self) -> None:
        """The parameters of a new stage are offered."""
        assert not self.waiting, f"{self.waiting} wait in a stage that is over"
        self.version, self.halted = 0, False
        self.pushes.clear()
        self.decided.clear()
        self.credit.clear()

    def push(self, part: PartArrived) -> None:
        """A part of an update is here."""
        key = part.event.worker, part.event.clock
        assert key not in self.pushes, f"update {key} is here twice"
        self.pushes.add(key)

    def carry_out(self, order: Order) -> None:
        """Do what was decided."""
        match order:
            case ApplyOrder(updates=updates, version=version):
                assert version == self.version + 1, f"version {version} follows {self.version}"
                self.version = version
                for key in updates:
                    assert key in self.pushes, f"update {key} is applied and is not here, or no more"
                    self.pushes.remove(key)
                    self._decide(*key)
            case DropOrder(worker=worker, clock=clock):
                self.pushes.discard((worker, clock))
                self._decide(worker, clock)
            case AdmitOrder(worker=worker, clock=clock):
                self.decided[worker] = clock
            case CreditOrder(worker=worker, clock=clock):
                self.credit[worker] = clock
            case HaltOrder():
                self.halted = True
            case StayOrder():
                self.halted = False

    def _decide(self, worker: int, clock: int) -> None:
        self.decided[worker] = max(self.decided[worker], clock)

    def answers(self) -> list[tuple[int, Reply]]:
        """The pulls that need not wait any longer, answered; by worker."""
        if not self.waiting:
            return []
        answered: list[tuple[int, Reply]] = []
        waiting, self.waiting = self.waiting, []
        for pull in waiting:
            credit = self.credit[pull.worker]
            if self.decided[pull.worker] >= pull.after and (credit > pull.clock or self.halted):
                answered.append((pull.worker, Reply(self.version, credit, self.halted, pull.number)))
            else:
                self.waiting.append(pull)
        return answered
