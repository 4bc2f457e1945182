"""Two racks with a slow way between them: workers of a rack step together, racks meet less often.

    python examples/two_racks.py
    python examples/two_racks.py bsp hier:bsp/asp

The cluster is described in this file and simulated; `docs/cost.md` has all keys of such a description. On real hosts
Plesio measures at the start who is near to whom, unless `plesio.join(racks=(0, 0, 1, 1))` says it.
"""

import sys
from collections.abc import Sequence

from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.cost.cluster import parse_cluster
from plesio.cost.step_time import Constant
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks import load_task

POLICIES = ("bsp", "local_sgd:4", "hier:bsp/local_sgd:4", "hier:bsp/ssp:4")
CLUSTER = parse_cluster("""
hosts = 4
racks = 2
[nic]
latency = "30 us"
bandwidth = "1 Gbit/s"
[uplink]
latency = "1 ms"
bandwidth = "20 Mbit/s"
""")
NUM_EPOCHS = 3


def train(policy: str) -> RunResult:
    """One training of the digits under ``policy``, a worker on each host."""
    task = load_task("digits")
    data = task.train_set()

    def work(job: VirtualJob) -> None:
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=0, worker=job.place.rank, clock=job.clock)
        model, optimizer = task.build(0)
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer)) as session:
            for batch in session.shard(
                DataLoader(data, batch_size=task.batch_size, shuffle=True), samples=NUM_EPOCHS * len(data)
            ):
                loss = task.loss(model, batch)
                loss.backward()
                session.step(loss)
            session.finish(lambda: task.metric(model))

    simulation = simulate(work, num_workers=CLUSTER.hosts, cluster=CLUSTER)
    simulation.values()  # raises what a worker raised
    return simulation.runs[0]


def main(policies: Sequence[str] = POLICIES) -> None:
    print(f"{'policy':<22} {'virtual s':>9} {'accuracy':>9} {'MB sent':>8} {'MB between racks':>17}")
    for policy in policies:
        run = train(policy)
        print(
            f"{policy:<22} {run.wall_s:>9.2f} {run.final_metric:>9.3f} {run.bytes_sent_total / 1e6:>8.1f} "
            f"{run.bytes_sent_cross_rack / 1e6:>17.1f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or POLICIES)
