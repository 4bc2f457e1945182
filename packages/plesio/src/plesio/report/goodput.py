"""Goodput: the share of what the workers of a run could have computed that went into samples which count.

A run of N workers that trained for T seconds could have computed for N T seconds, and for N R more where it was begun
again R seconds after its checkpoint; where more workers were there at a time, for as long as they were. Each worker's
own times divide its part of that, and the parts of all add up to it (`PARTS`):

    computing       = samples that count + lost work + checkpoints
    waiting, communicating                    as the worker recorded them
    between steps   = T less all of these     of a worker that was there from beginning to end
    absent workers  = N T less all of these   of workers that were lost, and of those that joined before they did
    restarts        = N R

*Lost work* is computing of steps that were refused or did not count (`WorkerTimes.lost_s`), and of the samples that a
lost worker reported beyond those that count, at the mean time of a sample.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from plesio.core.charts import Table
from plesio.core.results import RunResult

_SHOWN = 0.0005
"""A smaller share is 0.0 %."""
USEFUL = "samples that count"
ABSENT = "absent workers"
PARTS = (USEFUL, "waiting", "communicating", "lost work", "checkpoints", "restarts", "between steps", ABSENT)
"""Parts of the capacity, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGoodput:
    """The division of what workers could have computed.

    Attributes:
        capacity_s: Seconds that the workers could have computed.
        shares: Shares of it; `PARTS` in their order, which add up to 1.
    """

    capacity_s: float
    shares: Mapping[str, float]

    @property
    def share(self) -> float:
        """The goodput."""
        return self.shares[USEFUL]

    @property
    def rest(self) -> str:
        """Text of the other parts, the largest first; what would be 0.0 % is left out."""
        others = sorted(((share, part) for part, share in self.shares.items() if part != USEFUL), reverse=True)
        return ", ".join(f"{part} {_percent(share)}" for share, part in others if share >= _SHOWN)

    @property
    def live_share(self) -> float:
        """The goodput of the workers that were there."""
        there = 1 - self.shares[ABSENT]
        return self.share / there if there > 0 else 0.0


def goodput_table(policies: Mapping[str, "MeasuredGoodput | None"]) -> Table:
    """Draw a row a policy: its goodput, that of the live workers where some were absent, and the other parts."""
    rows = []
    for policy, goodput in policies.items():
        if goodput is not None:
            live = "" if goodput.shares[ABSENT] < _SHOWN else f" ({_percent(goodput.live_share)} of live workers)"
            rows.append([policy, f"{_percent(goodput.share)}{live}", goodput.rest])
    return Table(title="Goodput", headers=("policy", "goodput", "the rest"), rows=rows)


def goodput_of(runs: Iterable[RunResult]) -> MeasuredGoodput | None:
    """Divide the time of these runs' workers, all together; None where no worker has recorded any."""
    seconds = dict.fromkeys(PARTS, 0.0)
    for run in runs:
        for part, part_s in _parts_s(run).items():
            seconds[part] += part_s
    capacity_s = sum(seconds.values())
    if capacity_s <= 0:
        return None
    return MeasuredGoodput(
        capacity_s=capacity_s, shares={part: part_s / capacity_s for part, part_s in seconds.items()}
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _parts_s(run: RunResult) -> dict[str, float]:
    computing_s = sum(worker.compute_s for worker in run.workers)
    checkpoints_s = sum(worker.checkpoint_s for worker in run.workers)
    reported = sum(worker.samples for worker in run.workers)
    beyond = max(0, reported - run.samples) / reported if reported else 0.0
    lost_s = sum(worker.lost_s for worker in run.workers)
    lost_s += beyond * max(0.0, computing_s - checkpoints_s - lost_s)
    waiting_s = sum(worker.wait_s for worker in run.workers)
    communicating_s = sum(worker.communicate_s for worker in run.workers)
    # a worker that was there all the time spends between its steps what it has not recorded
    between_s = 0.0
    for worker in run.workers:
        if worker.worker < run.num_workers and worker.worker not in run.lost_workers:
            between_s += max(0.0, run.training_s - worker.compute_s - worker.wait_s - worker.communicate_s)
    there_s = computing_s + waiting_s + communicating_s + between_s
    restarts_s = max((worker.restart_s for worker in run.workers), default=0.0) * run.num_workers
    return {
        USEFUL: max(0.0, computing_s - checkpoints_s - lost_s),
        "waiting": waiting_s,
        "communicating": communicating_s,
        "lost work": lost_s,
        "checkpoints": checkpoints_s,
        "restarts": restarts_s,
        "between steps": between_s,
        ABSENT: max(0.0, run.num_workers * run.training_s - there_s) if run.workers else 0.0,
    }
