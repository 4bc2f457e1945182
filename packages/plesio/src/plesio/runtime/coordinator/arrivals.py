"""Updates on their way to the policy: one is heard of when every server has its part, if its worker still counts."""

import logging
from collections.abc import Callable, Iterable, Sequence

from plesio.policies import Arrived, RefuseReason
from plesio.protocol.effects import DropOrder, Effect, Tell
from plesio.protocol.to_server import Finished, PartArrived
from plesio.protocol.to_worker import UpdateRefused
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Members
from plesio.runtime.coordinator.sampling import Decide, Sampling
from plesio.runtime.coordinator.updates import Updates

__all__ = ["Arrivals"]

_log = logging.getLogger(__name__)


class Arrivals:
    """Of one run.

    Args:
        members: Who takes part.
        updates: Which are whole.
        sampling: Told which samples are done.
        ledger: The figures.
        is_running: Whether the run has begun and not ended.
        passed: Told how far a worker is.
        decide: Has the policy hear of an update.
    """

    def __init__(
        self,
        members: Members,
        *,
        updates: Updates,
        sampling: Sampling,
        ledger: Ledger,
        is_running: Callable[[], bool],
        passed: Callable[[int], None],
        decide: Decide,
    ) -> None:
        self._members = members
        self._updates = updates
        self._sampling = sampling
        self._ledger = ledger
        self._is_running = is_running
        self._passed = passed
        self._rates: dict[int, tuple[int, tuple[float, ...]]] = {}
        """Clock of each worker's last update, and its learning rates then."""
        self._warned = False
        self._decide = decide

    def part(self, part: PartArrived, *, now_s: float) -> list[Effect]:
        """One server holds its part of an update; when all do, the policy decides."""
        event = part.event
        if not self._takes(event):
            return [DropOrder(worker=event.worker, clock=event.clock)]
        self._compare_rates(event, part.rates)
        if not self._updates.is_whole(event.worker, event.clock, server=part.server):
            return []
        return self.whole(event, num_samples=part.num_samples, finished=part.finished, now_s=now_s)

    def _compare_rates(self, event: Arrived, rates: tuple[float, ...] | None) -> None:
        """Warn where workers make the same step with other learning rates, of which the servers can use but one.

        Under a relaxed policy schedulers may be ahead of each other, and the same clock is no sign of the same moment.
        """
        worker = event.worker
        mine = self._rates.get(worker, (0, ()))[1] if rates is None else rates
        self._rates[worker] = event.clock, mine
        if self._warned or not self._sampling.synchronous:
            return
        for other, (clock, theirs) in self._rates.items():
            if clock != event.clock or not self._members.is_live(other):
                continue
            for group, (rate, there) in enumerate(zip(mine, theirs, strict=False)):
                if rate != there and not self._warned:
                    self._warned = True
                    line = (
                        f"at step {clock} worker {worker} has the learning rate {rate:g} in group {group} and worker "
                        f"{other} {there:g}, and the server uses that which came last: step schedulers alike on all "
                        "workers, by a metric that all of them have, or have session.schedule step them"
                    )
                    _log.warning(line)
                    self._ledger.fallbacks.append(line)

    def _takes(self, event: Arrived) -> bool:
        """Whether an update of this worker still counts."""
        worker = event.worker
        return self._is_running() and self._members.is_live(worker) and not self._members[worker].resting

    def whole(self, event: Arrived, *, num_samples: int, finished: Sequence[Finished], now_s: float) -> list[Effect]:
        """An update is whole, or was not finite and has no parts.

        Args:
            event: The update.
            num_samples: Samples of the worker's own in it.
            finished: The leased ones among them: what never arrives, or comes too late for its step, is leased again.
            now_s: The time.
        """
        if not self._takes(event):
            return [DropOrder(worker=event.worker, clock=event.clock)]
        member = self._members[event.worker]
        member.heard_s = now_s
        member.clock = event.clock
        self._passed(event.clock)
        # the lead is taken when a step begins: one step before the clock that it ends with
        self._ledger.max_lead = max(self._ledger.max_lead, event.clock - 1 - self._members.slowest_clock())
        # of a rack's samples its speaker knows its own share, and the leases of all
        leased = sum(number for *_, number in finished)
        own = leased if self._members.by_racks else num_samples
        self._updates.note(event.worker, event.clock, num_samples=own, num_positions=leased)
        effects = self._decide(event, now_s=now_s)
        late = _is_late(effects)
        if event.finite:
            counted = 0 if late else num_samples
            self._ledger.arrived(event.worker, num_steps=event.num_steps, num_samples=counted)
        settle = self._sampling.give_back if late else self._sampling.finish
        for plan, block, number in finished:
            effects += settle(event.worker, plan=plan, block=block, num_samples=number, now_s=now_s)
        return effects


def _is_late(effects: Iterable[Effect]) -> bool:
    """Whether the policy has refused the update that arrived because its step is over."""
    told = [effect.message for effect in effects if isinstance(effect, Tell)]
    return any(isinstance(message, UpdateRefused) and message.reason is RefuseReason.LATE for message in told)
