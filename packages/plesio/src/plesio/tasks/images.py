"""``images``: CIFAR-10 or MNIST from files in a folder that the user names, and a small CNN that fits their shape.

Without files, try the same network on the digits that scikit-learn bundles (``format="digits"``).
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import TensorDataset

from plesio.core.errors import TaskError
from plesio.tasks.chain import Chain
from plesio.tasks.digits import accuracy_on, cross_entropy, digit_pixels
from plesio.tasks.image_folder import ImageFiles, find_images
from plesio.tasks.options import check_number
from plesio.tasks.task import Task

NUM_CLASSES = 10


def images(
    *,
    folder: str | Path | None = None,
    format: str = "auto",
    batch_size: int = 32,
    learning_rate: float = 0.1,
    num_epochs: int = 5,
) -> Task:
    """Classify CIFAR-10 or MNIST: accuracy on the files' own test set, to be maximised.

    The files are looked for at once and read when they are first needed, once per process.

    Args:
        folder: Holds the files, or the folder that their archive unpacks to.
        format: ``cifar10-python``, ``cifar10-binary``, ``mnist``, or ``auto`` for the one that is there; ``digits`` are
            scikit-learn's, and need no folder.
        batch_size: Samples in one step of one worker.
        learning_rate: Learning rate of plain SGD.
        num_epochs: Passes over the training images, all workers together.

    Raises:
        TaskError: An option out of its range, or no folder.
        DataError: Files are missing; later, when they are read: a file is not in the format it claims.
    """
    check_number(learning_rate, task="images", option="learning_rate", above=0.0)
    files = _source(folder, format=format)
    return Task(
        name="images",
        build=functools.partial(_build, files, learning_rate=learning_rate),
        train_set=functools.partial(_train_set, files),
        loss=cross_entropy,
        metric=functools.partial(_accuracy, files),
        metric_name="accuracy",
        metric_goal="max",
        batch_size=batch_size,
        num_epochs=num_epochs,
        chain=Chain(layers=_layers, loss=F.cross_entropy),
    )


@dataclass(frozen=True, slots=True)
class _Digits:
    """The digits that scikit-learn bundles, in place of files."""

    def train_images(self) -> tuple[Tensor, Tensor]:
        return digit_pixels(held_out=False)

    def held_out_images(self) -> tuple[Tensor, Tensor]:
        return digit_pixels(held_out=True)


def _source(folder: str | Path | None, *, format: str) -> ImageFiles | _Digits:
    if format == "digits":
        if folder is not None:
            raise TaskError(f'task "images": format = "digits" needs no files; leave out folder = "{folder}"')
        return _Digits()
    if folder is None:
        raise TaskError(
            'task "images" needs the folder of its files: folder = "data"; or format = "digits", which needs none'
        )
    return find_images(Path(folder), format=format)


class _Scaled(nn.Module):
    """Pixels of dtype uint8 as numbers from -1 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() / 127.5 - 1


class ImageCNN(nn.Module):
    """Three 3 x 3 convolutions, normalised per sample, then one fully connected layer on 4 x 4 averages.

    Args:
        channels: Channels of the images, whose height and width may be any from 4 on.
    """

    def __init__(self, *, channels: int) -> None:
        super().__init__()
        self.scale = _Scaled()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=3, padding=1),
            nn.GroupNorm(4, 16),
            nn.GELU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1, stride=2),
            nn.GroupNorm(4, 32),
            nn.GELU(),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.GroupNorm(4, 64),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.output = nn.Linear(64 * 4 * 4, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [batch, 10] of images [batch, channels, height, width] of dtype uint8."""
        logits: Tensor = self.output(self.features(self.scale(images)))
        return logits


def _layers(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, ImageCNN), "as `_build` makes it"
    return nn.Sequential(model.scale, *model.features, model.output)


@functools.cache
def _train_set(files: ImageFiles | _Digits) -> TensorDataset:
    return TensorDataset(*files.train_images())


@functools.cache
def _held_out(files: ImageFiles | _Digits) -> TensorDataset:
    return TensorDataset(*files.held_out_images())


def _build(files: ImageFiles | _Digits, seed: int, *, learning_rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    del seed  # `Task` seeds torch before it calls
    model = ImageCNN(channels=_train_set(files).tensors[0].shape[1])
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate)


def _accuracy(files: ImageFiles | _Digits, model: nn.Module) -> float:
    return accuracy_on(_held_out(files), model)
