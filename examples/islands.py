"""Train a model whose replica each island of ranks holds in parts, by FSDP2.

    python examples/islands.py
    plesio run --workers 4 --island 2 --policy diloco:10,exchange=store examples/islands.py

The first is one process, an island of one rank; the second two islands of two, which share their updates by the store.
"""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import plesio

island = plesio.island()  # its ranks are torch's default process group from here on
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=island.mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

features = torch.randn(2_000, 20, generator=torch.Generator().manual_seed(1))
labels = features[:, :3].argmax(dim=1)
loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True)


def accuracy() -> float:
    return float((model(features).argmax(dim=1) == labels).float().mean())


with plesio.join(model, optimizer) as session:
    for _epoch in range(3):
        for x, y in session.shard(loader):  # the island's batch, alike on its ranks: each takes its part
            own = slice(island.rank, None, island.size)
            loss = nn.functional.cross_entropy(model(x[own]), y[own])
            loss.backward()
            session.step(loss)
        session.evaluate(accuracy)

report = session.report()
if session.rank == island.rank == 0:
    print(f"{report.num_workers} islands, accuracy {report.final_metric:.3f}")
