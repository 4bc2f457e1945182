"""A residual network with batch normalisation on small pictures of patterns that are shifted and noisy."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from families.problem import Problem, accuracy_points, cross_entropy, generator_of

SIDE, CLASSES, CHANNELS = 8, 6, 8
NUM_TRAIN, NUM_HELD_OUT = 2048, 1000


class Block(nn.Module):
    """Two convolutions with batch normalisation, and the way past them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the pictures and the block's addition."""
        hidden = F.relu(self.first_norm(self.first(pictures)))
        return F.relu(pictures + self.second_norm(self.second(hidden)))


def resnet(seed: int, difficulty: float) -> Problem:
    """Make a class a pattern that wraps around by up to a quarter of its side; noise is 0.7 to 1.5 of its spread."""
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=generator_of(seed, 0))
    noise = 0.7 + 0.8 * difficulty
    held_out, held_out_classes = _pictures(patterns, NUM_HELD_OUT, noise=noise, random=generator_of(seed, 2))
    return Problem(
        build=lambda: nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
            Block(CHANNELS),
            nn.Flatten(),
            nn.Linear(CHANNELS * SIDE * SIDE // 4, CLASSES),
        ),
        train=_pictures(patterns, NUM_TRAIN, noise=noise, random=generator_of(seed, 1)),
        loss=cross_entropy,
        points=accuracy_points(held_out, held_out_classes),
    )


def _pictures(patterns: Tensor, number: int, *, noise: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    classes = torch.randint(len(patterns), (number,), generator=random)
    shifts = torch.randint(-SIDE // 8, SIDE // 8 + 1, (number, 2), generator=random).tolist()
    shifted = [patterns[one].roll(shift, dims=(1, 2)) for one, shift in zip(classes.tolist(), shifts, strict=True)]
    return torch.stack(shifted) + noise * torch.randn(number, 1, SIDE, SIDE, generator=random), classes
