from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from plesio.core.errors import TaskError
from plesio.tasks import Task, check_task
from plesio.tasks.task import seeded, take_batch

Built = tuple[nn.Module, torch.optim.Optimizer]


def build(seed: int) -> Built:
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    value: torch.Tensor = (model(batch[0]).squeeze(1) - batch[1]).square().mean()
    return value


def train_set() -> Dataset[Any]:
    return TensorDataset(torch.ones(5, 2), torch.zeros(5))


def line(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "name": "line",
        "build": build,
        "train_set": train_set,
        "loss": loss,
        "metric": lambda model: model(torch.ones(1, 2)).item(),
        "metric_name": "value",
        "metric_goal": "min",
        "batch_size": 8,
        "num_epochs": 1,
    }
    return Task(**{**fields, **changes})


def frozen(seed: int) -> Built:
    model, optimizer = build(seed)
    model.requires_grad_(False)
    return model, optimizer


def stranger(seed: int) -> Built:
    return build(seed)[0], build(seed)[1]


def test_a_good_task_passes_even_when_its_data_are_fewer_than_a_batch() -> None:
    check_task(line())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"build": lambda seed: (nn.ReLU(), build(seed)[1])}, "no trainable parameters"),
        ({"build": frozen}, "no trainable parameters"),
        ({"build": stranger}, "steps none of the model's trainable parameters"),
        ({"build": lambda seed: nn.Linear(2, 1)}, r"build\(seed\) returned Linear; return \(model, optimizer\)"),
        ({"build": lambda seed: (build(seed)[0], "sgd")}, "returned str; return a torch.optim.Optimizer second"),
        ({"build": lambda seed: 1 / 0}, r"build\(seed\) raised ZeroDivisionError: division by zero"),
        ({"train_set": lambda: TensorDataset(torch.ones(0, 2), torch.ones(0))}, "training set is empty"),
        ({"train_set": lambda: iter([1, 2])}, "return a map-style Dataset"),
        ({"loss": lambda model, batch: 0.5}, "returned float; return a scalar tensor"),
        ({"loss": lambda model, batch: model(batch[0])}, r"has shape \(5, 1\); reduce it"),
        ({"loss": lambda model, batch: torch.tensor(1.0)}, "does not depend on the model"),
        ({"loss": lambda model, batch: loss(model, batch) * torch.nan}, "is nan for a freshly built model"),
        ({"metric": lambda model: "good"}, r"metric\(model\) raised ValueError"),
        ({"metric": lambda model: float("nan")}, r"metric\(model\) is NaN"),
        ({"schedule": lambda optimizer, num_steps: 0.1}, "returned float; return an LRScheduler or None"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        check_task(line(**changes))
    assert str(caught.value).startswith('task "line": ')
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; write a whole number of 1 or more"),
        ({"batch_size": 8.0}, "batch_size is 8; write a whole number"),
        ({"num_epochs": -1}, "num_epochs is -1"),
        ({"metric_goal": "up"}, 'metric_goal is "up"; known: max, min'),
        ({"loss": None}, "loss is None; write a function"),
        ({"name": ""}, "a text that is not empty"),
        ({"metric_name": "accuracy", "target": 97}, r"target is 97, and accuracy is a share .*; did you mean 0\.97\?"),
        ({"metric_name": "accuracy", "target": -0.1}, r"target is -0\.1, and accuracy is a share .*; write a share"),
    ],
)
def test_a_bad_field_is_refused_when_the_task_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        line(**changes)


def test_a_target_of_another_metric_than_a_share_may_be_any_number() -> None:
    assert line(target=97.0).target == 97.0
    assert line(metric_name="accuracy", target=1.0).target == 1.0


def test_checking_leaves_the_random_state() -> None:
    before = torch.get_rng_state()
    check_task(line())  # its dropout draws
    assert torch.equal(torch.get_rng_state(), before)


def test_a_user_s_metric_is_taken_in_evaluation_mode_without_gradients() -> None:
    seen = []

    def metric(model: nn.Module) -> float:
        seen.append((model.training, torch.is_grad_enabled()))
        return 0.0

    task = line(metric=metric)
    model, _ = task.build(0)
    task.metric(model)
    assert seen == [(False, False)]
    assert model.training
    assert torch.is_grad_enabled()


def test_modes_come_back_after_an_error() -> None:
    model, _ = build(0)
    model[1].eval()  # type: ignore[index]

    def metric(model: nn.Module) -> float:
        assert not model.training
        raise KeyError

    with pytest.raises(KeyError):
        line(metric=metric).metric(model)
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_seeds_decide_and_nothing_leaks() -> None:
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(2)
    with seeded(3):
        assert torch.equal(torch.rand(2), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_replacing_a_field_keeps_the_others_guarded_once() -> None:
    task = line()
    assert replace(task, batch_size=2).build is task.build
    assert replace(task, batch_size=2).metric is task.metric


@pytest.mark.parametrize(("worker", "num_workers"), [(-1, 2), (2, 2), (0, 0)])
def test_a_worker_that_does_not_exist_is_refused(worker: int, num_workers: int) -> None:
    with pytest.raises(TaskError, match=f"no worker {worker} among {num_workers}"):
        line().for_worker(worker, num_workers)


def test_workers_see_what_per_worker_gives_them() -> None:
    per_worker: Callable[[int, int], Task] = lambda worker, num_workers: line(name=f"{worker}/{num_workers}")  # noqa: E731
    assert line(per_worker=per_worker).for_worker(1, 4).name == "1/4"


def test_a_subclass_of_tensor_dataset_may_change_its_items() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return tuple(2 * column for column in super().__getitem__(index))  # type: ignore[no-untyped-call]

    assert take_batch(Doubled(torch.arange(3)), [1, 2])[0].tolist() == [2, 4]
