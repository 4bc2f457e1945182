"""Train a convolutional network with augmentation, momentum, label smoothing and a cosine schedule with a warm-up.

    python examples/cnn_digits.py
    plesio run --workers 2 examples/cnn_digits.py --policy local_sgd:8
    plesio simulate examples/cnn_digits.py --workers 4 --step-time "10 ms"

The images are scikit-learn's real handwritten digits. The schedule ends where the training does, with any number of
workers and under any policy: the session steps it.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

import plesio

NUM_HELD_OUT = 360


def read_digits() -> tuple[TensorDataset, TensorDataset]:
    """(training, held-out) images of one channel and 8 x 8 pixels, and which digit they show."""
    data = load_digits()
    images, labels = torch.from_numpy(data.images).float().div(16.0).unsqueeze(1), torch.from_numpy(data.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = order[NUM_HELD_OUT:], order[:NUM_HELD_OUT]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def augmented(images: Tensor) -> Tensor:
    """Turn, resize and shift each image a little, at random."""
    count = len(images)
    angle, size = 0.2 * torch.randn(count), 1 + 0.1 * torch.randn(count)
    cos, sin = size * angle.cos(), size * angle.sin()
    shift = 0.15 * torch.randn(count, 2)
    turned = torch.stack([cos, -sin, shift[:, 0], sin, cos, shift[:, 1]], dim=1).view(count, 2, 3)
    grid = F.affine_grid(turned, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def network() -> nn.Sequential:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    convolutions = [*block(1, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 64)]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits.")
    parser.add_argument("--policy", default="adaptive", help="as `plesio list policies` lists them (default: adaptive)")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the data (default: 8)")
    parser.add_argument("--rate", type=float, default=0.1, help="the highest learning rate (default: 0.1)")
    arguments = parser.parse_args()

    train, held_out = read_digits()
    loader = DataLoader(train, batch_size=32, shuffle=True)
    torch.manual_seed(0)  # the same model on every worker
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.rate, momentum=0.9, nesterov=True, weight_decay=5e-4)

    with plesio.join(model, optimizer, policy=arguments.policy) as session:
        torch.manual_seed(session.rank)  # other augmentations on each
        num_steps = arguments.epochs * session.steps_per_epoch(loader)  # of the schedule, whatever the workers' steps
        warm_up = num_steps // 10
        rises, falls = LinearLR(optimizer, 0.1, total_iters=warm_up), CosineAnnealingLR(optimizer, num_steps - warm_up)
        session.schedule(SequentialLR(optimizer, [rises, falls], milestones=[warm_up]))
        for epoch in range(arguments.epochs):
            for images, labels in session.shard(loader):
                loss = F.cross_entropy(model(augmented(images)), labels, label_smoothing=0.1)
                loss.backward()
                session.step(loss)
            metric = session.evaluate(lambda: accuracy(model, held_out))
            if session.rank == 0:
                rate = optimizer.param_groups[0]["lr"]
                print(f"epoch {epoch + 1}: held-out accuracy {metric:.3f}, learning rate {rate:.4f}")


if __name__ == "__main__":
    main()
