"""Train on handwritten digits with Lightning's Trainer, whose workers exchange under a policy of your choice.

    python examples/lightning_digits.py
    plesio run --workers 2 examples/lightning_digits.py --devices 2 --policy ssp:4

The module is Lightning's alone; `strategy=PlesioStrategy(...)` is all of Plesio in it.
"""

import argparse
import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from plesio.integrations.lightning import PlesioStrategy

Batch = tuple[Tensor, Tensor]


class Digits(lightning.LightningModule):
    """A small network on 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Compute the loss of a batch."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Batch, index: int) -> None:
        """Log the accuracy on a batch."""
        right = self.network(batch[0]).argmax(1) == batch[1]
        self.log("accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with Lightning.")
    parser.add_argument("--policy", default="bsp", help="as `plesio list policies` lists them (default: bsp)")
    parser.add_argument("--devices", type=int, default=1, help="workers that were started on this host (default: 1)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (default: 5)")
    arguments = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div(16).flatten(1)
    train, held_out = random_split(TensorDataset(images, torch.from_numpy(digits.target)), [0.8, 0.2])
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=arguments.devices,
            strategy=PlesioStrategy(arguments.policy),
            max_epochs=arguments.epochs,
            accumulate_grad_batches=2,
            gradient_clip_val=1.0,
            callbacks=[best := ModelCheckpoint(folder, monitor="accuracy", mode="max")],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Digits(), DataLoader(train, batch_size=16, shuffle=True), DataLoader(held_out, batch_size=60))
        if trainer.is_global_zero:
            print(f"after {trainer.global_step} steps: held-out accuracy {best.best_model_score:.3f}")


if __name__ == "__main__":
    main()
