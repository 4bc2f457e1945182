"""Laws on the parameters that a simulation trains: who equals whom, to rounding, and what must make a difference.

The model is in float64, so that what equals by algebra agrees to `TOLERANCE`, a hundred thousand times finer than what
float32 would show; what is not equal is asserted to be off by far more. `train` is this file's one program. It is run
on virtual workers, by `LocalJob` on processes (which load this file), and by an interpreter of its own.
"""

import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import LogNormal
from plesio.protocol.figures import RunInfo
from plesio.runtime.coordinator.leases import epoch_order, round_sizes
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support import processes
from support.problems import Problem
from support.processes import own_job
from support.workers import workers_of

NUM_SAMPLES, NUM_FEATURES, BATCH_SIZE, EPOCHS = 96, 6, 4, 2
TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""2e-16 a rounding, over at most 48 steps of a contraction; one sample more or less shows in the third digit."""
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}
FAMILIES = ["bsp", "bsp,exchange=store", "ssp:2", "asp", "asp,weight=inverse", "local_sgd:4", "local_sgd:4,delay=2"]

State = dict[str, torch.Tensor]
Draw = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The program of each worker."""

    policy: str = "bsp"
    optimizer: str = "sgd"
    dropout: float = 0.0
    batch_norm: bool = False
    noise: float = 0.0
    draws: bool = False
    """Draw from Python's, numpy's and torch's streams in every step, and put it into the loss."""
    numpy_draw: Literal["random", "normal"] = "random"
    own_seeds: bool = False
    """Every worker seeds its streams by itself, by its rank."""
    order_seed: int = 0
    epochs: int = EPOCHS
    loader_workers: int = 0
    trace: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The record of one worker, and its end."""

    state: State
    batches: list[list[int]] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)


def build(training: Training) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    generator = torch.get_rng_state()
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(8) if training.batch_norm else nn.Identity()
    parts = [nn.Linear(NUM_FEATURES, 8), norm, nn.Tanh(), nn.Dropout(training.dropout), nn.Linear(8, 1)]
    torch.set_rng_state(generator)
    model = nn.Sequential(*parts).double()
    kind, options = OPTIMIZERS[training.optimizer]
    return model, kind(model.parameters(), **options)


def seed_streams(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw(training: Training) -> Draw:
    return random.gauss(0, 1), float(getattr(np.random, training.numpy_draw)()), float(torch.randn(()))


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, drawn: Draw = (0.0, 0.0, 0.0)) -> torch.Tensor:
    return F.mse_loss(model(x) + 0.1 * sum(drawn), y)


def state_of(model: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def train(training: Training, *, pacer: Pacer | None = None, job: plesio.Job | None = None) -> Trained:
    """The loop of the README on one worker, in whichever world it finds itself."""
    model, optimizer = build(training)
    saw = Trained(state={})
    options = plesio.JoinOptions(pacer=pacer, job=job, info=RunInfo(seed=training.order_seed))
    with plesio.join(model, optimizer, policy=training.policy, trace=training.trace, options=options) as session:
        if training.own_seeds:
            seed_streams(50 + session.rank)
        for _ in range(training.epochs):
            # with a generator of its own the loader takes nothing from torch's stream
            own = torch.Generator().manual_seed(session.rank) if training.own_seeds else None
            loader = DataLoader(
                Problem(NUM_SAMPLES, NUM_FEATURES, noise=training.noise),
                batch_size=BATCH_SIZE,
                shuffle=True,
                num_workers=training.loader_workers,
                generator=own,
            )
            for numbers, x, y in session.shard(loader):
                saw.batches.append(numbers.tolist())
                if training.draws:
                    saw.draws.append(draw(training))
                loss = loss_of(model, x, y, saw.draws[-1] if training.draws else (0.0, 0.0, 0.0))
                loss.backward()
                session.step(loss)
    saw.state.update(state_of(model))
    return saw


def virtual(training: Training, *, num_workers: int, seed: int = 0) -> Simulation[Trained]:
    def main(job: VirtualJob) -> Trained:
        step_time = LogNormal(mean_s=0.02, cv=0.5)
        return train(training, pacer=Pacer(step_time=step_time, seed=0, worker=job.place.rank, clock=job.clock))

    return simulate(main, num_workers=num_workers, cluster=Cluster.one_host(num_workers), seed=seed)


def train_on_processes(*, policies: list[str], **options: Any) -> list[dict[str, Any]]:
    """`train` under each policy, for `LocalJob`, whose workers pickle what they return."""
    with own_job() as job:
        runs = [train(Training(policy=policy, **options), job=job) for policy in policies]
    return [
        {"state": {name: tensor.tolist() for name, tensor in saw.state.items()}, "draws": saw.draws} for saw in runs
    ]


def distance(one: State, other: State) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def merged_batches(num_workers: int) -> Iterator[torch.Tensor]:
    """Yield the samples of all workers of a synchronous policy in each step."""
    for epoch in range(EPOCHS):
        order = torch.from_numpy(epoch_order(NUM_SAMPLES, seed=0, epoch=epoch))
        sizes = [sum(each) for each in round_sizes(NUM_SAMPLES, num_workers=num_workers, batch_size=BATCH_SIZE)]
        yield from order.split(sizes)


def one_process(training: Training, batches: Iterator[torch.Tensor]) -> State:
    """Stock PyTorch on these batches."""
    model, optimizer = build(training)
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    for batch in batches:
        loss_of(model, data.x[batch], data.y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state_of(model)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("num_workers", [2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["bsp", "bsp,exchange=store", "ssp:0"])
def test_synchronous_policies_train_what_one_process_does_with_the_merged_batch(
    policy: str, optimizer: str, num_workers: int
):
    reference = one_process(Training(optimizer=optimizer), merged_batches(num_workers))
    for worker in workers_of(virtual(Training(policy=policy, optimizer=optimizer), num_workers=num_workers)):
        torch.testing.assert_close(worker.state, reference, **TOLERANCE)


@pytest.mark.parametrize("exchange", ["collective", "store"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_averaging_after_every_step_is_bsp_where_the_optimizer_is_linear_in_the_gradient(optimizer: str, exchange: str):
    """Momentum buffers are the workers' own, but their mean is that of one process; AdamW's moments are not linear."""
    reference = one_process(Training(optimizer=optimizer), merged_batches(3))
    policy = "local_sgd:1" if exchange == "collective" else "local_sgd:1,exchange=store"
    state = workers_of(virtual(Training(policy=policy, optimizer=optimizer), num_workers=3))[0].state
    if optimizer == "adamw":
        assert distance(state, reference) > 1e-4
    else:
        torch.testing.assert_close(state, reference, **TOLERANCE)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["asp", "asp,update=delta", "ssp:2,period=1", "asp,weight=inverse"])
def test_one_asynchronous_worker_is_a_plain_loop(policy: str, optimizer: str):
    [worker] = workers_of(virtual(Training(policy=policy, optimizer=optimizer), num_workers=1))
    per_epoch = NUM_SAMPLES // BATCH_SIZE
    for epoch in range(EPOCHS):
        numbers = itertools.chain.from_iterable(worker.batches[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(numbers) == list(range(NUM_SAMPLES))
    reference = one_process(Training(optimizer=optimizer), map(torch.tensor, worker.batches))
    torch.testing.assert_close(worker.state, reference, **TOLERANCE)


def test_relaxed_policies_are_not_bsp():
    """Or the laws above would say nothing."""
    bsp = workers_of(virtual(Training(), num_workers=4))[0].state
    for policy in ("ssp:2", "asp", "local_sgd:4", "local_sgd:4,delay=2"):
        assert distance(workers_of(virtual(Training(policy=policy), num_workers=4))[0].state, bsp) > 1e-4, policy


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "policy", [*FAMILIES[::3], *(pytest.param(it, marks=pytest.mark.slow) for n, it in enumerate(FAMILIES) if n % 3)]
)
def test_seeds_and_numbers_of_workers_that_differ_give_other_parameters(policy: str):
    random_training = Training(policy=policy, dropout=0.2)
    states = [
        workers_of(virtual(random_training, num_workers=4))[0].state,
        workers_of(virtual(random_training, num_workers=4, seed=1))[0].state,
        workers_of(virtual(random_training, num_workers=3))[0].state,
        workers_of(virtual(Training(policy=policy, dropout=0.2, order_seed=1), num_workers=4))[0].state,
    ]
    for one, other in itertools.combinations(states, 2):
        assert distance(one, other) > 1e-4


@pytest.mark.one_in(4)
@pytest.mark.parametrize("numpy_draw", ["random", "normal"])
@pytest.mark.parametrize("policy", ["asp", "bsp", "local_sgd:4,delay=2"])
def test_what_a_worker_draws_is_its_own_stream_whoever_runs_between(policy: str, numpy_draw: Any):
    """Python's, numpy's and torch's numbers, and as many of them for dropout, as the worker would draw alone."""
    training = Training(policy=policy, dropout=0.3, draws=True, numpy_draw=numpy_draw, own_seeds=True)
    with streams_kept():
        before = draw(training)
    with streams_kept():
        simulation = virtual(training, num_workers=4)
        assert draw(training) == before
    for rank, worker in enumerate(workers_of(simulation)):
        assert worker.draws == draws_alone(rank, training, worker.batches)


@contextlib.contextmanager
def streams_kept() -> Iterator[None]:
    python, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(torchs)


def draws_alone(rank: int, training: Training, batches: list[list[int]]) -> list[Draw]:
    model, _ = build(training)
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    drawn = []
    with streams_kept():
        seed_streams(50 + rank)
        for batch in batches:
            drawn.append(draw(training))
            model(data.x[batch])  # draws for its dropout
    return drawn


RANDOM_OPTIONS: dict[str, Any] = {"dropout": 0.3, "batch_norm": True, "draws": True, "own_seeds": True}
TIMELESS = ["bsp", "bsp,exchange=store", "local_sgd:4", "local_sgd:4,delay=2"]
"""No clock has a say in the parameters that they train."""


@pytest.fixture(scope="module")
def on_processes() -> dict[str, list[dict[str, Any]]]:
    """Train on two real processes, by policy and rank."""
    found = processes.on_processes(2, __file__, "train_on_processes", policies=TIMELESS, **RANDOM_OPTIONS)
    return dict(zip(TIMELESS, zip(*found, strict=True), strict=True))


@pytest.mark.parametrize("policy", TIMELESS)
def test_dropout_noise_and_batch_norm_are_as_on_processes_of_their_own(policy: str, on_processes: Any):
    """The same program in two worlds: the same draws, and parameters and buffers that agree to rounding."""
    ours = workers_of(virtual(Training(policy=policy, **RANDOM_OPTIONS), num_workers=2))
    for mine, theirs in zip(ours, on_processes[policy], strict=True):
        assert mine.draws == theirs["draws"]
    for name, tensor in ours[0].state.items():
        theirs = torch.tensor(on_processes[policy][0]["state"][name], dtype=tensor.dtype)
        torch.testing.assert_close(tensor, theirs, **TOLERANCE)


@pytest.mark.parametrize("policy", ["asp", pytest.param("bsp", marks=pytest.mark.slow)])
def test_loader_processes_visit_every_sample_and_repeat_their_augmentation(policy: str):
    training = Training(policy=policy, noise=0.1, loader_workers=2)
    once, again = (workers_of(virtual(training, num_workers=2, seed=5)) for _ in range(2))
    visited = sorted(number for worker in once for batch in worker.batches for number in batch)
    assert visited == sorted(list(range(NUM_SAMPLES)) * EPOCHS)
    for mine, theirs in zip(once, again, strict=True):
        assert mine.batches == theirs.batches
        assert distance(mine.state, theirs.state) == 0
    other = workers_of(virtual(training, num_workers=2, seed=6))
    assert distance(once[0].state, other[0].state) > 1e-4


def digests_of_families(folder: Path, first: int) -> dict[str, str]:
    """Return digests of the files and parameters of simulations of every second family of policies."""
    digests = {}
    for number, policy in enumerate(FAMILIES[first::2]):
        trace = folder / str(number)
        training = Training(policy=policy, dropout=0.2, batch_norm=True, epochs=1, trace=trace)
        result = virtual(training, num_workers=4).runs[0]
        assert result.parameters_sha256 is not None
        digests[policy] = result.parameters_sha256
        for path in sorted(trace.iterdir()):
            # the checkout may be given another commit between two processes
            written = re.sub(r'"commit": "\w+"', "", path.read_text(encoding="utf-8"))
            digests[f"{policy}: {path.name}"] = hashlib.sha256(written.encode()).hexdigest()
    return digests


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_simulations_do_not_depend_on_the_process_or_the_order_of_its_hashes(first: int, tmp_path: Path):
    program = (
        "import json, pathlib, runpy, sys; module = runpy.run_path(sys.argv[1]); "
        "print(json.dumps(module['digests_of_families'](pathlib.Path(sys.argv[2]), int(sys.argv[3]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, __file__, str(tmp_path / "there"), str(first)],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert json.loads(done.stdout) == digests_of_families(tmp_path / "here", first)
