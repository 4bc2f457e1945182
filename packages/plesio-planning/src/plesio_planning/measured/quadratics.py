"""The quadratics of `plesio_planning.studies.heterogeneous_quadratic` as a task, and real runs on them.

A sample is a gradient's noise: the loss of worker w on it is ``½ Σ λ_w (x - o_w)² + ξ x``, so that a step with one
sample is exactly the step that the studies model. The metric is the loss above the optimum, without noise.
"""

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from plesio.bench.compare import run_comparison
from plesio.bench.progress import RunLabel, RunSnapshot
from plesio.bench.recipe import make_recipe
from plesio.core.errors import PlesioError
from plesio.core.results import RunResult
from plesio.tasks.task import Task
from plesio_planning.studies.heterogeneous_quadratic import HeterogeneousQuadratic, make_heterogeneous

NUM_SAMPLES = 4096
PROBLEM_SEED = 0
LIKE_WORKERS = {"hessian_spread": 0.0, "heterogeneity": 0.0, "noise": 0.0}
"""Options of workers that have one quadratic in common, without noise."""


def problem_of(
    *,
    num_workers: int,
    num_dimensions: int = 10,
    condition_number: float = 10.0,
    hessian_spread: float = 0.5,
    heterogeneity: float = 0.5,
    noise: float = 0.1,
) -> HeterogeneousQuadratic:
    """Return the problem that `unlike_quadratics` with the same options minimises."""
    return make_heterogeneous(
        num_workers=num_workers,
        num_dimensions=num_dimensions,
        condition_number=condition_number,
        hessian_spread=hessian_spread,
        heterogeneity=heterogeneity,
        noise=noise,
        random=np.random.default_rng(PROBLEM_SEED),
    )


class _Point(nn.Module):
    """A point, which starts at 1 in each coordinate."""

    def __init__(self, num_dimensions: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(num_dimensions, dtype=torch.float64))

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the point and the gradient's noise; called as a model, so that gradients are averaged as a model's."""
        return self.x, noise.mean(dim=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Loss:
    eigenvalues: Tensor
    optimum: Tensor

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        x, noise = model(*batch)
        loss: Tensor = 0.5 * (self.eigenvalues * (x - self.optimum).square()).sum() + (noise * x).sum()
        return loss


def unlike_quadratics(*, num_workers: int, learning_rate: float | Sequence[float], **options: float) -> Task:
    """Make the task; its options are those of `problem_of` and a learning rate: one, or one for each seed from 0 on."""
    rates = [learning_rate] if isinstance(learning_rate, (int, float)) else list(learning_rate)
    problem = problem_of(num_workers=num_workers, **options)  # type: ignore[arg-type]
    eigenvalues, optima = torch.tensor(problem.eigenvalues), torch.tensor(problem.optima)
    curvature = eigenvalues.mean(dim=0)
    num_dimensions = len(curvature)

    def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = _Point(num_dimensions)  # the start is always the same
        return model, torch.optim.SGD(model.parameters(), lr=rates[seed % len(rates)])

    def train_set(worker: int) -> TensorDataset:
        random = np.random.default_rng([PROBLEM_SEED, worker])
        return TensorDataset(torch.tensor(problem.noise * random.standard_normal((NUM_SAMPLES, num_dimensions))))

    def metric(model: nn.Module) -> float:
        x = model.x
        assert isinstance(x, Tensor)
        return float(0.5 * (curvature * x.detach().square()).sum())

    common = Task(
        name="unlike_quadratics",
        build=build,
        train_set=functools.partial(train_set, 0),
        loss=_Loss(curvature, torch.zeros(num_dimensions, dtype=torch.float64)),
        metric=metric,
        metric_name="suboptimality",
        metric_goal="min",
        batch_size=1,
        num_epochs=1,
    )

    def per_worker(worker: int, number: int) -> Task:
        if number != num_workers:  # one alone, which checks the task
            return common
        return replace(
            common, train_set=functools.partial(train_set, worker), loss=_Loss(eigenvalues[worker], optima[worker])
        )

    return replace(common, per_worker=per_worker)


class _Told:
    """Says which run begins, and fails with a run that fails."""

    def __init__(self, on_step: Callable[[str], None]) -> None:
        self._on_step = on_step

    def run_kept(self, label: RunLabel) -> None: ...

    def run_advanced(self, snapshot: RunSnapshot) -> None: ...

    def run_finished(self, result: RunResult) -> None: ...

    def run_started(self, label: RunLabel, *, num_samples: int | None) -> None:
        self._on_step(f"run {label.number} of {label.num_runs}: {label.policy}")

    def run_failed(self, result: RunResult) -> None:
        raise PlesioError(f"cannot measure: {result.policy} failed: {result.error}")


def run_quadratics(
    policies: Sequence[str],
    *,
    options: Mapping[str, Any],
    workers: Mapping[str, Any],
    num_steps: int,
    evaluate_every: int,
    seeds: Sequence[int],
    on_step: Callable[[str], None],
) -> dict[str, list[RunResult]]:
    """Train with real processes under each of the policies; return a policy's runs in the order of the seeds.

    The steps are each worker's, on average; so are those between two evaluations.

    Raises:
        PlesioError: A run failed.
    """
    count = int(workers["count"])
    data = {
        "task": {"name": f"{__name__}:unlike_quadratics", "options": {"num_workers": count, **options}},
        "run": {
            "policies": list(policies),
            "seeds": list(seeds),
            "samples": num_steps * count,
            "evaluate_every": evaluate_every * count,
        },
        "workers": dict(workers),
    }
    with tempfile.TemporaryDirectory() as folder:
        recipe = make_recipe(data, folder=Path(folder), where="the measurement")
        runs = run_comparison(recipe, out=Path(folder), resume=False, progress=_Told(on_step))
    return {policy: runs[place * len(seeds) : (place + 1) * len(seeds)] for place, policy in enumerate(policies)}
