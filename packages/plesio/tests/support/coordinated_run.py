"""A coordinator that tests drive: no sockets, and a clock that the test turns."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from plesio.core.results import Environment, RunResult
from plesio.policies import Arrived, parse_policy
from plesio.protocol.effects import ApplyOrder, Effect, Order, Tell
from plesio.protocol.figures import Report, RunInfo, Status
from plesio.protocol.message import Message
from plesio.protocol.plans import Block, PlanFigures
from plesio.protocol.to_server import Finish, FromWorker, Goodbye, Heartbeat, Join, LeaseRequest, PartArrived
from plesio.protocol.to_worker import Lease
from plesio.runtime.coordinator.coordinator import Coordinator

ENVIRONMENT = Environment(plesio="1", python="3", torch="2", numpy="2", platform="p", cpu="c", num_cpus=2)
FIGURES = PlanFigures(num_samples=8, batch_size=2, budget_samples=8)


def join_of(policy: str, **settings: Any) -> Join:
    """Make the message with which workers join a run under this policy."""
    usual = {"info": RunInfo(), "num_servers": 0, "snapshot_every": None, "folder": None, "layout": "", "rack": 0}
    return Join(policy=parse_policy(policy).spec, environment=ENVIRONMENT, **{**usual, **settings})


class Run:
    """A coordinator, a clock that the test turns, and what each worker was told."""

    def __init__(
        self,
        policy: str,
        *,
        workers: int = 2,
        servers: int = 1,
        snapshot_every: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self._join = join_of(
            policy,
            num_workers=workers,
            num_servers=servers if parse_policy(policy).exchange == "store" else 0,
            snapshot_every=snapshot_every,
            elastic=False,
        )
        self.coordinator = Coordinator(self._join, folder=folder)
        self.now_s = 0.0
        self.orders: list[Order] = []
        self.told: dict[int, list[Message]] = {}

    def do(self, name: str, *args: Any) -> list[Effect]:
        """Call the coordinator by this method."""
        return self._keep(getattr(self.coordinator, name)(*args, now_s=self.now_s))

    def say(self, worker: int, message: FromWorker | Join | PartArrived) -> list[Effect]:
        return self._keep(self.coordinator.handle(message, worker=worker, now_s=self.now_s))

    def _keep(self, effects: list[Effect]) -> list[Effect]:
        self.coordinator.validate()
        for effect in effects:
            if isinstance(effect, Tell):
                self.told.setdefault(effect.worker, []).append(effect.message)
            else:
                self.orders.append(effect)
        return effects

    def join(self, worker: int, *, rack: int = 0, layout: str = "") -> list[Effect]:
        return self.say(worker, replace(self._join, layout=layout, rack=rack))

    def beat(self, worker: int, **figures: Any) -> list[Effect]:
        return self.say(worker, Heartbeat(report=Report(**figures)))

    def bye(self, worker: int, *, status: Status, error: str | None) -> list[Effect]:
        return self.say(worker, Goodbye(status=status, error=error, report=Report()))

    def start(self) -> "Run":
        for worker in range(self._join.num_workers):
            self.join(worker)
        return self

    def start_racks(self, *racks: int) -> "Run":
        """Start with each worker in its rack."""
        for worker in range(self._join.num_workers):
            self.join(worker, rack=racks[worker])
        return self

    def arrive(
        self,
        worker: int,
        clock: int,
        *,
        server: int = 0,
        samples: int = 2,
        finished: tuple[tuple[int, int, int], ...] = (),
        **event: Any,
    ) -> list[Effect]:
        arrived = Arrived(worker=worker, clock=clock, **event)
        return self.say(worker, PartArrived(event=arrived, num_samples=samples, finished=finished, server=server))

    def ask(self, worker: int, *, plan: int = 0, idle: bool = False) -> Lease | None:
        effects = self.say(worker, LeaseRequest(plan=plan, idle=idle, figures=FIGURES))
        told = [effect.message for effect in effects if isinstance(effect, Tell) and effect.worker == worker]
        return next((message for message in told if isinstance(message, Lease)), None)

    def next_block(self, worker: int, *, plan: int = 0) -> Block | None:
        answer = self.ask(worker, plan=plan)
        assert answer is not None
        return answer.block

    def block(self, worker: int, *, plan: int = 0) -> Block:
        block = self.next_block(worker, plan=plan)
        assert block is not None
        return block

    def finish(self, worker: int, block: Block, *, plan: int = 0) -> list[Effect]:
        return self.say(worker, Finish(plan=plan, block=block.id, num_samples=block.num_samples))

    def kinds(self, worker: int) -> list[type[Message]]:
        return [type(message) for message in self.told.get(worker, [])]

    def applied(self) -> list[tuple[tuple[int, int], ...]]:
        return [order.updates for order in self.orders if isinstance(order, ApplyOrder)]

    @property
    def result(self) -> RunResult:
        return self.coordinator.ledger.result(
            status=self.coordinator.ledger.status, error=self.coordinator.ledger.error
        )
