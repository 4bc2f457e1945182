"""Train on handwritten digits with Hugging Face Accelerate, whose workers exchange under a policy of your choice.

    python examples/accelerate_digits.py
    plesio run --workers 2 examples/accelerate_digits.py --policy ssp:4
    torchrun --nproc-per-node 2 examples/accelerate_digits.py --policy local_sgd:8

Accelerate's own script has `Accelerator(...)` where this one has `PlesioAccelerator(...)`, and no `shared()`.
"""

import argparse

import torch
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from plesio.integrations.accelerate import PlesioAccelerator


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with Accelerate.")
    parser.add_argument("--policy", default="bsp", help="as `plesio list policies` lists them (default: bsp)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (default: 5)")
    arguments = parser.parse_args()

    set_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div(16).flatten(1)
    train, held_out = random_split(TensorDataset(images, torch.from_numpy(digits.target)), [0.8, 0.2])
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=arguments.epochs * len(train) // 16)

    accelerator = PlesioAccelerator(arguments.policy, cpu=True, gradient_accumulation_steps=2)
    model, optimizer, scheduler, loader, held_out_loader = accelerator.prepare(
        model, optimizer, scheduler, DataLoader(train, batch_size=16, shuffle=True), DataLoader(held_out, batch_size=64)
    )
    for epoch in range(arguments.epochs):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        with accelerator.shared(), torch.no_grad():
            for x, y in held_out_loader:
                right += int(accelerator.gather_for_metrics(model(x).argmax(1) == y).sum())
        accelerator.print(f"epoch {epoch + 1}: held-out accuracy {right / len(held_out):.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
