"""The short probe before advice: a task or a script makes some steps here, and what it keeps and takes is noted."""

import contextlib
import io
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from plesio.advisor import ModelSizes
from plesio.bench.model_sizes import SavedTensors, sizes_of
from plesio.bench.recipe import make_workers
from plesio.bench.simulate import VirtualScript
from plesio.core.errors import ConfigError, ExchangeError
from plesio.runtime.parameters.optimizer_spec import optimizer_spec
from plesio.runtime.worker.exchange.mean_moments import can_share_moments
from plesio.runtime.worker.exchange.replica import makes_sparse_gradients
from plesio.runtime.worlds.virtual import SimulationProgress
from plesio.tasks.check import check_task
from plesio.tasks.task import Task

PROBE_S = 1.0
"""Seconds in which a step's time is measured."""
FEWEST_STEPS = 5
SIMULATED_STEP_S = 1e-3
"""Overhead of a worker's step on this machine besides its gradient, as a first guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Findings of a short probe on this machine.

    Attributes:
        has_store: Whether the store's servers can run the optimizer.
        shares_moments: Whether local steps can leave the optimizer's state as the mean gradient would.
        gradient_s: Seconds of a step here.
        metric_s: Seconds of an evaluation; 0 is not known.
        sample_s: Seconds of this machine for a sample of a run.
    """

    name: str
    sizes: ModelSizes
    has_store: bool
    shares_moments: bool
    batch_size: int
    gradient_s: float
    metric_s: float
    sample_s: float


def probe_task(task: Task) -> Probed:
    """Build a task, make some steps of it here, and count what it keeps.

    Raises:
        TaskError: It cannot be trained.
    """
    check_task(task)
    model, optimizer = task.build(0)
    saved = SavedTensors()
    saved.leave_out(model)
    steps_s: list[float] = []
    data = task.train_set()
    until_s = time.monotonic() + PROBE_S
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        while len(steps_s) < FEWEST_STEPS or time.monotonic() < until_s:
            for batch in DataLoader(data, batch_size=task.batch_size):
                begun_s = time.perf_counter()
                with saved.counting() if not steps_s else contextlib.nullcontext():
                    task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
                steps_s.append(time.perf_counter() - begun_s)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if len(steps_s) >= FEWEST_STEPS and time.monotonic() >= until_s:
                    break
        begun_s = time.perf_counter()
        task.metric(model)
        metric_s = time.perf_counter() - begun_s
    finally:
        torch.set_num_threads(num_threads)
    gradient_s = statistics.median(steps_s[1:])
    return Probed(
        name=task.name,
        sizes=sizes_of(model, optimizer, saved),
        has_store=_has_store(optimizer),
        shares_moments=_shares_moments(model, optimizer),
        batch_size=task.batch_size,
        gradient_s=gradient_s,
        metric_s=metric_s,
        sample_s=(gradient_s + SIMULATED_STEP_S) / task.batch_size,
    )


def probe_script(script: Path, arguments: Sequence[str], *, count: int) -> Probed:
    """Run a script's first steps on ``count`` virtual workers, and count what it keeps.

    Raises:
        ConfigError: It cannot be run, or never calls ``plesio.join``.
    """
    models: list[tuple[torch.nn.Module, torch.optim.Optimizer]] = []
    saved = SavedTensors()

    stepped_s: list[float] = []

    def on_join(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        models.append((model, optimizer))
        saved.leave_out(model)
        optimizer.register_step_post_hook(lambda *_: stepped_s.append(time.monotonic()))

    workers = make_workers(
        {"count": count, "step_time": {"kind": "constant", "mean": "1 ms"}},
        folder=Path.cwd(),
        where="plesio advise",
    )
    seen: list[tuple[float, SimulationProgress]] = []

    def is_enough() -> bool:
        return bool(seen) and seen[-1][1].steps >= FEWEST_STEPS * count and seen[-1][0] - seen[0][0] >= PROBE_S

    def stop(progress: SimulationProgress) -> bool:
        if progress.steps:
            seen.append((time.monotonic(), progress))
        return is_enough()

    # stops after enough steps and enough time: the first steps alone would be slower than the rest
    with quiet():
        begun_s = time.monotonic()
        runs = VirtualScript(path=script, arguments=arguments, workers=workers).run(
            "bsp", seed=0, trace=None, on_join=on_join, around=saved.counting, stop=stop
        )
        ended_s = time.monotonic()
    # our own stop ends a run as an interruption does; too early, it was the user's
    if runs[0].status == "interrupted" and not is_enough():
        raise KeyboardInterrupt
    if runs[0].status == "failed":
        raise ConfigError(f"{script} cannot be run under bsp: {runs[0].error}")
    model, optimizer = models[0]
    steps, samples = max(1, runs[0].steps), max(1, runs[0].samples)
    # the workers take turns: from one's step to the next one's a worker computes, and imports and building do not count
    between_s = [later - earlier for earlier, later in itertools.pairwise(stepped_s)]
    step_s = statistics.median(between_s) if between_s else (ended_s - begun_s) / steps
    return Probed(
        name=script.name,
        sizes=sizes_of(model, optimizer, saved),
        has_store=_has_store(optimizer),
        shares_moments=_shares_moments(model, optimizer),
        batch_size=max(1, round(samples / steps)),
        gradient_s=max(1e-4, step_s - SIMULATED_STEP_S),
        metric_s=0.0,
        sample_s=step_s * steps / samples,
    )


def _has_store(optimizer: torch.optim.Optimizer) -> bool:
    try:
        optimizer_spec(optimizer)
    except ExchangeError:
        return False
    return True


def _shares_moments(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    return can_share_moments(optimizer) and not any(map(makes_sparse_gradients, model.modules()))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide a script's output, which it prints many times over."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
