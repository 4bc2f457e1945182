"""Leases samples to workers; a worker without any rests.

A worker that has no samples left *rests*: the policy sees it leave, so that no worker waits for its clock, and sees it
join again when it is given a block. Without this, a bound would deadlock at the end of every epoch. Under a synchronous
policy all that rest join again when the plan is done, before any is given a block of the next one: otherwise the first
to ask would make rounds on its own, and the result would depend on their speed.

Invariants: a worker that waits for a block is live, and waits in a plan that has been begun; one that rests holds no
block.
"""

from plesio.policies import Joined, LeaveReason, Left
from plesio.protocol.effects import Tell
from plesio.protocol.plans import Block
from plesio.protocol.to_server import LeaseRequest
from plesio.protocol.to_worker import Lease
from plesio.runtime.coordinator.members import Answers, Members
from plesio.runtime.coordinator.stage import Stage


class Sampling:
    """Deals the samples of one run's stages on the store."""

    def __init__(self, members: Members, stage: Stage) -> None:
        self._members = members
        self._stage = stage
        self._asking: dict[int, int] = {}
        """The plan of each worker that waits for a block."""

    @property
    def synchronous(self) -> bool:
        """True if all workers make the same steps in the present stage."""
        return self._stage.policy.synchronous

    def lease(self, worker: int, request: LeaseRequest) -> Answers:
        """Answer a worker's request for its next block with a `Lease`.

        An idle worker (nothing left to train on) is answered when there is a block or when the whole plan is done, and
        rests until then; another one is answered at once, with no block if there is none to be had now. The first to
        ask fixes the plan's figures; all workers of one program ask with the same.
        """
        if not self._members.is_live(worker) or self._members[worker].left:
            return
        # one that has left would be dealt batches of rounds that nobody trains on
        leases = self._stage.leases_of(request.plan, request.figures, workers=self._members.known())
        leases.join(worker)
        if not request.idle:
            yield from self._give(worker, plan=request.plan, block=leases.lease(worker))
            return
        self._asking[worker] = request.plan
        yield from self.answer()

    def release(self, worker: int) -> Answers:
        """Deal the blocks of a worker that has left its loop early to others."""
        for plan in self._stage.plans.values():
            plan.release(worker)
        yield from self.answer()

    def withdraw(self, worker: int) -> Answers:
        """Forget the request of a worker that is gone, and deal its blocks to others."""
        self._asking.pop(worker, None)
        yield from self.release(worker)

    def finish(self, worker: int, *, plan: int, block: int, num_samples: int) -> Answers:
        """Enter that a worker is done with the next ``num_samples`` samples of a block."""
        if plan in self._stage.plans and self._members.is_live(worker):
            self._stage.plans[plan].finish(worker, block, num_samples)
        yield from self.answer()

    def give_back(self, worker: int, *, plan: int, block: int, num_samples: int) -> Answers:
        """Deal the next ``num_samples`` samples of a block again: the update computed from them was dropped."""
        if plan in self._stage.plans and self._members.is_live(worker):
            self._stage.plans[plan].give_back(worker, block, num_samples)
        yield from self.answer()

    def answer(self) -> Answers:
        """Answer the workers that wait for a block, as far as possible; the others rest."""
        for worker, number in list(self._asking.items()):
            if worker not in self._asking:
                continue
            plan, member = self._stage.plans[number], self._members[worker]
            stopped = self._stage.stops(number)
            block = None if stopped else plan.lease(worker)
            wakes = plan.done and self._stage.policy.synchronous and not stopped
            if block is None and not member.resting and not wakes:
                member.rest()
                yield Left(worker=worker, reason=LeaveReason.RESTING)
            if block is None and not plan.done and not stopped:
                continue  # somebody's block may yet come back
            if self._asking.pop(worker, None) is None:
                continue  # its rest ended the stage, and that has answered it
            if stopped:
                yield Tell(worker=worker, message=Lease(plan=number, block=None, halted=True))
            else:
                rounds = self._stage.policy.synchronous and self._stage.policy.period > 1
                yield from self._give(worker, plan=number, block=block, wakes=wakes, early=rounds or wakes)
        yield from self._members.tell_racks(self._stage.let_go(), self._stage.stays())

    def _give(
        self, worker: int, *, plan: int, block: Block | None, wakes: bool = False, early: bool = False
    ) -> Answers:
        """Tell a worker its block.

        It ``wakes`` where it takes part again though there is no block; ``early``: it may have handed in its round
        before its end, and goes on from where that ends.
        """
        member = self._members[worker]
        clock = member.clock if early else None
        if (block is not None or wakes) and member.resting:
            member.wake()
            yield Joined(worker=worker, num_workers=member.num_workers)
            clock = member.clock  # where the policy has admitted it
        yield Tell(worker=worker, message=Lease(plan=plan, block=block, clock=clock))

    def validate(self) -> None:
        for worker, plan in self._asking.items():
            assert self._members.is_live(worker), f"worker {worker} is gone and waits for a block"
            assert plan in self._stage.plans, f"worker {worker} waits in plan {plan}, which nobody has begun"
