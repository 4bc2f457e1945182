"""Train on handwritten digits with Ray Train, whose workers exchange under a policy of your choice.

    python examples/ray_digits.py
    python examples/ray_digits.py --workers 4 --policy ssp:4
    RAY_ADDRESS=auto python examples/ray_digits.py --workers 8 --storage /shared/runs

Ray's own script has `TorchConfig()` where this one has `PlesioConfig(...)`, and `prepare_model` and
`prepare_data_loader` where this one joins. The last line is for a cluster that is there; all its nodes see the storage.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import plesio
from plesio.integrations.ray import PlesioConfig


def train(config: dict[str, Any]) -> None:
    """Train on one of the workers."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div(16).flatten(1)
    data, held_out = random_split(TensorDataset(images, torch.from_numpy(digits.target)), [0.8, 0.2])
    x_held_out, y_held_out = held_out[:]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def accuracy() -> dict[str, float]:
        with torch.no_grad():
            return {"accuracy": float((model(x_held_out).argmax(1) == y_held_out).float().mean())}

    # A run that loses a worker begins again from here, with as many workers as Ray finds.
    with plesio.join(model, optimizer, checkpoint=config["checkpoints"]) as session:
        for _ in range(config["epochs"]):
            for x, y in session.shard(DataLoader(data, batch_size=16, shuffle=True)):
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                session.step(loss)
            found = session.evaluate(accuracy, everywhere=True)
            ray.train.report(found)
    # The first worker's model has the final parameters.
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        final = ray.train.Checkpoint.from_directory(folder) if session.rank == 0 else None
        ray.train.report(found, checkpoint=final)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with Ray Train.")
    parser.add_argument("--workers", type=int, default=2, help="workers, a core each (default: 2)")
    parser.add_argument("--policy", default="adaptive", help="as `plesio list policies` lists them (default: adaptive)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (default: 5)")
    parser.add_argument("--storage", type=Path, default=Path("runs/ray"), help="folder of all runs (default: runs/ray)")
    arguments = parser.parse_args()

    storage = arguments.storage.absolute()  # each worker runs in a folder of Ray's own
    storage.mkdir(parents=True, exist_ok=True)
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": arguments.epochs, "checkpoints": tempfile.mkdtemp(dir=storage)},
        torch_config=PlesioConfig(arguments.policy),
        scaling_config=ray.train.ScalingConfig(num_workers=arguments.workers),
        run_config=ray.train.RunConfig(
            storage_path=str(storage), failure_config=ray.train.FailureConfig(max_failures=2)
        ),
    )
    result = trainer.fit()
    print(f"{arguments.workers} workers: held-out accuracy {result.metrics['accuracy']:.3f}")
    print(f"the model is in {result.checkpoint.path}")


if __name__ == "__main__":
    main()
