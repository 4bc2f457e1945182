"""``vision``: the digits of `plesio.tasks.digits` by a model of a named family, to compare families on the same data.

Models are `plesio.tasks.vision_models`' own, at a size for one core, or torchvision's by name. The optimizer is the one
that Ovi's "Performance characterization of distributed deep learning strategies" uses: SGD with momentum.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from plesio.core.errors import TaskError, nearest
from plesio.tasks.chain import Chain
from plesio.tasks.digits import Centred, digits
from plesio.tasks.options import check_integer, check_number
from plesio.tasks.task import Task
from plesio.tasks.vision_models import MODELS, NUM_CLASSES

TORCHVISION = "torchvision:"
TORCHVISION_SIDE = 32
"""Pixels that its models are given on a side: five halvings leave one."""


def vision(
    *,
    model: str = "vgg",
    width: int | None = None,
    batch_size: int = 16,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    num_epochs: int = 8,
) -> Task:
    """Recognise handwritten digits with a model of your choice: held-out accuracy, to be maximised, target 95 %.

    Args:
        model: A name in `plesio.tasks.vision_models.MODELS`, or ``torchvision:resnet18`` for one of torchvision's,
            which gets the digits at 32 x 32 pixels and must be installed.
        width: Channels of the first layer, or width of the layers; None is the model's own. Not for torchvision's.
        batch_size: Samples in one step of one worker.
        learning_rate: Rate of SGD.
        momentum: Momentum of SGD; 0 is plain.
        num_epochs: Passes over the 1,437 training digits, all workers together.

    Raises:
        TaskError: No such model, torchvision is not there, or an option out of its range.
    """
    check_number(learning_rate, task="vision", option="learning_rate", above=0.0)
    check_number(momentum, task="vision", option="momentum", minimum=0.0)
    data = digits()
    return Task(
        name="vision",
        build=functools.partial(
            _build, make=_maker(model, width=width), learning_rate=learning_rate, momentum=momentum
        ),
        train_set=data.train_set,
        loss=data.loss,
        metric=data.metric,
        metric_name=data.metric_name,
        metric_goal=data.metric_goal,
        batch_size=batch_size,
        num_epochs=num_epochs,
        target=0.95,
        chain=Chain(layers=functools.partial(_layers, name=model), loss=F.cross_entropy),
    )


class _OfCentred(nn.Module):
    """A model of images in [0, 1] that are centred first, and enlarged where it needs more pixels and three colours."""

    def __init__(self, model: nn.Module, *, side: int | None = None) -> None:
        super().__init__()
        self.centre = Centred()
        self.model = model
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        centred = self.centre(images)
        if self.side is not None:
            centred = F.interpolate(centred, size=(self.side, self.side), mode="bilinear").expand(-1, 3, -1, -1)
        logits: Tensor = self.model(centred)
        return logits


def _layers(model: nn.Module, *, name: str) -> nn.Sequential:
    assert isinstance(model, _OfCentred), "as `_build` makes it"
    if not isinstance(model.model, nn.Sequential):
        raise TaskError(
            f'task "vision": model = "{name}" is no chain of layers, and a grid trains chains; '
            'write another, as in model = "vgg"'
        )
    return nn.Sequential(model.centre, *model.model)


def _maker(model: object, *, width: int | None) -> Callable[[], nn.Module]:
    """Return the maker of a model, or raise at once if its name is wrong."""
    if not isinstance(model, str):
        raise TaskError(f'task "vision": model = {model!r}; write a name in quotes, as in "vgg"')
    if model.startswith(TORCHVISION):
        if width is not None:
            raise TaskError(f'task "vision": {model} has its own width; leave out width = {width!r}')
        return functools.partial(_of_torchvision, model.removeprefix(TORCHVISION))
    if model not in MODELS:
        raise TaskError(
            f'task "vision" has no model "{model}"; {nearest(model, MODELS)} '
            f'(torchvision\'s are written "{TORCHVISION}resnet18")'
        )
    make, own = MODELS[model]
    if width is not None:
        check_integer(width, task="vision", option="width", minimum=4)
    return lambda: _OfCentred(make(own if width is None else width))


def _of_torchvision(name: str) -> nn.Module:
    try:
        from torchvision import models  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise TaskError(
            f'task "vision": {TORCHVISION}{name} needs torchvision, which cannot be imported ({error}); '
            f"pip install torchvision, or choose one of {', '.join(MODELS)}"
        ) from None
    if name not in models.list_models(module=models):
        raise TaskError(f'task "vision": torchvision has no model "{name}"; {nearest(name, models.list_models())}')
    model: nn.Module = models.get_model(name, weights=None, num_classes=NUM_CLASSES)
    return _OfCentred(model, side=TORCHVISION_SIDE)


def _build(
    seed: int, *, make: Callable[[], nn.Module], learning_rate: float, momentum: float
) -> tuple[Any, torch.optim.Optimizer]:
    del seed  # `Task` seeds torch before it calls
    model = make()
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
