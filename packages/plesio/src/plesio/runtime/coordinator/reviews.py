"""Reports of workers to a policy that adapts: what they saw, and what the metric is.

Where all workers are told the metric of a place in their program, each counts its evaluations. The first to come to one
evaluates; whoever comes meanwhile waits for that alone, and whoever comes later, also to one of long ago, is told at
once. So nobody waits for a worker that trains. If the one that evaluates is lost, or fails, the lowest rank that waits
takes its place.
"""

from collections.abc import Callable

from plesio.core.results import Evaluation
from plesio.policies import Evaluated, Policy, Reviewed
from plesio.protocol.effects import Effect, Tell
from plesio.protocol.to_server import EvaluationRequest, Evaluations, Review
from plesio.protocol.to_worker import KnownEvaluation
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Members
from plesio.runtime.coordinator.sampling import Decide

__all__ = ["Reviews"]


class Reviews:
    """Hands reports on.

    Args:
        members: Who takes part.
        policy: The run's.
        ledger: Has the metric too.
        passed: Told how far a worker is.
        decide: Told what was reported.
    """

    def __init__(
        self,
        members: Members,
        *,
        policy: Policy,
        ledger: Ledger,
        passed: Callable[[int], None],
        decide: Decide,
    ) -> None:
        self._members = members
        self._policy = policy
        self._ledger = ledger
        self._passed = passed
        self._decide = decide
        self._known: dict[int, Evaluation] = {}
        """By number."""
        self._at: dict[int, list[int]] = {}
        """Workers at each evaluation under way: the first evaluates, the others wait."""

    def hear(
        self, worker: int, message: Review | Evaluations | EvaluationRequest, *, running: bool, now_s: float
    ) -> list[Effect]:
        """Act on a worker's report, or on its question."""
        match message:
            case Review():
                return self._reviewed(message, running=running, now_s=now_s)
            case Evaluations():
                return self._evaluated(message, running=running, now_s=now_s)
            case EvaluationRequest(number=number):
                return self._asked(worker, number) if self._members.is_live(worker) else []

    def _reviewed(self, review: Review, *, running: bool, now_s: float) -> list[Effect]:
        """A worker tells what it saw; when all have, they are told by a `Steering`."""
        event = review.event
        assert isinstance(event, Reviewed), event
        if not running or not self._members.is_live(event.worker) or self._members[event.worker].left:
            return []
        self._members[event.worker].heard_s = now_s
        self._members[event.worker].clock = event.clock
        self._passed(event.clock)
        return self._decide(event, now_s=now_s)

    def _evaluated(self, message: Evaluations, *, running: bool, now_s: float) -> list[Effect]:
        """The evaluating worker has new validation metrics; a policy that adapts hears of them while it runs."""
        ledger = self._ledger
        ledger.evaluations += message.evaluations
        ledger.parameters_sha256 = message.parameters_sha256 or ledger.parameters_sha256
        effects = self._tell(message)
        if not running or not self._policy.adapts:
            return effects
        sign = 1.0 if ledger.judged_by[1] == "max" else -1.0
        for point in message.evaluations:
            effects += self._decide(Evaluated(metric=sign * point.metric), now_s=now_s)
        return effects

    def _asked(self, worker: int, number: int) -> list[Effect]:
        """A worker has come to an evaluation; it is told by a `KnownEvaluation`."""
        known = self._known.get(number)
        if known is None:
            at = self._at.setdefault(number, [])
            at.append(worker)
            if len(at) > 1:
                return []
        return [Tell(worker=worker, message=KnownEvaluation(evaluation=known))]

    def gone(self, worker: int) -> list[Effect]:
        """A worker evaluates no more, and waits for nothing."""
        return [effect for number in list(self._at) for effect in self._drop(worker, number=number)]

    def _tell(self, message: Evaluations) -> list[Effect]:
        number = message.number
        if number is None:
            return []
        if not message.evaluations:
            return self._drop(self._at[number][0], number=number) if self._at.get(number) else []
        known = self._known.setdefault(number, message.evaluations[-1])
        waiting = self._at.pop(number, [])[1:]
        return [Tell(worker=worker, message=KnownEvaluation(evaluation=known)) for worker in waiting]

    def _drop(self, worker: int, *, number: int) -> list[Effect]:
        """Have another one evaluate, where the worker did."""
        at = self._at[number]
        evaluates = at[:1] == [worker]
        at[:] = sorted(other for other in at if other != worker) if evaluates else [one for one in at if one != worker]
        return [Tell(worker=at[0], message=KnownEvaluation(evaluation=None))] if evaluates and at else []
