"""Problems for virtual workers: small, in float64, and with samples that carry their number."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Problem(Dataset[tuple[int, Tensor, Tensor]]):
    """Samples that carry their number; ``noise`` is an augmentation, drawn by whoever loads the sample."""

    def __init__(self, num_samples: int, num_features: int, *, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(num_samples, num_features, generator=generator, dtype=torch.float64)
        self.y = self.x.sum(1, keepdim=True).tanh()
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        x = self.x[index]
        return index, x + self.noise * torch.randn(x.shape, dtype=x.dtype) if self.noise else x, self.y[index]


def perceptron(num_features: int, hidden: int, *, batch_norm: bool = False) -> nn.Sequential:
    """A model of a `Problem`, the same each time; without ``hidden`` units it is linear."""
    norm = [nn.BatchNorm1d(hidden)] if batch_norm else []
    deep = [nn.Linear(num_features, hidden), *norm, nn.Tanh(), nn.Linear(hidden, 1)] if hidden else []
    model = nn.Sequential(*(deep or [nn.Linear(num_features, 1)])).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model
