"""A task of your own: everything Plesio needs to train a model, in one file.

Try it alone first, then under any policy:

    python examples/my_task.py
    python benchmarks/tasks_baseline.py examples/my_task.py:spirals --seeds 3
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

from plesio.tasks import Task, check_task


def spirals(*, num_points: int = 2000, learning_rate: float = 0.02) -> Task:
    """Tell two interleaved spirals apart. What you can pass here, a recipe can set."""
    train, held_out = _points(num_points, seed=1), _points(500, seed=2)

    def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        # Plesio has seeded torch with `seed` already: what you build here is the same for equal seeds.
        model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        return model, torch.optim.Adam(model.parameters(), lr=learning_rate)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        points, sides = batch
        return F.cross_entropy(model(points), sides)

    def metric(model: nn.Module) -> float:
        # Called in evaluation mode and without gradients.
        points, sides = held_out.tensors
        return int((model(points).argmax(1) == sides).sum()) / len(sides)

    return Task(
        name="spirals",
        build=build,
        train_set=lambda: train,
        loss=loss,
        metric=metric,
        metric_name="accuracy",
        metric_goal="max",
        batch_size=32,
        num_epochs=15,
        target=0.95,
    )


def _points(number: int, *, seed: int) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    sides = torch.randint(2, (number,), generator=random)
    turn = torch.rand(number, generator=random).sqrt() * 2.5 * torch.pi
    angle = turn + torch.pi * sides
    points = torch.stack([angle.cos(), angle.sin()], dim=1) * (turn / 4).unsqueeze(1)
    return TensorDataset(points + 0.05 * torch.randn(points.shape, generator=random), sides)


if __name__ == "__main__":
    check_task(spirals())
    print("the task can be trained")
