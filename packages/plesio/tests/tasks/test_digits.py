import pytest
import torch
from sklearn.datasets import load_digits

from plesio.core.errors import TaskError
from plesio.tasks.digits import _split, digits
from plesio.tasks.task import take_batch


def rows(images: torch.Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


def test_the_split_holds_every_digit_once() -> None:
    train, held_out = _split()
    assert (len(train), len(held_out)) == (1437, 360)
    everything = torch.from_numpy(load_digits().images).float().div(16).unsqueeze(1)
    assert sorted(rows(train.tensors[0]) + rows(held_out.tensors[0])) == sorted(rows(everything))


def test_no_held_out_digit_is_a_training_digit() -> None:
    train, held_out = _split()
    assert not set(rows(train.tensors[0])) & set(rows(held_out.tensors[0]))


def test_every_class_is_held_out_in_proportion() -> None:
    _, held_out = _split()
    counts = torch.bincount(held_out.tensors[1], minlength=10)
    assert counts.min() >= 34
    assert counts.max() <= 38


def test_pixels_are_between_zero_and_one() -> None:
    images = digits().train_set()[:][0]
    assert images.min() == 0
    assert images.max() == 1


def test_a_learning_rate_of_zero_is_refused() -> None:
    with pytest.raises(TaskError, match=r"learning_rate = 0; write a number above 0"):
        digits(learning_rate=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_synchronous_training_reaches_its_target(seed: int) -> None:
    """A batch of 128 in one process is what four workers of 32 do in step."""
    task = digits()
    model, optimizer = task.build(seed)
    dataset = task.train_set()
    order = torch.Generator().manual_seed(seed)
    for _ in range(task.num_epochs):
        shuffled = torch.randperm(1437, generator=order)
        for start in range(0, 1437 - 127, 128):
            task.loss(model, take_batch(dataset, shuffled[start : start + 128].tolist())).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    assert task.target is not None
    assert task.metric(model) >= task.target
