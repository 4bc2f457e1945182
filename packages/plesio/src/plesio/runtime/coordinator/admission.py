"""The begin of a run, and admission to it: all expected workers must come, and agree.

A worker that disagrees with the others fails the run for all while they gather: they would wait in vain. Once the run
is under way that worker alone is refused, and one that has come early is answered when the run has begun.
"""

from collections.abc import Sequence
from itertools import zip_longest

from plesio.policies import Joined, Policy
from plesio.protocol.effects import Tell
from plesio.protocol.to_server import Join, Saving
from plesio.protocol.to_worker import Failed, Start
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Answers, Member, Members
from plesio.runtime.coordinator.newcomers import Newcomers
from plesio.runtime.coordinator.saving import Checkpoints


class Admission:
    """Lets the workers of one run in.

    Args:
        first: The first worker's message, with which all others must agree.
    """

    def __init__(
        self,
        first: Join,
        *,
        policy: Policy,
        members: Members,
        newcomers: Newcomers,
        checkpoints: Checkpoints,
        ledger: Ledger,
    ) -> None:
        self._first = first
        self._expected = tuple(range(first.num_workers))
        self._members = members
        self._newcomers = newcomers
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._policy = policy
        self._failed = False

    def join(self, worker: int, join: Join, *, now_s: float) -> Answers:
        """Take in a worker that asks to take part; it gets `Start` when the run starts, or at once if it runs."""
        state = self._members.state
        if (late := worker not in self._expected) and state == "gathering" and not self._failed:
            self._newcomers.come_early(worker, join)
            return
        problem = self._disagreement(worker, join, late=late)
        meets = state == "running" and self._policy.exchange == "collective"
        if problem is None and meets:
            problem = self._newcomers.come(worker, join)
            if problem is None:
                yield self._start(worker, clock=0, now_s=now_s)
                return
        if problem is not None and state == "running":
            yield Tell(worker=worker, message=Failed(message=problem))
            return
        self._members[worker] = Member(seen_s=now_s, rack=join.rack)
        if problem is not None:
            yield from self.fail(problem)
            return
        if worker == 0:
            self._ledger.ran_on(join.environment)
        if self._failed:
            yield Tell(worker=worker, message=Failed(message=self._ledger.error or ""))
        elif state == "running":
            yield from self._admit([worker], now_s=now_s)
        else:
            yield from self.begin_if_all_are_there(now_s=now_s)

    def begin_if_all_are_there(self, *, now_s: float) -> Answers:
        there = all(rank in self._members for rank in self._expected)
        if self._members.state != "gathering" or self._failed or not there or not self._checkpoints.complete:
            return
        self._members.begin()
        racks = [self._members[rank].rack for rank in self._expected]
        self._ledger.begin(now_s - self._checkpoints.elapsed_s, rack_of=racks)
        if self._policy.racks_share_store:
            self._ledger.meet(self._members.form_racks(self._expected, joined=False))
        known = self._checkpoints.begin(workers=self._expected, now_s=now_s)
        yield from self._admit(self._expected, now_s=now_s, known=known)
        for worker, join in self._newcomers.early():
            yield from self.join(worker, join, now_s=now_s)

    def fail(self, message: str) -> Answers:
        """Fail the run, for all that are there and all that come, before it has begun."""
        if not self._failed:
            self._failed = True
            self._ledger.fail(message)
            for worker in self._members.live:
                yield Tell(worker=worker, message=Failed(message=message))
            yield from self._newcomers.refuse(message)

    def _admit(self, workers: Sequence[int], *, now_s: float, known: bool = False) -> Answers:
        for worker in workers:
            member = self._members[worker]
            if not (known or member.left):
                yield Joined(worker=worker, num_workers=member.num_workers)
        for worker in workers:
            yield self._start(worker, clock=self._members[worker].clock, now_s=now_s)

    def _start(self, worker: int, *, clock: int, now_s: float) -> Tell:
        start = Start(clock=clock, elapsed_s=self._ledger.elapsed_s(now_s), workers=self._expected)
        return Tell(worker=worker, message=start)

    def _disagreement(self, worker: int, join: Join, *, late: bool) -> str | None:
        """Return why a worker cannot take part, in words for it and the others; None if it can.

        One that joins a run under way (``late``) goes on from where that is, whatever is in the folder.
        """
        if join.policy != self._policy.spec:
            return f'worker {worker} runs policy "{join.policy}", the others "{self._policy.spec}"; use one for all'
        if join.layout != self._first.layout:
            return f"worker {worker}'s model differs from the others' (names, shapes, dtypes, or the number of servers)"
        if (differs := _unlike(join.optimizer, self._first.optimizer, late=late)) is not None:
            return f"the optimizer of worker {worker} has {differs}; make the same on all workers"
        saving = self._first.saving
        if join.saving == saving or (late and _how_often(join.saving) == _how_often(saving)):
            return None
        here, there = (0 if one is None else one.clock for one in (join.saving, saving))
        if here != there:
            return (
                f"worker {worker} goes on from step {here}, the others from step {there}: all must see the same folder "
                "of checkpoints"
            )
        return f"worker {worker}'s checkpoints differ from the others' (whether there are any, and how often)"


def _unlike(here: Sequence[str], there: Sequence[str], *, late: bool) -> str | None:
    """Return the first difference. A worker that joins late may have other values: a policy can have changed them."""
    for own, others in zip_longest(here, there, fillvalue="no more options"):
        if own != others and not (late and "=" in own and "=" in others):
            return f"{own}, the others {others}"
    return None


def _how_often(saving: Saving | None) -> tuple[float | None, int | None] | None:
    return None if saving is None else (saving.every_s, saving.every_steps)
