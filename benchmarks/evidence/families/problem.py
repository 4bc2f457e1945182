"""The problem of a family: a model, tensors to train on, a loss, and a metric in points."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem.

    Attributes:
        build: Makes a fresh model; torch is seeded before.
        train: Tensors of equal length; a sample is a row of each.
        loss: Mean loss of a batch, which is rows of ``train``.
        points: The metric: larger is better, 100 is perfect, and a model that has learned nothing has 0 or what
            guessing has. Called in evaluation mode without gradients.
        rows_of: ``rows_of(worker, num_workers)`` gives the row that a worker has in place of each row of ``train``,
            where workers differ in their data.
    """

    build: Callable[[], nn.Module]
    train: tuple[Tensor, ...]
    loss: Callable[[nn.Module, Sequence[Tensor]], Tensor]
    points: Callable[[nn.Module], float]
    rows_of: Callable[[int, int], Tensor] | None = None

    @property
    def num_samples(self) -> int:
        """Rows of ``train``."""
        return len(self.train[0])


class Leapt(nn.Module):
    """A model on inputs that have leapt: a third of the numbers change sign, or a third of the symbols trade places.

    What a model has learned of the others still holds.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs."""
        if inputs.is_floating_point():
            return self.model(torch.where(torch.arange(inputs.shape[-1]) % 3 == 0, -inputs, inputs))
        return self.model(torch.where(inputs % 6 < 2, inputs ^ 1, inputs))


class Rows(Dataset[Any]):
    """Rows of tensors of equal length, a batch at a time."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        rows = torch.as_tensor(indices)
        return [tensor[rows] for tensor in self._tensors]


def generator_of(seed: int, part: int) -> torch.Generator:
    """Random numbers for one part of a problem's data; parts and seeds have streams of their own."""
    return torch.Generator().manual_seed(1_000_003 * seed + part)


def cross_entropy(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Mean cross-entropy of inputs and classes."""
    inputs, classes = batch
    return F.cross_entropy(model(inputs), classes)


def accuracy_points(inputs: Tensor, classes: Tensor) -> Callable[[nn.Module], float]:
    """Percent of held-out samples whose class is found."""

    def points(model: nn.Module) -> float:
        return 100.0 * (model(inputs).argmax(-1) == classes).float().mean().item()

    return points


def explained_points(guess: Callable[[nn.Module], Tensor], truth: Tensor) -> Callable[[nn.Module], float]:
    """Percent of the variance of ``truth`` that is explained, R squared; not below -100."""
    variance = (truth - truth.mean(0)).square().mean()

    def points(model: nn.Module) -> float:
        error = (guess(model) - truth).square().mean()
        return max(-100.0, 100.0 * (1.0 - (error / variance).item()))

    return points


def dense(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Fully connected layers of these widths."""
    layers: list[Any] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])
