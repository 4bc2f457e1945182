"""``digits`` with a fifth of the training labels wrong, for a network with or without what regularises it.

The network is that of the task without its normalisation, so that each of dropout, weight decay and BatchNorm is the
only thing that is added. Wrong labels leave room to overfit: without them all variants end at 98 %.
"""

import functools
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from plesio.tasks.load import load_task
from plesio.tasks.task import Task

__all__ = ["regularised_digits"]

WRONG_LABELS = 0.2
LABEL_SEED = 7


def regularised_digits(
    *, learning_rate: float, dropout: float = 0.0, weight_decay: float = 0.0, batch_norm: bool = False
) -> Task:
    """Make the task; held-out labels are right."""
    build = functools.partial(
        _build, learning_rate=learning_rate, dropout=dropout, weight_decay=weight_decay, batch_norm=batch_norm
    )
    return replace(load_task("digits"), name="regularised_digits", build=build, train_set=_train_set, target=None)


def _build(
    seed: int, *, learning_rate: float, dropout: float, weight_decay: float, batch_norm: bool
) -> tuple[nn.Module, Optimizer]:
    del seed  # `Task` seeds torch before it calls
    normalise = nn.BatchNorm2d if batch_norm else nn.Identity
    model = nn.Sequential(
        _Centred(),
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        normalise(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        normalise(32),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(64, 10),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer is not model[-1]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate, weight_decay=weight_decay)


class _Centred(nn.Module):
    """Pixels with mean 0 and variance 1, as in the task's own network."""

    def forward(self, images: Tensor) -> Tensor:
        return (images - 0.3) / 0.37


@functools.cache
def _train_set() -> TensorDataset:
    clean = load_task("digits").train_set()
    assert isinstance(clean, TensorDataset)
    images, labels = clean.tensors
    generator = torch.Generator().manual_seed(LABEL_SEED)
    wrong: Tensor = torch.rand(len(labels), generator=generator) < WRONG_LABELS
    others = (labels + torch.randint(1, 10, labels.shape, generator=generator)) % 10
    return TensorDataset(images, torch.where(wrong, others, labels))
