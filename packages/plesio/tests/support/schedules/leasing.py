"""A worker's loop over the data on the store: it leases blocks, trains on them, hands its updates in, and rests."""

from collections import deque

from plesio.policies import Arrived
from plesio.policies.policy import NEVER
from plesio.protocol.plans import Block
from plesio.protocol.to_server import (
    Finish,
    LeaseRequest,
    NotFinite,
    PartArrived,
    Release,
    Review,
    StageStop,
    UpdateHead,
)
from plesio.protocol.to_worker import Lease, StageEnd, Steering
from support.schedules.worker import Script, Worker


class Loop:
    """One loop of one worker.

    Args:
        worker: Who.
    """

    def __init__(self, worker: Worker) -> None:
        self._me = worker
        self._held: deque[list[int]] = deque()
        """The number of each block, and its samples that are not trained on."""
        self._next: Block | None = None
        self._asked = self._to_the_end = False

    @property
    def _stopped(self) -> bool:
        return self._me.halted and not self._to_the_end

    def run(self) -> Script[StageEnd | None]:
        """Until the data are done (None), or the stage is (how it was left)."""
        while True:
            if not self._stopped:
                yield from self._blocks()
            if not self._stopped:
                self._next = yield from self._ask(idle=True)
                if self._next is not None:
                    continue
            if not self._stopped:
                return None
            end = yield from self._depart()
            if end.steer is not None:
                return end
            self._to_the_end = self._me.halted = end.to_the_end

    def _blocks(self) -> Script[None]:
        """Train on all blocks that can be had without waiting."""
        block, self._next = self._next, None
        block = block or (yield from self._ask(idle=False))
        while block is not None:
            self._held.append([block.id, block.num_samples])
            self._request(idle=False)
            for part in block.batches():
                yield from self._step(part.stop - part.start)
                if self._stopped:
                    return
            block = yield from self._receive()

    def _step(self, num_samples: int) -> Script[None]:
        me = self._me
        me.clock += 1
        me.num_samples += num_samples
        self._trained(num_samples)
        if me.spoiled:
            me.spoiled = False
        else:
            me.num_steps += 1
        if me.stage.exchanges_at(me.clock) or me.clock + 1 + me.stage.credit_ahead > me.credit:
            self._push()
            yield from me.pull(after=me.pushed_clock, clock=me.clock)
        else:
            yield lambda: True
        if me.clock >= me.review:
            me.review, me.awaits_news = NEVER, True
            me.said.append(Review(event=me.review_of()))
        if me.awaits_news and (news := me.heard(Steering)) is not None:
            me.review, me.awaits_news = news.next_review, False

    def _trained(self, num_samples: int) -> None:
        while num_samples:
            block, left = self._held[0]
            done = min(left, num_samples)
            self._me.finished.append((self._me.plan, block, done))
            self._held[0][1] -= done
            num_samples -= done
            if left == done:
                self._held.popleft()

    def _push(self) -> None:
        me = self._me
        period = me.stage.period
        clock = -(-me.clock // period) * period if me.stage.synchronous else me.clock
        me.pushed_clock = clock
        finished = tuple(me.finished)
        me.finished.clear()
        if me.num_steps == 0:
            head = UpdateHead(worker=me.number, clock=clock, base_version=me.version)
            me.said.append(NotFinite(event=head, finished=finished))
        else:
            event = Arrived(worker=me.number, clock=clock, num_steps=me.num_steps, base_version=me.version)
            for server, bulks in enumerate(me.bulks):
                bulks.append(PartArrived(event=event, num_samples=me.num_samples, finished=finished, server=server))
        me.num_steps = me.num_samples = 0

    def _flush(self) -> Script[None]:
        if self._me.num_steps:
            self._push()
            yield from self._me.pull(after=self._me.pushed_clock, clock=0)

    def _tell_finished(self) -> None:
        me = self._me
        me.said += [Finish(plan=plan, block=block, num_samples=number) for plan, block, number in me.finished]
        me.finished.clear()

    def _request(self, *, idle: bool) -> None:
        me = self._me
        me.said.append(LeaseRequest(plan=me.plan, idle=idle, figures=me.figures))
        self._asked = True

    def _ask(self, *, idle: bool) -> Script[Block | None]:
        if idle:
            yield from self._flush()
            self._tell_finished()
        self._request(idle=idle)
        return (yield from self._receive())

    def _receive(self) -> Script[Block | None]:
        me = self._me
        lease = yield from me.receive(Lease)
        self._asked = False
        if lease.clock is not None:
            me.clock = me.pushed_clock = me.reviewed_clock = lease.clock
            yield from me.pull(after=lease.clock, clock=lease.clock)
        if lease.halted:
            me.halted = True
        return lease.block

    def _depart(self) -> Script[StageEnd]:
        """Stand still until it is known how to go on."""
        me = self._me
        yield from self._flush()
        if self._held or self._asked or self._next is not None:
            if self._asked and me.heard(Lease) is None:
                me.ignored[Lease] += 1
            self._held.clear()
            self._asked, self._next = False, None
            self._tell_finished()
            me.said.append(Release())
        stop = StageStop(clock=me.clock, plan=me.plan)
        me.shared[me.stage_number].append(stop)
        me.said.append(stop)
        return (yield from me.receive(StageEnd))
