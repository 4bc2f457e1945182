"""The machine of BSP with backup workers: a step waits for all but the slowest b, whose gradients are dropped.

Chen et al. 2016, "Revisiting Distributed Synchronous SGD" (section 3.2). N live workers begin a step from one version
of the parameters; the first N - b gradients that arrive are averaged, make the next version, and let their workers go
on. A worker that is not there yet goes on computing: no worker can be called back out of a backward pass. When its
gradient arrives it is *late*, for there is a newer version than the one it was computed from. It is refused, its
samples go to others, and the worker begins again from the parameters as they are now.

    version      v                          v + 1                      v + 2
    worker 0     |---- step ----|           |---- step ----|
    worker 1     |---- step ------|         |---- step -----|
    worker 2     |---- step --------| mean  |---- step --------| mean
    worker 3     |---- step -----------------------| late  |---- step, from v + 1 ...       (b = 1)

Invariants:

- What is applied was computed from the version before it: its staleness is 0, and the step is the synchronous one of
  the workers that made it.
- The open round waits while more than b live workers have not contributed to it; so a round always waits for some
  worker, and a departed worker's contribution counts. It waits for one gradient at least, however large b is.
- A worker contributes at most once to a round, and is not let go before the round completes.

A worker's clock counts the steps it has made, the dropped ones too. So clocks of slow workers fall behind, and no bound
holds for the lead: what is bounded is that at most b live workers have yet to see the version before the latest one.
A newcomer is admitted at the slowest live worker's clock; one that left after contributing and is back before that
round completes is admitted when it does, as in `plesio.policies.barrier`.
"""

from plesio.policies.events import Action, Admit, Arrived, Grant, Refuse, RefuseReason
from plesio.policies.round_machine import RoundMachine


class BackupMachine(RoundMachine):
    """Completes a round when all live workers but ``backup`` have contributed to it.

    Args:
        backup: b, at least 1.
    """

    def __init__(self, *, backup: int, clock: int = 0) -> None:
        assert backup >= 1, "without backup workers a round is a barrier's"
        super().__init__()
        self._backup = backup
        self._floor = clock
        self._live: dict[int, int] = {}
        """The last reported clock of each live worker."""
        self._contributed: set[int] = set()
        """Workers, also departed ones, that have contributed to the open round."""
        self._finite: list[tuple[int, int]] = []
        """The finite ones among these contributions, by worker and clock, in the order of arrival."""

    def _admit(self, worker: int) -> tuple[Action, ...]:
        self._live[worker] = self._floor
        return (Admit(worker=worker, clock=self._floor), Grant(worker=worker, clock=self._floor + 1))

    def _depart(self, worker: int) -> tuple[Action, ...]:
        del self._live[worker]
        self._raise_floor()
        return self._complete_round()

    def _arrive(self, event: Arrived) -> tuple[Action, ...]:
        worker, clock = event.worker, event.clock
        assert worker in self._live, f"worker {worker} has not joined"
        assert worker not in self._contributed, f"worker {worker} has contributed to the open round already"
        due = self._live[worker] + 1
        assert clock == due, f"worker {worker} arrived at clock {clock}, its exchange is at {due}"
        assert event.base_version <= self._version, f"version {event.base_version} follows {self._version}"
        self._live[worker] = clock
        self._raise_floor()
        late = event.base_version < self._version
        actions: tuple[Action, ...] = ()
        if late or not event.finite:
            reason = RefuseReason.LATE if event.finite else RefuseReason.NOT_FINITE
            actions = (Refuse(worker=worker, clock=clock, reason=reason),)
        if late:
            return (*actions, Grant(worker=worker, clock=clock + 1))
        self._contributed.add(worker)
        if event.finite:
            self._finite.append((worker, clock))
        return actions + self._complete_round()

    def _raise_floor(self) -> None:
        self._floor = min(self._live.values(), default=self._floor)

    @property
    def _num_due(self) -> int:
        """Live workers that have not contributed to the open round."""
        return len(self._live.keys() - self._contributed)

    def _complete_round(self) -> tuple[Action, ...]:
        """Complete the open round, if a worker has contributed and no more than the backup workers are due."""
        if not self._contributed or self._num_due > self._backup:
            return ()
        actions: list[Action] = []
        if self._finite:
            actions.append(self._mean_of(self._finite))
        let_go = sorted(self._contributed & self._live.keys())
        self._contributed.clear()
        self._finite.clear()
        actions += [Grant(worker=worker, clock=self._live[worker] + 1) for worker in let_go]
        returning, self._returning = self._returning, []
        for worker in returning:
            actions += self._admit(worker)
        return tuple(actions)

    def validate(self) -> None:
        assert not self._contributed or self._num_due > self._backup, "a round is open that waits for nobody"
        assert {worker for worker, _ in self._finite} <= self._contributed, (self._finite, self._contributed)
        assert len(dict(self._finite)) == len(self._finite), "a worker counts twice in one round"
        assert self._floor == min(self._live.values(), default=self._floor), (self._floor, self._live)
        assert not self._live.keys() & set(self._returning)
        assert set(self._returning) <= self._contributed
        assert not self._resting & (self._live.keys() | set(self._returning))
