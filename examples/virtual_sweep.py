"""Which bound and period should `ssp` have, and does the network decide it? The same training at two bandwidths.

    python examples/virtual_sweep.py

`plesio sweep` does this for a recipe, with seeds, figures and a page; here it is as a loop, to change at will.
"""

from collections.abc import Sequence

from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.core.units import parse_bandwidth
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.cost.step_time import LogNormal
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks import load_task

POLICIES = ("ssp:0", "ssp:4", "ssp:4,period=4")
BANDWIDTHS = ("50 Mbit/s", "1 Gbit/s")
NUM_EPOCHS = 2


def train(policy: str, *, cluster: Cluster) -> RunResult:
    """One training of the digits under ``policy``, a worker on each host of the cluster."""
    task = load_task("digits")
    data = task.train_set()

    def work(job: VirtualJob) -> None:
        rank = job.place.rank
        pacer = Pacer(step_time=LogNormal(mean_s=0.02, cv=0.5), seed=0, worker=rank, clock=job.clock)
        model, optimizer = task.build(0)
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer)) as session:
            for batch in session.shard(
                DataLoader(data, batch_size=task.batch_size, shuffle=True), samples=NUM_EPOCHS * len(data)
            ):
                loss = task.loss(model, batch)
                loss.backward()
                session.step(loss)
            session.finish(lambda: task.metric(model))

    simulation = simulate(work, num_workers=cluster.hosts, cluster=cluster)
    simulation.values()  # raises what a worker raised
    return simulation.runs[0]


def main(policies: Sequence[str] = POLICIES, bandwidths: Sequence[str] = BANDWIDTHS) -> None:
    print(f"{'virtual s, accuracy':<20}" + "".join(f"{bandwidth:>18}" for bandwidth in bandwidths))
    for policy in policies:
        row = ""
        for bandwidth in bandwidths:
            cluster = parse_cluster("4x1gbe").with_bandwidth(parse_bandwidth(bandwidth))
            run = train(policy, cluster=cluster)
            row += f"{f'{run.wall_s:.2f}, {run.final_metric:.3f}':>18}"
        print(f"{policy:<20}{row}")


if __name__ == "__main__":
    main()
