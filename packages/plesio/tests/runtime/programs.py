"""The workers' programs in the process tests: small training runs with everything a user's loop may have."""

import hashlib
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import plesio
from plesio.core.errors import DataError, PlesioError
from plesio.runtime.server.shard import Shard
from plesio.runtime.worker.environment import WorkerPlace

NUM_SAMPLES = 96
NUM_FEATURES = 6


class Numbered(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """A linear problem whose samples carry their number, so that it can be told who saw which."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator)
        self.x, self.y = x[:num_samples], (x @ torch.randn(NUM_FEATURES, 1, generator=generator))[:num_samples]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index], self.y[index]


class Net(nn.Module):
    """Linear layers around options: BatchNorm, a frozen parameter, one that is never used."""

    def __init__(self, *, batch_norm: bool = False, frozen: bool = False, unused: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_FEATURES, 5)
        self.norm = nn.BatchNorm1d(5) if batch_norm else nn.Identity()
        self.last = nn.Linear(5, 1)
        if frozen:
            self.scale = nn.Parameter(torch.full((1,), 1.5), requires_grad=False)
        if unused:
            self.spare = nn.Parameter(torch.full((3,), 2.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.last(torch.tanh(self.norm(self.first(x))))
        return out * self.scale if hasattr(self, "scale") else out


def build(
    rank: int, *, optimizer: str = "SGD", groups: bool = False, **model_options: bool
) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(100 + rank)  # replicas differ until the session makes them rank 0's
    model = Net(**model_options)
    trained = [p for p in model.parameters() if p.requires_grad]
    if groups:
        options: list[dict[str, Any]] = [
            {"params": model.first.parameters(), "lr": 0.02, "momentum": 0.5},
            {"params": model.last.parameters(), "lr": 0.05, "weight_decay": 0.01},
        ]
        return model, torch.optim.SGD(options, lr=0.1)
    return model, getattr(torch.optim, optimizer)(trained, lr=0.05)


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    _, x, y = batch
    return F.mse_loss(model(x), y)


def whole_loss(model: nn.Module, num_samples: int = NUM_SAMPLES) -> float:
    data = Numbered(num_samples)
    with torch.no_grad():
        return float(F.mse_loss(model(data.x), data.y))


def digest(model: nn.Module) -> str:
    """Return a digest of the parameters: running statistics are a rank's own under DDP."""
    parts = [tensor.detach().contiguous().numpy().tobytes() for _, tensor in sorted(model.named_parameters())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(
    session: plesio.Session,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int = 2,
    batch_size: int = 4,
    num_samples: int = NUM_SAMPLES,
    clip: float | None = None,
    scheduled: bool = False,
    accumulate: int = 1,
    loader_workers: int = 0,
    evaluate: bool = False,
    at_step: Callable[[int, nn.Module], None] = lambda step, model: None,
) -> dict[str, Any]:
    """The loop of the README with the usual extras; returns what this worker saw."""
    loader = DataLoader(Numbered(num_samples), batch_size=batch_size, shuffle=True, num_workers=loader_workers)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.8) if scheduled else None
    seen: list[list[int]] = []
    first_batches: list[list[int]] = []
    metrics: list[float | None] = []
    step = 0
    for _ in range(epochs):
        epoch: list[int] = []
        for batch in session.shard(loader):
            epoch += batch[0].tolist()
            first_batches.append(batch[0].tolist())
            for part in range(1, accumulate):
                with session.accumulate():
                    piece = tuple(tensor[part::accumulate] for tensor in batch)
                    (loss_of(model, piece) * len(piece[0]) / len(batch[0])).backward()
            piece = tuple(tensor[0::accumulate] for tensor in batch)
            loss = loss_of(model, piece) * len(piece[0]) / len(batch[0])
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            step += 1
            at_step(step, model)
            session.step(loss)
            if scheduler is not None:
                scheduler.step()
        seen.append(epoch)
        if evaluate:
            metrics.append(session.evaluate(lambda: whole_loss(model, num_samples)))
    return {
        "seen": seen,
        "batches": first_batches,
        "metrics": metrics,
        "rates": [g["lr"] for g in optimizer.param_groups],
    }


def outcome(session: plesio.Session, model: nn.Module) -> dict[str, Any]:
    return {
        "clock": session.clock,
        "digest": digest(model),
        "loss": whole_loss(model),
        "result": session.report().to_json(),
        "state": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
    }


def one_run(*, policy: str, job: plesio.Job | None = None, **options: Any) -> dict[str, Any]:
    """One session from start to end."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    join = {key: options.pop(key) for key in ("num_servers", "snapshot_every") if key in options}
    trace = options.pop("trace", None)
    kill_at = options.pop("kill_at", {}).get(rank)
    poison_at = options.pop("poison_at", {}).get(rank)
    shape = {
        key: options.pop(key) for key in ("optimizer", "groups", "batch_norm", "frozen", "unused") if key in options
    }
    pace_s = options.pop("pace_s", {}).get(rank)

    def at_step(step: int, model: nn.Module) -> None:
        if step == kill_at:
            die()
        if step == poison_at:
            next(p for p in model.parameters() if p.grad is not None).grad.view(-1)[0] = math.nan  # type: ignore[union-attr]

    model, optimizer = build(rank, **shape)
    pacer = _pacer(pace_s) if pace_s is not None else None
    with plesio.join(
        model, optimizer, policy=policy, trace=trace, options=plesio.JoinOptions(job=job, pacer=pacer, **join)
    ) as session:
        start = digest(model)
        saw = train(session, model, optimizer, at_step=at_step, **options)
    return {**saw, "start": start, **outcome(session, model)}


def without_results(*, policy: str, epochs: int, trace: Path) -> dict[str, Any]:
    """One session whose results cannot be written: what it says at its end, and what came of it all the same."""
    torch.set_num_threads(1)
    model, optimizer = build(int(os.environ["RANK"]))
    session = plesio.join(model, optimizer, policy=policy, trace=trace)
    train(session, model, optimizer, epochs=epochs)
    try:
        session.close()
    except DataError as error:
        return {"said": str(error), **outcome(session, model)}
    return {"said": "", **outcome(session, model)}


def _pacer(step_s: float) -> Any:
    from plesio.cost.step_time import Constant
    from plesio.runtime.worker.pacing import Pacer

    return Pacer(step_time=Constant(mean_s=step_s), seed=0, worker=int(os.environ["RANK"]))


def several_runs(*, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One job, several sessions, as a comparison does it."""
    place = WorkerPlace.from_environment()
    assert place is not None
    with plesio.Job(place) as job:
        return [one_run(job=job, **run) for run in runs]


def several_joins(*, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sessions one after the other, each with a job of its own."""
    return [one_run(**run) for run in runs]


def run_until(path: str, **options: Any) -> dict[str, Any]:
    """Train until a file appears: epochs without end, for tests in which somebody joins."""
    rank = int(os.environ["RANK"])
    model, optimizer = build(rank)
    seen = 0
    with plesio.join(model, optimizer, **options) as session:
        loader = DataLoader(Numbered(), batch_size=4, shuffle=True)
        while not Path(path).exists():
            for batch in session.shard(loader):
                loss = loss_of(model, batch)
                loss.backward()
                session.step(loss)
                seen += len(batch[0])
    return {"samples": seen, **outcome(session, model)}


def join_within(*, policy: str, meet_s: float) -> None:
    """Wait for the others, but not for long."""
    place = WorkerPlace.from_environment()
    assert place is not None
    model, optimizer = build(place.rank)
    with plesio.Job(place, meet_s=meet_s) as job:
        plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(job=job)).close()


def group_alone() -> str:
    """Worker 0 is alone in calling for the group of all workers, and says what it is told."""
    place = WorkerPlace.from_environment()
    assert place is not None
    with plesio.Job(place) as job:
        if place.rank > 0:
            job.board().await_any(["told"])
            return ""
        job.start.meet_s = 0.1
        try:
            job.group("cpu")
        except PlesioError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            job.board().post("told", "")
    return ""


def disagree(*, what: str, exchange: str) -> None:
    rank = int(os.environ["RANK"])
    policies = ["bsp", "local_sgd:2"] if exchange == "collective" else ["ssp:2", "ssp:4"]
    model, optimizer = build(0, unused=what == "model" and rank == 1)
    plesio.join(model, optimizer, policy=policies[rank if what == "policy" else 0]).close()


class Own(torch.optim.SGD):
    """An optimizer of the user's own."""


def join_with(*, policy: str) -> float:
    model, _ = build(int(os.environ["RANK"]))
    made = Own(model.parameters(), lr=0.05, momentum=0.5)
    with plesio.join(model, made, policy=policy) as session:
        train(session, model, made)
    return whole_loss(model)


def failing_at_the_start(*, elastic: bool) -> None:
    """Fail on one worker while it receives rank 0's parameters, as a full card's memory would."""
    model, optimizer = build(0)

    def fail(*_: Any, **__: Any) -> None:
        raise ArithmeticError("of one's own")

    if os.environ["RANK"] == "1":
        torch.distributed.broadcast = fail
    plesio.join(model, optimizer, policy="local_sgd:4", options=plesio.JoinOptions(elastic=elastic))


def with_synchronous_norm(*, policy: str) -> None:
    """Join with a layer that needs all workers in every forward pass."""
    model = nn.Sequential(nn.Linear(2, 3), nn.SyncBatchNorm(3))
    plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy)


def evaluating_on_a_shard() -> None:
    """Validate on one worker's part of the data."""
    model, optimizer = build(0)
    with plesio.join(model, optimizer, policy="bsp") as session:
        session.evaluate(lambda: float(sum(len(x) for _, x, _ in session.shard(DataLoader(Numbered())))))


def with_a_failing_shard(*, policy: str, fails: str, num_servers: int) -> None:
    """Train where the memory of the last server, say, does not bear an update; servers are forked off this worker."""
    model, optimizer = build(0)
    works = getattr(Shard, fails)

    def fail(shard: Shard, *arguments: Any) -> Any:
        if num_servers > 1 and shard._slices[0].start == 0:
            return works(shard, *arguments)
        raise MemoryError("of the server")

    with (
        patch.object(Shard, fails, fail),
        plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(num_servers=num_servers)) as session,
    ):
        for _, x, y in session.shard(DataLoader(Numbered(), batch_size=4)):
            F.mse_loss(model(x), y).backward()
            session.step()


class _Recomputed(nn.Linear):
    """A layer whose backward pass computes its forward pass again, in torch's older way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=True)


def with_reentrant_checkpoints(*, policy: str, passes: int) -> list[list[float]]:
    """Train where each step goes so many times through a layer that is computed again; returns the parameters."""
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 8), *[_Recomputed(8, 8)] * passes)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy) as session:
        for step in range(4):
            torch.manual_seed(10 * step + session.rank)
            model(torch.randn(4, NUM_FEATURES)).square().mean().backward()
            session.step()
    return [parameter.reshape(-1).tolist() for parameter in model.parameters()]


def with_a_refused_update(*, policy: str) -> tuple[int, ...]:
    """Train where the second of two servers cannot read what worker 1 pushes; returns the workers that were lost."""
    model, optimizer = build(0)
    push = Shard.push

    def refuse(shard: Shard, worker: int, **update: Any) -> None:
        if worker == 1 and shard._slices[0].start > 0:
            raise ValueError("no update of this model")
        push(shard, worker, **update)

    options = plesio.JoinOptions(num_servers=2)
    with (
        patch.object(Shard, "push", refuse),
        plesio.join(model, optimizer, policy=policy, options=options) as session,
    ):
        for _, x, y in session.shard(DataLoader(Numbered(), batch_size=4)):
            F.mse_loss(model(x), y).backward()
            session.step()
    return session.report().lost_workers
