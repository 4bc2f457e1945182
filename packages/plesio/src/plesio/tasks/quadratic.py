"""``quadratic``: least squares whose Hessian has exactly the spectrum asked for, and whose optimum is known.

Theory. The rows of ``A`` and the entries of ``b`` are the samples of

    f(x) = 1/(2m) |A x - b|^2,        H = A'A / m.

``A = sqrt(m) U S V'`` with orthonormal columns in ``U`` and ``V`` gives ``H = V S^2 V'``: the eigenvalues are chosen,
log-spaced from ``1 / condition_number`` to 1. With ``b = A x* + e`` and ``e`` orthogonal to the columns of ``A``, the
least-squares solution is ``x*`` itself and ``f* = |e|^2 / (2m)``; ``e`` is scaled so that its root mean square is
``noise``. ``noise = 0`` is interpolation: at the optimum the gradient of every sample is zero.

Suboptimality is taken as ``(x - x*)' H (x - x*) / 2``, which equals ``f(x) - f*`` and loses no digits near zero.

Heterogeneity. Worker ``w`` sees ``b + A d_w`` instead of ``b``: its own optimum is ``x* + d_w``, its Hessian is the
same. The shifts sum to zero over the workers and have root mean square length ``heterogeneity``, so the mean of the
workers' objectives differs from ``f`` by a constant only and keeps the optimum ``x*``. It does so when all workers take
part equally: a policy that lets a fast worker contribute more pulls the result towards that worker's optimum, which is
what this option is there to show.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from plesio.core.errors import TaskError
from plesio.tasks.options import check_integer, check_number
from plesio.tasks.task import Task

Array = npt.NDArray[np.float64]
PROBLEM_SEED = 0
START_DISTANCE = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class LeastSquares:
    """A least-squares problem in closed form, in double precision.

    Attributes:
        rows: A, one sample a row, [num_samples, dimension].
        targets: b, [num_samples].
        hessian: H, [dimension, dimension].
        optimum: x*, [dimension].
        optimal_value: f*.
    """

    rows: Array
    targets: Array
    hessian: Array
    optimum: Array
    optimal_value: float

    def value(self, point: Array) -> float:
        """Return the objective f at ``point``."""
        residual = self.rows @ point - self.targets
        return float(residual @ residual) / (2 * len(self.targets))

    def suboptimality(self, point: Array) -> float:
        """Return the distance f - f* at ``point``: zero or more, and accurate near the optimum."""
        offset = point - self.optimum
        return float(offset @ self.hessian @ offset) / 2


def quadratic(
    *,
    dimension: int = 32,
    condition_number: float = 100.0,
    heterogeneity: float = 0.0,
    noise: float = 0.1,
    num_samples: int = 2048,
    batch_size: int = 16,
    learning_rate: float = 0.05,
    num_epochs: int = 20,
) -> Task:
    """Minimise least squares with a known optimum: suboptimality f(x) - f*, to be minimised.

    The problem is the same for every seed; the seed draws the starting point, at distance 10 from the optimum.

    Args:
        dimension: Dimension of the unknown x.
        condition_number: Largest over smallest eigenvalue of the Hessian; the largest is 1.
        heterogeneity: Root mean square distance of the workers' own optima from the common one.
        noise: Root mean square of the residuals at the optimum.
        num_samples: Rows of A, more than ``dimension``.
        batch_size: Samples in one step of one worker.
        learning_rate: Learning rate of plain SGD.
        num_epochs: Passes over the samples, all workers together.

    Raises:
        TaskError: An option out of its range.
    """
    check_integer(dimension, task="quadratic", option="dimension")
    check_integer(num_samples, task="quadratic", option="num_samples", minimum=dimension + 1)
    check_number(condition_number, task="quadratic", option="condition_number", minimum=1.0)
    check_number(heterogeneity, task="quadratic", option="heterogeneity", minimum=0.0)
    check_number(noise, task="quadratic", option="noise", minimum=0.0)
    check_number(learning_rate, task="quadratic", option="learning_rate", above=0.0)
    if dimension == 1 and condition_number != 1:
        raise TaskError('task "quadratic": in one dimension there is one eigenvalue; write condition_number = 1')
    setting = _Setting(
        dimension=dimension,
        condition_number=float(condition_number),
        heterogeneity=float(heterogeneity),
        noise=float(noise),
        num_samples=num_samples,
    )
    # parts are bound here, so that a task can be pickled for worker processes
    common = Task(
        name="quadratic",
        build=functools.partial(_build, setting, learning_rate=learning_rate),
        train_set=functools.partial(_train_set, setting, None),
        loss=_loss,
        metric=functools.partial(_suboptimality, setting),
        metric_name="suboptimality",
        metric_goal="min",
        batch_size=batch_size,
        num_epochs=num_epochs,
    )
    if heterogeneity == 0:
        return common
    return dataclasses.replace(common, per_worker=functools.partial(_of_worker, common, setting))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    dimension: int
    condition_number: float
    heterogeneity: float
    noise: float
    num_samples: int


@functools.cache
def problem(setting: _Setting) -> LeastSquares:
    """Make the problem of a setting; equal settings give equal numbers."""
    random = np.random.default_rng(PROBLEM_SEED)
    m, d = setting.num_samples, setting.dimension
    eigenvalues = np.logspace(-math.log10(setting.condition_number), 0.0, d)
    # One more column than the unknowns: it is orthogonal to all of A's, which is what the residual has to be.
    left, _ = np.linalg.qr(random.standard_normal((m, d + 1)))
    right, _ = np.linalg.qr(random.standard_normal((d, d)))
    rows = math.sqrt(m) * (left[:, :d] * np.sqrt(eigenvalues)) @ right.T
    optimum = random.standard_normal(d)
    residual = setting.noise * math.sqrt(m) * left[:, d]
    return LeastSquares(
        rows=rows,
        targets=rows @ optimum + residual,
        hessian=(right * eigenvalues) @ right.T,
        optimum=optimum,
        optimal_value=setting.noise**2 / 2,
    )


def worker_shifts(setting: _Setting, *, num_workers: int) -> Array:
    """Return the shift of each worker's optimum, [num_workers, dimension]; the shifts sum to zero over the workers."""
    if num_workers == 1:
        return np.zeros((1, setting.dimension))
    shifts = np.random.default_rng(PROBLEM_SEED + 1).standard_normal((num_workers, setting.dimension))
    shifts -= shifts.mean(axis=0)
    return shifts * (setting.heterogeneity / math.sqrt(np.square(shifts).sum(axis=1).mean()))


def _of_worker(common: Task, setting: _Setting, worker: int, num_workers: int) -> Task:
    return dataclasses.replace(common, train_set=functools.partial(_train_set, setting, (worker, num_workers)))


def _build(setting: _Setting, seed: int, *, learning_rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    del seed  # `Task` seeds torch before it calls
    model = nn.Linear(setting.dimension, 1, bias=False)
    direction = torch.randn(setting.dimension, dtype=torch.float64)
    start = torch.from_numpy(problem(setting).optimum) + START_DISTANCE * direction / direction.norm()
    with torch.no_grad():
        model.weight.copy_(start)
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate)


def _train_set(setting: _Setting, worker: tuple[int, int] | None) -> TensorDataset:
    squares = problem(setting)
    targets = squares.targets
    if worker is not None:
        rank, num_workers = worker
        targets = targets + squares.rows @ worker_shifts(setting, num_workers=num_workers)[rank]
    return TensorDataset(torch.tensor(squares.rows, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32))


def _loss(model: nn.Module, batch: Any) -> Tensor:
    rows, targets = batch
    residual: Tensor = model(rows).squeeze(1) - targets
    return residual.square().mean() / 2


def _suboptimality(setting: _Setting, model: nn.Module) -> float:
    point = next(model.parameters()).detach().cpu().double().flatten().numpy()
    return problem(setting).suboptimality(point)
