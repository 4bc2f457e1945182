"""The cost of 16 bits in accuracy, by policy: the same network in float32 and in bfloat16.

    python benchmarks/bench_half_precision.py [--seeds 3] [--epochs 8] [--quick]

Eight virtual workers train a perceptron on digits, with parameters of one type or the other, at a small learning rate:
a share of an update is then often below what bfloat16 resolves. Servers add up in float32; collectives add up in the
parameters' own type. Prints the held-out loss by policy and writes benchmarks/results/half_precision.json. The verdict
is that bfloat16 costs no policy more than MOST_RATIO times the loss.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset, random_split

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import LogNormal
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from record import Spread, print_table, print_verdict, save

POLICIES = ("bsp", "local_sgd:4", "ssp:4", "asp", "adaptive")
NUM_WORKERS, BATCH_SIZE, RATE, MOMENTUM = 8, 8, 0.01, 0.9
NUM_HELD_OUT = 360
MOST_RATIO = 1.1


def data() -> tuple[TensorDataset, TensorDataset]:
    """Return the data to train on, and the held-out ones; the same for all."""
    images, labels = load_digits(return_X_y=True)
    whole = TensorDataset(torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long())
    sizes = [len(whole) - NUM_HELD_OUT, NUM_HELD_OUT]
    parts = random_split(whole, sizes, generator=torch.Generator().manual_seed(0))
    trained, held_out = (TensorDataset(*whole[part.indices]) for part in parts)
    return trained, held_out


def held_out_loss(policy: str, dtype: torch.dtype, *, seed: int, num_epochs: int) -> float:
    """After a run of all workers."""
    trained, held_out = data()

    def loss_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(images.to(dtype)).float(), labels)

    def work(job: VirtualJob) -> float:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        pacer = Pacer(step_time=LogNormal(mean_s=0.02, cv=0.3), seed=seed, worker=job.place.rank, clock=job.clock)
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer)) as session:
            loader = DataLoader(trained, batch_size=BATCH_SIZE, shuffle=True)
            for images, labels in session.shard(loader, samples=num_epochs * len(trained)):
                loss = loss_of(model, images, labels)
                loss.backward()
                session.step(loss)
        with torch.no_grad():
            return float(loss_of(model, *held_out.tensors))

    return simulate(work, num_workers=NUM_WORKERS, cluster=Cluster.one_host(NUM_WORKERS), seed=seed).values()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--epochs", type=int, default=8, metavar="N")
    parser.add_argument("--quick", action="store_true", help="two policies, one seed, one epoch: does it work?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policies, seeds, epochs = POLICIES, arguments.seeds, arguments.epochs
    if arguments.quick:
        policies, seeds, epochs = ("bsp", "asp"), 1, 1
    results: dict[str, dict[str, Spread]] = {}
    for policy in policies:
        results[policy] = {
            str(dtype).removeprefix("torch."): Spread(
                [held_out_loss(policy, dtype, seed=seed, num_epochs=epochs) for seed in range(seeds)]
            )
            for dtype in (torch.float32, torch.bfloat16)
        }
    rows = [[policy, *(spread.text(".3f") for spread in losses.values())] for policy, losses in results.items()]
    print_table("held-out loss, median (quartiles) of the seeds", columns=["policy", "float32", "bfloat16"], rows=rows)
    ratios = {policy: losses["bfloat16"]["median"] / losses["float32"]["median"] for policy, losses in results.items()}
    met = max(ratios.values()) <= MOST_RATIO
    print_verdict(f"bfloat16 ends at {MOST_RATIO} times float32's loss at most", met=met)
    save("half_precision", settings={"seeds": seeds, "epochs": epochs}, results=results, met=met)


if __name__ == "__main__":
    main()
