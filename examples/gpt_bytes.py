"""Train a small GPT: AdamW without decay of norms and biases, warm-up, clipping, accumulation, bfloat16, torch.compile.

    python examples/gpt_bytes.py
    python examples/gpt_bytes.py --bf16 --compile
    plesio run --workers 2 examples/gpt_bytes.py --policy bsp
    plesio simulate examples/gpt_bytes.py --workers 8 --cluster 16x1gbe --step-time "30 ms"

It learns to predict the next byte of Python's own source code, which every machine has.
"""

import argparse
import contextlib
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import DataLoader, TensorDataset

import plesio

CONTEXT = 64
BATCH_SIZE, MICRO_BATCH = 16, 8
"""Windows of a worker's step, and of each of its backward passes."""


def read_text(source: str = argparse.__file__) -> tuple[Tensor, Tensor]:
    """(training, held-out) windows of one more byte than the model sees."""
    with open(source, "rb") as file:
        text = torch.tensor(list(file.read(66_000)))
    windows = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    return windows[:-150], windows[-150:]


class Block(nn.Module):
    """Attention to what came before, then two layers."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:  # noqa: D102
        parts = self.attention(self.before_attention(hidden)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        hidden = hidden + self.mixed(attended.transpose(1, 2).flatten(2))
        return hidden + self.layers(self.before_layers(hidden))


class GPT(nn.Module):
    """Windows of bytes in, logits of each next byte out; the last layer is the embedding."""

    def __init__(self, *, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(depth)), nn.LayerNorm(width))
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:  # noqa: D102
        hidden = self.blocks(self.bytes(text) + self.places.weight[: text.shape[1]])
        return F.linear(hidden, self.bytes.weight)


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT under a consistency policy.")
    parser.add_argument("--policy", default="adaptive", help="as `plesio list policies` lists them (default: adaptive)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data (default: 3)")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 (slow where the CPU has none)")
    parser.add_argument("--compile", action="store_true", help="use torch.compile (takes a minute on a CPU)")
    arguments = parser.parse_args()

    train, held_out = read_text()
    loader = DataLoader(TensorDataset(train), batch_size=BATCH_SIZE, shuffle=True)
    torch.manual_seed(0)  # the same model on every worker
    model: nn.Module = GPT()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    rest = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.004, betas=(0.9, 0.95))
    if arguments.compile:
        model = torch.compile(model)

    with plesio.join(model, optimizer, policy=arguments.policy) as session:
        num_steps = arguments.epochs * session.steps_per_epoch(loader)
        warm_up = num_steps // 10

        def rate(step: int) -> float:
            if step < warm_up:
                return (step + 1) / warm_up
            return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / (num_steps - warm_up)))

        session.schedule(torch.optim.lr_scheduler.LambdaLR(optimizer, rate))
        for epoch in range(arguments.epochs):
            for (windows,) in session.shard(loader):
                loss = torch.zeros(())
                parts = windows.split(MICRO_BATCH)
                for number, part in enumerate(parts, start=1):
                    exchanges = number == len(parts)  # the others' gradients stay here until then
                    with contextlib.nullcontext() if exchanges else session.accumulate():
                        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
                            share = loss_of(model, part) * (len(part) / len(windows))
                        share.backward()
                    loss += share.detach()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                session.step(loss)
            perplexity = session.evaluate(lambda: math.exp(loss_of(model, held_out)), goal="min")
            if session.rank == 0:
                print(f"epoch {epoch + 1}: perplexity per byte {perplexity:.1f} (256 is knowing nothing)")


if __name__ == "__main__":
    main()
