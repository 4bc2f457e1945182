"""BSP inside a framework's loop against that framework's own DDP: what does Plesio take from its throughput?

Two workers train the same model in blocks, by Accelerate, Transformers and Lightning: own DDP and `bsp`, then `bsp` and
own DDP, and so on. A ratio is the time of DDP's block by that of the other block of its pair. A block is timed in the
model, from the call after the first few steps to the last call. The model is small, and a wait inside its forward pass
makes a step about 20 ms long, so that two workers on two cores behave like two machines.

    python benchmarks/bench_frameworks.py [--pairs 10] [--quick]

Prints a table and writes benchmarks/results/frameworks.json.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from accelerate import Accelerator
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

from plesio.integrations.accelerate import PlesioAccelerator
from plesio.integrations.lightning import PlesioStrategy
from plesio.integrations.transformers import PlesioTrainer
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import LocalJob
from record import Spread, print_table, print_verdict, save

LIMIT = 0.97
NUM_WORKERS = 2
NUM_STEPS = 60
NUM_WARM_UP = 10
BATCH = 16
PAUSE_S = 0.018


class Rows(Dataset[dict[str, Tensor]]):
    """Enough samples for a block, each as a table, which all three frameworks take."""

    def __len__(self) -> int:
        return NUM_WORKERS * BATCH * (NUM_WARM_UP + NUM_STEPS)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": torch.ones(64), "labels": torch.tensor(index % 10)}


class Net(nn.Module):
    """85 thousand parameters, a pause that stands for the rest of a larger model, and the times of its calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        self.called_s: list[float] = []

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Compute the loss of inputs [batch, 64]."""
        self.called_s.append(time.perf_counter())
        time.sleep(PAUSE_S)
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}

    @property
    def step_s(self) -> float:
        """Seconds of a step, after the first few."""
        timed = self.called_s[NUM_WARM_UP:]
        return (timed[-1] - timed[0]) / (len(timed) - 1)


def by_accelerate(model: Net, *, ours: bool, folder: str) -> None:
    accelerator = PlesioAccelerator("bsp", cpu=True) if ours else Accelerator(cpu=True)
    optimizer, loader = torch.optim.AdamW(model.parameters(), lr=1e-3), DataLoader(Rows(), batch_size=BATCH)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        accelerator.backward(prepared(**batch)["loss"])
        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.free_memory()


def by_transformers(model: Net, *, ours: bool, folder: str) -> None:
    settings = TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    parts = {"model": model, "args": settings, "train_dataset": Rows()}
    trainer = PlesioTrainer(policy="bsp", **parts) if ours else Trainer(**parts)
    trainer.train()


class Module(lightning.LightningModule):
    """The model, for Lightning."""

    def __init__(self, model: Net) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Compute the loss."""
        loss: Tensor = self.model(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def by_lightning(model: Net, *, ours: bool, folder: str) -> None:
    strategy: Any = PlesioStrategy("bsp")
    if not ours:
        strategy = DDPStrategy(cluster_environment=strategy.cluster_environment)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=NUM_WORKERS,
        strategy=strategy,
        max_epochs=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(model), DataLoader(Rows(), batch_size=BATCH))


WAYS = {"Accelerate": by_accelerate, "Transformers": by_transformers, "Lightning": by_lightning}


def work(*, num_pairs: int) -> dict[str, list[dict[str, float]]]:
    """Measure as one worker; return the seconds of a step in each block, in pairs, by framework."""
    torch.set_num_threads(1)
    assert WorkerPlace.from_environment() is not None
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_pairs):
            for name, train in WAYS.items():
                block = {}
                for way in ("ddp", "bsp") if number % 2 == 0 else ("bsp", "ddp"):
                    train(model := Net(), ours=way == "bsp", folder=folder)
                    block[way] = model.step_s
                measured[name].append(block)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="pairs of blocks for each framework")
    parser.add_argument("--quick", action="store_true", help="2 pairs: does it work?")
    arguments = parser.parse_args()
    num_pairs = 2 if arguments.quick else arguments.pairs
    with LocalJob(NUM_WORKERS) as job:
        endings = job.run(Path(__file__), "work", timeout_s=3600, num_pairs=num_pairs)
    assert endings[0].error is None, endings[0].trace
    results = {
        name: {
            "ddp_step_s": Spread([pair["ddp"] for pair in pairs]),
            "bsp_step_s": Spread([pair["bsp"] for pair in pairs]),
            "ratio": Spread([pair["ddp"] / pair["bsp"] for pair in pairs]),
        }
        for name, pairs in endings[0].value.items()
    }
    rows = [
        [
            name,
            f"{row['ddp_step_s'].text('.2f', scale=1e3)} ms",
            f"{row['bsp_step_s'].text('.2f', scale=1e3)} ms",
            row["ratio"].text(".3f"),
        ]
        for name, row in results.items()
    ]
    columns = ["framework", "its own DDP, a step", "bsp, a step", "throughput ratio"]
    print_table(f"BSP against a framework's own DDP, {num_pairs} pairs of blocks", columns=columns, rows=rows)
    met = all(row["ratio"]["median"] >= LIMIT for row in results.values())
    print_verdict(f"bsp has at least {LIMIT} of the throughput of the framework's own DDP", met=met)
    settings = {"pairs": num_pairs, "steps": NUM_STEPS, "pause_s": PAUSE_S}
    save("frameworks", settings=settings, results=results, met=met)


if __name__ == "__main__":
    main()
