"""Sparse gradients under every policy: held against single-process PyTorch, against dense ones, and in both worlds.

`train` is this file's one program; it runs on virtual workers, and by `LocalJob` on processes, which load this file.
"""

from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import LogNormal
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.adaptive_specs import STAYS
from support.processes import on_processes, own_job
from support.workers import cluster_of_racks, workers_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse invariant checks"
)  # torch's Adagrad and SparseAdam give rise to it
NUM_SAMPLES, NUM_WORDS, BATCH_SIZE, NUM_WORKERS, EPOCHS = 120, 24, 4, 3, 2
STEP_TIME = LogNormal(mean_s=0.02, cv=0.3)
TOLERANCE: dict[str, Any] = {"rel": 1e-10, "abs": 1e-12}
"""float64, 20 steps."""


class Pairs(Dataset[tuple[int, Tensor, Tensor]]):
    """Two words each, and what they are to give; a word is now and then in a sample, or a batch, twice."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randint(0, NUM_WORDS, (NUM_SAMPLES, 2), generator=generator)
        self.y = torch.randn(NUM_SAMPLES, 1, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        return index, self.x[index], self.y[index]


class Factors(nn.Module):
    """Matrix factorisation: all of it is embedded."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.left = nn.Embedding(NUM_WORDS, 3, sparse=sparse)
        self.right = nn.Embedding(NUM_WORDS, 3, sparse=sparse)

    def forward(self, x: Tensor) -> Tensor:
        return (self.left(x[:, 0]) * self.right(x[:, 1])).sum(1, keepdim=True)


class Words(nn.Module):
    """A bag of words and a layer, whose gradients are dense."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(NUM_WORDS, 3, mode="sum", sparse=sparse)
        self.last = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.bag(x)))


def build(kind: str, *, sparse: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    name, _, optimizer = kind.partition("/")
    model = {"factors": Factors, "words": Words}[name](sparse=sparse).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    parameters = model.parameters()
    made: dict[str, Any] = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.05),
        "momentum": lambda: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        "nesterov": lambda: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=0.1),
        "sparse_adam": lambda: torch.optim.SparseAdam(parameters, lr=0.02),
    }
    return model, made[optimizer]()


def flat_of(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).tolist()


@dataclass(kw_only=True)
class Worker:
    """The record of one worker: each step, and its end."""

    batches: list[list[int]] = field(default_factory=list)
    final: list[float] = field(default_factory=list)


def train(
    policy: str,
    *,
    kind: str,
    sparse: bool = True,
    pacer: Pacer | None = None,
    job: Any = None,
    accumulate: int = 1,
    spoil: int = -1,
    num_servers: int | None = None,
) -> Worker:
    """An ordinary loop; the gradient of step ``spoil`` is not finite on worker 1."""
    model, optimizer = build(kind, sparse=sparse)
    saw = Worker()
    with plesio.join(
        model,
        optimizer,
        policy=policy,
        options=plesio.JoinOptions(pacer=pacer, job=job, info=RunInfo(seed=7), num_servers=num_servers),
    ) as session:
        loader = DataLoader(Pairs(), batch_size=BATCH_SIZE, shuffle=True)
        for number, (index, x, y) in enumerate(session.shard(loader, samples=EPOCHS * NUM_SAMPLES), start=1):
            saw.batches.append(index.tolist())
            loss = (model(x) - y).square().mean() / accumulate
            if number == spoil and session.rank == 1:
                loss = loss * torch.nan
            if number % accumulate:
                with session.accumulate():
                    loss.backward()
                continue
            loss.backward()
            session.step(loss)
    saw.final = flat_of(model)
    return saw


def run(policy: str, *, cluster: Cluster | None = None, num_workers: int = NUM_WORKERS, **options: Any) -> Simulation:
    def work(job: VirtualJob) -> Worker:
        pacer = Pacer(step_time=STEP_TIME, seed=0, worker=job.place.rank, clock=job.clock)
        return train(policy, pacer=pacer, **options)

    return simulate(work, num_workers=num_workers, cluster=cluster or Cluster.one_host(num_workers))


def train_on_processes(*, cases: list[tuple[str, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """`train` under each policy, for `LocalJob`, whose workers pickle what they return."""
    with own_job() as job:
        return [asdict(train(policy, kind=kind, job=job, **options)) for policy, kind, options in cases]


def alone(kind: str, batches: list[list[int]], *, delay: int = 0) -> list[float]:
    """Single-process PyTorch on these batches, perhaps with late gradients."""
    model, optimizer = build(kind)
    data = Pairs()
    waiting: list[list[Tensor]] = []

    def apply(gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    for batch in batches:
        model.zero_grad()
        (model(data.x[batch]) - data.y[batch]).square().mean().backward()
        waiting.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        if len(waiting) > delay:
            apply(waiting.pop(0))
    for gradients in waiting:
        apply(gradients)
    return flat_of(model)


def union(workers: list[Worker], *, accumulate: int = 1) -> list[list[int]]:
    """Return the samples of all workers in each step."""
    steps = [
        [index for batch in batches for index in batch] for batches in zip(*(w.batches for w in workers), strict=True)
    ]
    return [list(chain(*steps[first : first + accumulate])) for first in range(0, len(steps), accumulate)]


KINDS = ["words/sgd", "words/momentum", "words/nesterov", "words/adagrad", "factors/adagrad", "factors/sparse_adam"]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["bsp", "delayed:1", pytest.param("delayed:2", marks=pytest.mark.slow)])
def test_replicas_step_as_one_process_does_on_the_union_of_their_batches(policy: str, kind: str):
    workers = workers_of(run(policy, kind=kind))
    delay = int(policy.partition(":")[2] or 0)
    expected = alone(kind, union(workers), delay=delay)
    for worker in workers:
        assert worker.final == pytest.approx(expected, **TOLERANCE)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("policy", ["bsp,compress=topk:1", "delayed:1,compress=topk:1", "bsp,compress=topk:0.2"])
@pytest.mark.parametrize("kind", ["words/sgd", "words/nesterov", "factors/sparse_adam"])
def test_rows_are_sent_in_full_whatever_the_compression(policy: str, kind: str):
    """Only the layer is compressed; without one, the run is the plain one, and otherwise nearly so."""
    workers = workers_of(run(policy, kind=kind))
    expected = alone(kind, union(workers), delay=1 if "delayed" in policy else 0)
    exact = "factors" in kind
    if exact or "topk:1" in policy:
        assert workers[0].final == pytest.approx(expected, **(TOLERANCE if exact else {"rel": 1e-4, "abs": 1e-5}))
    else:
        assert workers[0].final != pytest.approx(expected, rel=1e-2)
    assert all(worker.final == workers[0].final for worker in workers)


DENSE_TWINS = [
    ("local_sgd:4", "words/momentum", 3),
    ("local_sgd:4,delay=2,compress=topk:0.2", "words/adagrad", 3),
    ("local_sgd:4,inner_rate=0.5,momentum=0.5", "words/sgd", 3),
    ("bsp,exchange=store", "words/momentum", 3),
    ("ssp:2", "words/adagrad", 3),
    ("asp", "words/nesterov", 3),
    ("asp,update=delta", "words/momentum", 3),
    ("hier:bsp/local_sgd:4", "words/momentum", 4),
    ("hier:bsp/local_sgd:4,compress=qsgd:8", "words/adagrad", 4),
    ("hier:bsp/ssp:2", "words/adagrad", 4),
    ("switch:bsp/asp@4/local_sgd:2@9", "words/nesterov", 3),
    ("switch:local_sgd:2/bsp@6", "words/momentum", 3),
    (STAYS, "words/momentum", 3),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("policy", "kind", "num_workers"), DENSE_TWINS)
def test_a_sparse_gradient_trains_as_the_same_dense_one_does(policy: str, kind: str, num_workers: int):
    """With optimizers to which a row that is not there and a row of zeros are the same."""
    cluster = cluster_of_racks((2, 2)) if num_workers == 4 else cluster_of_racks((num_workers,))
    found, dense = (
        workers_of(run(policy, kind=kind, sparse=sparse, cluster=cluster, num_workers=num_workers))
        for sparse in (True, False)
    )
    for one, other in zip(found, dense, strict=True):
        assert one.final == pytest.approx(other.final, **TOLERANCE)


@pytest.mark.parametrize("policy", ["bsp", "delayed:1"])
def test_accumulated_gradients_are_those_of_the_larger_batch(policy: str):
    workers = workers_of(run(policy, kind="factors/sparse_adam", accumulate=2))
    delay = 1 if "delayed" in policy else 0
    expected = alone("factors/sparse_adam", union(workers, accumulate=2), delay=delay)
    assert workers[0].final == pytest.approx(expected, **TOLERANCE)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["bsp", "delayed:1", "local_sgd:2", "asp", "adaptive"])
def test_a_sparse_gradient_that_is_not_finite_reaches_nobody(policy: str):
    simulation = run(policy, kind="factors/adagrad", spoil=3)
    assert all(torch.tensor(worker.final).isfinite().all() for worker in workers_of(simulation))
    assert sum(sum(by_reason.values()) for by_reason in simulation.runs[0].refused_updates.values()) == 1


def test_only_the_rows_that_were_touched_are_sent():
    """Each rank touches at most 8 of 24 rows a step: 8 + 24 bytes each, 3 ranks, in two thirds of a ring.

    Gloo's message heads, as many for both, are a fifth of what is sent.
    """
    plain, sparse = (run("bsp", kind="factors/adagrad", sparse=one).runs[0] for one in (False, True))
    assert sparse.bytes_sent_total < 0.87 * plain.bytes_sent_total


REAL = [
    ("bsp", "words/nesterov", {}),
    ("bsp", "factors/sparse_adam", {"accumulate": 2}),
    ("bsp,compress=topk:1", "words/momentum", {}),
    ("delayed:1", "factors/sparse_adam", {}),
    ("delayed:2", "words/adagrad", {}),
    ("local_sgd:4", "factors/sparse_adam", {}),
    ("bsp,exchange=store", "words/adagrad", {"num_servers": 2}),
    ("switch:local_sgd:2/bsp@6", "words/nesterov", {}),
]
ADAPTIVE = ("adaptive,store=off", "words/momentum", {})


@pytest.mark.slow
def test_processes_train_as_virtual_workers_do():
    values = on_processes(2, __file__, "train_on_processes", cases=[*REAL, ADAPTIVE])
    found = [[Worker(**worker) for worker in of_rank] for of_rank in values]
    for number, (policy, kind, options) in enumerate(REAL):
        for mine, theirs in zip(workers_of(run(policy, kind=kind, num_workers=2, **options)), found, strict=True):
            assert theirs[number].batches == mine.batches, policy
            assert theirs[number].final == pytest.approx(mine.final, **TOLERANCE), policy
    first, second = (workers[-1] for workers in found)
    assert first.final == second.final
