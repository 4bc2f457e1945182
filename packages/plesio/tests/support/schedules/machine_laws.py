"""The laws of every policy's machine, and what drives it as a world would: workers join, run, rest, go, send late."""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plesio.policies import (
    ASP,
    BSP,
    SSP,
    Action,
    Admit,
    Apply,
    Arrived,
    Event,
    Grant,
    Joined,
    LeaveReason,
    Left,
    Policy,
    Refuse,
    RefuseReason,
    parse_policy,
    replay,
)
from support.schedules.moves import Alone, Step, StepKind

CATALOGUE = [
    "bsp",
    "bsp,exchange=store",
    "bsp,backup=1",
    "bsp,backup=2",
    "ssp:0",
    "ssp:1",
    "ssp:4",
    "ssp:4,period=5",
    "ssp:3,period=1,weight=inverse",
    "ssp:2,update=delta,weight=cap:2",
    "ssp:inf",
    "asp",
    "asp,period=3,weight=exp:0.5+cap:4",
    "asp,rate=undivided",
    "asp,delay=1",
    "local_sgd:1",
    "local_sgd:4",
    "local_sgd:4,delay=2",
    "local_sgd:3,delay=3",
    "local_sgd:1,delay=1",
    "diloco:4",
    "diloco:6,fragments=3,delay=2",
    "delayed:0",
    "delayed:1",
    "delayed:4",
    "hier:bsp/local_sgd:4,delay=2",
    "hier:bsp/ssp:3",
]

ACTS_AS = {
    "bsp": "bsp,exchange=store",
    "ssp:0": "bsp,exchange=store",
    "ssp:inf": "asp",
    "asp": "ssp:inf",
    "asp,delay=1": "asp",
    "local_sgd:1": "bsp",
    "diloco:4": "local_sgd:4",
    "diloco:6,fragments=3,delay=2": "local_sgd:2,delay=2",
    "delayed:0": "bsp",
    "hier:bsp/local_sgd:4,delay=2": "local_sgd:4,delay=2",
    "hier:bsp/ssp:3": "ssp:3",
}


@dataclass
class Worker:
    """A replica as a world runs it: obeys credit, knows the others only through what it is told."""

    clock: int
    credit: int
    pulled_version: int
    base_version: int = 0
    steps_since_exchange: int = 0
    in_flight: deque[Arrived] = field(default_factory=deque)


class Laws:
    """A policy's machine, driven as a world drives it; every answer is checked.

    Args:
        policy: Whose.
        tell: Told what it hears and what it answers.
    """

    def __init__(self, policy: Policy, *, tell: Callable[[str], object] | None = None) -> None:
        self.policy = policy
        self._tells = tell
        self.machine = policy.start()
        self.events: list[Event] = []
        self.answers: list[tuple[Action, ...]] = []
        self.live: dict[int, Worker] = {}
        self.asking: set[int] = set()
        self.resting: set[int] = set()
        self.version = 0
        self.version_after: dict[int, int] = {}
        """By the clock of each exchange that has made a version."""
        self.unsettled: dict[tuple[int, int], Arrived] = {}

    # The schedule

    def join(self, worker: int) -> None:
        """A worker asks to take part, if it does not."""
        if worker not in self.live and worker not in self.asking:
            self.asking.add(worker)
            self.resting.discard(worker)
            self.tell(Joined(worker=worker))

    def run(self, worker: int, *, num_steps: int, finite: bool) -> None:
        """A worker makes so many steps, as far as it may."""
        for _ in range(num_steps if worker in self.live else 0):
            if self.live[worker].clock < self.live[worker].credit:
                self.step(worker, finite=finite)

    def deliver(self, worker: int) -> None:
        """The next update of a worker arrives."""
        if worker in self.live and self.live[worker].in_flight:
            self.tell(self.live[worker].in_flight.popleft())
            self.live[worker].pulled_version = self.version

    def leave(self, worker: int, reason: LeaveReason) -> None:
        """A worker that takes part, or asks to, is gone or rests."""
        if worker in self.live or worker in self.asking:
            self.live.pop(worker, None)
            self.asking.discard(worker)
            self.tell(Left(worker=worker, reason=reason))
            if reason is LeaveReason.RESTING:
                self.resting.add(worker)

    def leave_while_resting(self, worker: int, reason: LeaveReason) -> None:
        """A worker that rests is gone for good."""
        if worker in self.resting:
            self.resting.remove(worker)
            self.tell(Left(worker=worker, reason=reason))
            assert self.answers[-1] == (), "nobody waited for it"

    def step(self, number: int, *, finite: bool) -> None:
        worker = self.live[number]
        lead = worker.clock - min(other.clock for other in self.live.values())
        assert lead <= self.policy.bound, f"worker {number} begins a step at lead {lead}"
        if worker.steps_since_exchange == 0:
            worker.base_version = worker.pulled_version
        worker.clock += 1
        worker.steps_since_exchange += 1
        if self.policy.exchanges_at(worker.clock):
            worker.in_flight.append(
                Arrived(
                    worker=number,
                    clock=worker.clock,
                    num_steps=worker.steps_since_exchange,
                    base_version=worker.base_version,
                    finite=finite,
                )
            )
            worker.steps_since_exchange = 0

    # The answers

    def tell(self, event: Event) -> None:
        if isinstance(event, Arrived):
            assert (event.worker, event.clock) not in self.unsettled
            self.unsettled[event.worker, event.clock] = event
        if self._tells is not None:
            self._tells(str(event))
        actions = self.machine.handle(event)
        for action in actions if self._tells is not None else ():
            self._tells(f"    {action}")
        self.machine.validate()
        self.events.append(event)
        self.answers.append(actions)
        for action in actions:
            self.obey(action)
        if self.num_backup:
            self.check_rounds_wait_for_all_but_the_backup()
        elif not self.policy.synchronous:
            assert not self.unsettled, "an update waits although nobody waits for it"
        self.check_somebody_can_go_on()

    def obey(self, action: Action) -> None:
        match action:
            case Admit(worker=number, clock=clock):
                self.asking.remove(number)
                assert clock <= min((other.clock for other in self.live.values()), default=clock)
                assert clock == 0 or self.policy.exchanges_at(clock)
                self.live[number] = Worker(clock=clock, credit=clock, pulled_version=self.version)
            case Grant(worker=number, clock=clock):
                worker = self.live[number]
                assert clock > worker.credit, "credit must grow"
                if worker.clock == worker.credit and not worker.in_flight:
                    worker.pulled_version = self.version  # its pull was held back until now
                worker.credit = clock
            case Apply():
                self.check_apply(action)
            case Refuse(worker=number, clock=clock, reason=reason):
                update = self.unsettled.pop((number, clock))
                if reason is RefuseReason.NOT_FINITE:
                    assert not update.finite
                elif reason is RefuseReason.LATE:
                    assert self.num_backup
                    assert update.finite
                    assert update.base_version < self.version, "its step is not over"
                else:
                    assert update.finite
                    assert self.policy.weighting.discards(self.version - update.base_version)

    @property
    def num_backup(self) -> int:
        return self.policy.backup if isinstance(self.policy, BSP) else 0

    def check_rounds_wait_for_all_but_the_backup(self) -> None:
        """An update waits only while more workers are due than are not waited for."""
        waiting = [worker for worker in self.live.values() if worker.clock == worker.credit and not worker.in_flight]
        if self.unsettled or waiting:
            assert len(self.live) - len(waiting) > self.num_backup

    def check_apply(self, action: Apply) -> None:
        updates = [self.unsettled.pop(update) for update in action.updates]
        assert updates
        assert all(update.finite for update in updates)
        if self.policy.synchronous:
            assert action.weight == 1.0
            [clock] = {update.clock for update in updates}
            stale = 0
            if self.policy.update == "gradient":  # of step c it is computed from what was merged after step c - 1
                merged = clock - 1 - self.policy.delay
                stale = self.version - max((v for at, v in self.version_after.items() if at <= merged), default=0)
            assert action.staleness == (stale,) * len(updates)
            assert stale <= self.policy.delay
            self.version_after[clock] = action.version
        elif self.num_backup:
            assert action.weight == 1.0
            assert [update.base_version for update in updates] == [self.version] * len(updates)
            assert action.staleness == (0,) * len(updates)
        else:
            (update,) = updates
            tau = self.version - update.base_version
            assert not self.policy.weighting.discards(tau)
            steps = update.num_steps if self.policy.update == "gradient" else 1
            assert action.staleness == (tau,)
            # those among whom the samples are divided, also those that have none just now
            undivided = isinstance(self.policy, ASP | SSP) and self.policy.rate == "undivided"
            sharing = 1 if undivided else len(self.live) + len(self.resting)
            assert math.isclose(action.weight, self.policy.weighting(tau) * steps / sharing, rel_tol=1e-6)
        assert action.version == self.version + 1
        self.version = action.version

    def check_somebody_can_go_on(self) -> None:
        if self.live:
            assert any(worker.clock < worker.credit or worker.in_flight for worker in self.live.values()), "deadlock"
        else:
            assert not self.asking, "a newcomer waits for nobody"
            assert not self.unsettled, "a round waits for nobody"

    # The whole of a schedule

    def play(self, steps: Sequence[Step]) -> None:
        """Play a schedule to its end."""
        for step in steps:
            match step.kind:
                case "join":
                    self.join(step.worker)
                case "run":
                    self.run(step.worker, num_steps=step.num_steps, finite=step.finite)
                case "deliver":
                    self.deliver(step.worker)
                case "leave":
                    self.leave(step.worker, step.reason)
                case "go":
                    self.leave_while_resting(step.worker, step.reason)
        self.end()

    def end(self) -> None:
        """Everyone gets on, goes, and the events replay to the same actions."""
        self.check_that_everyone_gets_on()
        for worker in sorted(self.live.keys() | self.asking):
            self.leave(worker, LeaveReason.CLOSED)
        assert replay(self.policy, self.events) == self.answers
        if twin := ACTS_AS.get(self.policy.spec):
            assert replay(parse_policy(twin), self.events) == self.answers

    def check_that_everyone_gets_on(self) -> None:
        """With everyone running and all messages delivered, each worker reaches a clock that none has reached yet."""
        if not self.live:
            return
        goal = max(worker.clock for worker in self.live.values()) + 2 * self.policy.period
        passes = math.ceil(goal / self.policy.period) + 1
        for _ in range(2 * passes):
            for number in list(self.live):
                self.run(number, num_steps=self.policy.period, finite=True)
                while self.live[number].in_flight:
                    self.deliver(number)
        assert min(worker.clock for worker in self.live.values()) >= goal, "a worker is held back for ever"
        assert not self.asking


NUM_WORKERS = 4
_KINDS: tuple[StepKind, ...] = ("join", "run", "deliver", "leave", "go")
_WEIGHTS = (4, 8, 8, 1.5, 0.5)


def random_steps(rng: random.Random) -> list[Step]:
    """A short schedule: all but one of the workers join, and then anything happens."""
    steps = [Step(kind="join", worker=worker) for worker in range(rng.randrange(1, NUM_WORKERS))]
    for kind in rng.choices(_KINDS, _WEIGHTS, k=rng.choice((5, 15, 40))):
        worker = int(rng.random() * NUM_WORKERS)
        reason = rng.choice(_REASONS) if kind == "leave" else rng.choice(_REASONS[1:3])
        steps.append(
            Step(
                kind=kind,
                worker=worker,
                num_steps=1 + int(7 * rng.random()) if kind == "run" else 1,
                finite=kind != "run" or rng.random() < 0.75,
                reason=reason if kind in ("leave", "go") else LeaveReason.CLOSED,
            )
        )
    return steps


_REASONS = (LeaveReason.RESTING, LeaveReason.CLOSED, LeaveReason.LOST, LeaveReason.REPLACED)


def play_alone(setting: Alone, steps: Sequence[Step], *, tell: Callable[[str], object] | None = None) -> Laws:
    """Play a schedule to its end, and tell what the machine hears and answers, line by line.

    Raises:
        AssertionError: A law is not kept.
    """
    laws = Laws(parse_policy(setting.policy), tell=tell)
    laws.play(steps)
    return laws
