"""Virtual runs of every policy, on record in `packages/plesio/tests/runtime/worlds/virtual/recorded`: parameters, times
and logs."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.errors import PlesioError
from plesio.core.results import Environment, read_results
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import Constant, LogNormal, Stalls, StepTime
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.machine import environment
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.problems import Problem, perceptron
from support.workers import cluster_of_racks

NUM_FEATURES, BATCH_SIZE, MEAN_STEP_S = 5, 4, 0.02
UNEQUAL: tuple[StepTime, ...] = tuple(Constant(mean_s=mean_s) for mean_s in (0.02, 0.025, 0.031, 0.02))
"""By rank. A worker that joins late is as quick as the first one."""
STALLING: tuple[StepTime, ...] = tuple(
    Stalls(steps=LogNormal(mean_s=MEAN_STEP_S, cv=0.1), probability=0.05, factor=5.0) for _ in range(4)
)
ENVIRONMENT = Environment(
    plesio="0", python="3", torch="2", numpy="2", platform="recorded", cpu="recorded", num_cpus=1, commit="0" * 12
)
"""It is in answers of servers, so its length has a say in virtual times."""
RACKS_APART: tuple[StepTime, ...] = tuple(LogNormal(mean_s=mean_s, cv=0.3) for mean_s in (0.02, 0.02, 0.03, 0.03))
UNGUARDED = "adaptive,guard=off"
TO_THE_STORE = "adaptive,price=1,store_price=0,store_doubt=0.01,momentum_price=0"
"""It goes to the store where workers stall."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training, and what befalls it.

    Attributes:
        policy: Its spec.
        lost: Seconds after which a worker is lost, and which.
        joins_s: Seconds after which another worker joins; None for never.
        poisoned: A worker whose gradient is NaN in its sixth step; None for none.
        racks: Workers of each rack; () puts each of three workers on a host of its own, without racks.
        num_servers: Of a run that may come to the store.
        steps: How long a step takes, by rank.
        num_samples: Of the data set.
        loops: Loops over it.
        elastic: Whether the others go on when one is lost in a collective.
    """

    policy: str
    lost: tuple[tuple[float, int], ...] = ()
    joins_s: float | None = None
    poisoned: int | None = None
    racks: tuple[int, ...] = ()
    num_servers: int | None = 2
    steps: Sequence[StepTime] = UNEQUAL
    num_samples: int = 96
    loops: int = 2
    snapshot_every: int | None = None
    elastic: bool = True

    @property
    def adaptive(self) -> bool:
        return self.policy.startswith("adaptive")


RUNS: dict[str, Run] = {
    "bsp": Run(policy="bsp"),
    "bsp-lost": Run(policy="bsp", lost=((0.2, 1),), elastic=False),
    "bsp-lost-elastic": Run(policy="bsp", lost=((0.2, 1),)),
    "bsp-qsgd": Run(policy="bsp,compress=qsgd:4"),
    "bsp-topk": Run(policy="bsp,compress=topk:0.1"),
    "bsp-powersgd": Run(policy="bsp,compress=powersgd:1"),
    "bsp-store": Run(policy="bsp,exchange=store", snapshot_every=48),
    "bsp-store-lost-joined": Run(policy="bsp,exchange=store", lost=((0.2, 0),), joins_s=0.3),
    "ssp": Run(policy="ssp:2,period=2", poisoned=1, snapshot_every=48),
    "ssp-one-server": Run(policy="ssp:2,period=2", num_servers=1, lost=((0.15, 2),)),
    "ssp-lost-joined": Run(policy="ssp:3", lost=((0.2, 2),), joins_s=0.25),
    "ssp-weighted": Run(policy="ssp:4,period=3,weight=inverse", lost=((0.1, 0),)),
    "ssp-weighted-cut": Run(policy="ssp:8,weight=cap:1", steps=STALLING),
    "asp": Run(policy="asp"),
    "asp-lost-joined": Run(policy="asp", lost=((0.3, 1),), joins_s=0.1),
    "local-sgd": Run(policy="local_sgd:4"),
    "local-sgd-qsgd": Run(policy="local_sgd:4,compress=qsgd:8"),
    "local-sgd-delay": Run(policy="local_sgd:4,delay=2"),
    "local-sgd-delay-lost": Run(policy="local_sgd:4,delay=2", lost=((0.2, 2),), elastic=False),
    "local-sgd-delay-lost-elastic": Run(policy="local_sgd:4,delay=2", lost=((0.2, 2),)),
    "local-sgd-store": Run(policy="local_sgd:3,exchange=store", lost=((0.3, 1),), joins_s=0.2),
    "hier-local-sgd": Run(policy="hier:bsp/local_sgd:4", racks=(2, 2)),
    "hier-local-sgd-delay": Run(policy="hier:bsp/local_sgd:4,delay=2", racks=(2, 2)),
    "hier-ssp": Run(policy="hier:bsp/ssp:2,period=2", racks=(2, 2)),
    "hier-ssp-lost": Run(policy="hier:bsp/ssp:2,period=2", racks=(2, 2), lost=((0.2, 2),)),
    "hier-asp-unequal": Run(policy="hier:bsp/asp", racks=(3, 1)),
    "switch-there": Run(policy="switch:bsp/ssp:2,period=2@5"),
    "switch-and-back": Run(policy="switch:bsp/ssp:0@5/bsp@9"),
    "switch-back": Run(policy="switch:asp/bsp@9/local_sgd:4@12"),
    "switch-lost": Run(policy="switch:bsp/asp@3/bsp@14", lost=((0.2, 1),), loops=3, elastic=False),
    "switch-lost-elastic": Run(policy="switch:bsp/asp@3/bsp@14", lost=((0.2, 1),), loops=3),
    "switch-called-off": Run(policy="switch:bsp/asp@3/bsp@8", lost=((0.215, 1),), loops=4, elastic=False),
    "switch-called-off-elastic": Run(policy="switch:bsp/asp@3/bsp@8", lost=((0.215, 1),), loops=4),
    "switch-to-the-end": Run(policy="switch:ssp:2,period=2/bsp@8", num_samples=29, loops=4),
    "switch-store-to-store": Run(policy="switch:ssp:2,period=2/asp@6/bsp@12"),
    "switch-racks": Run(policy="switch:bsp/hier:bsp/ssp:4,period=3@4/bsp@10", racks=(2, 2)),
    "adaptive": Run(policy="adaptive", loops=10),
    "adaptive-stalls": Run(policy=TO_THE_STORE, steps=STALLING, loops=10),
    "adaptive-stalls-lost": Run(policy=TO_THE_STORE, steps=STALLING, loops=10, lost=((2.2, 1),), elastic=False),
    "adaptive-stalls-lost-elastic": Run(policy=TO_THE_STORE, steps=STALLING, loops=10, lost=((2.2, 1),)),
    "adaptive-racks": Run(policy="adaptive", racks=(2, 2), loops=10),
    "adaptive-racks-stalls": Run(policy=TO_THE_STORE, racks=(2, 2), steps=STALLING, loops=12),
    "adaptive-racks-apart": Run(policy=UNGUARDED, racks=(2, 2), steps=RACKS_APART, loops=10),
}


def capability() -> str:
    """Describe the causes of rounding: torch's version, the processor, and which of its vectors torch uses."""
    version = torch.__version__.partition("+")[0]
    return f"torch {version}, {environment().cpu}, {torch.backends.cpu.get_cpu_capability()}"


def train(run: Run, folder: Path) -> None:
    """Train on virtual workers; logs, traces and results go into ``folder``."""

    def work(job: VirtualJob) -> None:
        rank = job.place.rank
        model = perceptron(NUM_FEATURES, 6)
        data = Problem(run.num_samples, NUM_FEATURES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        pacer = Pacer(step_time=run.steps[rank], seed=5, worker=rank, clock=job.clock)
        session = plesio.join(
            model,
            optimizer,
            policy=run.policy,
            trace=folder,
            options=plesio.JoinOptions(
                pacer=pacer,
                info=RunInfo(seed=7),
                num_servers=run.num_servers,
                snapshot_every=run.snapshot_every,
                elastic=run.elastic,
            ),
        )

        def loss_of_all() -> float:
            return float((model(data.x) - data.y).square().mean())

        with session:
            for _ in range(run.loops):
                for _, x, y in session.shard(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True)):
                    loss = (model(x) - y).square().mean()
                    if rank == run.poisoned and session.clock == 5:
                        loss = loss * float("nan")
                    loss.backward()
                    session.step(loss)
                session.evaluate(loss_of_all, goal="max")  # as they were recorded
            session.finish(loss_of_all, goal="max")

    num_workers = sum(run.racks) or 3
    cluster = (
        cluster_of_racks(run.racks)
        if run.racks
        else Cluster(name="hosts", hosts=num_workers, workers_per_host=1, cores_per_host=1)
    )
    cluster = replace(cluster, collectives="nccl")  # records keep their times, whatever is taken for granted
    faults = [Fault(at_s=at_s, kind="lose", worker=worker) for at_s, worker in run.lost]
    if run.joins_s is not None:
        faults.append(Fault(at_s=run.joins_s, kind="join"))
    faults.sort(key=lambda fault: fault.at_s)
    with patch("plesio.runtime.worlds.distributed.environment", lambda: ENVIRONMENT):
        simulation = simulate(work, num_workers=num_workers, cluster=cluster, faults=faults, seed=3)
    for outcome in simulation.outcomes.values():  # that a run fails without a worker is for the results to say
        if outcome.error is not None and not isinstance(outcome.error, PlesioError):
            raise outcome.error


def digests_of(folder: Path) -> dict[str, Any]:
    """Return a run's figures: times as they are, the parameters' digest, and digests of the files that it wrote.

    Headers of traces are left out: they tell commits apart.
    """
    [result] = read_results(folder / "results.json")
    traces = [line for path in sorted(folder.glob("trace-*.jsonl")) for line in _lines(path)[1:]]
    return {
        "status": result.status,
        "wall_s": result.wall_s,
        "parameters_sha256": result.parameters_sha256,
        "results_sha256": _sha256([json.dumps(result.to_json())]),
        "events_sha256": _sha256(_lines(folder / "events.jsonl")),
        "coordinator_sha256": _sha256(_lines(folder / "coordinator.jsonl")[1:]),
        "traces_sha256": _sha256(traces),
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
