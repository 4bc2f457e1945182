"""The measurements of `plesio lab calibrate`, in the processes in which they are taken.

Each measurement is a function of a `Bench`: the task, as this worker has it, and its membership in a job. Durations
are taken one by one, so that medians can be taken; between two the worker pauses, as it does between the
exchanges of a training, so that no measurement profits from caches that are never cold.
"""

import inspect
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader

from plesio.bench.process_pool import enlisted
from plesio.bench.recipe import TaskSection
from plesio.bench.trainer import section_task
from plesio.core.errors import PlesioError
from plesio.runtime.job import Job
from plesio.runtime.join import join
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.parameters.optimizer_spec import SUPPORTED_OPTIMIZERS
from plesio.runtime.worker.environment import WorkerPlace
from plesio.tasks.check import check_task
from plesio.tasks.task import Task

PAUSE_S = 0.025
"""About a step: what the exchange needs is no longer in the caches then."""
WARM_UP = 5


@dataclass(slots=True)
class Bench:
    """The tools of a measurement."""

    task: Task
    job: Job


def gradients(bench: Bench, *, batch_size: int, seconds: float) -> dict[str, Any]:
    """Fetch a batch and compute its gradient, again and again.

    Returns:
        ``gradient_s``: the durations. ``peak_memory_bytes``: most memory that this process has had.
    """
    task = bench.task
    model, optimizer = task.build(0)
    durations: list[float] = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s or len(durations) < 2 * WARM_UP:
        batches = iter(DataLoader(task.train_set(), batch_size=batch_size, shuffle=True, drop_last=True))
        while True:
            begun_s = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            durations.append(time.perf_counter() - begun_s)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if time.monotonic() >= until_s and len(durations) >= 2 * WARM_UP:
                break
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"gradient_s": durations[WARM_UP:], "peak_memory_bytes": peak_kib * 1024}


def all_reduce(bench: Bench, *, num_bytes: int, repeats: int) -> dict[str, Any]:
    """All-reduce ``num_bytes`` of float32 among all workers.

    Returns:
        ``begun_s`` and ``ended_s`` of each, on the clock that the processes of a machine share.
    """
    group = bench.job.group("cpu")
    tensor = torch.ones(max(1, num_bytes // 4))
    begun, ended = [], []
    for _ in range(WARM_UP + repeats):
        time.sleep(PAUSE_S)
        begun.append(time.monotonic())
        group.all_reduce(tensor).wait()
        ended.append(time.monotonic())
        tensor.fill_(1.0)
    return {"begun_s": begun[WARM_UP:], "ended_s": ended[WARM_UP:]}


def exchange(bench: Bench, *, scale: float, repeats: int, num_servers: int = 1) -> dict[str, Any]:
    """Push a gradient of ``scale`` times the task's size to the servers, and pull the parameters.

    Returns:
        ``num_bytes`` of the parameters; ``wall_s``, the durations; seconds of processor time that the worker
        (``worker_s``) and the servers (``server_s``) took for one exchange.
    """
    own, _ = bench.task.build(0)
    model, optimizer, policy = _scaled(bench.task, scale)
    num_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    wall: list[float] = []
    worker_s = 0.0
    with join(model, optimizer, policy=policy, options=JoinOptions(job=bench.job, num_servers=num_servers)) as session:
        servers = _server_processes()
        begun_server_s = 0.0
        for number in range(WARM_UP + repeats):
            # connections and caches are warm from here on
            if number == WARM_UP:
                begun_server_s = sum(map(_processor_s, servers))
            # an exchange comes after a backward pass, which has emptied the caches
            _compute_gradient(bench.task, own)
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 1e-3)
            # exchanges of a training are apart as well
            time.sleep(PAUSE_S)
            begun_s, processor_s = time.perf_counter(), time.process_time()
            session.step()
            if number >= WARM_UP:
                wall.append(time.perf_counter() - begun_s)
                worker_s += time.process_time() - processor_s
        server_s = sum(map(_processor_s, servers)) - begun_server_s
    return {
        "num_bytes": num_bytes,
        "wall_s": wall,
        "worker_s": worker_s / repeats,
        "server_s": server_s / repeats,
    }


def steps(bench: Bench, *, repeats: int) -> dict[str, Any]:
    """Time steps of the task in a synchronous session of this worker alone.

    Returns:
        ``step_s``: the durations of `Session.step`: the optimizer, the check for what is not finite, the records.
    """
    task = bench.task
    model, optimizer = task.build(0)
    durations: list[float] = []
    with join(model, optimizer, policy="bsp", options=JoinOptions(job=bench.job)) as session:
        samples = (WARM_UP + repeats) * task.batch_size
        for batch in session.shard(
            DataLoader(task.train_set(), batch_size=task.batch_size, shuffle=True), samples=samples
        ):
            loss = task.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            time.sleep(PAUSE_S)
            begun_s = time.perf_counter()
            session.step(loss)
            durations.append(time.perf_counter() - begun_s)
    return {"step_s": durations[WARM_UP:]}


def _compute_gradient(task: Task, model: nn.Module) -> None:
    batch = next(iter(DataLoader(task.train_set(), batch_size=task.batch_size)))
    task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)


def _scaled(task: Task, scale: float) -> tuple[nn.Module, torch.optim.Optimizer, str]:
    """Make as many tensors as the task's model has, each ``scale`` times as large, with an optimizer like the task's.

    The last value is the policy to exchange with: a server adds deltas where it cannot run the task's optimizer.
    """
    model, optimizer = task.build(0)
    sizes = [max(1, round(scale * parameter.numel())) for parameter in model.parameters() if parameter.requires_grad]
    scaled = nn.Module()
    for number, size in enumerate(sizes):
        scaled.register_parameter(f"tensor{number}", nn.Parameter(torch.zeros(size)))
    kind: Callable[..., torch.optim.Optimizer] = type(optimizer)
    if SUPPORTED_OPTIMIZERS.get(type(optimizer).__name__) is not kind:
        return scaled, torch.optim.SGD(scaled.parameters(), lr=1e-3), "asp,update=delta"
    accepted = inspect.signature(kind).parameters
    options = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return scaled, kind(scaled.parameters(), **options), "asp"


def _server_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "plesio.runtime.server.process" in child.cmdline()]


def _processor_s(process: psutil.Process) -> float:
    """Seconds that all threads of a process have computed: to the nanosecond, where the kernel counts so finely."""
    try:
        nanoseconds = 0
        for thread in process.threads():
            with open(f"/proc/{process.pid}/task/{thread.id}/schedstat", encoding="ascii") as file:
                nanoseconds += int(file.read().split()[0])
        return nanoseconds / 1e9
    except FileNotFoundError:
        times = process.cpu_times()
        return float(times.user + times.system)


MEASUREMENTS: Mapping[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (gradients, all_reduce, exchange, steps)
}


def serve_measurements(section: TaskSection, environment: Mapping[str, str], commands: Connection) -> None:
    """Measure what is asked for until told to stop, as the entry of a process.

    Args:
        section: The task.
        environment: torchrun's variables.
        commands: Receives ``(name, arguments)`` of a measurement, None to stop; sends ("ready", figures of the task),
            then for each measurement ("done", what it returned) or ("failed", sentence).
    """
    with enlisted(environment):
        torch.set_num_threads(1)
        place = WorkerPlace.from_environment() or replace(
            WorkerPlace.alone(),  # one worker has a server all the same
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            agent_hosts_store=True,
        )
        try:
            task = section_task(section)
            check_task(task)
            num_parameters = sum(parameter.numel() for parameter in task.build(0)[0].parameters())
            figures = {"name": task.name, "batch_size": task.batch_size, "num_parameters": num_parameters}
            with Job(place) as job:
                commands.send(("ready", {**figures, "num_samples": len(task.train_set())}))  # type: ignore[arg-type]
                bench = Bench(task, job)
                while (command := commands.recv()) is not None:
                    name, arguments = command
                    try:
                        commands.send(("done", MEASUREMENTS[name](bench, **arguments)))
                    except (PlesioError, RuntimeError) as error:
                        commands.send(("failed", f"{name}: {type(error).__name__}: {error}"))
                        break
        except PlesioError as error:
            commands.send(("unusable", str(error)))
        except (KeyboardInterrupt, EOFError, BrokenPipeError):
            pass  # told to stop, or whoever asked is gone
