"""A small transformer under AdamW, with a learning-rate schedule, clipping and a warm-up: nothing of it changes.

    python examples/transformer_adamw.py
    plesio run --workers 2 examples/transformer_adamw.py
    plesio simulate examples/transformer_adamw.py --workers 8 --cluster 16x1gbe --step-time "30 ms"

It learns to predict the next byte of Python's own source code, which every machine has.
"""

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import DataLoader, TensorDataset

import plesio

CONTEXT = 32
BATCH_SIZE = 16


def read_text(source: str = argparse.__file__) -> tuple[Tensor, Tensor]:
    """(training, held-out) windows of one more byte than the model sees."""
    with open(source, "rb") as file:
        text = torch.tensor(list(file.read(66_000)))
    windows = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    return windows[:-200], windows[-200:]


class Transformer(nn.Module):
    """Windows of bytes in, logits of each next byte out."""

    def __init__(self, *, width: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:  # noqa: D102
        hidden = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        logits: Tensor = self.out(self.layers(hidden, mask=mask, is_causal=True))
        return logits


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    return F.cross_entropy(model(windows[:, :-1]).transpose(1, 2), windows[:, 1:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer under a consistency policy.")
    parser.add_argument("--policy", default="adaptive", help="as `plesio list policies` lists them (default: adaptive)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the data (default: 2)")
    options = parser.parse_args(arguments)

    train, held_out = read_text()
    torch.manual_seed(0)  # the same model on every worker
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.004, weight_decay=0.01)
    samples = options.epochs * len(train)

    with plesio.join(model, optimizer, policy=options.policy, total_samples=samples) as session:
        # The schedule counts this worker's steps, and all workers share the samples.
        num_steps = max(1, samples // (BATCH_SIZE * session.num_workers))
        warm_up = max(1, num_steps // 10)

        def rate(step: int) -> float:
            if step < warm_up:
                return (step + 1) / warm_up
            return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / num_steps)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        for epoch in range(options.epochs):
            for (windows,) in session.shard(DataLoader(TensorDataset(train), batch_size=BATCH_SIZE, shuffle=True)):
                loss = loss_of(model, windows)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # between backward() and step()
                session.step(loss)
                schedule.step()
            perplexity = session.evaluate(lambda: math.exp(loss_of(model, held_out)))
            if session.rank == 0:
                print(f"epoch {epoch + 1}: perplexity per byte {perplexity:.1f} (256 is knowing nothing)")


if __name__ == "__main__":
    main()
