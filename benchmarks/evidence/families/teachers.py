"""A teacher network gives the classes, a smaller student learns them: clean, noisy, unbalanced, and not alike.

The teacher is a random network of one hidden layer whose outputs are centred, so that all classes occur. ``teacher``
has noise on the teacher's outputs; the others change what the student is given, and are judged on clean classes.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from families.problem import Problem, accuracy_points, cross_entropy, dense, generator_of

INPUTS, HIDDEN, CLASSES = 40, 64, 8
NUM_TRAIN, NUM_HELD_OUT = 8192, 2000


def teacher(seed: int, difficulty: float) -> Problem:
    """Train an MLP on a teacher whose outputs are noisy; the noise is 0.2 to 1 of their spread."""
    inputs, outputs = _taught(seed, NUM_TRAIN, part=1)
    noise = torch.randn(outputs.shape, generator=generator_of(seed, 3))
    return _learned_from(seed, inputs, (outputs + (0.2 + 0.8 * difficulty) * noise).argmax(1))


def label_noise(seed: int, difficulty: float) -> Problem:
    """10 to 40 % of the training samples have a class drawn by chance."""
    inputs, outputs = _taught(seed, NUM_TRAIN, part=1)
    random = generator_of(seed, 3)
    wrong = torch.rand(NUM_TRAIN, generator=random) < 0.1 + 0.3 * difficulty
    drawn = torch.randint(CLASSES, (NUM_TRAIN,), generator=random)
    return _learned_from(seed, inputs, torch.where(wrong, drawn, outputs.argmax(1)))


def imbalance(seed: int, difficulty: float) -> Problem:
    """Make the most frequent class 5 to 30 times as frequent as the rarest; all count alike in the metric."""
    inputs, outputs = _taught(seed, 4 * NUM_TRAIN, part=1)
    classes = outputs.argmax(1)
    wanted = (5.0 + 25.0 * difficulty) ** -(torch.arange(CLASSES) / (CLASSES - 1))
    chance = wanted[classes] / classes.bincount(minlength=CLASSES)[classes]
    rows = torch.multinomial(chance, NUM_TRAIN, replacement=False, generator=generator_of(seed, 3))
    return _learned_from(seed, inputs[rows], classes[rows], balanced=True)


def non_iid(seed: int, difficulty: float) -> Problem:
    """Worker w has its own mixture of classes: 40 to 90 % of its rows are of classes that few other workers have."""
    inputs, outputs = _taught(seed, NUM_TRAIN, part=1)
    classes = outputs.argmax(1)
    rows_of = _mixture(classes, share=0.4 + 0.5 * difficulty, seed=seed)
    return replace(_learned_from(seed, inputs, classes), rows_of=rows_of)


def ordered(seed: int, difficulty: float) -> Problem:
    """Worker w has the w-th piece of data that drift: the inputs' mean wanders by up to 2 spreads on its way."""
    inputs, _ = _taught(seed, NUM_TRAIN, part=1)
    direction = torch.randn(INPUTS, generator=generator_of(seed, 4))
    way = (0.5 + 1.5 * difficulty) * direction / direction.norm() * INPUTS**0.5 / 2
    inputs = inputs + torch.linspace(-1, 1, NUM_TRAIN).unsqueeze(1) * way
    held_out, _ = _taught(seed, NUM_HELD_OUT, part=2)
    held_out = held_out + torch.linspace(-1, 1, NUM_HELD_OUT).unsqueeze(1) * way
    outputs, held_out_outputs = (_outputs(seed, some) for some in (inputs, held_out))
    return Problem(
        build=lambda: dense(INPUTS, HIDDEN, HIDDEN, CLASSES),
        train=(inputs, outputs.argmax(1)),
        loss=cross_entropy,
        points=accuracy_points(held_out, held_out_outputs.argmax(1)),
        rows_of=lambda worker, num_workers: (
            torch.arange(NUM_TRAIN) // num_workers + worker * NUM_TRAIN // num_workers
        ).clamp(max=NUM_TRAIN - 1),
    )


def _learned_from(seed: int, inputs: Tensor, classes: Tensor, *, balanced: bool = False) -> Problem:
    held_out, outputs = _taught(seed, NUM_HELD_OUT, part=2)
    truth = outputs.argmax(1)
    return Problem(
        build=lambda: dense(INPUTS, HIDDEN, HIDDEN, CLASSES),
        train=(inputs, classes),
        loss=cross_entropy,
        points=_balanced_points(held_out, truth) if balanced else accuracy_points(held_out, truth),
    )


def _balanced_points(inputs: Tensor, classes: Tensor) -> Callable[[torch.nn.Module], float]:
    """Percent found, averaged over the classes."""

    def points(model: torch.nn.Module) -> float:
        found = (model(inputs).argmax(-1) == classes).float()
        return 100.0 * torch.stack([found[classes == one].mean() for one in classes.unique()]).mean().item()

    return points


def _taught(seed: int, number: int, *, part: int) -> tuple[Tensor, Tensor]:
    """Return inputs, and the teacher's outputs for them."""
    inputs = torch.randn(number, INPUTS, generator=generator_of(seed, part))
    return inputs, _outputs(seed, inputs)


def _outputs(seed: int, inputs: Tensor) -> Tensor:
    random = generator_of(seed, 0)
    first = torch.randn(INPUTS, HIDDEN, generator=random) / INPUTS**0.5
    second = torch.randn(HIDDEN, CLASSES, generator=random)
    hidden = torch.tanh(inputs @ first)
    outputs = hidden @ second
    return (outputs - outputs.mean(0)) / outputs.std(0)


def _mixture(classes: Tensor, *, share: float, seed: int) -> Callable[[int, int], Tensor]:
    def rows_of(worker: int, num_workers: int) -> Tensor:
        random = generator_of(seed, 100 + worker)
        rows = torch.arange(len(classes))
        own = (classes - CLASSES * worker // num_workers) % CLASSES < max(1, CLASSES // num_workers)
        drawn = own.nonzero().squeeze(1)[torch.randint(int(own.sum()), (len(classes),), generator=random)]
        return torch.where(torch.rand(len(classes), generator=random) < share, drawn, rows)

    return rows_of
