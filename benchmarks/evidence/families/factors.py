"""Structure without labels: a matrix of few factors, an autoencoder, and contrasts between two views."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from families.problem import Problem, dense, explained_points, generator_of

ROWS, COLUMNS, RANK = 200, 120, 4
INPUTS = 32
NUM_HELD_OUT = 1000
GROUP = 8
"""Samples that are contrasted with each other in training: no more, so a loss does not depend on the batch's size."""


class Factors(nn.Module):
    """Vectors of rows and columns; an entry is their product."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(0.3 * torch.randn(ROWS, 2 * RANK))
        self.columns = nn.Parameter(0.3 * torch.randn(COLUMNS, 2 * RANK))

    def forward(self, places: Tensor) -> Tensor:
        """Return the entries at ``places``, [n, 2]."""
        return (self.rows[places[:, 0]] * self.columns[places[:, 1]]).sum(1)


def factorisation(seed: int, difficulty: float) -> Problem:
    """Complete a matrix of rank 4 from a third of its entries, which have noise of 0.1 to 0.5 of their spread."""
    random = generator_of(seed, 0)
    matrix = torch.randn(ROWS, RANK, generator=random) @ torch.randn(RANK, COLUMNS, generator=random) / RANK**0.5
    order = torch.randperm(ROWS * COLUMNS, generator=random)
    places = torch.stack([order // COLUMNS, order % COLUMNS], dim=1)
    seen, hidden = places[:8192], places[8192 : 8192 + 4 * NUM_HELD_OUT]
    noise = (0.1 + 0.4 * difficulty) * torch.randn(len(seen), generator=random)
    return Problem(
        build=Factors,
        train=(seen, matrix[seen[:, 0], seen[:, 1]] + noise),
        loss=_squared,
        points=explained_points(lambda model: model(hidden), matrix[hidden[:, 0], hidden[:, 1]]),
    )


def _squared(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    inputs, truth = batch
    return (model(inputs) - truth).square().mean()


def autoencoder(seed: int, difficulty: float) -> Problem:
    """Squeeze 32 numbers through 6, where 4 to 8 hidden causes made them; points are percent of variance kept."""
    causes = 4 + round(4 * difficulty)
    first = torch.randn(causes, 16, generator=generator_of(seed, 0))
    second = torch.randn(16, INPUTS, generator=generator_of(seed, 1)) / 4

    def numbers(number: int, part: int) -> Tensor:
        hidden = torch.tanh(torch.randn(number, causes, generator=generator_of(seed, part)) @ first)
        return hidden @ second

    held_out = numbers(NUM_HELD_OUT, 3)
    return Problem(
        build=lambda: dense(INPUTS, 32, 6, 32, INPUTS, activation=nn.Tanh),
        train=(numbers(4096, 2),),
        loss=lambda model, batch: (model(batch[0]) - batch[0]).square().mean(),
        points=explained_points(lambda model: model(held_out), held_out),
    )


def contrastive(seed: int, difficulty: float) -> Problem:
    """Find a sample's other view among 64; views differ by noise of 0.3 to 0.8 of the signal."""
    mixing = torch.randn(8, INPUTS, generator=generator_of(seed, 0)) / 8**0.5
    noise = 0.3 + 0.5 * difficulty

    def views(number: int, part: int) -> tuple[Tensor, Tensor]:
        random = generator_of(seed, part)
        signal = torch.randn(number, 8, generator=random) @ mixing
        one, other = (signal + noise * torch.randn(signal.shape, generator=random) for _ in range(2))
        return one, other.sign() * other.abs().sqrt()

    one, other = (view.unflatten(0, (-1, 64)) for view in views(NUM_HELD_OUT // 64 * 64, 2))

    def points(model: nn.Module) -> float:
        likeness = _encoded(model, one) @ _encoded(model, other).transpose(-1, -2)
        return 100.0 * (likeness.argmax(-1) == torch.arange(64)).float().mean().item()

    def loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        size = min(GROUP, len(batch[0]))
        groups = len(batch[0]) // size
        one, other = (_encoded(model, view[: groups * size]).unflatten(0, (groups, size)) for view in batch)
        likeness = one @ other.transpose(-1, -2) / 0.2
        return F.cross_entropy(likeness.flatten(0, 1), torch.arange(size).repeat(groups))

    return Problem(build=lambda: dense(INPUTS, 48, 12), train=views(4096, 1), loss=loss, points=points)


def _encoded(model: nn.Module, view: Tensor) -> Tensor:
    return F.normalize(model(view), dim=-1)
