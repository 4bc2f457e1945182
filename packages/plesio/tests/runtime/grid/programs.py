"""Small grids, and what they must come to: the delayed rule written down in one process."""

import copy
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import Constant
from plesio.policies.grid import GridSetting
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate

T = TypeVar("T")

NUM_SAMPLES, MICRO_BATCH, EPOCHS = 128, 8, 2
CUTS = {1: [], 2: [3], 3: [2, 4], 4: [1, 3, 5]}


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def optimizer(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1, momentum=0.5)


def data() -> TensorDataset:
    x = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def train(grid: Any, given: Callable[[Any], None] = lambda batch: None) -> None:
    for _ in range(EPOCHS):
        for x, y in grid.shard(DataLoader(data(), batch_size=MICRO_BATCH, shuffle=True)):
            given((x, y))
            grid.step(x, y)


def in_grid(
    spec: str | GridSetting,
    loop: Callable[[Any], T],
    *,
    model: Callable[[], Any] = network,
    make: Any = optimizer,
    loss: Any = nn.functional.cross_entropy,
    step_s: Callable[[int], float] | None = None,
    snapshot_every: int | None = None,
    faults: Sequence[Fault] = (),
    **options: Any,
) -> Simulation[T]:
    """Have each worker of a virtual grid do ``loop`` with it; ``step_s`` gives the seconds of a rank's steps."""
    setting = GridSetting.parse(spec) if isinstance(spec, str) else spec
    options = {"cuts": CUTS[setting.stages], **options}

    def work(job: Any) -> T:
        pacer = None
        if step_s is not None:
            drawn = Constant(mean_s=step_s(job.place.rank))
            pacer = Pacer(step_time=drawn, seed=0, worker=0, clock=job.clock)
        told = JoinOptions(pacer=pacer, snapshot_every=snapshot_every)
        with plesio.grid(model(), make, loss, setting=setting, options=told, **options) as grid:
            return loop(grid)

    count = setting.num_workers
    return simulate(work, num_workers=count, cluster=Cluster.one_host(count), faults=faults)


def in_virtual_world(
    setting: GridSetting, **options: Any
) -> tuple[dict[str, Tensor], RunResult, list[list[tuple[Tensor, Tensor]]]]:
    """The final state, the result, and each group's micro-batches."""
    given: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(setting.groups)]

    def loop(grid: Any) -> tuple[dict[str, Tensor] | None, RunResult]:
        train(grid, given[grid.group].append if grid.stage == 0 else lambda batch: None)
        grid.finish()
        return grid.state_dict(), grid.report()

    state, result = in_grid(setting, loop, **options).values()[0]
    return state, result, given


def adam(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01, betas=(0.8, 0.9))


class PredictedAdam:
    """The rule of late stages under Adam: Adam, and weights so many of its last steps ahead."""

    def __init__(self, stage: nn.Module, *, num_updates: int) -> None:
        self.weights = list(stage.parameters())
        self.optimizer = adam(self.weights)
        self.num_updates = num_updates
        self.moved = [torch.zeros_like(weight) for weight in self.weights]

    def step(self) -> None:
        before = [weight.detach().clone() for weight in self.weights]
        predicts = bool(self.optimizer.state)
        self.optimizer.step()
        if predicts:
            self.moved = [weight.detach() - then for weight, then in zip(self.weights, before, strict=True)]

    @property
    def predicted(self) -> list[Tensor]:
        return [weight + self.num_updates * moved for weight, moved in zip(self.weights, self.moved, strict=True)]


def as_predicted(stage: nn.Module, steps: Any) -> nn.Module:
    """Return a copy of the stage for a forward pass."""
    then = copy.deepcopy(stage)
    if isinstance(steps, PredictedAdam):
        for weight, predicted in zip(then.parameters(), steps.predicted, strict=True):
            weight.data.copy_(predicted)
    return then


def by_the_rule(
    setting: GridSetting, given: list[list[tuple[Tensor, Tensor]]], *, make: Any = optimizer
) -> dict[str, Tensor]:
    """Stages of a decoupled grid in one process: stage k's gradient of micro-batch n is at its weights of then.

    Under `adam` the late ones go forward with the weights that `PredictedAdam` predicts.
    """
    ends = [0, *CUTS[setting.stages], len(network())]
    replicas = []
    for batches in given:
        stages = [network()[begin:end] for begin, end in itertools.pairwise(ends)]
        optimizers = [
            PredictedAdam(stage, num_updates=late) if make is adam and late else make(stage.parameters())
            for stage, late in zip(stages, setting.updates_late, strict=True)
        ]
        replicas.append((stages, optimizers, batches))
    # In tick t stage k goes forward with micro-batch t - k and backward with t - 2 (K - 1) + k, as in the source.
    last = setting.stages - 1
    num_batches = len(given[0])
    passes: list[dict[tuple[int, int], tuple[nn.Module, Tensor, Tensor]]] = [{} for _ in replicas]
    gradients: list[dict[tuple[int, int], Tensor]] = [{} for _ in replicas]
    for tick in range(num_batches + 2 * last):
        for stage in range(last + 1):
            for (stages, optimizers, batches), kept in zip(replicas, passes, strict=True):
                if 0 <= (n := tick - stage) < num_batches:
                    inputs = batches[n][0] if stage == 0 else kept[stage - 1, n][2].detach().requires_grad_()
                    then = as_predicted(stages[stage], optimizers[stage])
                    kept[stage, n] = (then, inputs, then(inputs))
        updated = []
        for stage in reversed(range(last + 1)):
            for place, ((stages, optimizers, batches), kept) in enumerate(zip(replicas, passes, strict=True)):
                if not 0 <= (n := tick - 2 * last + stage) < num_batches:
                    continue
                then, inputs, output = kept.pop((stage, n)) if stage == 0 else kept[stage, n]
                if stage == last:
                    nn.functional.cross_entropy(output, batches[n][1]).backward()
                else:
                    output.backward(gradients[place].pop((stage, n)))
                if stage > 0:
                    gradients[place][stage - 1, n] = inputs.grad
                gather(stages[stage], then, first=n % setting.micro_batches == 0)
                if (n + 1) % setting.micro_batches == 0 or n + 1 == num_batches:
                    for weight in stages[stage].parameters():
                        weight.grad /= n % setting.micro_batches + 1
                    optimizers[stage].step()
                    updated.append(stage)
        for stage in sorted(set(updated)):
            mix([stages[stage] for stages, _, _ in replicas], setting)
    whole = [nn.Sequential(*[layer for stage in stages for layer in stage]).state_dict() for stages, _, _ in replicas]
    return {name: torch.stack([state[name] for state in whole]).mean(0) for name in whole[0]}


def gather(stage: nn.Module, then: nn.Module, *, first: bool) -> None:
    """Add a micro-batch's gradient to those of its update, unless it is the first."""
    for weight, old in zip(stage.parameters(), then.parameters(), strict=True):
        weight.grad = old.grad if first else weight.grad + old.grad


@torch.no_grad()
def mix(replicas: list[nn.Module], setting: GridSetting) -> None:
    """x_s <- x_s + sum_r P_sr (x_r - x_s)."""
    weights = [torch.nn.utils.parameters_to_vector(replica.parameters()) for replica in replicas]
    for place, replica in enumerate(replicas):
        correction = torch.zeros_like(weights[place])
        for other, share in setting.mixing.neighbours(place).items():
            correction.add_(weights[other] - weights[place], alpha=share)
        sizes = [weight.numel() for weight in replica.parameters()]
        for weight, part in zip(replica.parameters(), correction.split(sizes), strict=True):
            weight.add_(part.view_as(weight))


def in_processes(
    spec: str,
    *,
    epochs: int = EPOCHS,
    die: int | None = None,
    sleep: int | None = None,
    die_at_the_end: int | None = None,
    evaluations: int = 0,
) -> dict[str, Any]:
    """Train in one of several real processes, with so many evaluations an epoch; returns what the test looks at.

    After nine micro-batches the one called ``die`` is killed, and ``sleep`` stopped, until others have long given it
    up; ``die_at_the_end`` is killed when it evaluates.
    """
    torch.set_num_threads(1)
    own = os.getpid()

    def fall(grid: Any) -> None:
        if grid.rank == die and grid.clock == 9:
            os.kill(own, signal.SIGKILL)
        if grid.rank == sleep and grid.clock == 9:
            with subprocess.Popen(["sh", "-c", f"sleep 3.5; kill -CONT {own}"]):
                os.kill(own, signal.SIGSTOP)

    def metric() -> float:
        if grid.rank == die_at_the_end:
            os.kill(own, signal.SIGKILL)
        return 0.5

    model = network()
    setting = GridSetting.parse(spec)
    with plesio.grid(model, optimizer, nn.functional.cross_entropy, setting=setting, cuts=CUTS[setting.stages]) as grid:
        loader = DataLoader(data(), batch_size=MICRO_BATCH, shuffle=True)
        for _ in range(epochs):
            for x, y in grid.shard(loader):
                fall(grid)
                grid.step(x, y)
            for _ in range(evaluations):
                grid.evaluate(metric)
        grid.finish(metric)
        state = grid.state_dict()
    result = grid.report()
    return {
        "metrics": [evaluation.metric for evaluation in result.evaluations],
        "state": None if state is None else {name: tensor.flatten().tolist() for name, tensor in state.items()},
        "sha256": result.parameters_sha256,
        "samples": result.samples,
        "lost": list(result.lost_workers),
        "memory": [worker.peak_memory_bytes for worker in result.workers],
    }


def until_joined(spec: str, *, die: int | None = None) -> dict[str, Any]:
    """Train in a real process until 40 micro-batches after another group has joined; returns what the test looks at.

    The one called ``die`` is killed when there have been ten.
    """
    torch.set_num_threads(1)
    setting = GridSetting.parse(spec)
    given: list[int] = []
    joined_at = None
    numbers = TensorDataset(*data().tensors, torch.arange(NUM_SAMPLES))
    with plesio.grid(
        network(), optimizer, nn.functional.cross_entropy, setting=setting, cuts=CUTS[setting.stages]
    ) as grid:
        for x, y, which in grid.shard(DataLoader(numbers, batch_size=MICRO_BATCH, shuffle=True), samples=10**6):
            if joined_at is None and grid.setting.groups > setting.groups:
                joined_at = grid.clock
            if joined_at is not None and grid.clock == joined_at + 40:
                break
            if joined_at is not None and grid.clock == joined_at + 10 and grid.rank == die:
                os.kill(os.getpid(), signal.SIGKILL)
            given += which.tolist()
            grid.step(x, y)
        grid.finish()
    result = grid.report()
    return {
        "given": given if grid.stage == 0 else [],
        "joined_at": joined_at,
        "samples": result.samples,
        "sha256": result.parameters_sha256,
        "workers": [worker.worker for worker in result.workers],
        "lost": list(result.lost_workers),
    }
