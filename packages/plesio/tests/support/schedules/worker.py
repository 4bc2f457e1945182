"""A worker of a schedule: what it says and when, with no parameters and no sockets.

Its script is a generator that yields what it waits for; the schedule decides when it goes on, and when what it said
arrives. It does what `plesio.runtime.worker` does: the store's part is that of ``exchange.store``, ``store_client`` and
``loading``, the collective's that of ``stop_point`` and ``recovery``, changes that of ``exchange.staged``.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from plesio.core.results import Environment
from plesio.policies import Policy, Reviewed, parse_policy
from plesio.policies.policy import NEVER
from plesio.protocol.figures import RunInfo
from plesio.protocol.message import Message
from plesio.protocol.plans import PlanFigures, Remainder
from plesio.protocol.to_server import Finished, Holding, Join, PartArrived, Saving, StageStop
from plesio.protocol.to_worker import Expelled, Failed, Hold, Lost, Regrouping, Steering, Stop
from support.schedules.moves import Setting
from support.schedules.servers import Pull, Reply

ENVIRONMENT = Environment(plesio="1", python="3", torch="2", numpy="2", platform="p", cpu="c", num_cpus=2)
M = TypeVar("M", bound=Message)
R = TypeVar("R")
Script = Generator[Callable[[], bool], None, R]


class CutOffError(Exception):
    """The collective that the worker is in cannot go on."""


class EndedError(Exception):
    """The worker cannot go on; the text is what it was told."""


class Offer:
    """A new stage's parameters, for a server."""


class World(Protocol):
    """The world around a worker."""

    setting: Setting
    num_stages: int
    """On the store, that workers have entered."""

    def meet(self, place: tuple[object, ...], worker: int) -> set[int]:
        """Come to a collective; returns those that have, as it is from now on."""
        ...

    def is_broken(self, members: tuple[int, ...], generation: int) -> bool:
        """Return True if one of this generation's group is gone, or waits."""
        ...

    def stand(self, worker: int, generation: int, where: tuple[int, Remainder, int]) -> None:
        """A worker of this generation's group stands; its loop over the data, what is left of it, and samples."""
        ...

    def handed_over(self, generation: int) -> tuple[int, Remainder, int]:
        """Return the position of the worker that decides the remainder for this generation."""
        ...

    def speaker(self, worker: int) -> "Worker":
        """Return the worker that represents this one at the store; itself where racks do not share it."""
        ...


class Worker:
    """One of them.

    Args:
        number: Its rank.
        world: What it finds around it.
        late: Whether it comes to a run that others have begun.
        script: What it does.
    """

    def __init__(
        self, number: int, world: World, *, late: bool, script: Callable[["Worker"], Generator[Callable[[], bool]]]
    ) -> None:
        setting = world.setting
        self.number, self.world, self.late = number, world, late
        self.policy = parse_policy(setting.policy)
        self.members = tuple(range(len(setting.racks)))
        self.said: deque[Message] = deque()
        self.beats: deque[Message] = deque()
        self.bulks: list[deque[PartArrived | Pull | Offer]] = [deque() for _ in range(setting.num_servers)]
        self.inbox: deque[Message] = deque()
        self.urgent: deque[Message] = deque()
        self.controls: dict[type[Message], deque[Message]] = defaultdict(deque)
        self.ignored: dict[type[Message], int] = defaultdict(int)
        self.replies: list[dict[int, Reply | None]] = [{} for _ in range(setting.num_servers)]
        self.num_requests = 0
        self.gone = self.done = self.in_collective = self.meets = self.spoiled = self.in_loop = False
        self.no_group = late and self.policy.exchange == "collective"
        self.failure: str | None = None
        self.ended_with: str | None = None
        # of the run
        self.stage: Policy = self.policy.first
        self.clock = self.settled = 0
        self.plan, self.samples, self.own = 0, 0, 0
        self.figures = PlanFigures(
            num_samples=setting.num_samples, batch_size=setting.batch_size, budget_samples=setting.num_samples
        )
        self.left: Remainder = self.figures.whole()
        # of the collective
        self.base = self.generation = self.told_generation = 0
        self.asked = 0
        self.stop = Stop(generation=0, clock=0)
        self.begun = 1
        # of the store
        self.credit = self.version = self.pushed_clock = self.num_steps = self.num_samples = 0
        self.halted = False
        self.on_store = self.policy.exchange == "store"
        self.finished: list[Finished] = []
        self.stage_number = 0
        """The number of the stage on the store that it is in, or was in last."""
        self.shared: dict[int, list[StageStop | None]] = defaultdict(list)
        """Stops of its rack in each stage, and None for each end of a plan."""
        # of a policy that changes
        self.review, self.holds = self.policy.first_review if self.policy.adapts else (NEVER, NEVER)
        self.reviewed_clock = 0
        self.awaits_news = False
        self._script = script(self)
        self._waits = next(self._script)

    # What the schedule does with it

    def act(self) -> bool:
        """Go on if what it waits for is there, or end if it has been told that it cannot."""
        if self.done or self.gone:
            return False
        if self._waits():
            return self._resume()
        if self.failure is not None:
            return self._resume(EndedError(self.failure))
        return self.cut_off and self.in_collective and self._resume(CutOffError())

    def cut(self) -> bool:
        """Have its collective break off, where its group is no more."""
        if self.done or self.gone or not self.in_collective:
            return False
        broken = self.meets and self.world.is_broken(self.members, self.generation)
        if not self.cut_off and not broken:
            return False
        return self.world.setting.elastic and self._resume(CutOffError())

    def _resume(self, error: Exception | None = None) -> bool:
        try:
            self._waits = next(self._script) if error is None else self._script.throw(error)
        except StopIteration:
            self.done = True
        return True

    @property
    def cut_off(self) -> bool:
        """True if it has been told that its group is no more."""
        return self.told_generation > self.generation

    def hear(self) -> bool:
        """Hear the next message."""
        if not self.inbox:
            return False
        message = self.inbox.popleft()
        kind = type(message)
        if self.ignored[kind]:
            self.ignored[kind] -= 1
        elif isinstance(message, Failed):
            self.failure = self.failure or message.message
        else:
            self.controls[kind].append(message)
        return True

    def hear_urgent(self) -> bool:
        """Handle the next urgent message, as the heartbeat's thread does."""
        if not self.urgent:
            return False
        match self.urgent.popleft():
            case Hold(generation=generation):
                self.asked = generation
                self.beats.append(Holding(generation=generation, begun=self.begun))
            case Regrouping(generation=generation):
                self.told_generation = max(self.told_generation, generation)
            case Lost(fatal=True, error=error, workers=workers):
                self.failure = self.failure or error or f"workers {workers} were lost"
            case Expelled():
                self.failure = self.failure or "expelled"
        return True

    # What it waits for

    def heard(self, kind: type[M]) -> M | None:
        """A message of this type, if one has come."""
        messages = self.controls[kind]
        message: Any = messages.popleft() if messages else None
        return message

    def receive(self, kind: type[M], *, collective: bool = False) -> Script[M]:
        """Wait for a message of this type; where ``collective`` the group may be no more meanwhile."""
        messages = self.controls[kind]
        while not messages:
            self.in_collective = collective
            try:
                yield lambda: bool(messages)
            finally:
                self.in_collective = False
        found: Any = messages.popleft()
        return found

    def pull(self, *, after: int, clock: int) -> Script[None]:
        """Take the parameters over, when every server lets it."""
        self.num_requests += 1
        number = self.num_requests
        for bulks in self.bulks:
            bulks.append(Pull(self.number, after, clock, number))
        yield lambda: all(number in replies for replies in self.replies)
        got = [replies.pop(number) for replies in self.replies]
        replies = [reply for reply in got if reply is not None]
        self.version = min(reply.version for reply in replies)
        self.credit = min(reply.credit for reply in replies)
        self.halted = any(reply.halted for reply in replies)

    def offer(self) -> Script[None]:
        """Have the servers begin from this worker's parameters."""
        for bulks in self.bulks:
            bulks.append(Offer())
        yield lambda: all(0 in replies for replies in self.replies)
        for replies in self.replies:
            del replies[0]

    def meet(self, *place: object) -> Script[None]:
        """Come to a collective of the group, and wait for all."""
        there = self.world.meet((self.generation, *place), self.number)
        members = set(self.members)
        while not there >= members:
            self.in_collective = self.meets = True
            try:
                yield lambda: there >= members
            finally:
                self.in_collective = self.meets = False

    def join(self) -> Join:
        setting = self.world.setting
        rack = setting.racks[self.number % len(setting.racks)]
        saving = None if setting.save_every is None else Saving(every_steps=setting.save_every)
        return Join(
            policy=self.policy.spec,
            info=RunInfo(),
            num_workers=len(setting.racks),
            num_servers=setting.num_servers if self.policy.pushes is not None else 0,
            snapshot_every=None,
            folder=None,
            layout="",
            rack=rack,
            environment=ENVIRONMENT,
            saving=saving,
            elastic=setting.elastic,
        )

    def review_of(self) -> Reviewed:
        """Return its report to a policy that adapts: made up, the same whenever the schedule is played."""
        steps = self.clock - self.reviewed_clock
        self.reviewed_clock = self.clock
        if not self.policy.remembers:
            return Reviewed(worker=self.number, clock=self.clock, samples=(), compute_s=(), blocked_s=())
        pace = 0.01 * (1 + self.number % 3)
        return Reviewed(
            worker=self.number,
            clock=self.clock,
            samples=(self.figures.batch_size,) * steps,
            compute_s=(pace,) * steps,
            blocked_s=(0.02,) * steps,
            loss=1 / (1 + self.clock),
            learning_rate=0.1,
            summed_rate=0.1 * steps,
            progress=-1.0,
        )

    def steer(self, steer: Steering) -> None:
        """How it goes on: the reviews to come."""
        self.review, self.holds = steer.next_review, steer.next_clock
