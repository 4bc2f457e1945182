"""A worker's program: steps of a network in several ways that take turns, with their memory and their beginning.

A *way* is a loop by hand (`BY_HAND`) or a policy of a session. All ways train the same network on the same batch, in
blocks: A B, then B A, and so on, so whatever else the machine does meets all of them. A block builds its network and
its session anew, and trains a few steps before it is timed, from barrier to barrier with all kernels done.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.runtime.meeting import gloo_interface
from plesio.runtime.worker.environment import WorkerPlace

BY_HAND = ("plain", "exchange", "ddp", "fsdp2")
"""A worker alone; an all-reduce of as many numbers as there are gradients, and nothing else; DDP; FSDP2."""
NUM_WARM_UP = 3
PATIENCE = timedelta(seconds=100)
"""How long a worker waits for the others at a barrier."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A network of linear layers, and the steps of a block: of one worker, and of each of several."""

    width: int
    depth: int
    alone: int
    together: int
    batch: int = 256

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return self.depth * self.width * (self.width + 1) + 10 * (self.width + 1)

    def network(self, device: torch.device) -> nn.Sequential:
        """Make it, the same on every worker."""
        torch.manual_seed(0)
        with device:
            parts = [part for _ in range(self.depth) for part in (nn.Linear(self.width, self.width), nn.ReLU())]
            return nn.Sequential(*parts, nn.Linear(self.width, 10))


SIZES = {
    "small": Size(width=128, depth=24, alone=200, together=80),
    "medium": Size(width=2048, depth=8, alone=100, together=24),
    "large": Size(width=8192, depth=4, alone=40, together=8),
    "tiny": Size(width=16, depth=2, alone=4, together=4, batch=4),
}
"""``small`` is bound by starting kernels, ``large`` by matrix products; ``tiny`` shows on a CPU that it works."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """This worker and the others; without a job it is alone."""

    device: torch.device
    job: plesio.Job | None
    group: dist.ProcessGroup | None

    @property
    def number(self) -> int:
        """All of them."""
        return 1 if self.job is None else self.job.place.num_workers

    def now_s(self) -> float:
        """Return the time when the kernels of all workers are done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if self.group is not None:
            dist.barrier(self.group)
        return time.perf_counter()


@contextmanager
def training(way: str, size: Size, *, workers: Workers) -> Iterator[Callable[[], None]]:
    """Give a step of this way; a session ends with the context."""
    device = workers.device
    model = size.network(device)
    x = torch.randn(size.batch, size.width, device=device)
    y = torch.randint(10, (size.batch,), device=device)
    if way == "exchange":
        numbers = torch.zeros(size.num_parameters, device=device)
        yield lambda: dist.all_reduce(numbers)
        return
    if way == "fsdp2":
        mesh = init_device_mesh(device.type, (workers.number,))
        for part in [*(one for one in model if isinstance(one, nn.Linear)), model]:
            fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    called = DistributedDataParallel(model) if way == "ddp" else model

    def backward() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(called(x), y)
        loss.backward()
        return loss

    def by_hand() -> None:
        backward()
        optimizer.step()

    if way in BY_HAND:
        yield by_hand
        return
    with plesio.join(model, optimizer, policy=way, options=plesio.JoinOptions(job=workers.job)) as session:
        # twice of what is needed: a worker at a barrier may keep batches that were dealt ahead
        num_steps = 2 * (NUM_WARM_UP + max(size.alone, size.together))
        turns = iter(session.shard(DataLoader(TensorDataset(torch.zeros(workers.number * num_steps)))))

        def by_session() -> None:
            next(turns)
            session.step(backward())

        yield by_session


def block(way: str, size: Size, *, workers: Workers) -> dict[str, float]:
    """Return a step's seconds, those until the first one could begin, and the most bytes on the device."""
    steps = size.alone if workers.number == 1 else size.together
    on_gpu = workers.device.type == "cuda"
    gc.collect()  # what the block before has left in cycles would count as this one's memory
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began_s = workers.now_s()
    with training(way, size, workers=workers) as step:
        ready_s = workers.now_s()
        for _ in range(NUM_WARM_UP):
            step()
        timed_s = workers.now_s()
        for _ in range(steps):
            step()
        step_s = (workers.now_s() - timed_s) / steps
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return {"step_s": step_s, "begin_s": ready_s - began_s, "peak_bytes": peak}


def measure(
    *, ways: Sequence[str], size: str, device_type: str, num_cards: int, budget_s: float, most_rounds: int
) -> Mapping[str, list[dict[str, float]]]:
    """Measure as one worker; return the blocks by way, as many rounds as the budget has time for, and at least one."""
    began_s = time.perf_counter()
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    device = torch.device(device_type)
    if device_type == "cuda":
        device = torch.device("cuda", 0 if place is None else place.local_rank % num_cards)
        torch.cuda.set_device(device)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with ExitStack() as stack:
        workers = Workers(device=device, job=None, group=None)
        if place is not None:
            job = stack.enter_context(plesio.Job(place))
            stack.enter_context(gloo_interface(place))
            job.group(device_type)
            # a group of its own: a session's exchanges go on behind its steps
            workers = Workers(device=device, job=job, group=dist.new_group(backend="gloo", timeout=PATIENCE))
        for way in ways:
            found[way].append(block(way, SIZES[size], workers=workers))
        round_s = time.perf_counter() - began_s
        more = torch.tensor(min(most_rounds - 1, int(budget_s / round_s - 1)))
        if workers.group is not None:
            dist.all_reduce(more, op=dist.ReduceOp.MIN, group=workers.group)
        for number in range(int(more)):
            for way in ways[:: 1 if number % 2 else -1]:
                found[way].append(block(way, SIZES[size], workers=workers))
    return found
