"""Racks: settings under which the workers of a rack step together, and replicas of racks drift apart.

If a job has several racks, and not all of one worker, every period and delay is there a second time *by racks*
(`Setting.by_racks`, the policy ``hier:bsp/local_sgd:H,delay=d``): the rack's mean gradient at every step, local SGD
between racks. Every period is there a third time with rounded exchanges between racks (`Sent.ROUNDED`), without delay.
Or racks share the parameter store (``hier:bsp/ssp:s``): each is one worker to it, and waits for no other that is less
than s steps behind. Workers report their racks in their reviews, so a recorded log replays.

*Drift.* Between two averagings that are s steps apart, replicas that begin alike and draw their samples alike are off
their mean by at most ``s η² σ²`` (η the learning rate, σ² the variance of one replica's gradient: Khaled, Mishchenko &
Richtárik 2020, "Tighter Theory for Local SGD on Identical and Heterogeneous Data", lemma 1). A rack of m workers steps
with a batch m times as large, so its σ² is an m-th. Averaged over workers, and so over racks by their size, with R
racks of n workers in all, the factor is ``R/n``, whether racks are equally large or not (their sum of m/n · 1/m). So

    drift = slack · R/n

is the slack of single workers under which replicas drift as far, and training must afford that slack. Two racks of
eight may go on for 8 steps if single workers may for one. (Two replicas also are nearer to their mean than sixteen are,
by 1 - 1/R over 1 - 1/n; that is not counted.) A drift below 1 counts as 1, the least that single workers can have.
Settings below it are not distinguished; of these the one with the fewest bytes between racks comes first.

*What if.* The workers of a rack end a step together, one exchange within the rack after the slowest of them. So a rack
is a worker whose steps take ``max over its workers + inside``, and `what_if` applies with R workers. When racks have
averaged, each spreads the mean among its workers, which nothing hides: half an all-reduce, once a period
(`plesio.runtime.worker.exchange.racks`; an all-gather is half of one, Thakur et al. 2005).

*Transfers.* Within the rack: the shortest time that any worker of the rack stood still in a step in which nothing was
merged, in the slowest rack. Between racks: as for every averaging, its time for the last worker to begin it; full and
rounded exchanges are measured separately. With the store: the lower quarter of the times that workers stood still in a
step, less the exchange within the rack.

Until they are measured, estimates replace them. Nothing is tried before an exchange among all workers has been
measured. An exchange between racks then counts as long as that one, since it sends no more bytes, or less by the share
of its bytes if it is rounded. One within the rack counts as nothing, so that it is tried if slack between racks could
be sufficient; after one review it is known. One with the store counts as long as one between racks in full, and the
spreading.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from plesio.policies.adaptive.system.setting import ROUNDED_SHARE, Sent, Setting
from plesio.policies.adaptive.system.transfers import with_store_s
from plesio.policies.adaptive.system.what_if import predict_steps_s
from plesio.policies.events import Reviewed


@dataclass(frozen=True, slots=True)
class WorkerRacks:
    """Division of the workers into racks: their places in ascending order of rank, by rack.

    >>> racks = WorkerRacks(((0, 1, 2, 3), (4, 5, 6, 7)))
    >>> racks.drift(Setting.of(period=8, delay=1, by_racks=True)), racks.drift(Setting.of(period=8, delay=1))
    (2.0, 8)
    >>> racks.drift(Setting.of(period=2, delay=0, by_racks=True)), racks.slack(3)
    (1.0, 12.0)
    """

    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, reviews: Mapping[int, Reviewed]) -> "WorkerRacks | None":
        """Make the racks of the workers that report; None if stepping by racks would be no setting of its own."""
        numbers = [review.rack for _, review in sorted(reviews.items())]
        racks = dict.fromkeys(numbers)
        if not 1 < len(racks) < len(numbers):
            return None
        return cls(tuple(tuple(place for place, number in enumerate(numbers) if number == rack) for rack in racks))

    @property
    def num_workers(self) -> int:
        return sum(map(len, self.members))

    def drift(self, setting: Setting) -> float:
        """Return the slack of single workers under which replicas drift as far; the module's head has the formula."""
        return max(1.0, setting.slack / self.slack(1)) if setting.by_racks else setting.slack

    def slack(self, drift: float) -> float:
        return drift * self.num_workers / len(self.members)

    def steps_s(self, compute_s: NDArray[np.float64], *, inside_s: float) -> NDArray[np.float64]:
        """Return ``[num_racks, num_steps]`` seconds of the racks' steps; ``inside_s`` is an exchange within a rack."""
        return np.stack([compute_s[list(places)].max(axis=0) for places in self.members]) + inside_s


class RackTransfers:
    """Measured seconds of exchanges within racks and between them."""

    def __init__(self) -> None:
        self.inside_s: float | None = None
        """Seconds from when all of a rack have come until they have their mean."""
        self.between_s: float | None = None
        """The same for all racks, without spreading the mean within them, in full."""
        self.rounded_between_s: float | None = None
        """The same for rounded exchanges between racks."""
        self.store_s: float | None = None
        """Seconds for a rack to push to the store, pull, and tell its workers."""

    def observe(self, reviews: Mapping[int, Reviewed], *, racks: WorkerRacks, setting: Setting) -> None:
        """Take in what the workers saw under ``setting``, which is one by racks."""
        if setting.on_store:
            if seen := with_store_s(reviews):
                self.store_s = max(0.0, sum(seen) / len(seen) - (self.inside_s or 0.0))
            return
        blocked_s = _between_merges([review for _, review in sorted(reviews.items())], setting=setting)
        if blocked_s.size:
            self.inside_s = max(float(blocked_s[list(places)].min(axis=0).mean()) for places in racks.members)
        if took_s := _exchanges_s(list(reviews.values())):
            spread_s = self.spread_s if setting.delay == 0 else 0.0  # else it is in what the merge took
            between_s = max(0.0, sum(took_s) / len(took_s) - spread_s)
            if setting.sent is Sent.ROUNDED:
                self.rounded_between_s = between_s
            else:
                self.between_s = between_s

    def _merge_s(self, setting: Setting, *, flat_s: float) -> float:
        """Return the seconds of an exchange between racks; if only a full or only a rounded one is known, from that."""
        rounded = setting.sent is Sent.ROUNDED
        if rounded:
            known_s, other_s, share = self.rounded_between_s, self.between_s, ROUNDED_SHARE
        else:
            known_s, other_s, share = self.between_s, self.rounded_between_s, 1 / ROUNDED_SHARE
        if known_s is not None:
            return known_s
        if other_s is not None:
            return other_s * share
        return flat_s * (ROUNDED_SHARE if rounded else 1.0)

    @property
    def spread_s(self) -> float:
        """Seconds to spread the mean of all racks among the workers of a rack."""
        return (self.inside_s or 0.0) / 2

    def steps_s(self, compute_s: NDArray[np.float64], *, racks: WorkerRacks) -> NDArray[np.float64]:
        """Return ``[num_racks, num_steps]`` seconds of the racks' steps, with the exchange within the rack."""
        return racks.steps_s(compute_s, inside_s=self.inside_s or 0.0)

    def with_store_s(self, *, flat_s: float) -> float:
        """Return the seconds of a rack's exchange with the store; ``flat_s`` is that of all workers in full."""
        if self.store_s is not None:
            return self.store_s
        return (flat_s if self.between_s is None else self.between_s) + self.spread_s

    def predict_steps_s(
        self, compute_s: NDArray[np.float64], *, racks: WorkerRacks, settings: Sequence[Setting], flat_s: float
    ) -> dict[Setting, float]:
        """Return the seconds that a step takes on average under each of these settings, all by racks.

        ``flat_s`` of an exchange among all workers in full is the estimate of one between racks until that is known.
        """
        steps_s = self.steps_s(compute_s, racks=racks)
        found = predict_steps_s(steps_s, transfer_s=lambda it: self._merge_s(it, flat_s=flat_s), settings=settings)
        return {setting: step_s + self.spread_s / setting.period for setting, step_s in found.items()}


def begun_under_this_setting(reviews: Mapping[int, Reviewed]) -> dict[int, Reviewed]:
    """Return the reviews without the exchanges that began before their first step, under another setting."""
    kept = {}
    for worker, review in reviews.items():
        since = review.clock - len(review.compute_s)
        kept[worker] = replace(review, exchanges=tuple(row for row in review.exchanges if row[0] > since))
    return kept


def _between_merges(reviews: Sequence[Reviewed], *, setting: Setting) -> NDArray[np.float64]:
    """Return ``[num_workers, num_steps]`` seconds that workers stood still in steps after which nothing was merged."""
    num_steps = min(len(review.blocked_s) for review in reviews)
    first = reviews[0].clock - num_steps + 1
    alone = [place for place in range(num_steps) if (first + place - setting.delay) % setting.period]
    blocked_s = np.array([review.blocked_s[len(review.blocked_s) - num_steps :] for review in reviews])
    found: NDArray[np.float64] = blocked_s[:, alone] if num_steps else blocked_s
    return found


def _exchanges_s(reviews: Sequence[Reviewed]) -> list[float]:
    """Return the time of each exchange for the last worker to begin it; workers that only receive it report none."""
    found: dict[float, float] = {}
    for review in reviews:
        for clock, took_s in review.exchanges:
            if took_s > 0:
                found[clock] = min(took_s, found.get(clock, took_s))
    return list(found.values())
