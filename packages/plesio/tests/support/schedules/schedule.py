"""A whole run, moved on by one thing after another: the coordinator, its workers, its servers and what is under way.

What one process sends another by one connection arrives in order; all else arrives as the moves say. After everything
that the coordinator hears its invariants are checked, and with it

- credit grows, versions count up by one, and every update is applied at most once (`servers`);
- every sample that a stage on the store gives out is done once, or is given out again;
- when nobody disturbs them any more, all workers come to their end: nobody waits for ever;
- the run fails only where a loss must end it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from plesio.policies import RefuseReason, parse_policy
from plesio.protocol.effects import DropOrder, Effect, Order, Tell
from plesio.protocol.message import Message
from plesio.protocol.plans import Block, Remainder
from plesio.protocol.positions import leader_of
from plesio.protocol.to_server import Finish, Join, NotFinite, PartArrived, SaveRequest, StageStop
from plesio.protocol.to_worker import Entered, Expelled, Lease, Lost, Regroup, StageEnd, Start, UpdateRefused
from plesio.runtime.coordinator.coordinator import Coordinator
from support.schedules.moves import Move, Setting
from support.schedules.script import live
from support.schedules.servers import Pull, Server
from support.schedules.worker import Offer, Worker

MOST_MOVES = 20_000
"""Most moves in the end of a schedule: with more, something goes round in circles."""
MOST_WORKERS = 7
TOO_LATE = "the run was over"
EXCUSES = (
    "was gone before the run began",
    "all workers were lost",
    "all workers that knew how far the run was are lost",
)
"""Why a run may fail whose workers go on without a lost one."""


class BrokenError(AssertionError):
    """A law that is not kept; the text says which."""


class Schedule:
    """One run.

    Args:
        setting: What it begins with.
        tell: Told what the coordinator hears and what it answers, line by line.
    """

    def __init__(self, setting: Setting, *, tell: Callable[[str], object] | None = None) -> None:
        self.setting = setting
        self._tells = tell
        self.policy = parse_policy(setting.policy)
        self.num_stages = 0
        self.num_heard = 0
        """Messages that the coordinator was handed."""
        self.servers = [Server() for _ in range(setting.num_servers)]
        self._orders: list[deque[Order | None]] = [deque() for _ in self.servers]
        self.workers = {number: Worker(number, self, late=False, script=live) for number in range(len(setting.racks))}
        self.coordinator = Coordinator(self.workers[0].join())
        self._began = False
        self._joined: set[int] = set()
        self._losses: set[int] = set()
        self._counted_lost: set[int] = set()
        self._doomed: set[int] = set()
        """Workers that were told that they cannot go on."""
        self._meetings: dict[tuple[object, ...], set[int]] = {}
        self._broken: set[tuple[int, int]] = set()
        self._stood: dict[int, tuple[int, Remainder, int]] = {}
        self._handed: dict[int, tuple[int, Remainder, int]] = {}
        self._parts: Counter[tuple[int, int]] = Counter()
        self._blocks: dict[tuple[int, int], tuple[Block, int]] = {}
        """The passed samples of each block that was given out."""
        self._whole = Remainder(num_samples=setting.num_samples, num_fresh=setting.num_samples)
        self._plan_of: dict[int, int | None] = {}
        """The loop over the data in which a worker has last stood still."""
        self._left: dict[int, set[tuple[int, int]]] = {}
        """The rest of a plan, by each worker that waits on the way to the store."""
        self._done: dict[int, set[tuple[int, int]]] = {}
        """The epochs and positions of each plan's samples that are done."""

    # What workers find around them

    def meet(self, place: tuple[object, ...], worker: int) -> set[int]:
        """Come to a collective; returns those that have, as it is from now on."""
        there = self._meetings.setdefault(place, set())
        there.add(worker)
        return there

    def is_broken(self, members: tuple[int, ...], generation: int) -> bool:
        """Return True if one of this generation's group is gone, or waits."""
        return any(self.workers[one].gone or (one, generation) in self._broken for one in members)

    def stand(self, worker: int, generation: int, where: tuple[int, Remainder, int]) -> None:
        """A worker of this generation's group stands; its loop over the data, what is left of it, and samples."""
        self._broken.add((worker, generation))
        self._stood[worker] = where

    def handed_over(self, generation: int) -> tuple[int, Remainder, int]:
        """Return the position of the worker that decides the remainder for this generation."""
        return self._handed[generation]

    def speaker(self, worker: int) -> Worker:
        """Return the worker that represents this one at the store."""
        if not self.workers[worker].stage.racks_share_store:
            return self.workers[worker]
        return self.workers[self.coordinator.ledger.racks.get(worker, (worker,))[0]]

    # Moves

    def move(self, move: Move) -> bool:
        """Make one; whether there was anything to do."""
        self._elapse()
        if move.kind in ("order", "part"):
            return self._server_move(move)
        if move.kind == "come":
            return self._come()
        worker = self.workers.get(move.worker)
        if worker is None:
            return False
        match move.kind:
            case "act":
                return worker.act()
            case "cut":
                return worker.cut()
            case "say":
                return self._say(worker)
            case "bulk":
                return self._bulk(worker, move.server)
            case "beat":
                return bool(worker.beats) and self._hear(worker, worker.beats.popleft())
            case "hear":
                return worker.hear()
            case "urgent":
                return worker.hear_urgent()
            case "spoil":
                worker.spoiled = True
                return True
            case "save":
                if worker.done or worker.gone or self.setting.save_every is None:
                    return False
                worker.said.append(SaveRequest())
                return True
            case "kill" | "notice":
                return self._lose(worker, notice=move.kind == "notice")

    def _come(self) -> bool:
        over = (
            self.coordinator.state == "ended"
            or self.coordinator.ledger.status == "failed"
            or self.policy.racks_share_store
        )
        if over or len(self.workers) >= MOST_WORKERS or any(worker.done for worker in self.workers.values()):
            return False
        number = len(self.workers)
        self.workers[number] = Worker(number, self, late=True, script=live)
        return True

    def _lose(self, worker: Worker, *, notice: bool) -> bool:
        number = worker.number
        if number not in self._joined or worker.done or number in self._counted_lost:
            return False
        if not notice:
            fresh, worker.gone = not worker.gone, True
            self._losses.add(number)
            return fresh
        self._losses.add(number)
        self._counted_lost.add(number)
        worker.urgent.append(Expelled())
        self._carry_out(self.coordinator.lose(number, now_s=self._now_s()), of=f"worker {number} is counted lost")
        return True

    def _say(self, worker: Worker) -> bool:
        if not worker.said:
            return False
        message = worker.said.popleft()
        if isinstance(message, Join):
            self._joined.add(worker.number)
            if self.coordinator.state == "ended":
                worker.failure = TOO_LATE  # the server begins another one, which nobody else comes to
                return True
        return self._hear(worker, message)

    def _hear(self, worker: Worker, message: Message) -> bool:
        counts = self.coordinator.is_live(worker.number) and worker.number not in self._doomed
        effects = self.coordinator.handle(message, worker=worker.number, now_s=self._now_s())  # type: ignore[arg-type]
        match message:
            case NotFinite(finished=finished) if counts:
                self._pass(finished, done=True)
            case Finish(plan=plan, block=block, num_samples=num_samples) if counts:
                self._pass([(plan, block, num_samples)], done=True)
            case StageStop(plan=plan, remainder=remainder):
                self._plan_of[worker.number] = plan
                if plan is not None and remainder is not None:
                    self._left[plan] = _samples(remainder)
        self._carry_out(effects, of=message, worker=worker.number)
        return True

    def _bulk(self, worker: Worker, index: int) -> bool:
        if index >= len(self.servers) or not worker.bulks[index]:
            return False
        server, message = self.servers[index], worker.bulks[index].popleft()
        match message:
            case PartArrived():
                server.push(message)
                if index:
                    server.parts.append(message)
                else:
                    self._part(message)
            case Pull():
                server.waiting.append(message)
            case Offer():
                server.begin()
                worker.replies[index][0] = None
        self._answer(index)
        return True

    def _server_move(self, move: Move) -> bool:
        index = move.worker
        if not 0 < index < len(self.servers):
            return False
        server = self.servers[index]
        if move.kind == "part":
            if not server.parts:
                return False
            self._part(server.parts.popleft())
            return True
        orders = self._orders[index]
        if not orders:
            return False
        while (order := orders.popleft()) is not None:
            server.carry_out(order)
        self._answer(index)
        return True

    # What server 0 decides

    def _part(self, part: PartArrived) -> None:
        event = part.event
        key = event.worker, event.clock
        effects = self.coordinator.handle(part, worker=event.worker, now_s=self._now_s())
        fate = self._fate(effects, *key)
        self._parts[key] += 1
        if fate == "dropped":
            del self._parts[key]
        elif self._parts[key] == len(self.servers):
            del self._parts[key]
            self._pass(part.finished, done=fate != "late")
        self._carry_out(effects, of=part, worker=event.worker)

    def _fate(self, effects: Iterable[Effect], worker: int, clock: int) -> str:
        """Return the fate of an update: "dropped" unheard, "late", or anything else."""
        drops = [one for one in effects if isinstance(one, DropOrder) and (one.worker, one.clock) == (worker, clock)]
        for one in effects:
            if not isinstance(one, Tell) or not isinstance(one.message, UpdateRefused):
                continue
            if (one.worker, one.message.clock) == (worker, clock):
                return "late" if one.message.reason is RefuseReason.LATE else "refused"
        return "dropped" if drops else "heard"

    def _pass(self, finished: Iterable[tuple[int, int, int]], *, done: bool) -> None:
        """These samples of blocks are done, or else given back."""
        for plan, number, num_samples in finished:
            if (plan, number) not in self._blocks:
                continue
            block, passed = self._blocks[plan, number]
            self._blocks[plan, number] = block, passed + num_samples
            begin = block.start + passed
            for place in range(begin, begin + num_samples) if done else ():
                sample = (block.epoch, place)
                plan_done = self._done.setdefault(plan, set())
                if sample in plan_done:
                    raise BrokenError(f"sample {sample} of plan {plan} is done twice")
                plan_done.add(sample)

    def _now_s(self) -> float:
        self.num_heard += 1
        return 0.001 * self.num_heard

    def _elapse(self, *, at_once: bool = False) -> bool:
        """The time that the policy has asked for is over; ``at_once`` it passes while nothing else happens."""
        due_s, now_s = self.coordinator.due_s, 0.001 * self.num_heard
        if due_s is None or (due_s > now_s and not at_once):
            return False
        self._carry_out(self.coordinator.elapse(now_s=max(due_s, now_s)), of="time has passed")
        return True

    def _carry_out(self, effects: Sequence[Effect], *, of: Message | str, worker: int | None = None) -> None:
        if self._tells is not None:
            self._tells(of if worker is None else f"worker {worker}: {of}")
            for effect in effects:
                self._tells(f"    {effect}")
        self.coordinator.validate()
        orders: list[Order] = []
        if any(isinstance(effect, Tell) and isinstance(effect.message, Entered) for effect in effects):
            self._begin_stage()
        for effect in effects:
            if isinstance(effect, Tell):
                self._tell(effect.worker, effect.message)
            else:
                orders.append(effect)
        if not orders:
            return
        for index, (server, under_way) in enumerate(zip(self.servers, self._orders, strict=True)):
            if index:
                under_way += [*orders, None]
            else:
                for order in orders:
                    server.carry_out(order)
                self._answer(index)

    def _tell(self, number: int, message: Message) -> None:
        worker = self.workers[number]
        match message:
            case Lease(plan=plan, block=Block() as block):
                self._blocks[plan, block.id] = block, 0
            case Regroup(generation=generation, positions=positions, members=members):
                self._handed.setdefault(generation, self._stood[members[leader_of(positions)]])
            case Lost(fatal=True):
                self._doomed.add(number)
            case StageEnd(steer=steer) if steer is not None:
                self._check_stage_end(number, message)
            case Start():
                self._began = True
        (worker.urgent if message.urgent else worker.inbox).append(message)

    def _begin_stage(self) -> None:
        """All have entered the store: what the rounds before have done is not given out."""
        self.num_stages += 1
        for plan, left in self._left.items():
            self._done[plan] = _samples(self._whole) - left
        self._left.clear()

    def _check_stage_end(self, worker: int, end: StageEnd) -> None:
        """Check that the workers that go on elsewhere are told of exactly the samples that are not done."""
        plan = self._plan_of[worker]
        if self.policy.goes_by_racks or plan is None:
            return
        left = _samples(end.remainder or self._whole)
        expected = _samples(self._whole) - self._done.get(plan, set())
        if left != expected:
            raise BrokenError(f"of plan {plan} the samples {left} are said to be left, and {expected} are")

    def _answer(self, index: int) -> None:
        for number, reply in self.servers[index].answers():
            self.workers[number].replies[index][reply.number] = reply

    # The end

    def settle(self) -> None:
        """Let the workers come to their end undisturbed, and check the state that they leave."""
        for worker in list(self.workers.values()):
            if worker.gone:
                self._lose(worker, notice=True)
        num_moves = 0
        while any(not (worker.done or worker.gone) for worker in self.workers.values()):
            moved = 0
            for worker in self.workers.values():
                moved += self._all_of(worker)
            for index in range(1, len(self.servers)):
                moved += self._server_move(Move(kind="order", worker=index))
                moved += self._server_move(Move(kind="part", worker=index))
            num_moves += moved
            if not moved and not self._elapse(at_once=True):
                waiting = [number for number, worker in self.workers.items() if not (worker.done or worker.gone)]
                raise BrokenError(f"workers {waiting} wait for ever")
            if num_moves > MOST_MOVES:
                raise BrokenError(f"the run is not over after {num_moves} more moves")
        self._say_the_rest()
        self._check_end()

    def _all_of(self, worker: Worker) -> int:
        """Everything that can happen to a worker, once; how much that was."""
        moved = self._say(worker) if worker.said else 0
        moved += self._hear(worker, worker.beats.popleft()) if worker.beats else 0
        for index, bulks in enumerate(worker.bulks):
            moved += self._bulk(worker, index) if bulks else 0
        return moved + worker.hear() + worker.hear_urgent() + worker.act()

    def _say_the_rest(self) -> None:
        for worker in self.workers.values():
            while self._say(worker):
                pass

    def _check_end(self) -> None:
        run = self.coordinator
        if not self._began:  # whoever went before the run began has ended it for all
            if not self._losses:
                raise BrokenError("the run has not begun")
            return
        if run.state != "ended" and run.live:
            raise BrokenError(f"all workers are done, and the run is {run.state} with workers {run.live}")
        failed = {
            number: worker.ended_with for number, worker in self.workers.items() if worker.ended_with != "finished"
        }
        refused = {one for one, reason in failed.items() if reason == TOO_LATE or self.workers[one].late}
        gone = self._losses | refused
        here = [number for number, worker in self.workers.items() if not (worker.gone or number in gone)]
        ended = [number for number in here if number not in failed]
        if run.ledger.status == "failed":
            self._check_excuse(run.ledger.error or "")
        elif here and not ended and not self._lets_racks_go:
            raise BrokenError(f"nobody has finished, and nobody says why: {failed}")
        if run.ledger.status == "finished" and ended and self.policy.exchange == "store" and not self._lets_racks_go:
            for plan in range(self.setting.num_plans):
                done = len(self._done.get(plan, ()))
                if done != self.setting.num_samples:
                    raise BrokenError(f"{done} of {self.setting.num_samples} samples of plan {plan} are done")
        for index, server in enumerate(self.servers):
            if run.ledger.status == "finished" and server.pushes and not self._losses:
                raise BrokenError(f"server {index} still holds the updates {server.pushes}")

    @property
    def _lets_racks_go(self) -> bool:
        """True if a loss ends more than the lost worker's part."""
        return self.policy.racks_share_store or self.policy.goes_by_racks

    def _check_excuse(self, error: str) -> None:
        if not self._losses:
            raise BrokenError(f"the run failed, and nobody was lost: {error}")
        if self.setting.elastic and not self._lets_racks_go and not any(excuse in error for excuse in EXCUSES):
            raise BrokenError(f"workers {self._losses} were lost, which does not end a run, and it failed: {error}")


def _samples(remainder: Remainder) -> set[tuple[int, int]]:
    """Epochs and positions."""
    return {
        (span.epoch, place)
        for spans in remainder.by_epoch()
        for span in spans
        for place in range(span.start, span.stop)
    }
