"""Workers of unequal speed that share a batch in several ways, beside `plesio_planning.studies.load_balancing`.

Each rank computes the real gradient of its samples and then waits until its step has lasted what so many samples take a
worker of its speed; then all of them all-reduce the gradient, weighted by samples. Shares are equal, in proportion to
the speeds, or equal at first and moved every few steps towards what the ranks' own times ask for. The sharing of
samples is the study's (`studies.work_shares`). The time of an exchange, and the time of a step beyond its
samples, are measured with the least samples first.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plesio.core.charts import Axis, LineChart
from plesio.core.predictions import Prediction
from plesio.core.units import format_seconds
from plesio.core.within import Within
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Ranks, Times, slowest_s, timed
from plesio_planning.measured.twin import Line, Twin, beside
from plesio_planning.studies.measured import Measured
from plesio_planning.studies.work_shares import divide, moved

Way = Literal["equal", "proportional", "rebalanced"]
Samples = NDArray[np.int64]

FOUND = ()
WAYS: tuple[Way, ...] = ("equal", "proportional", "rebalanced")
NUM_STEPS = 60
WIDTH = 32
_MEMORY = 0.8
"""Share of what is known of a worker's speed that stays when a step has been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpeeds:
    """The ranks and their work.

    Attributes:
        batch: Samples of all of them together.
        sample_s: Time of a sample on a rank of speed 1.
        cap: Most samples of a rank.
        jitter: Standard deviation of the logarithm of what nobody can plan for.
        rebalance_every: Steps between two changes of the shares.
        largest_move: Samples that a share may change by at one of them.
    """

    speeds: tuple[float, ...]
    batch: int
    sample_s: float
    cap: int
    jitter: float
    rebalance_every: int
    largest_move: int

    def shares(self, speeds: Sequence[float]) -> Samples:
        return divide(self.batch, speeds, cap=self.cap)

    def jitters(self, num_steps: int) -> NDArray[np.float64]:
        """Draw the factors on times, (ranks, steps)."""
        drawn = np.random.default_rng(0).standard_normal((len(self.speeds), num_steps))
        return np.asarray(np.exp(self.jitter * drawn))

    def modelled(self, way: Way, num_steps: int) -> list[float]:
        """Return the seconds of each step, the slowest rank's, without what a step takes beyond its samples."""
        speeds, jitters = np.array(self.speeds), self.jitters(num_steps)
        equal = self.shares([1.0] * len(speeds))
        wanted = self.shares(self.speeds)
        counts, found = wanted if way == "proportional" else equal, []
        for step in range(num_steps):
            if way == "rebalanced" and step and step % self.rebalance_every == 0:
                counts = moved(counts, wanted, most=self.largest_move)
            found.append(float((counts * self.sample_s / speeds * jitters[:, step]).max()))
        return found


def measure(
    twin: Twin,
    /,
    *,
    low: Annotated[float, Within(0.2, 1)] = 0.7,
    high: Annotated[float, Within(1, 4)] = 1.3,
    num_workers: Annotated[int, Within(2, 6)] = 4,
    batch_size: Annotated[int, Within(4, 256)] = 32,
    sample_s: Annotated[float, Within(2e-4, 0.02)] = 1e-3,
    cap: Annotated[int, Within(1, 1024)] = 40,
    jitter: Annotated[float, Within(0, 1)] = 0.05,
    rebalance_every: Annotated[int, Within(1, 100)] = 5,
    largest_move: Annotated[int, Within(1, 100)] = 2,
    num_steps: Annotated[int, Within(10, 500)] = NUM_STEPS,
) -> Measured:
    """Measure four processes whose speeds are spread evenly from 0.7 to 1.3; takes about half a minute."""
    cluster = RankSpeeds(
        speeds=tuple(np.linspace(low, high, num_workers).tolist()),
        batch=batch_size * num_workers,
        sample_s=sample_s,
        cap=max(cap, batch_size),
        jitter=jitter,
        rebalance_every=rebalance_every,
        largest_move=largest_move,
    )
    with Ranks(num_workers) as ranks:

        def measured_s(way: Way | None) -> list[float]:
            answers = ranks.run(step_times, cluster=cluster, way=way, num_steps=num_steps)
            return slowest_s([answer[0] for answer in answers])

        twin.say("steps of a sample each")
        least_s = max(sample_s / speed for speed in cluster.speeds)
        # steps of one sample each leave the exchange and the overhead
        beyond_s = max(0.0, statistics.median(measured_s(None)) - least_s)
        lines: dict[str, Line] = {}
        for way in WAYS:
            twin.say(f"{way} shares")
            found_s = measured_s(way)
            modelled_s = [beyond_s + each for each in cluster.modelled(way, num_steps)]
            lines[way] = range(num_steps), [1e3 * each for each in modelled_s], [1e3 * each for each in found_s]
            twin.predict(
                "step (s)",
                {"shares": way},
                predicted=statistics.median(modelled_s),
                measured=statistics.median(found_s),
                baseline=cluster.batch * sample_s / sum(cluster.speeds) + beyond_s,
            )
    first, *_, last = twin.predictions
    return twin.measured(
        "load-balancing",
        finding=f"With {WAYS[0]} shares a step takes {first.measured / last.measured:.2f} times as long as with "
        f"{WAYS[-1]} ones, modelled {first.predicted / last.predicted:.2f} times; steps are off by "
        f"{100 * max(abs(one.error) for one in twin.predictions):.1f} % at most.",
        setting=f"{num_workers} Gloo ranks of one thread with speeds from {cluster.speeds[0]:g} to "
        f"{cluster.speeds[-1]:g}, {cluster.batch} samples of {format_seconds(sample_s)} a step, jitter {jitter:g}; "
        f"medians of {num_steps} steps. Shares are moved every {rebalance_every} steps by {largest_move} samples at "
        f"most. An exchange, and what a step takes beyond its samples: {format_seconds(beyond_s)}. The baseline has "
        "workers of the mean speed.",
        charts=[_chart(lines, best=min(twin.predictions, key=lambda one: one.measured))],
        rivals="shares",
    )


def _chart(lines: Mapping[str, Line], *, best: Prediction) -> LineChart:
    return beside(
        lines,
        title=f"Measured, {best.setting['shares']} shares take {format_seconds(best.measured)} a step",
        caption="Step time of real workers by step, under ways to share a batch.",
        x=Axis(title="step"),
        y=Axis(title="step time (ms)"),
    )


def step_times(group: TorchGroup, *, cluster: RankSpeeds, way: Way | None, num_steps: int) -> tuple[Times, list[int]]:
    """When each step of a rank began and ended, and how many samples it had; of no way each rank has one sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    jitters = cluster.jitters(num_steps)[group.rank]
    speed = cluster.speeds[group.rank]
    balancer = _Balancer(cluster, way)
    times: Times = []
    samples = []

    def step(number: int) -> None:
        begun_s = time.monotonic()
        count = int(balancer.counts[group.rank])
        inputs = torch.randn(count, WIDTH)
        optimizer.zero_grad()
        (model(inputs).square().sum() / cluster.batch).backward()  # weighted by samples: the sum is the batch's
        wanted_s = count * cluster.sample_s / speed * (jitters[number] if way else 1.0)
        time.sleep(max(0.0, begun_s + wanted_s - time.monotonic()))
        took_s = time.monotonic() - begun_s
        gradient = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        # everybody's seconds of a sample go along: all ranks move the shares in the same way
        pace = torch.zeros(group.size)
        pace[group.rank] = count / took_s
        both = torch.cat([gradient, pace])
        group.all_reduce(both).wait()
        balancer.learn(both[len(gradient) :].tolist(), number=number)
        optimizer.step()
        samples.append(count)

    for number in range(num_steps):
        times += timed(group, lambda number=number: step(number), repeats=1, warm_up=0)  # type: ignore[misc]
    return times, samples


class _Balancer:
    """The number of samples of each rank; the same on all ranks."""

    def __init__(self, cluster: RankSpeeds, way: Way | None) -> None:
        self._cluster, self._way = cluster, way
        number = len(cluster.speeds)
        self._paces = np.zeros(number)
        if way is None:
            self.counts: Samples = np.ones(number, dtype=np.int64)
        else:
            self.counts = cluster.shares(cluster.speeds if way == "proportional" else [1.0] * number)

    def learn(self, paces: Sequence[float], *, number: int) -> None:
        """Learn everybody's samples a second in step ``number``."""
        new = np.array(paces)
        self._paces = new if number == 0 else _MEMORY * self._paces + (1 - _MEMORY) * new
        if self._way == "rebalanced" and (number + 1) % self._cluster.rebalance_every == 0:
            wanted = self._cluster.shares(self._paces.tolist())
            self.counts = moved(self.counts, wanted, most=self._cluster.largest_move)
