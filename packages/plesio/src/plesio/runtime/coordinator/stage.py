"""A run's stage, as the coordinator keeps it: the exchange in force, its samples, and the workers that have stopped.

    collective --all have stopped--> store --halt, all have stopped--> collective, or another stage on the store

On the store a worker that has stopped holds no samples, and no other waits for it. The stage is over when all that are
present have stopped in one plan of which enough is left for a round; `plesio.runtime.worker.staged_batches` says why.
"""

from collections.abc import Mapping, Sequence

from plesio.policies import ExchangeKind, Policy, Steer, parse_policy
from plesio.protocol.plans import PlanFigures, Remainder
from plesio.protocol.to_server import StageStop
from plesio.protocol.to_worker import StageEnd, Steering
from plesio.runtime.coordinator.dealing import Dealing
from plesio.runtime.coordinator.leases import LeaseRecords

_NOTHING = Remainder(num_samples=0, num_fresh=0)


class Stage:
    """The stage that a run is in.

    Args:
        clock: Where the run begins.
    """

    def __init__(self, policy: Policy, *, clock: int = 0) -> None:
        self.policy = policy.director(clock=clock).first if clock else policy.first
        """The static policy that workers go by."""
        self.exchange: ExchangeKind = policy.exchange
        """The exchange that a lost worker is lost to: on the way to the store the collective until all are there."""
        self.plans: dict[int, LeaseRecords] = {}
        """Plans that the store deals out, by number."""
        self.stopped: dict[int, StageStop] = {}
        """The workers that have stopped; of a rack, the one that speaks for it."""
        self.stopping: dict[int, StageStop] = {}
        """Workers that have stopped while others of their rack have not."""
        self.halting = False
        """Every worker stops at its next exchange."""
        self._over: set[int] = set()
        """Plans that were done when a later one was begun: of these only that is kept, and their samples."""
        self._finishing: int | None = None
        """The plan of which the rest is too little to be dealt in a round: no worker stops in it."""
        self._samples_before = 0
        """Samples of plans that are over, and of stages before."""

    def stops(self, plan: int | None) -> bool:
        """Tell whether a worker in this plan stops when it has exchanged, or has no samples."""
        return self.halting and plan != self._finishing

    def stays(self) -> StageEnd:
        """Return the answer to a worker that has stopped in a stage that is not over."""
        return StageEnd(steer=None, to_the_end=self.halting)

    def steer(self, steer: Steer) -> None:
        self.policy = parse_policy(steer.policy)

    def leases_of(self, plan: int, figures: PlanFigures, *, workers: Mapping[int, int]) -> LeaseRecords:
        """Return the leases of a plan, which the first request for it begins.

        ``workers`` are those that lease, and for how many each.
        """
        if plan not in self.plans and plan in self._over:
            self.plans[plan] = LeaseRecords.of(_NOTHING, batch_size=1, workers=(), dealing="guided", num_workers={})
        elif plan not in self.plans:
            self._forget_done()
            self.plans[plan] = LeaseRecords(
                figures.num_samples,
                batch_size=figures.batch_size,
                budget_samples=figures.budget_samples,
                workers=workers,
                dealing=self._dealing,
                num_workers=workers,
            )
        return self.plans[plan]

    def _forget_done(self) -> None:
        for number in [number for number, plan in self.plans.items() if plan.done]:
            self._over.add(number)
            self._samples_before += self.plans.pop(number).finished_samples

    @property
    def _dealing(self) -> Dealing:
        return "fixed" if self.policy.synchronous else "guided"

    def is_done(self, plan: int | None) -> bool:
        return plan in self._over or (plan in self.plans and self.plans[plan].done)

    def all_stopped(self, workers: Sequence[int]) -> bool:
        """Tell whether all of these workers, and at least one, have stopped."""
        return bool(workers) and self.stopped.keys() == set(workers)

    def enter_store(self, workers: Mapping[int, int]) -> tuple[int, int]:
        """Change to the store: all have stopped on the way to it.

        Args:
            workers: Those that lease, and for how many workers each.

        Returns:
            The samples trained on until here, and those that are left out: in pieces too small for a rack.
        """
        self.exchange = "store"
        first, left_out = self.stopped[min(self.stopped)], 0
        self.plans.clear()
        self._over.clear()
        if first.plan is not None and first.figures is not None and first.remainder is not None:
            largest, remainder = max(workers.values()), first.remainder
            if largest > 1:
                remainder = remainder.in_pieces_of(sum(workers.values()) if self._dealing == "fixed" else largest)
            left_out = len(first.remainder) - len(remainder)
            self.plans[first.plan] = LeaseRecords.of(
                remainder,
                batch_size=first.figures.batch_size,
                workers=workers,
                dealing=self._dealing,
                num_workers=workers,
            )
        self._samples_before = first.samples
        self.stopped.clear()
        return first.samples, left_out

    def goes_round(self, num_workers: int) -> bool:
        """Tell whether enough is left of the plan in which all have stopped for a round of so many workers.

        If not, it is finished on the store.
        """
        plans = {stop.plan for stop in self.stopped.values()}
        assert len(plans) == 1, f"workers have stopped in plans {plans}"
        [plan] = plans
        if plan not in self.plans or len(self.plans[plan].remainder()) >= num_workers:
            return True
        self._finishing = plan
        self.stopped.clear()
        return False

    def leave_store(self, steer: Steer, workers: Sequence[int], *, training: Sequence[int]) -> StageEnd:
        """Leave the store with all workers, and return their orders.

        ``workers`` have stopped: each, or the one that speaks for its rack; ``training`` are all.
        """
        plan = self.stopped[workers[0]].plan
        leases = None if plan is None else self.plans.get(plan)
        end = StageEnd(
            steer=Steering.of(steer, workers=training),
            remainder=None if leases is None else leases.remainder(),
            samples=self._samples_before + sum(one.finished_samples for one in self.plans.values()),
            leader=workers[0],
        )
        self.plans.clear()
        self._over.clear()
        self.stopped.clear()
        self.halting, self._finishing = False, None
        self.steer(steer)
        # until all have stopped in front of the next store, if there is one: rank 0 may be lost on the way
        self.exchange = "collective"
        return end

    def let_go(self) -> list[int]:
        """Take those that have stopped in a plan that the others have finished; they stop in the next one."""
        if self.exchange == "collective":
            return []
        done = sorted(worker for worker, stop in self.stopped.items() if self.is_done(stop.plan))
        for worker in done:
            del self.stopped[worker]
        return done

    def forget(self, worker: int) -> None:
        """Forget that a worker has stopped: it is gone."""
        self.stopped.pop(worker, None)
        self.stopping.pop(worker, None)

    def stay(self) -> list[int]:
        """Go on with the stage after all, and return the workers that had stopped."""
        workers = sorted(self.stopped)
        self.stopped.clear()
        self.halting, self._finishing = False, None
        return workers
