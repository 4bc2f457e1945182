"""Play a policy's machine through a schedule: workers of given speeds, faults at given times, nothing trained.

`play` is a world reduced to clocks. It keeps what a world owes a machine (`plesio.policies.events`) and checks what a
machine owes a world: credit grows, versions count up by one, every update is applied or refused at most once, and
nobody waits for ever.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plesio.cost.faults import Fault
from plesio.policies import (
    Action,
    Admit,
    Apply,
    Arrived,
    Await,
    Elapsed,
    Event,
    Grant,
    Joined,
    LeaveReason,
    Left,
    PolicyMachine,
    Refuse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The outcome of a schedule.

    Attributes:
        events: All that the machine was told.
        answers: Its answer to each.
        steps: Steps of each worker, in the order of rank.
        time_s: Seconds until the last step.
        waited_s: Seconds that workers waited for credit, of all together.
        largest_lead: Steps that a worker was ahead of the slowest one when it began a step.
        staleness: Versions applied since the pull that an update was computed from, for each applied update.
    """

    events: tuple[Event, ...]
    answers: tuple[tuple[Action, ...], ...]
    steps: tuple[int, ...]
    time_s: float
    waited_s: float
    largest_lead: int
    staleness: tuple[int, ...]

    @property
    def steps_per_s(self) -> float:
        """Steps a second of all workers together."""
        return sum(self.steps) / self.time_s

    @property
    def waited_share(self) -> float:
        """Share of the workers' time that they waited."""
        return self.waited_s / (len(self.steps) * self.time_s)


def play(
    machine: PolicyMachine,
    *,
    step_s: Sequence[Callable[[], float]],
    num_steps: int,
    faults: Sequence[Fault] = (),
    exchanges_at: Callable[[int], bool] = lambda clock: True,
) -> Played:
    """Run workers until they have made ``num_steps`` steps together.

    >>> from plesio.policies import BSP, SSP
    >>> fast, slow = (lambda: 1.0), (lambda: 4.0)
    >>> play(BSP().start(), step_s=[fast, slow], num_steps=20).steps
    (10, 10)
    >>> play(SSP(bound=4, period=1).start(), step_s=[fast, slow], num_steps=20).largest_lead
    4

    Args:
        machine: A fresh one, of a policy that does not change while it runs.
        step_s: Function for each worker that draws the seconds of its next step.
        num_steps: Steps of all workers together.
        faults: Workers that are lost, or join with the next free rank and the pace of rank 0.
        exchanges_at: Whether a worker contributes its update when it has finished this step.

    Raises:
        AssertionError: The machine broke a law, which the message names.
    """
    return _Play(machine, step_s=step_s, exchanges_at=exchanges_at).run(num_steps, faults)


@dataclass(slots=True)
class _Worker:
    draw_s: Callable[[], float]
    clock: int = 0
    credit: int = 0
    version: int = 0
    """The version of the parameters that it pulled last."""
    since_exchange: int = 0
    waits_since_s: float | None = 0.0
    """Since when it has stood still; None while it makes a step."""


@dataclass(slots=True)
class _Tally:
    """The outcome of the schedule so far; the fields are `Played`'s."""

    waited_s: float = 0.0
    largest_lead: int = 0
    events: list[Event] = field(default_factory=list)
    answers: list[tuple[Action, ...]] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Play:
    machine: PolicyMachine
    step_s: Sequence[Callable[[], float]]
    exchanges_at: Callable[[int], bool]
    workers: dict[int, _Worker] = field(default_factory=dict)
    """That are admitted and not lost."""
    asking: set[int] = field(default_factory=set)
    steps: dict[int, int] = field(default_factory=dict)
    open: set[tuple[int, int]] = field(default_factory=set)
    """Updates that are neither applied nor refused."""
    version: int = 0
    now_s: float = 0.0
    tally: _Tally = field(default_factory=_Tally)
    ends: list[tuple[float, int]] = field(default_factory=list)
    """When steps under way end, and whose they are."""
    awaited: list[tuple[float, int]] = field(default_factory=list)
    """When the times are over that the machine has asked for, and their numbers."""

    def run(self, num_steps: int, faults: Sequence[Fault]) -> Played:
        for _ in self.step_s:
            self._join()
        coming = sorted(faults, key=lambda fault: fault.at_s)
        while sum(self.steps.values()) < num_steps:
            self._begin_steps()
            if self.awaited and self.awaited[0][0] <= min([end_s for end_s, _ in self.ends[:1]], default=math.inf):
                self.now_s, window = heapq.heappop(self.awaited)
                self._tell(Elapsed(number=window))
                continue
            if coming and (not self.ends or coming[0].at_s <= self.ends[0][0]):
                self._befall(coming.pop(0))
                continue
            assert self.ends, f"nobody goes on: workers {sorted(self.workers)} wait for credit for ever"
            self.now_s, number = heapq.heappop(self.ends)
            if number in self.workers:
                self._end_step(number)
        for worker in self.workers.values():
            self._resume(worker)
        return Played(
            events=tuple(self.tally.events),
            answers=tuple(self.tally.answers),
            steps=tuple(self.steps[number] for number in sorted(self.steps)),
            time_s=self.now_s,
            waited_s=self.tally.waited_s,
            largest_lead=self.tally.largest_lead,
            staleness=tuple(self.tally.staleness),
        )

    def _join(self) -> None:
        number = len(self.steps)
        self.steps[number] = 0
        self.asking.add(number)
        self._tell(Joined(worker=number))

    def _befall(self, fault: Fault) -> None:
        self.now_s = max(self.now_s, fault.at_s)
        if fault.kind == "join":
            self._join()
        elif fault.worker in self.workers or fault.worker in self.asking:
            self.asking.discard(fault.worker)
            lost = self.workers.pop(fault.worker, None)
            if lost is not None:
                self._resume(lost)
            self._tell(Left(worker=fault.worker, reason=LeaveReason.LOST))

    def _begin_steps(self) -> None:
        slowest = min((worker.clock for worker in self.workers.values()), default=0)
        for number, worker in sorted(self.workers.items()):
            if worker.waits_since_s is None or worker.clock >= worker.credit:
                continue
            self._resume(worker)
            worker.waits_since_s = None
            self.tally.largest_lead = max(self.tally.largest_lead, worker.clock - slowest)
            if worker.since_exchange == 0:
                worker.version = self.version
            heapq.heappush(self.ends, (self.now_s + worker.draw_s(), number))

    def _resume(self, worker: _Worker) -> None:
        if worker.waits_since_s is not None:
            self.tally.waited_s += self.now_s - worker.waits_since_s
            worker.waits_since_s = self.now_s

    def _end_step(self, number: int) -> None:
        worker = self.workers[number]
        worker.clock += 1
        worker.since_exchange += 1
        worker.waits_since_s = self.now_s
        self.steps[number] += 1
        if self.exchanges_at(worker.clock):
            covered, worker.since_exchange = worker.since_exchange, 0
            self.open.add((number, worker.clock))
            self._tell(Arrived(worker=number, clock=worker.clock, num_steps=covered, base_version=worker.version))

    def _tell(self, event: Event) -> None:
        actions = self.machine.handle(event)
        self.machine.validate()
        self.tally.events.append(event)
        self.tally.answers.append(actions)
        for action in actions:
            self._obey(action)

    def _obey(self, action: Action) -> None:
        match action:
            case Admit(worker=number, clock=clock):
                assert number in self.asking, f"worker {number} is admitted and has not asked"
                self.asking.remove(number)
                draw_s = self.step_s[number if number < len(self.step_s) else 0]
                self.workers[number] = _Worker(draw_s, clock=clock, credit=clock, waits_since_s=self.now_s)
            case Grant(worker=number, clock=clock):
                worker = self.workers[number]
                assert clock > worker.credit, f"credit of worker {number} goes from {worker.credit} to {clock}"
                worker.credit = clock
            case Apply(updates=updates, version=version, staleness=staleness):
                assert version == self.version + 1, f"version {version} follows version {self.version}"
                self.version = version
                for update in updates:
                    self._settle(update)
                self.tally.staleness += staleness
            case Refuse(worker=number, clock=clock):
                self._settle((number, clock))
            case Await(number=number, for_s=for_s, steps=steps):
                heapq.heappush(self.awaited, (self.now_s + for_s + steps * self.step_s[0](), number))
            case _:
                raise AssertionError(f"{action} is for policies that change while they run")

    def _settle(self, update: tuple[int, int]) -> None:
        assert update in self.open, f"no update of worker {update[0]} at clock {update[1]} waits"
        self.open.remove(update)
