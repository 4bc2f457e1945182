"""Laws that every task of the catalogue keeps, over one table."""

import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from plesio.core.errors import TaskError
from plesio.tasks import TASK_NAMES, Task, check_task, load_task
from plesio.tasks.check import check_chain
from plesio.tasks.task import take_batch
from plesio.tasks.vision_models import MODELS

SMALL: dict[str, dict[str, Any]] = {
    "digits": {},
    "quadratic": {"dimension": 8, "num_samples": 64},
    "stdlib_lm": {"context": 32, "corpus_bytes": 200_000, "width": 32, "depth": 1, "num_heads": 2},
    "vision": {"model": "mlp"},
}


@dataclass(frozen=True)
class Range:
    low: float
    high: float


METRIC_RANGE = {"accuracy": Range(0, 1), "perplexity": Range(1, 300), "suboptimality": Range(0, 100)}


@pytest.fixture(scope="module")
def mnist_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's digits as MNIST files of 8 x 8 pixels: real data in the real format."""
    folder = tmp_path_factory.mktemp("mnist")
    data = load_digits()
    pixels, labels = (data.images * 15.9375).astype(np.uint8), data.target.astype(np.uint8)
    for part, chosen in (("train", slice(0, 1400)), ("t10k", slice(1400, None))):
        images, names = pixels[chosen], labels[chosen]
        head = struct.pack(">4I", 0x803, *images.shape)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(names)) + names.tobytes())
    return folder


@pytest.fixture(params=TASK_NAMES)
def task(request: pytest.FixtureRequest, mnist_folder: Path) -> Task:
    name = request.param
    return load_task(name, **({"folder": mnist_folder} if name == "images" else SMALL[name]))


def train(task: Task, *, seed: int, num_steps: int) -> tuple[torch.nn.Module, list[float]]:
    model, optimizer = task.build(seed)
    dataset: Any = task.train_set()
    order = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(num_steps):
        indices = torch.randint(len(dataset), (task.batch_size,), generator=order).tolist()
        loss = task.loss(model, take_batch(dataset, indices))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


def parameters_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_every_task_passes_its_own_check(task: Task) -> None:
    before = torch.get_rng_state()
    check_task(task)
    assert torch.equal(torch.get_rng_state(), before)


def test_equal_seeds_build_equal_models_and_other_seeds_others(task: Task) -> None:
    assert torch.equal(parameters_of(task.build(3)[0]), parameters_of(task.build(3)[0]))
    assert not torch.equal(parameters_of(task.build(3)[0]), parameters_of(task.build(4)[0]))


def test_building_leaves_the_global_random_state(task: Task) -> None:
    before = torch.get_rng_state()
    task.build(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_training_is_a_function_of_the_seed(task: Task) -> None:
    assert train(task, seed=1, num_steps=3)[1] == train(task, seed=1, num_steps=3)[1]


def test_the_training_set_is_the_same_at_every_call(task: Task) -> None:
    first, second = task.train_set(), task.train_set()
    for some, other in zip(take_batch(first, [0, 5, 9]), take_batch(second, [0, 5, 9]), strict=True):
        assert torch.equal(some, other)


def test_training_lowers_the_loss_and_improves_the_metric(task: Task) -> None:
    untrained = task.metric(task.build(0)[0])
    model, losses = train(task, seed=0, num_steps=60)
    trained = task.metric(model)
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    assert trained > untrained if task.metric_goal == "max" else trained < untrained


def test_the_metric_is_within_its_range_and_repeats(task: Task) -> None:
    model, _ = task.build(0)
    metric = task.metric(model)
    bounds = METRIC_RANGE[task.metric_name]
    assert isinstance(metric, float)
    assert bounds.low <= metric <= bounds.high
    assert task.metric(model) == metric


def test_the_metric_leaves_modes_and_gradients_alone(task: Task) -> None:
    model, _ = task.build(0)
    model.train()
    frozen = next(iter(model.children()), model)
    frozen.eval()
    modes = [module.training for module in model.modules()]
    task.metric(model)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_fixed_batch_taken_whole_equals_its_items_one_by_one(task: Task) -> None:
    dataset: Any = task.train_set()
    whole = take_batch(dataset, [2, 0, 7])
    for position, index in enumerate([2, 0, 7]):
        for column, value in zip(whole, dataset[index], strict=True):
            assert torch.equal(column[position], value)


CHAINS = {
    "digits": {},
    "stdlib_lm": SMALL["stdlib_lm"] | {"tied": False},
    **{f"vision {model}": {"model": model} for model in MODELS if model != "transformer"},
    "images": {},
    "images digits": {"format": "digits"},
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_chain_has_the_loss_and_the_gradients_of_the_model(name: str, mnist_folder: Path) -> None:
    options = CHAINS[name] | ({"folder": mnist_folder} if name == "images" else {})
    task = load_task(name.partition(" ")[0], **options)
    check_chain(task)
    assert task.chain is not None
    model, _ = task.build(1)
    layers = task.chain.layers(model)
    batch = take_batch(task.train_set(), range(8))
    whole = task.loss(model, batch)
    expected = torch.autograd.grad(whole, list(model.parameters()))
    given, wanted = task.chain.split(batch)
    found = task.chain.loss(layers(given), wanted)
    assert torch.equal(found, whole)
    gradients = torch.autograd.grad(found, list(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("quadratic", {"dimension": 8, "num_samples": 64}, "does not say how its network is a chain"),
        ("stdlib_lm", SMALL["stdlib_lm"], "set tied = false"),
        ("vision", {"model": "transformer"}, 'model = "transformer" is no chain'),
    ],
)
def test_a_network_that_is_no_chain_says_what_to_do(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskError, match=re.escape(said)) as refused:
        check_chain(load_task(name, **options))
    assert "\n" not in str(refused.value)


def test_a_chain_of_another_network_is_refused() -> None:
    task = load_task("digits")
    assert task.chain is not None
    twice = replace(task.chain, loss=lambda output, y: 2 * torch.nn.functional.cross_entropy(output, y))
    with pytest.raises(TaskError, match="must be the same network and loss"):
        check_chain(replace(task, chain=twice))
    part = replace(task.chain, layers=lambda model: torch.nn.Sequential(model.conv1))
    with pytest.raises(TaskError, match="put the model's own modules into it, all of them"):
        check_chain(replace(task, chain=part))
