"""What workers report to a policy that adapts: what they saw, and what the metric is."""

from collections.abc import Callable

from plesio.policies import Evaluated, Policy, Reviewed
from plesio.protocol.effects import Effect
from plesio.protocol.to_server import Evaluations, Review
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

    def reviewed(self, review: Review, *, running: bool, now_s: float) -> list[Effect]:
        """A worker tells what it saw; when all have, they are told by a `Steering`."""
        event = review.event
        assert isinstance(event, Reviewed), event
        if not running or not self._members.is_live(event.worker) or self._members[event.worker].left:
            return []
        self._members[event.worker].heard_s = now_s
        self._members[event.worker].clock = event.clock
        self._passed(event.clock)
        return self._decide(event, now_s=now_s)

    def evaluated(self, message: Evaluations, *, running: bool, now_s: float) -> list[Effect]:
        """The evaluating worker has new validation metrics; a policy that adapts hears of them while it runs."""
        ledger = self._ledger
        ledger.evaluations += message.evaluations
        ledger.parameters_sha256 = message.parameters_sha256 or ledger.parameters_sha256
        if not running or not self._policy.adapts:
            return []
        sign = 1.0 if ledger.judged_by[1] == "max" else -1.0
        effects: list[Effect] = []
        for point in message.evaluations:
            effects += self._decide(Evaluated(metric=sign * point.metric), now_s=now_s)
        return effects
