"""One small training under any policy, whose workers note what they saw and had step by step; on virtual workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import LogNormal, StepTime
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.by_hand import flat_of
from support.problems import Problem, perceptron
from support.processes import on_processes, own_job
from support.workers import pretend_hosts, workers_of

NUM_SAMPLES, NUM_FEATURES, BATCH_SIZE, NUM_WORKERS = 120, 5, 4, 3
EPOCHS = 2
LEARNING_RATE, MOMENTUM = 0.05, 0.9
STEP_TIME = LogNormal(mean_s=0.02, cv=0.3)
ONE_HOST = Cluster.one_host(NUM_WORKERS)
TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""float64, 20 steps."""
IN_FLOAT32: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
"""Tolerance of codecs, which send a float64 as a float32: 6e-8 of numbers of about 1, in 20 steps with momentum."""


def build(
    *, batch_norm: bool = False, momentum: float = MOMENTUM, hidden: int = 6
) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = perceptron(NUM_FEATURES, hidden, batch_norm=batch_norm)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=momentum)


@dataclass(kw_only=True)
class Worker:
    """The record of one worker: each step, and its end."""

    batches: list[list[int]] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    final: Tensor = field(default_factory=lambda: torch.empty(0))
    buffers: list[Tensor] = field(default_factory=list)
    rank: int = 0
    transitions: list[plesio.Transition] = field(default_factory=list)
    result: RunResult | None = None


def train(
    policy: str,
    *,
    batch_norm: bool = False,
    momentum: float = MOMENTUM,
    hidden: int = 6,
    dtype: torch.dtype = torch.float64,
    num_samples: int = NUM_SAMPLES,
    epochs: int = EPOCHS,
    loader_workers: int = 0,
    elastic: bool = True,
    pacer: Pacer | None = None,
    job: Any = None,
    trace: Path | None = None,
    on_loss: Callable[[plesio.Session, torch.optim.Optimizer, Tensor], Tensor] = lambda session, optimizer, loss: loss,
    before_step: Callable[[plesio.Session, nn.Module], None] = lambda session, model: None,
    settle_at: int | None = None,
) -> Worker:
    """An ordinary loop; ``settle_at`` is a step after which the exchange is settled, as when a policy changes."""
    model, optimizer = build(batch_norm=batch_norm, momentum=momentum, hidden=hidden)
    model.to(dtype)
    saw = Worker()
    with plesio.join(
        model,
        optimizer,
        policy=policy,
        trace=trace,
        on_transition=lambda transition, _: saw.transitions.append(transition),
        options=plesio.JoinOptions(pacer=pacer, job=job, info=RunInfo(seed=7), elastic=elastic and settle_at is None),
    ) as session:
        saw.rank = session.rank
        data = Problem(num_samples, NUM_FEATURES)
        loader = DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, num_workers=loader_workers)
        for index, x, y in session.shard(loader, samples=epochs * num_samples):
            saw.batches.append(index.tolist())
            loss = on_loss(session, optimizer, (model(x.to(dtype)) - y.to(dtype)).square().mean())
            loss.backward()
            before_step(session, model)
            session.step(loss)
            if session.clock == settle_at:
                with session._replica.changes:
                    session._exchange.settle()  # type: ignore[attr-defined]  # collective exchanges have it
            saw.after.append(flat_of(model))
    saw.final, saw.result = flat_of(model), session.report()
    saw.buffers = [buffer.clone() for buffer in model.buffers()]
    return saw


def run(
    policy: str,
    *,
    step_time: StepTime | Sequence[StepTime] = STEP_TIME,
    cluster: Cluster = ONE_HOST,
    num_workers: int = NUM_WORKERS,
    faults: Sequence[Fault] = (),
    **options: Any,
) -> Simulation[Worker]:
    """Train on virtual workers, whose steps take times of their own if there are several."""

    def work(job: VirtualJob) -> Worker:
        rank = job.place.rank
        steps = step_time[rank] if isinstance(step_time, Sequence) else step_time
        return train(policy, pacer=Pacer(step_time=steps, seed=5, worker=rank, clock=job.clock), **options)

    return simulate(work, num_workers=num_workers, cluster=cluster, faults=faults)


def train_each(*, policies: list[str], workers_per_host: int | None = None) -> list[list[float]]:
    """`train` under each policy on a real process, perhaps on hosts of so many workers; returns what it ends with."""
    if workers_per_host is not None:
        pretend_hosts(workers_per_host)
    with own_job() as job:
        return [train(policy, job=job).final.tolist() for policy in policies]


def assert_processes_train_what_virtual_workers_do(
    policies: Mapping[str, float], *, virtually: Callable[[str], Simulation[Worker]], **options: Any
) -> None:
    """Hold the worlds apart by no more than each policy's tolerance; processes end with the same, to the bit."""
    expected = {policy: workers_of(virtually(policy)) for policy in policies}
    num_workers = len(next(iter(expected.values())))
    found = on_processes(num_workers, __file__, "train_each", policies=list(policies), **options)
    for number, (policy, tolerance) in enumerate(policies.items()):
        theirs = torch.tensor(found[0][number], dtype=torch.float64)
        torch.testing.assert_close(
            theirs, expected[policy][0].final, rtol=0, atol=tolerance, msg=lambda text, at=policy: f"{at}: {text}"
        )
        assert all(of_rank[number] == found[0][number] for of_rank in found), policy
