"""Train a recommender: sparse embeddings under SparseAdam, and a dense part under AdamW with a schedule of its own.

    python examples/recommender.py
    plesio run --workers 2 examples/recommender.py --policy bsp
    plesio simulate examples/recommender.py --workers 4 --step-time "10 ms" --policy ssp:4,update=delta

Users and items are made up: each has a hidden taste, and few items are in most of the clicks. Every step moves only
the rows that its batch has, and under `bsp` workers send only those.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import DataLoader, TensorDataset

import plesio

NUM_USERS, NUM_ITEMS = 500, 500


def read_clicks(*, number: int = 60_000, num_held_out: int = 8000) -> tuple[TensorDataset, TensorDataset]:
    """(training, held-out) triples: a user, an item that was shown, and whether it was clicked."""
    random = torch.Generator().manual_seed(0)
    tastes, kinds = torch.randn(NUM_USERS, 4, generator=random), torch.randn(NUM_ITEMS, 4, generator=random)
    users = torch.randint(NUM_USERS, (number,), generator=random)
    popularity = 1 / torch.arange(1, NUM_ITEMS + 1)
    items = torch.multinomial(popularity, number, replacement=True, generator=random)
    clicked = torch.bernoulli(torch.sigmoid((tastes[users] * kinds[items]).sum(1)), generator=random)
    data = users, items, clicked
    return TensorDataset(*(one[num_held_out:] for one in data)), TensorDataset(*(one[:num_held_out] for one in data))


class Recommender(nn.Module):
    """Users and items in, logits of a click out: how well they match, and what a small network makes of both."""

    def __init__(self, *, width: int = 16) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, width, sparse=True)
        self.items = nn.Embedding(NUM_ITEMS, width, sparse=True)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        self.dense = nn.Sequential(nn.Linear(3 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:  # noqa: D102
        user, item = self.users(users), self.items(items)
        logits: Tensor = self.dense(torch.cat([user, item, user * item], dim=1))
        return logits.squeeze(1)


def area_under_curve(model: nn.Module, data: TensorDataset) -> float:
    """Return how often a clicked pair gets more than one that was not clicked (0.5 is knowing nothing)."""
    users, items, clicked = data.tensors
    ranks = torch.empty(len(clicked))
    ranks[model(users, items).argsort()] = torch.arange(1, len(clicked) + 1.0)
    positive = clicked.sum()
    above = ranks[clicked == 1].sum() - positive * (positive + 1) / 2
    return (above / (positive * (len(clicked) - positive))).item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a recommender with sparse embeddings.")
    parser.add_argument("--policy", default="adaptive", help="as `plesio list policies` lists them (default: adaptive)")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the data (default: 4)")
    arguments = parser.parse_args()

    train, held_out = read_clicks()
    loader = DataLoader(train, batch_size=256, shuffle=True)
    torch.manual_seed(0)  # the same model on every worker
    model = Recommender()
    sparse = torch.optim.SparseAdam([*model.users.parameters(), *model.items.parameters()], lr=0.02)
    dense = torch.optim.AdamW(model.dense.parameters(), lr=0.005, weight_decay=0.01)

    with plesio.join(model, [sparse, dense], policy=arguments.policy) as session:
        num_steps = arguments.epochs * session.steps_per_epoch(loader)
        session.schedule(torch.optim.lr_scheduler.CosineAnnealingLR(dense, num_steps))
        for epoch in range(arguments.epochs):
            for users, items, clicked in session.shard(loader):
                loss = F.binary_cross_entropy_with_logits(model(users, items), clicked)
                loss.backward()
                session.step(loss)  # both optimizers
            metric = session.evaluate(lambda: area_under_curve(model, held_out))
            if session.rank == 0:
                print(f"epoch {epoch + 1}: area under the curve {metric:.3f} (0.5 is knowing nothing)")


if __name__ == "__main__":
    main()
