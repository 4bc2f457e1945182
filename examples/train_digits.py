"""Train a small network on real handwritten digits: one process, or many under a policy of your choice.

    python examples/train_digits.py
    plesio run --workers 4 examples/train_digits.py --policy ssp:4
    torchrun --nproc-per-node 2 examples/train_digits.py --policy local_sgd:8 --trace runs/digits

Nothing in the loop depends on how many workers there are: the lines that name `session` are all of Plesio in it.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import DataLoader, TensorDataset

import plesio

NUM_HELD_OUT = 360


def read_digits() -> tuple[TensorDataset, TensorDataset]:
    """(training, held-out) digits: 8 x 8 pixels from 0 to 1, and which digit they show."""
    data = load_digits()
    images = torch.from_numpy(data.images).float().div(16.0).flatten(1)
    labels = torch.from_numpy(data.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = order[NUM_HELD_OUT:], order[:NUM_HELD_OUT]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    correct: Tensor = model(images).argmax(1) == labels
    return correct.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits under a consistency policy.")
    parser.add_argument("--policy", default="adaptive", help="as `plesio list policies` lists them (default: adaptive)")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the data (default: 10)")
    parser.add_argument("--trace", help="folder for traces and results.json (default: none)")
    arguments = parser.parse_args()

    train, held_out = read_digits()
    loader = DataLoader(train, batch_size=32, shuffle=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with plesio.join(model, optimizer, policy=arguments.policy, trace=arguments.trace) as session:
        for epoch in range(arguments.epochs):
            for images, labels in session.shard(loader):
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                session.step(loss)
            metric = session.evaluate(lambda: accuracy(model, held_out))
            if session.rank == 0:
                print(f"epoch {epoch + 1}: held-out accuracy {metric:.3f}")

    if session.rank == 0:
        run = session.report()
        share = sum(worker.wait_s for worker in run.workers) / (run.num_workers * run.wall_s)
        print(f"{run.samples} samples, {run.samples_per_s:.0f} a second; {share:.0%} of the time spent waiting")


if __name__ == "__main__":
    main()
