"""Cut a network into stages that train without waiting for each other, in groups that agree by mixing their weights.

    plesio run --grid 1x2 examples/grid_digits.py          # two stages
    plesio run --grid 2x2 examples/grid_digits.py          # two groups of two stages
    python examples/grid_digits.py                         # by itself: the whole network in one process

The loop is the same on every worker: the first stage of a group reads the images, the last one the labels.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import DataLoader, TensorDataset

import plesio


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a network on handwritten digits in an S x K grid.")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the data (default: 6)")
    parser.add_argument("--trace", help="folder for traces and results.json (default: none)")
    arguments = parser.parse_args()

    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div(16.0).flatten(1)
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = order[360:], order[:360]
    loader = DataLoader(TensorDataset(images[train], labels[train]), batch_size=16, shuffle=True)

    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Linear(64, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 10),
    )

    def accuracy() -> float:
        return (layers(images[held_out]).argmax(1) == labels[held_out]).float().mean().item()

    with plesio.grid(
        layers, lambda weights: torch.optim.SGD(weights, lr=0.05), F.cross_entropy, trace=arguments.trace
    ) as grid:
        for epoch in range(arguments.epochs):
            for x, y in grid.shard(loader):
                grid.step(x, y)
            metric = grid.evaluate(accuracy)
            if metric is not None:
                print(f"epoch {epoch + 1}: held-out accuracy {metric:.3f}")


if __name__ == "__main__":
    main()
