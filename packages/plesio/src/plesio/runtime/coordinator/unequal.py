"""Notices workers of a collective that make unequally many steps, so that the others wait for them in vain.

One that has ended its loop meets no other any more: when it has been gone for a while and others still train, they go
on without it. Where one waits in an evaluation (or at its end) and another in a step, their collectives are different
ones and none can go on: that is an error. So it is where all wait in an evaluation, after unequally many steps. Workers
report where they wait with each heartbeat (`Report.within`), so it is told apart from code of the user's that takes
long.
"""

from msgspec import UNSET

from plesio.protocol.figures import Within
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Members

PATIENCE = 1.5
"""Leases that workers wait in different collectives: one that sleeps for less than a lease wakes up meanwhile."""
_DOES = {
    "forward": "is in the forward pass of step {next}",
    "step": "is in step {next}",
    "evaluation": "evaluates after step {clock}",
    "end": "ends its training after step {clock}",
}


class Unequal:
    """Finds workers of one run that have ended, or wait in different collectives, while others train."""

    def __init__(self, members: Members, *, ledger: Ledger) -> None:
        self._members = members
        self._ledger = ledger
        self._seen: tuple[int, list[tuple[int, Within, int]]] = 0, []
        """Generation, and worker, place and clock of those that wait, as they were last looked at."""
        self._since_s = 0.0

    def ended(self, before_s: float) -> list[int]:
        """Return the workers whose training was over by then, where others still train."""
        members = self._members
        if all(members[worker].leaving for worker in members.live):
            return []
        over = [worker for worker, one in members.items() if one.leaving and not one.parted and one.left_s <= before_s]
        return [worker for worker in over if worker not in self._ledger.lost]

    def mixed_up(self, *, generation: int, now_s: float, lease_s: float) -> str | None:
        """Explain why no worker can go on, if workers wait in different collectives for long."""
        waiting: list[tuple[int, Within, int]] = []
        training = [worker for worker in self._members.live if not self._members[worker].leaving]
        for worker in training:
            report = self._ledger.workers.latest(worker)
            if report.within is not UNSET and report.within != "metric":
                waiting.append((worker, report.within, report.clock))
        if (generation, waiting) != self._seen:
            self._seen, self._since_s = (generation, waiting), now_s
        first = {place: (worker, place, clock) for worker, place, clock in reversed(waiting)}
        in_passes = set(first) == {"forward", "step"}
        # where one is a step ahead, another may do something of its own between its passes, and come
        leases = 2 * PATIENCE if in_passes and first["forward"][2] != first["step"][2] else PATIENCE
        found = list(first.values())
        if set(first) == {"evaluation"} and len(waiting) == len(training):
            found = list({clock: (worker, place, clock) for worker, place, clock in reversed(waiting)}.values())
        if len(found) < 2 or now_s <= self._since_s + leases * lease_s:
            return None
        self._since_s = now_s
        if in_passes:
            forward, behind = first["forward"], first["step"]
            return (
                f"worker {forward[0]} is in the forward pass of step {forward[2] + 1} while worker {behind[0]} is "
                "behind its backward pass: all workers must make a backward pass and a step of every batch; to skip "
                "one, have all skip it, or look at it under torch.no_grad()"
            )
        each = [
            f"worker {worker} {_DOES[place].format(clock=clock, next=clock + 1)}"
            for worker, place, clock in sorted(found, key=lambda one: one[2])
        ]
        return (
            f"{each[0]} while {each[1]}: all workers must make the same number of steps between evaluations and until "
            "the end, and all must call session.evaluate; stop all at the length of the shortest loader, or write "
            "session.shard(loader) and step on each batch"
        )
