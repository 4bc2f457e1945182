"""The models of `papers_failure`: six kinds, each drawn from a seed together with the speeds of its workers.

Rates are not tuned, for the experiment's are its source's. What a rate of 0.01 is for a model depends on the scale of
its inputs: the digits are what scikit-learn has, ink from 0 to 16, and the teacher's inputs have a spread of 4. With
inputs of a spread of 1 these two learn little in 250 steps of 0.01, whatever the policy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from families import FAMILIES
from families.problem import Problem, accuracy_points, cross_entropy, dense, generator_of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from plesio.cost.step_time import LogNormal, Stalls, StepTime
from plesio.tasks.digits import digits

__all__ = ["KINDS", "SETS", "Model", "draw"]

NUM_WORKERS = 4
STEP_S = 0.02
SETS: Mapping[str, range] = {"dev": range(6), "report": range(600, 606)}
"""Six models each, one of every kind. Nothing is chosen by what the second do."""
INK, TEACHER_SPREAD = 16.0, 4.0
SYMBOLS, LENGTH, MOTIF = 8, 12, 3
NUM_TRAIN, NUM_HELD_OUT = 4096, 1500


class _Scaled(nn.Module):
    """A model of inputs that are given in another unit."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model = model
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's output for ``factor`` times the inputs."""
        outputs: Tensor = self.model(self.factor * inputs)
        return outputs


class _Transformer(nn.Module):
    """One encoder block and the mean over places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, width)
        self.place = nn.Parameter(0.5 * torch.randn(LENGTH, width))
        self.block = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.out = nn.Linear(width, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """Logits of a class for each sequence."""
        logits: Tensor = self.out(self.block(self.symbol(symbols) + self.place).mean(1))
        return logits


def _digits(build: Callable[[], nn.Module]) -> Problem:
    task = digits()
    images, classes = task.train_set().tensors
    # the task's own metric is of a model of the images as they are
    return Problem(
        build=lambda: _Scaled(build(), INK),
        train=(images, classes),
        loss=cross_entropy,
        points=lambda model: 100.0 * task.metric(model),
    )


def _perceptron(_seed: int, width: int, _difficulty: float) -> Problem:
    return _digits(lambda: nn.Sequential(nn.Flatten(), dense(64, width, width, 10)))


def _convolutional(_seed: int, width: int, _difficulty: float) -> Problem:
    channels = width // 4
    return _digits(
        lambda: nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            dense(32 * channels, width, 10),
        )
    )


def _teacher(seed: int, _width: int, difficulty: float) -> Problem:
    problem = FAMILIES["teacher"].make(seed, difficulty)
    return replace(problem, build=lambda: _Scaled(problem.build(), TEACHER_SPREAD))


def _transformer(seed: int, width: int, difficulty: float) -> Problem:
    """Name the most frequent of eight symbols in twelve places; one of them was written into three more places."""
    random = generator_of(seed, 1)

    def samples(number: int) -> tuple[Tensor, Tensor]:
        symbols = torch.randint(SYMBOLS, (number, LENGTH), generator=random)
        frequent = torch.randint(SYMBOLS, (number,), generator=random)
        for _ in range(MOTIF + (difficulty < 0.5)):
            symbols[torch.arange(number), torch.randint(LENGTH, (number,), generator=random)] = frequent
        counts = F.one_hot(symbols, SYMBOLS).sum(1)
        return symbols, (counts + 1e-3 * torch.arange(SYMBOLS)).argmax(1)

    train, held_out = samples(NUM_TRAIN), samples(NUM_HELD_OUT)
    return Problem(
        build=lambda: _Transformer(width), train=train, loss=cross_entropy, points=accuracy_points(*held_out)
    )


KINDS: Mapping[str, Callable[[int, int, float], Problem]] = {
    "perceptron, digits": _perceptron,
    "convolutional, digits": _convolutional,
    "perceptron, teacher": _teacher,
    "residual with BatchNorm": lambda seed, _width, difficulty: FAMILIES["resnet"].make(seed, difficulty),
    "GRU": lambda seed, _width, difficulty: FAMILIES["gru"].make(seed, difficulty),
    "transformer": _transformer,
}

SPREADS: Mapping[str, tuple[float, ...]] = {
    "equal": (1.0, 1.0, 1.0, 1.0),
    "stalls": (1.0, 1.0, 1.0, 1.0),
    "mixed": (1.0, 0.85, 0.7, 0.5),
    "one slow": (1.0, 1.0, 1.0, 0.25),
}
"""Speeds of the workers. Under stalls any step may take six times as long, one in twenty does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, its data and its workers.

    Attributes:
        seed: What it is drawn from; the seed of its data, too.
        width: Of its layers, where the kind has a choice.
        difficulty: Of its data, from 0 to 1, where the kind has a choice.
        step_cv: Coefficient of variation of the log-normal steps of every worker.
        exchange_share: Of a step: what it takes that all workers push and pull at the same time.
    """

    seed: int
    kind: str
    width: int
    difficulty: float
    spread: str
    step_cv: float
    exchange_share: float

    def problem(self) -> Problem:
        """Make the model's problem."""
        return KINDS[self.kind](self.seed, self.width, self.difficulty)

    @property
    def step_time(self) -> StepTime:
        """The step time of a worker of speed 1."""
        steps = LogNormal(mean_s=STEP_S, cv=self.step_cv)
        return Stalls(steps=steps, probability=0.05, factor=6.0) if self.spread == "stalls" else steps

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speeds of the workers, by rank."""
        return SPREADS[self.spread]


def draw(seed: int) -> Model:
    """Draw the model of a seed; six seeds in succession have all kinds, and every spread at least once."""
    block, number = divmod(seed, len(KINDS))
    spreads = np.random.default_rng([block, 1]).permutation([*SPREADS, "mixed", "one slow"])
    random = np.random.default_rng([seed, 2])
    return Model(
        seed=seed,
        kind=tuple(KINDS)[number],
        width=int(random.choice([32, 48, 64])),
        difficulty=round(float(random.random()), 2),
        spread=str(spreads[number]),
        step_cv=round(float(random.uniform(0.05, 0.3)), 2),
        exchange_share=round(float(random.uniform(0.05, 0.4)), 2),
    )
