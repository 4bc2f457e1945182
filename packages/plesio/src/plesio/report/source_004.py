"""What Ovi measured: "Performance characterization of distributed deep learning strategies", Tables 3 to 8.

DDP and FSDP trained on CIFAR-10 on A100s, parameter servers on MNIST on A10Gs, both with SGD, a rate of 0.01 and
momentum 0.9, for ten epochs. One run each: the paper has no seeds and no intervals.
"""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "ACCURACY_POINTS",
    "ASYNCHRONOUS",
    "DDP",
    "DECISIONS",
    "FSDP",
    "MODELS",
    "MODIFIED",
    "PAPER",
    "SYNCHRONOUS",
    "TIME_LIMIT_S",
    "TIME_S",
    "WORKERS",
]

PAPER = "Ovi"
WORKERS = (1, 2, 4)
"""GPUs, and here workers."""

DDP, FSDP, SYNCHRONOUS, ASYNCHRONOUS, MODIFIED = ("DDP", "FSDP", "Synchronous", "Asynchronous", "Modified async")

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "vgg": "VGG16",
        "efficientnet": "EfficientNet_v2",
        "convnext": "ConvNeXt_Large",
        "densenet": "DenseNet",
        "resnet": "ResNet50",
    }
)
"""The paper's models, by the names that ours of the same family have in the recipe."""

TIME_LIMIT_S = 3000.0
"""Where the paper stopped; infinite times below are beyond it."""
_BEYOND = float("inf")

TIME_S: Mapping[tuple[str, str], tuple[float, float, float]] = MappingProxyType(
    {
        (DDP, "vgg"): (487.55, 230.74, 113.81),
        (DDP, "efficientnet"): (1786.19, 836.28, 365.63),
        (DDP, "convnext"): (1678.77, 794.65, 485.89),
        (FSDP, "vgg"): (1059.67, 490.32, 279.53),
        (FSDP, "efficientnet"): (10292.84, 4882.40, 2110.95),
        (FSDP, "convnext"): (5891.63, 2786.49, 1490.43),
        (SYNCHRONOUS, "densenet"): (509.88, 231.04, 137.34),
        (SYNCHRONOUS, "resnet"): (468.31, 246.54, 129.24),
        (SYNCHRONOUS, "vgg"): (891.52, 545.61, 247.66),
        (ASYNCHRONOUS, "densenet"): (506.42, 219.57, 117.43),
        (ASYNCHRONOUS, "resnet"): (464.91, 220.97, 109.02),
        (ASYNCHRONOUS, "vgg"): (680.22, 351.62, 177.86),
        (MODIFIED, "densenet"): (_BEYOND, 246.54, 250.84),
        (MODIFIED, "resnet"): (_BEYOND, _BEYOND, 206.64),
        (MODIFIED, "vgg"): (_BEYOND, _BEYOND, 417.22),
    }
)
"""Tables 3, 5 and 6: training time by strategy and model, on 1, 2 and 4 GPUs."""

ACCURACY_POINTS: Mapping[tuple[str, str], tuple[float, ...]] = MappingProxyType(
    {
        (SYNCHRONOUS, "densenet"): (51.6, 49.2, 46.3),
        (SYNCHRONOUS, "resnet"): (52.2, 47.6, 40.2),
        (SYNCHRONOUS, "vgg"): (98.4, 96.9, 47.6),
        (ASYNCHRONOUS, "densenet"): (45.3, 38.3, 28.4),
        (ASYNCHRONOUS, "resnet"): (43.9, 38.8, 34.7),
        (ASYNCHRONOUS, "vgg"): (83.2, 78.2, 42.4),
        (MODIFIED, "densenet"): (float("nan"), float("nan"), 44.1),
        (MODIFIED, "resnet"): (float("nan"), float("nan"), 39.5),
        (MODIFIED, "vgg"): (float("nan"), float("nan"), 46.8),
    }
)
"""Tables 4 and 7: accuracy in percent on 1, 2 and 4 GPUs; the modified one was told on 4 alone."""

DECISIONS: Mapping[str, tuple[str, str, str, str]] = MappingProxyType(
    {
        "Memory usage": ("high", "low", "higher", "lower"),
        "Communication overhead": ("moderate", "high", "higher", "low"),
        "Scalability": ("good for moderate counts", "high for large models", "bottlenecks", "good for many workers"),
        "Training time": ("fast", "slower", "slower", "fast"),
        "Model consistency": ("high", "high", "high", "low"),
    }
)
"""Table 8, the rows that can be measured: its words for DDP, FSDP, and the two parameter servers.

The others (replication, parallelism, distribution, complexity) describe the strategies.
"""
