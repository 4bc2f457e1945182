"""The machine of every synchronous policy: BSP, LocalSGD and SSP(0).

Theory of operation. Time is cut into rounds of H steps (the period). In round k each live worker runs from clock
(k-1)H to kH, contributes once, at clock kH, and the round *completes* when all live workers have: their finite updates
become one version, and everyone is let go by another H steps. With a delay of d <= H steps a worker runs on for d steps
behind its contribution and stops there if the round has not completed; d = 0 is a barrier (Valiant 1990).

    last completed exchange          open round           credit
            c  ----------------------- c + H ------------ c + H + d
            everyone has passed here   contribute here    stop here until the open round completes

Invariants:

- One number, the clock c of the last completed exchange, fixes everyone's credit: c + H + d. It only grows.
- A live worker's clock is at least c, so the lead is at most (c + H + d - 1) - c = H + d - 1 when a step begins.
- A round waits for live workers only. A departed worker's contribution stays in the round and counts.
- A round is never left open when there is no worker to wait for.

A newcomer is admitted at c, the start of the open round, and owes it an update like everyone else, so a join delays the
others by at most one round and no worker is ever averaged over a part of one. The one exception: a worker that left
*after* contributing and is back before that round completed is admitted when it completes; otherwise it would count
twice in one average. With d = H a worker may contribute to the round after the open one; that waits its turn.

An update with NaN or infinity is refused on arrival and the round goes on with the rest; if nothing is left, credit is
given and no version is made.
"""

from plesio.policies.events import Action, Admit, Arrived, Grant, Refuse, RefuseReason
from plesio.policies.round_machine import RoundMachine


class BarrierMachine(RoundMachine):
    """Completes a round when every live worker has contributed to it.

    Args:
        period: H, steps of a round.
        delay: d, steps a worker may run on behind its contribution; at most ``period``.
        clock: Clock at which the workers begin: the end of a round.
    """

    def __init__(self, *, period: int, delay: int = 0, clock: int = 0) -> None:
        assert period >= 1, f"period {period}"
        assert 0 <= delay <= period, f"delay {delay} of period {period}"
        assert clock % period == 0, f"clock {clock} ends no round of {period}"
        super().__init__()
        self._period = period
        self._delay = delay
        self._completed = clock
        self._live: set[int] = set()
        self._contributed: dict[int, int] = {}
        """Clock of the last contribution, of each worker that has one in a round not yet completed."""
        self._finite: dict[int, list[int]] = {}
        """Workers with a finite update, by exchange clock, in the order of arrival."""

    def _admit(self, worker: int) -> tuple[Action, ...]:
        self._live.add(worker)
        return (Admit(worker=worker, clock=self._completed), Grant(worker=worker, clock=self._credit))

    def _depart(self, worker: int) -> tuple[Action, ...]:
        self._live.remove(worker)
        return self._complete_rounds()

    def _arrive(self, event: Arrived) -> tuple[Action, ...]:
        assert event.worker in self._live, f"worker {event.worker} has not joined"
        due = self._contributed.get(event.worker, self._completed) + self._period
        assert event.clock == due, f"worker {event.worker} arrived at clock {event.clock}, its exchange is at {due}"
        assert event.clock <= self._credit, f"worker {event.worker} ran to {event.clock} on credit {self._credit}"
        self._contributed[event.worker] = event.clock
        refused: tuple[Action, ...] = ()
        if event.finite:
            self._finite.setdefault(event.clock, []).append(event.worker)
        else:
            refused = (Refuse(worker=event.worker, clock=event.clock, reason=RefuseReason.NOT_FINITE),)
        return refused + self._complete_rounds()

    @property
    def _credit(self) -> int:
        return self._completed + self._period + self._delay

    def _complete_rounds(self) -> tuple[Action, ...]:
        """Complete rounds as long as an open one waits for no worker."""
        actions: list[Action] = []
        while self._contributed and self._live <= self._contributed.keys():
            actions += self._complete_round()
        return tuple(actions)

    def _complete_round(self) -> list[Action]:
        clock = self._completed + self._period
        actions: list[Action] = []
        if workers := self._finite.pop(clock, []):
            actions.append(self._mean_of([(worker, clock) for worker in workers]))
        self._completed = clock
        self._contributed = {worker: at for worker, at in self._contributed.items() if at > clock}
        actions += [Grant(worker=worker, clock=self._credit) for worker in sorted(self._live)]
        for worker in [worker for worker in self._returning if worker not in self._contributed]:
            self._returning.remove(worker)
            actions += self._admit(worker)
        return actions

    def validate(self) -> None:
        allowed = set(range(self._completed + self._period, self._credit + 1, self._period))
        assert self._completed % self._period == 0
        assert set(self._contributed.values()) <= allowed, (self._contributed, allowed)
        assert self._finite.keys() <= allowed, (self._finite, allowed)
        for clock, workers in self._finite.items():
            assert all(self._contributed[worker] >= clock for worker in workers), (clock, self._contributed)
            assert len(set(workers)) == len(workers), "a worker counts twice in one round"
        assert not self._contributed or self._live - self._contributed.keys(), "a round is open that waits for nobody"
        assert not self._live & set(self._returning)
        assert set(self._returning) <= self._contributed.keys()
        assert self._version * self._period <= self._completed
