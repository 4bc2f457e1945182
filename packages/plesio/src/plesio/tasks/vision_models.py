"""Small models of the families that papers compare, for images of 8 x 8 pixels and ten classes.

Each keeps what makes its family behave as it does when many workers train it, at a size for a processor's core:

- ``vgg``: stacked 3 x 3 convolutions and a wide fully connected head, which has most of the parameters (Simonyan &
  Zisserman 2014). Much to send for what there is to compute.
- ``resnet``: residual blocks (He et al. 2016).
- ``densenet``: every layer sees all earlier ones, so there is little to send and much to keep (Huang et al. 2017).
- ``efficientnet``: inverted bottlenecks with depthwise convolutions and squeeze-and-excitation (Tan & Le 2021).
- ``convnext``: depthwise 7 x 7 convolutions and pointwise layers (Liu et al. 2022).
- ``mlp``: fully connected layers alone.
- ``transformer``: patches of 2 x 2 pixels as tokens (Dosovitskiy et al. 2021).

The originals normalise over the batch, but these normalise over groups of channels: no buffers, and the same model
under every policy.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

NUM_CLASSES = 10
SIDE = 8


def _conv(inputs: int, outputs: int, *, kernel_size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Make a convolution that keeps the size of the image (but for its stride), normalised over groups of channels."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size, stride, kernel_size // 2, groups=groups, bias=False),
        nn.GroupNorm(math.gcd(4, outputs), outputs),
    )


class _Head(nn.Sequential):
    """Mean over the image, then the classes."""

    def __init__(self, channels: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES))


class _Residual(nn.Module):
    """A body whose output is added to its input, which is projected where the shape changes."""

    def __init__(self, body: nn.Module, *, project: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.project = project if project is not None else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        total: Tensor = self.project(features) + self.body(features)
        return total


def _vgg(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 1
    for outputs in (width, 2 * width):
        for _ in range(2):
            layers.append(nn.Sequential(_conv(channels, outputs), nn.ReLU()))
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    flat = channels * (SIDE // 4) ** 2
    head = [
        nn.Flatten(),
        nn.Sequential(nn.Linear(flat, 16 * width), nn.ReLU()),
        nn.Sequential(nn.Linear(16 * width, 16 * width), nn.ReLU()),
        nn.Linear(16 * width, NUM_CLASSES),
    ]
    return nn.Sequential(*layers, *head)


def _resnet(width: int) -> nn.Module:
    blocks: list[nn.Module] = []
    channels = width
    for outputs, stride in ((width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2)):
        body = nn.Sequential(_conv(channels, outputs, stride=stride), nn.ReLU(), _conv(outputs, outputs))
        same = stride == 1 and channels == outputs
        project = None if same else _conv(channels, outputs, kernel_size=1, stride=stride)
        blocks.append(nn.Sequential(_Residual(body, project=project), nn.ReLU()))
        channels = outputs
    return nn.Sequential(_conv(1, width), nn.ReLU(), *blocks, _Head(channels))


class _DenseLayer(nn.Module):
    """New features of all there are, put beside them."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(math.gcd(4, inputs), inputs), nn.ReLU(), nn.Conv2d(inputs, growth, 3, padding=1, bias=False)
        )

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([features, self.body(features)], 1)


def _densenet(width: int) -> nn.Module:
    blocks: list[nn.Module] = []
    channels = 2 * width
    for _ in range(2):
        layers = [_DenseLayer(channels + number * width, width) for number in range(3)]
        channels += 3 * width
        blocks += [*layers, nn.Sequential(_conv(channels, channels // 2, kernel_size=1), nn.ReLU(), nn.AvgPool2d(2))]
        channels //= 2
    return nn.Sequential(_conv(1, 2 * width), *blocks, _Head(channels))


class _SqueezeExcite(nn.Module):
    """Scales each channel by a function of its mean over the image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 4, 1),
            nn.SiLU(),
            nn.Conv2d(channels // 4, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor) -> Tensor:
        scaled: Tensor = features * self.gate(features)
        return scaled


def _efficientnet(width: int) -> nn.Module:
    blocks: list[nn.Module] = []
    channels = width
    for outputs, stride in ((width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2)):
        inner = 4 * channels
        body = nn.Sequential(
            _conv(channels, inner, kernel_size=1),
            nn.SiLU(),
            _conv(inner, inner, stride=stride, groups=inner),
            nn.SiLU(),
            _SqueezeExcite(inner),
            _conv(inner, outputs, kernel_size=1),
        )
        blocks.append(_Residual(body) if stride == 1 and channels == outputs else body)
        channels = outputs
    return nn.Sequential(_conv(1, width), nn.SiLU(), *blocks, _Head(channels))


def _convnext(width: int) -> nn.Module:
    blocks: list[nn.Module] = []
    channels = width
    for outputs in (width, 2 * width):
        if outputs != channels:
            blocks.append(nn.Conv2d(channels, outputs, 2, stride=2))
            channels = outputs
        for _ in range(2):
            body = nn.Sequential(
                _conv(channels, channels, kernel_size=7, groups=channels),
                nn.Conv2d(channels, 4 * channels, 1),
                nn.GELU(),
                nn.Conv2d(4 * channels, channels, 1),
            )
            blocks.append(_Residual(body))
    return nn.Sequential(_conv(1, width), *blocks, _Head(channels))


def _mlp(width: int) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2)]
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, width), nn.ReLU(), *layers, nn.Linear(width, NUM_CLASSES))


class _Transformer(nn.Module):
    """Encoder blocks over patches, and the mean over them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.place = nn.Parameter(0.5 * torch.randn((SIDE // 2) ** 2, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.patch(images).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            features = block(features)
        logits: Tensor = self.output(self.norm(features.mean(1)))
        return logits


MODELS: Mapping[str, tuple[Callable[[int], nn.Module], int]] = MappingProxyType(
    {
        "convnext": (_convnext, 16),
        "densenet": (_densenet, 12),
        "efficientnet": (_efficientnet, 12),
        "mlp": (_mlp, 256),
        "resnet": (_resnet, 16),
        "transformer": (_Transformer, 64),
        "vgg": (_vgg, 24),
    }
)
"""The maker of each model, which takes its width, and the width that it has unless another is given."""
