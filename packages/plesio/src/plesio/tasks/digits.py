"""``digits``: 1,797 real handwritten digits of 8 x 8 pixels, bundled with scikit-learn, and a small CNN.

The data are the test half of the UCI "Optical Recognition of Handwritten Digits" set (Alpaydin & Kaynak 1998). The
split is fixed: it does not depend on a run's seed, so runs of different seeds are measured on the same held-out digits.

The optimizer has no momentum on purpose. Staleness acts as momentum of its own (Mitliagkas et al. 2016), and adding
momentum 0.9 at the same effective rate costs accuracy once updates are 8 versions old; `docs/tasks.md` has the figures.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import TensorDataset

from plesio.core.extras import require
from plesio.tasks.chain import Chain
from plesio.tasks.options import check_number
from plesio.tasks.task import Task

HELD_OUT = 360
SPLIT_SEED = 0
EVALUATION_BATCH = 500
PIXEL_MEAN, PIXEL_STD = 0.3, 0.37


def digits(*, batch_size: int = 32, learning_rate: float = 0.15, num_epochs: int = 16) -> Task:
    """Recognise handwritten digits: held-out accuracy, to be maximised, with a target of 97 %.

    Args:
        batch_size: Samples in one step of one worker.
        learning_rate: Learning rate of plain SGD.
        num_epochs: Passes over the 1,437 training digits, all workers together.

    Raises:
        TaskError: An option out of its range.
    """
    check_number(learning_rate, task="digits", option="learning_rate", above=0.0)
    return Task(
        name="digits",
        build=functools.partial(_build, learning_rate=learning_rate),
        train_set=_train_set,
        loss=cross_entropy,
        metric=_accuracy,
        metric_name="accuracy",
        metric_goal="max",
        batch_size=batch_size,
        num_epochs=num_epochs,
        target=0.97,
        chain=Chain(layers=_layers, loss=F.cross_entropy),
    )


class Centred(nn.Module):
    """Images [batch, 1, 8, 8] in [0, 1] with the mean and the deviation of digits' pixels taken out."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the images, of mean 0 and deviation 1."""
        return (images - PIXEL_MEAN) / PIXEL_STD


class _DigitsCNN(nn.Module):
    """Two 3 x 3 convolutions, one pooling, two fully connected layers: 38 thousand parameters.

    Per-sample normalisation, smooth activations and centred inputs keep the largest curvature low, which is what limits
    the learning rate under staleness. Nothing is normalised over the batch, so that there are no buffers to share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.norm1 = nn.GroupNorm(4, 16)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.norm2 = nn.GroupNorm(4, 32)
        self.hidden = nn.Linear(32 * 4 * 4, 64)
        self.norm3 = nn.LayerNorm(64)
        self.output = nn.Linear(64, 10)
        for layer in (self.conv1, self.conv2, self.hidden):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # it has one; torch's stubs allow for bias=False

    def forward(self, images: Tensor) -> Tensor:
        features = F.gelu(self.norm1(self.conv1((images - PIXEL_MEAN) / PIXEL_STD)))
        features = F.avg_pool2d(F.gelu(self.norm2(self.conv2(features))), 2)
        logits: Tensor = self.output(F.gelu(self.norm3(self.hidden(features.flatten(1)))))
        return logits


def _layers(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, _DigitsCNN), "as `_build` makes it"
    first = (Centred(), model.conv1, model.norm1, nn.GELU())
    second = (model.conv2, model.norm2, nn.GELU(), nn.AvgPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), model.hidden, model.norm3, nn.GELU(), model.output)


def _build(seed: int, *, learning_rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    del seed  # `Task` seeds torch before it calls
    model = _DigitsCNN()
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate)


@functools.cache
def _split() -> tuple[TensorDataset, TensorDataset]:
    """Return (training, held-out): each class is in both in the same proportion."""
    require("digits", "The task of handwritten digits")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = torch.from_numpy(data.images).to(torch.float32).div(16.0).unsqueeze(1)
    labels = torch.from_numpy(data.target).to(torch.int64)
    train, held_out = train_test_split(
        torch.arange(len(labels)), test_size=HELD_OUT, random_state=SPLIT_SEED, stratify=labels.numpy()
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def digit_pixels(*, held_out: bool) -> tuple[Tensor, Tensor]:
    """Return the images as other files have them, [number, 1, 8, 8] of dtype uint8, and the labels [number]."""
    images, labels = _split()[held_out].tensors
    return (255 * images).round().to(torch.uint8), labels


def _train_set() -> TensorDataset:
    return _split()[0]


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss of a batch of images and labels."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def accuracy_on(data: TensorDataset, model: nn.Module) -> float:
    """Return the share of the images that the model gives their label."""
    images, labels = data.tensors
    device = next(model.parameters()).device
    correct = 0
    for start in range(0, len(labels), EVALUATION_BATCH):
        some = slice(start, start + EVALUATION_BATCH)
        correct += int((model(images[some].to(device)).argmax(1) == labels[some].to(device)).sum())
    return correct / len(labels)


def _accuracy(model: nn.Module) -> float:
    return accuracy_on(_split()[1], model)
