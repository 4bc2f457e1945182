"""Workers whose replicas are in parts, or whose gradients one of torch's own hooks sends."""

import contextlib
import gc
import os
import signal
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.errors import PlesioError
from plesio.runtime.worker.job_handle import Ambient, within
from support.processes import own_job

NUM_FEATURES = 6
NUM_CLASSES = 5
WIDTH = 20


class View(nn.Module):
    """Hands on a view, which nothing keeps for the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 * x).view(len(x), WIDTH)


class Tower(nn.Module):
    """A root with parameters, trained and frozen ones, of sizes that do not divide.

    Its blocks are in a list, and their outputs, which are views, are added to in place; two layers share a weight.
    """

    def __init__(self, *, batch_norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_FEATURES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, WIDTH),
                nn.BatchNorm1d(WIDTH) if batch_norm else nn.LayerNorm(WIDTH),
                nn.Tanh(),
                View(),
            )
            for _ in range(3)
        )
        self.shared = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.shared[1].weight = self.shared[0].weight
        self.scale = nn.Parameter(torch.full((NUM_CLASSES,), 1.5), requires_grad=False)
        self.last = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            before, x = x, block(x)
            x += before
        for layer in self.shared:
            x = x + 0.1 * layer(x)
        return self.last(x) * self.scale


def build(
    rank: int, *, optimizer: str, batch_norm: bool = False, **options: Any
) -> tuple[Tower, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(100 + rank)  # replicas differ until the session makes them rank 0's
    model = Tower(batch_norm=batch_norm)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": trained[:3]}, {"params": trained[3:], "lr": options["lr"] / 2}]
    return model, getattr(torch.optim, optimizer)(groups, **options)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, NUM_FEATURES, generator=generator)
    return x, torch.randint(0, NUM_CLASSES, (8,), generator=generator)


def metric(model: nn.Module) -> float:
    return float(model(batch(10_000, 0)[0]).square().sum())


def step(session: plesio.Session, model: nn.Module, number: int) -> None:
    x, y = batch(number, session.rank)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    session.step(loss)


def numbers(state: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    return {name: tensor.double().reshape(-1).tolist() for name, tensor in state.items()}


def accumulate_dealt(*, policy: str) -> list[str]:
    """Make a step of two batches that are dealt out; returns what the user is told."""
    model, optimizer = build(int(os.environ["RANK"]), optimizer="SGD", lr=0.05)
    data = TensorDataset(torch.randn(64, NUM_FEATURES), torch.randint(0, NUM_CLASSES, (64,)))
    with plesio.join(model, optimizer, policy=policy) as session:
        for number, (x, y) in enumerate(session.shard(DataLoader(data, batch_size=8))):
            with session.accumulate() if number % 2 == 0 else contextlib.nullcontext():
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            if number % 2:
                session.step(loss)
    return list(session.report().fallbacks)


def train(*, policy: str, steps: int = 6, accumulate: bool = False, **shape: Any) -> dict[str, Any]:
    """A run with an evaluation, a snapshot of the state, and half of the steps before and after them."""
    rank = int(os.environ["RANK"])
    model, optimizer = build(rank, **shape)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.8)
    with plesio.join(model, optimizer, policy=policy) as session:
        for number in range(steps):
            if accumulate:
                with session.accumulate():
                    x, y = batch(number + 500, rank)
                    F.cross_entropy(model(x), y).backward()
            step(session, model, number)
            schedule.step()
            if number == steps // 2:
                at_half = session.evaluate(lambda: metric(model))
                whole = session.state_dict()
        session.finish(lambda: metric(model))
    result = session.report()
    return {
        "at_half": at_half,
        "state": numbers(whole["model"]),
        "optimizer": {
            (index, key): value.double().reshape(-1).tolist()
            for index, entry in whole["optimizer"]["state"].items()
            for key, value in entry.items()
        },
        "final": numbers(model.state_dict()),
        "plain": type(model) is Tower and not any(module._forward_hooks for module in model.modules()),
        "metric": result.final_metric,
        "sha256": result.parameters_sha256,
    }


def go_on(*, policy: str, then: str, steps: int = 6, **shape: Any) -> list[dict[str, list[float]]]:
    """Half of the steps under one policy, and the others under another from the state of the first."""
    rank = int(os.environ["RANK"])
    model, optimizer = build(rank, **shape)
    with plesio.join(model, optimizer, policy=policy) as session:
        for number in range(steps // 2):
            step(session, model, number)
        state = session.state_dict()
    model, optimizer = build(rank, **shape)
    with plesio.join(model, optimizer, policy=then) as session:
        session.load_state_dict(state)
        for number in range(steps // 2, steps):
            step(session, model, number)
        after = session.state_dict()
    return [numbers(after["model"]), numbers(model.state_dict())]


def with_state(*, policy: str, steps: int = 6, **shape: Any) -> dict[str, list[float]]:
    """The optimizer has made steps, the same on all workers, before it joins."""
    model, optimizer = build(0, **shape)
    for number in range(steps // 2):
        x, y = batch(number, 0)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    with plesio.join(model, optimizer, policy=policy) as session:
        for number in range(steps // 2, steps):
            step(session, model, number)
    return numbers(model.state_dict())


def bad_loss(*, policy: str, steps: int = 5) -> dict[str, Any]:
    """Rank 1's third step has a gradient that is not finite."""
    rank = int(os.environ["RANK"])
    model, optimizer = build(rank, optimizer="SGD", lr=0.05)
    with plesio.join(model, optimizer, policy=policy) as session:
        for number in range(steps):
            x, y = batch(number, rank)
            loss = F.cross_entropy(model(x), y) * (float("nan") if (rank, number) == (1, 2) else 1.0)
            loss.backward()
            session.step(loss)
    return {"final": numbers(model.state_dict()), "refused": session.report().refused_updates}


def each(*, function: str, of: list[dict[str, Any]]) -> list[Any]:
    """Return a function's result for each of several arguments: one session after another in one job."""
    [returned] = several(calls=[(function, of)])
    return returned


def several(*, calls: list[tuple[str, list[dict[str, Any]]]]) -> list[list[Any]]:
    """Return the results of `each` for each of several functions."""
    with own_job() as job, within(Ambient(job=job)):
        return [[globals()[function](**arguments) for arguments in of] for function, of in calls]


def die(*, policy: str, steps: int = 200) -> None:
    rank = int(os.environ["RANK"])
    model, optimizer = build(rank, optimizer="SGD", lr=0.05)
    with plesio.join(model, optimizer, policy=policy) as session:
        for number in range(steps):
            if (rank, number) == (1, 4):
                os.kill(os.getpid(), signal.SIGKILL)
            step(session, model, number)


class Branches(nn.Module):
    """A step goes through one of two branches."""

    def __init__(self, *, alike: bool) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(3, 4 if alike else 4 + index) for index in range(2))

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.branches[branch](x)


def branch(*, alike: bool, from_step: int) -> None:
    """Each rank's steps go through its own branch from a step on, before it through both."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Branches(alike=alike)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="fsdp") as session:
        for number in range(4):
            branches = [session.rank] if number >= from_step else [0, 1]
            torch.stack([model(torch.ones(2, 3), index).sum() for index in branches]).sum().backward()
            session.step()


def odd(kind: str, **arguments: Any) -> None:
    """A model, or a call, that fsdp refuses."""
    model: nn.Module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    match kind:
        case "number":
            model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
        case "empty":
            model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 3)))
        case "hook":
            model[0].weight.register_hook(lambda gradient: gradient * 0)
        case "accumulated":
            model[0].weight.register_post_accumulate_grad_hook(lambda _: None)
        case "sparse":
            model = nn.Embedding(5, 3, sparse=True)
        case "types":
            model.register_parameter("wide", nn.Parameter(torch.ones(3, dtype=torch.float64)))
            model.register_parameter("narrow", nn.Parameter(torch.ones(3)))
        case "list":
            model = nn.ModuleList([nn.Linear(3, 3)])
        case "strided":
            model[0].weight = nn.Parameter(torch.ones(3, 3).t()[:, ::2])
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "state":
        optimizer.state[model[0].weight]["rows"] = torch.ones(3)
    if kind == "mixing":
        optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)
    with plesio.join(model, optimizer, **{"policy": "fsdp", **arguments}) as session:
        if kind == "mixing":
            model(torch.ones(2, 3)).sum().backward()
            session.step()


def refusals(of: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The error that each of several calls of `odd` raises: its kind and its text."""
    said = []
    for arguments in of:
        try:
            odd(**arguments)
        except PlesioError as error:
            said.append((type(error).__name__, str(error)))
    return said


def send(*, policy: str, steps: int, width: int, depth: int) -> dict[str, int]:
    """Return the bytes that all workers have sent in collectives, in a run of so many steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy) as session:
        for _ in range(steps):
            model(torch.ones(2, width)).square().mean().backward()
            session.step()
    return session.report().bytes_sent


def hold(*, policy: str, width: int, depth: int) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state of this worker, before its third step is made."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with plesio.join(model, optimizer, policy=policy) as session:
        for _ in range(2):
            model(torch.ones(2, width)).square().mean().backward()
            session.step()
        model(torch.ones(2, width)).square().mean().backward()
        if policy == "fsdp":
            model.reshard()
        held = {
            "parameters": num_bytes(model.parameters()),
            "gradients": num_bytes(p.grad for p in model.parameters()),
            "optimizer": num_bytes(value for entry in optimizer.state.values() for value in entry.values()),
        }
        session.step()
    return held


def num_bytes(tensors: Any) -> int:
    """Count the bytes of this worker's own parts."""
    own = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors if tensor is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in own)


def clip(*, policy: str, by_optimizer: bool) -> dict[str, list[float]]:
    """Gradients are clipped to a small norm, over all parameters."""
    rank = int(os.environ["RANK"])
    model, optimizer = build(rank, optimizer="SGD", lr=0.5)
    with plesio.join(model, optimizer, policy=policy) as session:
        for number in range(4):
            x, y = batch(number, rank)
            F.cross_entropy(model(x), y).backward()
            held = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(held if by_optimizer else model.parameters(), 0.1)
            session.step()
    return numbers(model.state_dict())


def let_go(*, width: int) -> list[int]:
    """How many of the whole parameters are there still after the model was cut, and of the parts after the end."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    whole = [weakref.ref(parameter) for parameter in model.parameters()]
    with plesio.join(model, optimizer, policy="fsdp") as session:
        gc.collect()
        model(torch.ones(2, width)).square().mean().backward()
        session.step()
        session.evaluate(lambda: metric_of(model, width))
        parts = [weakref.ref(parameter) for parameter in model.parameters()]
        there = [sum(one() is not None for one in whole)]
    gc.collect()
    return [*there, sum(one() is not None for one in parts)]


def metric_of(model: nn.Module, width: int) -> float:
    return float(model(torch.ones(1, width)).sum())


def train_in_half_precision(policy: str, init_scale: float) -> tuple[list[float], str | None]:
    """The scale after every step, and what came out."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=5)
    data = TensorDataset(torch.randn(256, 8), torch.randint(0, 4, (256,)))
    scales = []
    with plesio.join(model, optimizer, policy=policy, scaler=scaler) as session:
        for x, y in session.shard(DataLoader(data, batch_size=8, shuffle=True), samples=256):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            session.step(loss)
            scales.append(scaler.get_scale())
    return scales, session.report().parameters_sha256
