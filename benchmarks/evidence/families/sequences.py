"""Tasks on sequences: a GRU that adds marked numbers up, a transformer that copies, and bags of words with tags."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from families.problem import Problem, accuracy_points, cross_entropy, explained_points, generator_of

NUM_TRAIN, NUM_HELD_OUT = 4096, 1000
LENGTH = 10
SYMBOLS = 8
WORDS, TAGS = 300, 6


class Adder(nn.Module):
    """A GRU and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """One number a sequence."""
        _, last = self.gru(inputs)
        return self.out(last[0]).squeeze(-1)


def gru(seed: int, difficulty: float) -> Problem:
    """Add the marked numbers of a sequence of ten up, with noise of 0.1 to 0.5 on what is learned from."""
    held_out, truth = _sums(NUM_HELD_OUT, noise=0.0, random=generator_of(seed, 2))
    return Problem(
        build=Adder,
        train=_sums(NUM_TRAIN, noise=0.1 + 0.4 * difficulty, random=generator_of(seed, 1)),
        loss=_squared,
        points=explained_points(lambda model: model(held_out), truth),
    )


def _sums(number: int, *, noise: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    values = torch.randn(number, LENGTH, generator=random)
    marks = (torch.rand(number, LENGTH, generator=random) < 0.3).float()
    sums = (values * marks).sum(1)
    return torch.stack([values, marks], dim=2), sums + noise * torch.randn(number, generator=random)


def _squared(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    inputs, truth = batch
    return (model(inputs) - truth).square().mean()


class Copier(nn.Module):
    """A causal transformer with two blocks of one layer each."""

    def __init__(self, *, length: int, width: int = 24) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS + 1, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.ModuleList(_Block(width) for _ in range(2))
        self.out = nn.Linear(width, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """Logits of the next symbol at every place."""
        hidden = self.symbol(symbols) + self.place
        for block in self.blocks:
            hidden = block(hidden)
        return self.out(hidden)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.after = nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        queries, keys, values = self.qkv(self.before(hidden)).chunk(3, dim=-1)
        hidden = hidden + F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return hidden + self.dense(self.after(hidden))


def copying(seed: int, difficulty: float) -> Problem:
    """Repeat four to six symbols after a separator; points are percent of the symbols that are repeated rightly."""
    num_copied = 4 + round(2 * difficulty)
    length = 2 * num_copied
    held_out = _doubled(NUM_HELD_OUT, num_copied, random=generator_of(seed, 2))

    def loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        [whole] = batch
        logits = model(whole[:, :-1])[:, num_copied:]
        return F.cross_entropy(logits.flatten(0, 1), whole[:, num_copied + 1 :].flatten())

    def points(model: nn.Module) -> float:
        guessed = model(held_out[:, :-1])[:, num_copied:].argmax(-1)
        return 100.0 * (guessed == held_out[:, num_copied + 1 :]).float().mean().item()

    train = _doubled(NUM_TRAIN, num_copied, random=generator_of(seed, 1))
    return Problem(build=lambda: Copier(length=length), train=(train,), loss=loss, points=points)


def _doubled(number: int, num_copied: int, *, random: torch.Generator) -> Tensor:
    symbols = torch.randint(SYMBOLS, (number, num_copied), generator=random)
    separator = torch.full((number, 1), SYMBOLS)
    return torch.cat([symbols, separator, symbols], dim=1)


def tags(seed: int, difficulty: float) -> Problem:
    """Give one of six tags to ten words of three hundred, some frequent, most rare: an embedding's gradient is sparse.

    A word has a weight for each tag; noise on their sums is 0.1 to 0.5 of their spread.
    """
    weights = torch.randn(WORDS, TAGS, generator=generator_of(seed, 0))
    frequencies = 1.0 / torch.arange(10, WORDS + 10)  # Zipf's law, without the few words that would be in all samples
    noise = 0.1 + 0.4 * difficulty

    def samples(number: int, part: int, *, noise: float) -> tuple[Tensor, Tensor]:
        random = generator_of(seed, part)
        words = torch.multinomial(frequencies, number * LENGTH, replacement=True, generator=random)
        words = words.view(number, LENGTH)
        sums = weights[words].sum(1) / LENGTH**0.5
        return words, (sums + noise * torch.randn(sums.shape, generator=random)).argmax(1)

    return Problem(
        build=lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 16, mode="sum", sparse=True), nn.Linear(16, TAGS)),
        train=samples(NUM_TRAIN, 1, noise=noise),
        loss=cross_entropy,
        points=accuracy_points(*samples(NUM_HELD_OUT, 2, noise=0.0)),
    )
