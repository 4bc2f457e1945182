"""Replicas of which those that have not failed go on.

A machine has r replicas of a model. Each fails by chance, without memory; then it is away for a while, until it is
repaired, and the others go on without it. Whenever one leaves or comes back, all stand still until they know of each
other and those who come back have the parameters; what happens meanwhile begins that wait anew. A replica that is away
does not fail.

Events are failures and returns. Between two of them all is constant, so that what counts is exact.
"""

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

_BATCHES = 20
"""Parts of a simulation, whose means have a spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """The uses of all replicas' time: shares that add up to 1.

    Attributes:
        work: Replicas that work.
        waiting: Replicas that stand still, because one has left or comes back.
        away: Replicas that are away.
        work_ci95: Ends of the 95 % confidence interval of ``work``, from the spread between parts of the simulation.
    """

    work: float
    waiting: float
    away: float
    work_ci95: tuple[float, float]


def simulate_replicas(
    *,
    num_replicas: int,
    replica_mtbf_s: float,
    away_s: float,
    reconfigure_s: float,
    num_failures: int = 10_000,
    seed: int = 0,
) -> Elastic:
    """Simulate replicas over so many failures.

    >>> elastic = simulate_replicas(
    ...     num_replicas=10, replica_mtbf_s=1e6, away_s=1e4, reconfigure_s=100.0, num_failures=20_000
    ... )
    >>> round(elastic.work + elastic.waiting + elastic.away, 9), round(elastic.away, 3), round(elastic.waiting, 3)
    (1.0, 0.01, 0.002)

    Args:
        num_replicas: r.
        replica_mtbf_s: Mean seconds until a replica fails.
        away_s: Seconds from a failure until the replica comes back.
        reconfigure_s: Seconds that all stand still when one leaves or comes back.
        num_failures: How many.
        seed: Seed of what is drawn.
    """
    state = _State(num_replicas=num_replicas, at_work=num_replicas)
    waits = np.random.default_rng(seed).exponential(size=num_failures) * replica_mtbf_s
    batches: list[_State] = []
    for number, wait in enumerate(waits.tolist()):
        left = wait  # seconds of one replica's life until some replica fails: k at work use up k a second
        while True:
            returns_s = state.returns_s[0] if state.returns_s else math.inf
            fails_s = state.now_s + left / state.at_work if state.at_work else math.inf
            if fails_s <= returns_s:
                break
            left -= (returns_s - state.now_s) * state.at_work
            state.pass_until(returns_s)
            heapq.heappop(state.returns_s)
            state.change(+1, reconfigure_s=reconfigure_s)
        state.pass_until(fails_s)
        heapq.heappush(state.returns_s, fails_s + away_s)
        state.change(-1, reconfigure_s=reconfigure_s)
        if (number + 1) % max(num_failures // _BATCHES, 1) == 0:
            batches.append(state.copy_of_sums())
    return _shares(state, batches)


@dataclass(slots=True)
class _State:
    """The state of a simulation and its sums, in seconds of all replicas together."""

    num_replicas: int
    at_work: int
    now_s: float = 0.0
    waits_until_s: float = 0.0
    work_s: float = 0.0
    waiting_s: float = 0.0
    returns_s: list[float] = field(default_factory=list)

    def pass_until(self, then_s: float) -> None:
        passes_s = then_s - self.now_s
        waits_s = min(max(self.waits_until_s - self.now_s, 0.0), passes_s)
        self.waiting_s += waits_s * self.at_work
        self.work_s += (passes_s - waits_s) * self.at_work
        self.now_s = then_s

    def change(self, by: int, *, reconfigure_s: float) -> None:
        self.at_work += by
        self.waits_until_s = self.now_s + reconfigure_s

    def copy_of_sums(self) -> "_State":
        return _State(self.num_replicas, 0, now_s=self.now_s, work_s=self.work_s, waiting_s=self.waiting_s)


def _shares(state: _State, batches: list[_State]) -> Elastic:
    all_s = state.now_s * state.num_replicas
    work, waiting = state.work_s / all_s, state.waiting_s / all_s
    shares = [
        (after.work_s - before.work_s) / (after.now_s - before.now_s) / state.num_replicas
        for before, after in zip([_State(state.num_replicas, 0), *batches], batches, strict=False)
    ]
    half = 1.96 * float(np.std(shares, ddof=1)) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0
    return Elastic(
        work=work,
        waiting=waiting,
        away=max(1 - work - waiting, 0.0),
        work_ci95=(max(work - half, 0.0), min(work + half, 1.0)),
    )
