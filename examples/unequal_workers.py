"""The cost of one slow worker, and the policy that gets round it. In virtual time, so no machine has to be slow.

    python examples/unequal_workers.py
    python examples/unequal_workers.py bsp ssp:8 "asp,weight=inverse"

The gradients are real; a step lasts as long as this file says. `plesio simulate digits --slow 3:0.33` does the same.
"""

import sys
from collections.abc import Sequence

from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import LogNormal
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks import load_task

POLICIES = ("bsp", "ssp:4", "asp", "adaptive")
SPEEDS = (1.0, 1.0, 1.0, 1 / 3)
"""By rank: the last worker takes three times as long for every step."""
NUM_EPOCHS = 3


def train(policy: str) -> RunResult:
    """One training of the digits under ``policy``."""
    task = load_task("digits")
    data = task.train_set()

    def work(job: VirtualJob) -> None:
        """Train as one worker, in a thread of its own."""
        rank = job.place.rank
        pacer = Pacer(
            step_time=LogNormal(mean_s=0.02, cv=0.2), speed=SPEEDS[rank], seed=0, worker=rank, clock=job.clock
        )
        model, optimizer = task.build(0)
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer)) as session:
            for batch in session.shard(
                DataLoader(data, batch_size=task.batch_size, shuffle=True), samples=NUM_EPOCHS * len(data)
            ):
                loss = task.loss(model, batch)
                loss.backward()
                session.step(loss)
            session.finish(lambda: task.metric(model))

    simulation = simulate(work, num_workers=len(SPEEDS), cluster=Cluster.one_host(len(SPEEDS)))
    simulation.values()  # raises what a worker raised
    return simulation.runs[0]


def main(policies: Sequence[str] = POLICIES) -> None:
    print(f"{'policy':<20} {'virtual s':>9} {'samples/s':>10} {'accuracy':>9} {'waiting':>8} {'steps by rank':>20}")
    for policy in policies:
        run = train(policy)
        waited = sum(worker.wait_s for worker in run.workers) / (run.num_workers * run.wall_s)
        steps = " ".join(str(worker.steps) for worker in run.workers)
        print(
            f"{policy:<20} {run.wall_s:>9.2f} {run.samples_per_s:>10.0f} {run.final_metric:>9.3f} {waited:>8.0%} "
            f"{steps:>20}"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or POLICIES)
