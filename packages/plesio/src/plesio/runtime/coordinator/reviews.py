"""Reports of workers: what they saw, for a policy that adapts, and what the metric is.

Where all workers get the metric of a place in their program, each counts its evaluations. The first to come to one
evaluates; whoever comes meanwhile waits for that alone, and whoever comes later, also to one of long ago, is answered
at once. So nobody waits for a worker that trains. If the one that evaluates is lost, or fails, the lowest rank that
waits takes its place.
"""

from plesio.core.results import Evaluation
from plesio.policies import Pause, Reviewed
from plesio.protocol.effects import Tell
from plesio.protocol.to_server import EvaluationRequest, Evaluations, Review
from plesio.protocol.to_worker import KnownEvaluation
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Answers, Members
from plesio.runtime.coordinator.rates import StepRates
from plesio.runtime.coordinator.saving import Checkpoints
from plesio.runtime.coordinator.stage import Stage


class Reviews:
    """Hands reports on."""

    def __init__(self, members: Members, stage: Stage, *, ledger: Ledger, checkpoints: Checkpoints) -> None:
        self._members = members
        self._stage = stage
        self._ledger = ledger
        self._checkpoints = checkpoints
        self._rates = StepRates(is_live=members.is_live, warn=ledger.fallbacks.warn)
        self._known: dict[int, Evaluation] = {}
        """By number."""
        self._at: dict[int, list[int]] = {}
        """Workers at each evaluation under way: the first evaluates, the others wait."""

    def handle(self, worker: int, message: Review | Evaluations | EvaluationRequest, *, now_s: float) -> Answers:
        match message:
            case Review():
                yield from self._reviewed(message, now_s=now_s)
            case Evaluations(evaluations=points, parameters_sha256=sha256):
                self._ledger.metric.enter(points, parameters_sha256=sha256)
                yield from self._tell(message)
            case EvaluationRequest(number=number) if self._members.is_live(worker):
                yield from self._asked(worker, number)

    def _reviewed(self, review: Review, *, now_s: float) -> Answers:
        """Take in a worker's review; when all have come, answer with a `Steering`."""
        event = review.event
        assert isinstance(event, Reviewed), event
        members = self._members
        if members.state == "running" and members.is_live(event.worker) and not members[event.worker].left:
            members[event.worker].seen(now_s, clock=event.clock)
            in_step = self._stage.exchange == "collective"
            self._checkpoints.passed(self._checkpoints.next_stop if in_step else event.clock)
            self._rates.take(event.worker, clock=event.clock, rates=[event.learning_rate], synchronous=in_step)
            if self._checkpoints.due(now_s):  # the answer to the last review may be where all stop for it
                yield Pause()
            yield event

    def _asked(self, worker: int, number: int) -> Answers:
        known = self._known.get(number)
        if known is None:
            at = self._at.setdefault(number, [])
            at.append(worker)
            if len(at) > 1:
                return
        yield Tell(worker=worker, message=KnownEvaluation(evaluation=known))

    def gone(self, worker: int) -> Answers:
        """Have a worker evaluate no more, and wait for nothing."""
        for number in list(self._at):
            yield from self._drop(worker, number=number)

    def _tell(self, message: Evaluations) -> Answers:
        number = message.number
        if number is None:
            return
        if not message.evaluations:
            if self._at.get(number):
                yield from self._drop(self._at[number][0], number=number)
            return
        known = self._known.setdefault(number, message.evaluations[-1])
        for worker in self._at.pop(number, [])[1:]:
            yield Tell(worker=worker, message=KnownEvaluation(evaluation=known))

    def _drop(self, worker: int, *, number: int) -> Answers:
        """Have another one evaluate, where the worker did."""
        at = self._at[number]
        evaluates = at[:1] == [worker]
        at[:] = sorted(other for other in at if other != worker) if evaluates else [one for one in at if one != worker]
        if evaluates and at:
            yield Tell(worker=at[0], message=KnownEvaluation(evaluation=None))
