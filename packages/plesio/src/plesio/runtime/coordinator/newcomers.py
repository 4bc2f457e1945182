"""Workers that wait to join the collective of a run that is under way, until its workers stop and take them in.

    Join --Start--> makes its parts --PositionReport without a position--> ready --all others have stopped--> a member

No other counts on a worker that waits: it is in no group, its silence is no loss, and it may go as it came.

Invariant: a worker that waits is no member.
"""

from dataclasses import dataclass

from plesio.policies import Policy
from plesio.protocol.effects import Effect, Tell
from plesio.protocol.to_server import Join, PositionReport
from plesio.protocol.to_worker import Failed
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Members

AT_ITS_END = "the run is at its end: nobody can join it any more"


@dataclass(slots=True)
class Newcomer:
    """One that waits."""

    rack: int
    report: PositionReport | None = None
    """Said when it is ready."""


class Newcomers:
    """The newcomers of one run.

    Args:
        elastic: True if its workers can form a new group.
        grows: True if that can have a new one in it.
    """

    def __init__(self, members: Members, *, policy: Policy, ledger: Ledger, elastic: bool, grows: bool) -> None:
        self._members = members
        self._policy = policy
        self._ledger = ledger
        self._elastic, self._grows = elastic, grows
        self._early: dict[int, Join] = {}
        self._waiting: dict[int, Newcomer] = {}

    def __contains__(self, worker: int) -> bool:
        return worker in self._waiting

    @property
    def ready(self) -> bool:
        """True if a worker could be taken in now."""
        return any(one.report is not None for one in self._waiting.values())

    def come_early(self, worker: int, join: Join) -> None:
        """Keep the message of a worker that came before the run has begun, until it has."""
        self._early[worker] = join

    def early(self) -> list[tuple[int, Join]]:
        """Return the early ones, once."""
        early, self._early = self._early, {}
        return sorted(early.items(), key=lambda one: one[0])

    def come(self, worker: int, join: Join) -> str | None:
        """Let a worker wait that asks to join the run under way. Return why it cannot; None if it waits."""
        problem = self._refusal(worker, join)
        if problem is None:
            self._waiting[worker] = Newcomer(rack=join.rack)
        return problem

    def _refusal(self, worker: int, join: Join) -> str | None:
        if not self._elastic:
            return "no worker can join this run: its workers form no new group (elastic=False)"
        if not self._grows:
            return "no worker can join this run: its workers are islands; one can with exchange=store"
        if worker in self._members:
            return (
                f"this run has had a worker {worker}, and knows it as lost or at work; "
                "one that comes back needs a rank of its own (plesio run --join)"
            )
        if self._members.ending:
            return AT_ITS_END
        racks = set(self._ledger.rack_of)
        if self._policy.goes_by_racks and join.rack not in racks:
            known = ", ".join(map(str, sorted(racks)))
            return (
                f"this worker is in rack {join.rack}, and the run, which goes by racks, has the racks {known}; "
                "set PLESIO_RACK to one of them"
            )
        return None

    def is_ready(self, worker: int, report: PositionReport) -> None:
        self._waiting[worker].report = report

    def take(self) -> list[tuple[int, int, PositionReport]]:
        """Take out the ready ones, with their racks; they wait no more."""
        taken = [
            (worker, one.rack, one.report) for worker, one in sorted(self._waiting.items()) if one.report is not None
        ]
        for worker, _, _ in taken:
            del self._waiting[worker]
        return taken

    def forget(self, worker: int) -> None:
        self._waiting.pop(worker, None)
        self._early.pop(worker, None)

    def refuse(self, reason: str) -> list[Effect]:
        """Send all away, those too that have come early."""
        waiting = sorted(self._waiting.keys() | self._early.keys())
        self._waiting, self._early = {}, {}
        return [Tell(worker=worker, message=Failed(message=reason)) for worker in waiting]

    def validate(self) -> None:
        assert self._waiting.keys().isdisjoint(self._members), (self._waiting, self._members)
