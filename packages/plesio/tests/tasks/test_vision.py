"""Models of the families, and those of torchvision where it is installed."""

import importlib.util
import sys

import pytest
import torch

from plesio.core.errors import TaskError
from plesio.tasks import check_task, load_task
from plesio.tasks.task import take_batch
from plesio.tasks.vision_models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_each_model_learns(name: str):
    task = load_task("vision", model=name)
    check_task(task)
    model, optimizer = task.build(0)
    assert not list(model.buffers())
    batch = take_batch(task.train_set(), range(16))
    losses = []
    for _ in range(40):
        loss = task.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_wider_model_has_more_parameters(name: str):
    narrow, wide = (
        sum(parameter.numel() for parameter in load_task("vision", model=name, width=width).build(0)[0].parameters())
        for width in (8, 16)
    )
    assert wide > 1.5 * narrow


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "vgq"}, 'no model "vgq"; did you mean "vgg"'),
        ({"model": 3}, "write a name in quotes"),
        ({"model": "vgg", "width": 2}, "write a whole number of 4 or more"),
        ({"model": "torchvision:resnet18", "width": 8}, "has its own width"),
        ({"momentum": -0.1}, "momentum"),
    ],
)
def test_a_wrong_option_is_one_line(options: dict[str, object], message: str):
    with pytest.raises(TaskError, match=message) as raised:
        load_task("vision", **options)
    assert "\n" not in str(raised.value)


def test_torchvision_is_loaded_when_its_model_is_built_and_its_absence_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    task = load_task("vision", model="torchvision:resnet18")
    with pytest.raises(TaskError, match=r"needs torchvision, .* pip install torchvision") as raised:
        check_task(task)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_a_model_of_torchvision_takes_the_digits():
    task = load_task("vision", model="torchvision:resnet18")
    model, _ = task.build(0)
    images, _ = take_batch(task.train_set(), range(4))
    assert model(images).shape == torch.Size([4, 10])
