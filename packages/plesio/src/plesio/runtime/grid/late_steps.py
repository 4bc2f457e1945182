"""Steps of Adam and its kin with late gradients: in the eigenbasis of gradients, forward passes at weights ahead.

**What delay does.** Adam divides each number's gradient by the root of v, the mean of its squares. Along an eigenvector
of ``V^-1/2 H V^-1/2``, H being the curvature and V = diag(v), with an eigenvalue that is K over the learning rate,

    w[t+1] = w[t] - K m[t+1],    m[t+1] = β m[t] + (1-β) w[t-d]

is stable up to ``K = 2 (1+β) / (1-β)`` without delay, 38 at the usual β of 0.9, but only up to about ``1/d`` with it:
0.18 for d = 6. A small transformer under Adam is trained at a K of 1 to 2. So a smaller rate would be needed, and all
that is learned along flat directions would take so much longer. Two things raise the limit, and both are done here.

**Rotation.** K is large since the axes of the weights are not those of the curvature, so that a steep direction is
divided by the v of many numbers, most of which is of others. In the eigenbasis of ``E[Gᵀ G]`` a matrix's steep
directions are numbers of their own. Each is divided by the root of its own squares, which grow as soon as it begins to
oscillate. That is Adam in the basis of SOAP (Vyas et al. 2024, arXiv 2409.11321, algorithm 3); Jung et al. 2026
found that it mends late gradients of asynchronous pipelines. With C the mean of ``Gᵀ G``, by Adam's own β2, and Q its
eigenvectors, brought up to date by one step of orthogonal iteration, ``qr(C Q)``, every `RENEWED_EVERY` updates:

    W <- W + (the step that the optimizer would make of W Q, with the gradient G Q) Qᵀ

m is turned along when the basis is; v is kept, as in SOAP. Biases and the like are vectors, and are not turned. Plain
SGD is the same in every basis, so nothing is to be done there.

**Weights ahead.** A forward pass is done at ``w + d Δ``, Δ being the last update: where the weights will be when its
gradient is applied, if the updates until then are like it (SpecTrain, Chen et al. 2018, equation 4; XPipe, Guan et al.
2019, under Adam). In the recursion above ``w[t-d]`` becomes ``w + d (w - w_before)`` at t - d.

**Optimizers.** The rule is for those that keep ``exp_avg`` and ``exp_avg_sq``, found after their first step. The others
are left alone, to the bit. docs/evidence.md has what each part is worth ("What a grid learns from a sample").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["LONGEST_SIDE", "RENEWED_EVERY", "LateSteps"]

RENEWED_EVERY = 10
"""Updates between two renewals of the basis, SOAP's."""
LONGEST_SIDE = 10_000
"""Longest side that is turned, SOAP's limit: a vocabulary is not turned."""
_MOMENTS = frozenset({"exp_avg", "exp_avg_sq"})


@dataclass(slots=True)
class _Side:
    """The eigenbasis of one side of a matrix.

    Attributes:
        gram: C.
        vectors: Q, in columns.
    """

    gram: Tensor
    vectors: Tensor


@dataclass(slots=True)
class _Basis:
    """The basis of one matrix of weights; a side that is too long for one has None."""

    rows: _Side | None
    columns: _Side | None

    @classmethod
    def of(cls, gradient: Tensor) -> "_Basis":
        """Begin with the eigenvectors of one gradient."""
        return cls(*(None if gram is None else _Side(gram, _eigenvectors(gram)) for gram in _grams(gradient)))

    @property
    def sides(self) -> tuple[_Side | None, _Side | None]:
        return self.rows, self.columns

    def learn(self, gradient: Tensor, *, kept: float) -> None:
        for side, gram in zip(self.sides, _grams(gradient), strict=True):
            if side is not None and gram is not None:
                side.gram.lerp_(gram, 1 - kept)

    def renew(self, moment: Tensor) -> None:
        """Do one step of orthogonal iteration towards the eigenvectors; turn ``moment`` along, in place."""
        before = self.turned_back(moment)
        for side in self.sides:
            if side is not None:
                side.vectors = torch.linalg.qr(side.gram @ side.vectors).Q
        moment.copy_(self.turned(before))

    def turned(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the weights' shape in the basis."""
        matrix = tensor.flatten(1)
        rows, columns = (None if side is None else side.vectors.to(matrix.dtype) for side in self.sides)
        matrix = matrix if rows is None else rows.T @ matrix
        return (matrix if columns is None else matrix @ columns).view_as(tensor)

    def turned_back(self, tensor: Tensor) -> Tensor:
        """Return a tensor that is in the basis as it is outside."""
        matrix = tensor.flatten(1)
        rows, columns = (None if side is None else side.vectors.to(matrix.dtype) for side in self.sides)
        matrix = matrix if rows is None else rows @ matrix
        return (matrix if columns is None else matrix @ columns.T).view_as(tensor)


def _grams(gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return ``G Gᵀ`` and ``Gᵀ G``, in single precision at least; each None if it would be too large."""
    matrix = gradient.flatten(1).to(torch.promote_types(gradient.dtype, torch.float32))
    rows, columns = matrix.shape
    return matrix @ matrix.T if rows <= LONGEST_SIDE else None, matrix.T @ matrix if columns <= LONGEST_SIDE else None


def _eigenvectors(gram: Tensor) -> Tensor:
    """Return those of a gradient that may have overflowed: then training fails, as it does without a basis."""
    vectors: Tensor = torch.linalg.eigh(torch.nan_to_num(gram, nan=0.0, posinf=0.0, neginf=0.0)).eigenvectors
    return vectors


def _keeps_moments(optimizer: Optimizer) -> bool:
    """Tell whether it steps as Adam does, which is known after its first step."""
    states, groups = optimizer.state.values(), optimizer.param_groups
    return any(state.keys() >= _MOMENTS for state in states) and all("betas" in group for group in groups)


def _can_turn(weight: Tensor) -> bool:
    gradient = weight.grad
    return gradient is not None and weight.ndim > 1 and not weight.is_complex() and gradient.layout == torch.strided


class LateSteps:
    """Makes the steps of one stage's optimizer.

    Args:
        optimizer: Any.
        weights: Those that it steps, by name.
        delay: d, updates that gradients are late; with 0 every optimizer is left alone.
    """

    def __init__(self, optimizer: Optimizer, weights: Mapping[str, Tensor], *, delay: int) -> None:
        self._optimizer = optimizer
        self._weights = weights
        self._delay = delay
        self._num_updates = 0
        self._bases: dict[str, _Basis] = {}
        self._moved: dict[str, Tensor] = {}
        """Δ of each weight; none until an update has been made in the basis."""

    @torch.no_grad()
    def step(self) -> None:
        """Step the optimizer with the gradients that the weights have."""
        if self._delay == 0 or not _keeps_moments(self._optimizer):
            self._step_optimizer()
            return
        turned = self._turn()
        before = {name: weight.clone() for name, weight in self._weights.items()}
        for name in turned:
            self._weights[name].copy_(self._bases[name].turned(before[name]))
        inside = {name: self._weights[name].clone() for name in turned}
        self._step_optimizer()
        for name in turned:  # the step alone is turned back, so that rounding does not add up in the weights
            step = self._weights[name] - inside[name]
            self._weights[name].copy_(before[name] + self._bases[name].turned_back(step))
        self._moved = {name: weight - before[name] for name, weight in self._weights.items()}

    def _step_optimizer(self) -> None:
        with torch.enable_grad():
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _turn(self) -> list[str]:
        """Bring the bases up to date, and the gradients into them; returns the weights that have one."""
        due = self._num_updates % RENEWED_EVERY == 0
        self._num_updates += 1
        turned = []
        kept = {weight: group["betas"][1] for group in self._optimizer.param_groups for weight in group["params"]}
        for name, weight in self._weights.items():
            moment = self._optimizer.state.get(weight, {}).get("exp_avg")
            if moment is None or not _can_turn(weight):
                continue
            assert weight.grad is not None, "one that can be turned"
            basis = self._bases.get(name)
            if basis is None:
                basis = self._bases[name] = _Basis.of(weight.grad)
                moment.copy_(basis.turned(moment))
            else:
                basis.learn(weight.grad, kept=kept[weight])
                if due:
                    basis.renew(moment)
            weight.grad = basis.turned(weight.grad)
            turned.append(name)
        return turned

    def ahead(self) -> dict[str, Tensor]:
        """Return the weights where they will be after as many updates as gradients are late."""
        return {
            name: weight.detach() + self._delay * self._moved[name] if name in self._moved else weight
            for name, weight in self._weights.items()
        }

    def state(self) -> dict[str, Any]:
        return {
            "num_updates": self._num_updates,
            "bases": {
                name: [None if side is None else [side.gram.clone(), side.vectors.clone()] for side in basis.sides]
                for name, basis in self._bases.items()
            },
            "moved": {name: moved.clone() for name, moved in self._moved.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        self._num_updates = state["num_updates"]
        self._bases = {
            name: _Basis(*(None if side is None else _Side(*map(torch.clone, side)) for side in sides))
            for name, sides in state["bases"].items()
        }
        self._moved = {name: moved.clone() for name, moved in state["moved"].items()}
