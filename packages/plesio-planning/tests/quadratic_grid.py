"""A chain of stages whose smoothness and gradient noise are known, trained by `plesio.grid` in the virtual world.

Stage k has the parameters x^k and adds ``A_k x^k`` to what it is handed, so the last one has ``r = A x``; it also adds
``ξ^k x^k``, where the sample ξ is noise. The loss is the mean of ``φ(r) + ξ x``, with ``φ = |r|²/2``, or with
``Σ log(1+r²)/2``, which is not convex. So f is φ(Ax), its gradient ``Aᵀφ'(Ax)`` has the Lipschitz constant
``L = |AᵀA|``, and one sample's gradient to one stage has exactly the variance σ².

Every update notes the weights before it and its gradient; what `plesio_planning.theory.grid` bounds is read off them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import plesio
from plesio.policies.grid import GridSetting
from plesio.runtime.worlds.virtual import simulate
from support.workers import cluster_of_racks

Array = NDArray[np.float64]
_SLOWEST_ALONE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticChain:
    """A problem, whatever number of stages it is cut into.

    Attributes:
        hessian: AᵀA, symmetric and positive; its rows are parameters.
        kind: φ.
        start: Every parameter at the beginning.
    """

    hessian: Array
    kind: Literal["quadratic", "log"] = "quadratic"
    start: float = 1.0

    @classmethod
    def coupled(
        cls, num_parameters: int = 8, *, kind: Literal["quadratic", "log"] = "quadratic", seed: int = 0
    ) -> "QuadraticChain":
        """Make a chain with curvatures from 0.1 to 1 in directions that all stages share; L is 1."""
        turned, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(num_parameters, num_parameters)))
        return cls(hessian=turned @ np.diag(np.geomspace(0.1, 1, num_parameters)) @ turned.T, kind=kind)

    @classmethod
    def first_stage_steepest(cls, num_parameters: int = 8) -> "QuadraticChain":
        """Make a chain with curvature 1 along the first parameter, whose stage is the latest, and 0.1 elsewhere."""
        return cls(hessian=np.diag([1.0, *[0.1] * (num_parameters - 1)]))

    @property
    def smoothness(self) -> float:
        """L."""
        return float(np.linalg.eigvalsh(self.hessian)[-1])

    @property
    def root(self) -> Array:
        """A."""
        values, vectors = np.linalg.eigh(self.hessian)
        return np.asarray(np.sqrt(values)[:, None] * vectors.T)

    @property
    def gap(self) -> float:
        """Δ: f at the start; its least value is 0."""
        reached = self.root @ np.full(len(self.hessian), self.start)
        values = np.log1p(reached**2) if self.kind == "log" else reached**2
        return float(values.sum() / 2)

    def gradients(self, points: Array) -> Array:
        """Return the gradients of f at points, which are along the last dimension."""
        root = self.root
        reached = points @ root.T
        return np.asarray((reached / (1 + reached**2) if self.kind == "log" else reached) @ root)


class _Part(nn.Module):
    """One stage: its input and output are noise, r and the sum of ``ξ x`` so far, side by side.

    Args:
        begin: First of its parameters.
        end: The one after its last.
    """

    def __init__(self, chain: QuadraticChain, begin: int, end: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((end - begin,), chain.start, dtype=torch.float64))
        self._columns = torch.from_numpy(chain.root[:, begin:end].copy())
        self._begin, self._end, self._size = begin, end, len(chain.hessian)

    def forward(self, given: Tensor) -> Tensor:
        """Return the input of the next stage."""
        size = self._size
        if self._begin == 0:
            given = torch.cat([given, given.new_zeros(len(given), size + 1)], dim=1)
        noise, reached, total = torch.split(given, [size, size, 1], dim=1)
        added = noise[:, self._begin : self._end] @ self.x
        return torch.cat([noise, reached + self._columns @ self.x, total + added[:, None]], dim=1)


def _loss_of(chain: QuadraticChain) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        reached = output[:, -1 - len(chain.hessian) : -1]
        values = torch.log1p(reached**2) if chain.kind == "log" else reached**2
        return (values.sum(1) / 2 + output[:, -1]).mean()

    return loss


class _NotedSgd(torch.optim.SGD):
    """SGD that notes the weights before every update, and its gradient."""

    weights: list[Array]
    gradients: list[Array]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Note, and step."""
        [parameter] = self.param_groups[0]["params"]
        self.weights.append(parameter.detach().numpy().copy())
        self.gradients.append(parameter.grad.numpy().copy())
        super().step(closure)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRun:
    """The records of a run, in figures that are over groups, updates and parameters."""

    chain: QuadraticChain
    setting: GridSetting
    weights: Array
    gradients: Array

    @property
    def delays(self) -> list[int]:
        """The delay of each parameter, in updates."""
        return delays_of(self.chain, self.setting)

    def noise(self) -> Array:
        """Return the gradients' difference to those of f at the point that the micro-batch went forward with."""
        updates = np.arange(self.weights.shape[1])
        late = [self.weights[:, np.maximum(updates - delay, 0), place] for place, delay in enumerate(self.delays)]
        return self.gradients - self.chain.gradients(np.stack(late, axis=-1))

    @property
    def variance(self) -> float:
        """Variance of the gradient by which the groups' mean moves."""
        return float(np.square(self.noise().mean(axis=0)).sum(axis=-1).mean())

    @property
    def mean_squared_gradient(self) -> float:
        """Mean squared gradient of f at the groups' mean, over the run."""
        return float(np.square(self.chain.gradients(self.weights.mean(axis=0))).sum(axis=-1).mean())

    def squared_distances(self) -> Array:
        """Return the mean squared distance of a group from the groups' mean, before each update."""
        return np.asarray(np.square(self.weights - self.weights.mean(axis=0)).sum(axis=-1).mean(axis=0))


def delays_of(chain: QuadraticChain, setting: GridSetting) -> list[int]:
    """Return the delay of each parameter's stage, in updates."""
    each = len(chain.hessian) // setting.stages
    return [setting.delays[place // each] for place in range(len(chain.hessian))]


def _table(notes: dict[int, _NotedSgd], setting: GridSetting, name: Literal["weights", "gradients"]) -> Array:
    """Put what the stages of each group have noted side by side, by rank."""
    rows = []
    for group in range(setting.groups):
        ranks = range(group * setting.stages, (group + 1) * setting.stages)
        rows.append(np.concatenate([np.stack(getattr(notes[rank], name)) for rank in ranks], axis=1))
    return np.stack(rows)


def train_chain(
    chain: QuadraticChain,
    setting: GridSetting,
    *,
    learning_rate: float,
    num_ticks: int,
    batch_size: int = 1,
    stage_variance: float = 0.0,
    disturbed_by: float = 0.0,
    seed: int = 0,
) -> ChainRun:
    """Train a chain on a grid in the virtual world.

    Args:
        chain: The problem; the number of stages divides that of its parameters.
        setting: The grid.
        learning_rate: α, of plain SGD.
        num_ticks: Micro-batches that each group is given.
        batch_size: Samples of a micro-batch, of one group.
        stage_variance: σ², of one sample's gradient to one stage's parameters.
        disturbed_by: Deviation of what is added to every parameter of every group after its first tick.
        seed: Seed of noise and disturbance.
    """
    size, each = len(chain.hessian), len(chain.hessian) // setting.stages
    notes: dict[int, _NotedSgd] = {}

    def work(job: object) -> None:
        parts = [_Part(chain, begin, begin + each) for begin in range(0, size, each)]
        made: list[_NotedSgd] = []

        def optimizer(weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            made.append(_NotedSgd(weights, lr=learning_rate))
            made[0].weights, made[0].gradients = [], []
            return made[0]

        with plesio.grid(parts, optimizer, _loss_of(chain), setting=setting) as session:
            random = np.random.default_rng([seed, session.group])
            for tick in range(num_ticks):
                noise = random.normal(scale=(stage_variance / each) ** 0.5, size=(batch_size, size))
                session.step(torch.from_numpy(noise), torch.zeros(batch_size))
                # groups begin alike: disturbed, they have something to agree on
                if tick == 0:
                    _disturb(session, disturbed_by, seed=seed)
            session.finish()
            notes[session.rank] = made[0]

    simulate(work, num_workers=setting.num_workers, cluster=cluster_of_racks([setting.num_workers])).values()
    return ChainRun(
        chain=chain,
        setting=setting,
        weights=_table(notes, setting, "weights"),
        gradients=_table(notes, setting, "gradients"),
    )


def _disturb(session: Any, deviation: float, *, seed: int) -> None:
    random = np.random.default_rng([seed, 1, session.rank])
    with torch.no_grad():
        for parameter in session.layers.parameters():
            parameter.add_(torch.from_numpy(random.normal(scale=deviation, size=tuple(parameter.shape))))


def shrinking_rate(squared_distances: Sequence[float], *, least: float = 1e-22) -> float:
    """Return the factor by which a distance shrinks at each place, in the long run: a line fitted to its logarithm.

    It is fitted where the slowest part is alone, below a thousandth of the largest squared distance, and where rounding
    does not count yet.

    >>> round(shrinking_rate([0.25**place + 9 * 0.01**place for place in range(15)]), 3)
    0.5

    Args:
        squared_distances: At equal intervals.
        least: The least that is used, as a share of the largest.
    """
    values = np.asarray(squared_distances) / max(squared_distances)
    places = np.flatnonzero((values < _SLOWEST_ALONE) & (values > least))
    slope, _ = np.polyfit(places, np.log(values[places]), 1)
    return float(np.exp(slope / 2))
