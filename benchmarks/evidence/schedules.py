"""Compare schedules of local steps on a small transformer under AdamW, all workers of all seeds as one batch.

    python benchmarks/evidence/schedules.py --seeds 0,1,2,3 "1 qsgd:4; 8 qsgd:4 @48; 32 qsgd:4 @160" "2 own; 8 @48"

The stages of a schedule are split by ";": H, the period (1: the mean gradient at every step), then words, then the step
from which on it holds. `bsp` in full is the base; printed are perplexities above it with the same seed, in %.

    qsgd:4 ...       what a worker sends is rounded so, and the mean once more
    feedback         what a worker has not sent goes with the next
    own              the optimizer's state is of a worker's own gradients, and not of the mean (`mean_moments`)
    own_squares      its squares alone are
    own_momentum     its momentum alone is
    shifted          momentum is moved by how far the mean is ahead of the worker, and not set to the mean's
    rate=, outer=    a factor of the learning rate; of the mean progress
    nesterov=        momentum of the mean progress, as under `diloco`
    delay=           steps behind which an exchange is hidden; at a change of the stage it is waited for

The model is `stdlib_lm` of width 48, depth 2 and context 32, in batches of 4, at 3e-3; four workers.
"""

import argparse
import functools
import itertools
import math
import statistics
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from plesio.policies.compression import NO_COMPRESSION, Compression, parse_compression
from plesio.runtime.parameters.codecs import make_codec
from plesio.tasks.stdlib_lm import stdlib_lm

NUM_WORKERS, BATCH, PEAK, DECAY = 4, 4, 3e-3, 0.1
BETA1, BETA2, EPS = 0.9, 0.95, 1e-8
KEPT = 0.9
"""Share of a worker's mean gradient over time that a step keeps."""
OF_MEAN = (1 - 1 / NUM_WORKERS) / (1 - (1 - KEPT) / (1 + KEPT))
"""Weight of that mean's square in the square of all workers' mean gradient (`mean_moments`: b)."""
WORDS = {"feedback", "own", "own_squares", "own_momentum", "shifted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Steps of one kind, from a step on."""

    begins: int
    period: int
    words: frozenset[str]
    compression: Compression
    rate: float = 1.0
    outer: float = 1.0
    nesterov: float = 0.0
    delay: int = 0

    def has(self, *words: str) -> bool:
        """Tell whether one of these words is given."""
        return not self.words.isdisjoint(words)


def schedule_of(text: str) -> list[Stage]:
    """Parse the stages of a schedule; as an argument's type."""
    try:
        stages = [_stage_of(part.split()) for part in text.split(";")]
    except Exception as error:
        raise argparse.ArgumentTypeError(f'"{text}": {error}') from None
    if stages[0].begins:
        raise argparse.ArgumentTypeError(f'"{text}": the first stage begins at step 0')
    return stages


def _stage_of(words: list[str]) -> Stage:
    period, begins, delay, compression, given, factors = int(words[0]), 0, 0, NO_COMPRESSION, set(), {}
    for word in words[1:]:
        name, is_factor, value = word.partition("=")
        if word.startswith("@"):
            begins = int(word[1:])
        elif name == "delay":
            delay = int(value)
        elif is_factor and name in ("rate", "outer", "nesterov"):
            factors[name] = float(value)
        elif word in WORDS:
            given.add(word)
        else:
            compression = parse_compression(word)
    words_given = frozenset(given)
    return Stage(begins=begins, period=period, delay=delay, words=words_given, compression=compression, **factors)


class Batch:
    """The models and data of some seeds: flat parameters ``[num_seeds, num_workers, num_parameters]``.

    Args:
        num_steps: Steps of each worker, by which the learning rate's schedule goes.
        stays: Whether the rate stays at its highest.
    """

    def __init__(self, seeds: list[int], *, num_steps: int, stays: bool) -> None:
        self.task = stdlib_lm(width=48, depth=2, context=32, batch_size=BATCH, learning_rate=PEAK, corpus_bytes=300_000)
        models = [self.task.build(seed)[0] for seed in seeds]
        self._model, self.num_steps = models[0], num_steps
        self._parts = [(name, p.shape) for name, p in self._model.named_parameters()]
        flat = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])
        self.begins = flat.unsqueeze(1).repeat(1, NUM_WORKERS, 1)
        self.decay = torch.cat([torch.full((shape.numel(),), DECAY * (len(shape) > 1)) for _, shape in self._parts])
        self._gradients = vmap(vmap(grad(self._loss)))
        [self._windows] = self.task.train_set().tensors  # type: ignore[attr-defined]
        size = len(self._windows)
        self._orders = [torch.randperm(size, generator=torch.Generator().manual_seed(1000 + it)) for it in seeds]
        optimizer = torch.optim.SGD(self._model.parameters(), lr=PEAK)
        schedule = self.task.schedule(optimizer, num_steps)
        assert schedule is not None, "it has one"
        self.rates = []
        for _ in range(num_steps):
            self.rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        if stays:
            self.rates = list(itertools.accumulate(self.rates, max))

    def _loss(self, flat: Tensor, windows: Tensor) -> Tensor:
        return self.task.loss(functools.partial(functional_call, self._model, self._named(flat)), [windows])  # type: ignore[arg-type]

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([shape.numel() for _, shape in self._parts])
        return {name: part.view(shape) for (name, shape), part in zip(self._parts, parts, strict=True)}

    def gradients(self, flat: Tensor, *, step: int) -> Tensor:
        """Compute each worker's gradient of its batch of this step."""
        each = NUM_WORKERS * BATCH
        places = torch.arange(step * each, (step + 1) * each) % len(self._windows)
        windows = torch.stack([self._windows[order[places]].view(NUM_WORKERS, BATCH, -1) for order in self._orders])
        return self._gradients(flat, windows)

    def perplexities(self, flat: Tensor) -> list[float]:
        """Evaluate the mean of the workers' parameters, by seed."""
        found = []
        for one in flat.mean(1):
            for parameter, part in zip(self._model.parameters(), self._named(one).values(), strict=True):
                parameter.data.copy_(part)
            found.append(self.task.metric(self._model))
        return found


class Rounding:
    """The mean of what workers send, rounded; the residuals of those that keep them."""

    def __init__(self, num_elements: int) -> None:
        self._num_elements = num_elements
        self._left: Tensor | float = 0.0

    def mean(self, values: Tensor, stage: Stage, *, clock: int) -> Tensor:
        """Make the mean ``[num_seeds, num_parameters]`` of what the workers send."""
        if stage.compression == NO_COMPRESSION:
            return values.mean(1)
        values = values + self._left
        sent = self._rounded(values, stage, clock=2 * clock)
        self._left = values - sent if stage.has("feedback") else 0.0
        return self._rounded(sent.mean(1), stage, clock=2 * clock + 1)

    def _rounded(self, values: Tensor, stage: Stage, *, clock: int) -> Tensor:
        codec = make_codec(stage.compression, num_elements=self._num_elements, seed=0, rank=0)
        found = torch.zeros_like(values)
        codec.add(codec.encode(values, clock=clock), to=found, clock=clock)
        return found


class Adam:
    """AdamW's state of all workers, of their own gradients or as if they had seen the mean (`mean_moments`)."""

    def __init__(self, like: Tensor) -> None:
        self.momentum, self.squares = torch.zeros_like(like), torch.zeros_like(like)
        self._mean: Tensor | None = None
        self._num = 0

    def take(self, gradient: Tensor, stage: Stage) -> None:
        """Take in the gradients of a step."""
        if stage.period == 1:
            self._mean = None
        else:
            before = self.momentum / (1 - BETA1**self._num) if self._num else gradient
            self._mean = (before if self._mean is None else self._mean).lerp(gradient, 1 - KEPT)
        taken = gradient.square()
        if self._mean is not None and self._num and not stage.has("own", "own_squares"):
            taken = (1 - OF_MEAN) * taken + OF_MEAN * self._mean.square()
        self._num += 1
        self.momentum = self.momentum.lerp(gradient, 1 - BETA1)
        self.squares = BETA2 * self.squares + (1 - BETA2) * taken

    @property
    def divisor(self) -> Tensor:
        """sqrt(v̂) + ε."""
        return (self.squares / (1 - BETA2**self._num)).sqrt() + EPS

    @property
    def move(self) -> Tensor:
        """The step, at a rate of -1."""
        return self.momentum / (1 - BETA1**self._num) / self.divisor

    @property
    def momenta(self) -> tuple[Tensor | None, Tensor, Tensor, int]:
        """The mean gradient over time, the momentum, the divisor, and the steps so far."""
        return self._mean, self.momentum, self.divisor, self._num

    def met(
        self, mean: Tensor, own: Tensor, stage: Stage, *, rate: float, then: tuple[Tensor | None, Tensor, Tensor, int]
    ) -> None:
        """Go on with the momentum of the mean progress ``mean``, after ``own``, at rates whose sum is ``rate``.

        ``then`` are the momenta when they began to meet: what was learnt since is kept.
        """
        before, momentum, divisor, num = then
        if stage.has("own", "own_momentum") or before is None or self._mean is None:
            return
        found = (mean.unsqueeze(1) - own if stage.has("shifted") else mean.unsqueeze(1)) / -rate * divisor
        kept = 1.0 if stage.has("shifted") else 0.0
        since = self._num - num
        self._mean = self._mean + KEPT**since * (found + (kept - 1) * before)
        self.momentum = self.momentum + BETA1**since * (found * (1 - BETA1**num) + (kept - 1) * momentum)


class Replicas:
    """The workers' parameters, and what they share.

    Attributes:
        flat: Parameters of each worker, ``[num_seeds, num_workers, num_parameters]``.
        sent: Exchanges in full so far.
    """

    def __init__(self, begins: Tensor) -> None:
        self.flat, self.base, self.adam = begins, begins[:, 0], Adam(begins)
        self.sent, self.apart = 0.0, 0
        self._rounding = Rounding(begins.shape[-1])
        self._velocity, self._rate = torch.zeros_like(self.base), 0.0
        self._under_way: tuple[int, Any] | None = None

    def mean_of(self, values: Tensor, stage: Stage, *, clock: int) -> Tensor:
        """Exchange the workers' values: ``[num_seeds, num_parameters]``."""
        size = values.shape[-1]
        self.sent += stage.compression.payload_bits(size) / NO_COMPRESSION.payload_bits(size)
        return self._rounding.mean(values, stage, clock=clock)

    def step(self, batch: Batch, stage: Stage, *, clock: int) -> None:
        """Step each worker, with its own gradient or that of all, and exchange what is due."""
        gradient = batch.gradients(self.flat, step=clock)
        if stage.period == 1:
            gradient = self.mean_of(gradient, stage, clock=clock).unsqueeze(1).expand_as(self.flat)
        self.adam.take(gradient, stage)
        rate = stage.rate * batch.rates[clock]
        self.flat = self.flat * (1 - rate * batch.decay) - rate * self.adam.move
        if stage.period == 1:
            self.base = self.flat[:, 0]
            return
        self._rate, self.apart = self._rate + rate, self.apart + 1
        if self._under_way is not None and clock - self._under_way[0] >= stage.delay:
            self.merge(stage)
        if self.apart == stage.period:
            self._begin(stage, clock=clock)
            if not stage.delay:
                self.merge(stage)

    def meet(self, stage: Stage, sends: Stage, *, clock: int) -> None:
        """End a stage: all workers have the mean, sent as ``sends`` has it."""
        self.merge(stage)
        if self.apart:
            self._begin(sends, clock=clock)
            self.merge(stage)

    def _begin(self, stage: Stage, *, clock: int) -> None:
        own = self.flat - self.base.unsqueeze(1)
        self._under_way = clock, (self.mean_of(own, stage, clock=clock), own, self._rate, self.adam.momenta)
        self._rate, self.apart = 0.0, 0

    def merge(self, stage: Stage) -> None:
        """Take over the exchange that is under way, if any."""
        if self._under_way is None:
            return
        (_, (mean, own, rate, then)), self._under_way = self._under_way, None
        self.adam.met(mean, own, stage, rate=rate, then=then)
        self._velocity = stage.nesterov * self._velocity + mean
        moved = stage.outer * (mean + stage.nesterov * self._velocity)
        self.base = self.base + moved
        self.flat = self.flat + (moved.unsqueeze(1) - own)


def train(batch: Batch, schedule: list[Stage]) -> tuple[list[float], float]:
    """Return the perplexity at the end by seed, and how many exchanges in full were sent."""
    workers, stage = Replicas(batch.begins), schedule[0]
    whole = Stage(begins=0, period=1, words=frozenset(), compression=NO_COMPRESSION)
    for clock in range(batch.num_steps):
        now = next(one for one in reversed(schedule) if one.begins <= clock)
        if now is not stage:
            workers.meet(stage, whole if now.period == 1 else stage, clock=clock)
        stage = now
        workers.step(batch, stage, clock=clock)
    workers.merge(stage)
    return batch.perplexities(workers.flat), workers.sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="+", type=lambda text: (text, schedule_of(text)), metavar="SCHEDULE")
    parser.add_argument("--seeds", default="0,1,2,3", help="(0,1,2,3)")
    parser.add_argument("--steps", type=int, default=480, metavar="N", help="of each worker (480)")
    parser.add_argument("--stays", action="store_true", help="the learning rate does not fall after its warm-up")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="There is a performance drop")
    batch = Batch([int(seed) for seed in arguments.seeds.split(",")], num_steps=arguments.steps, stays=arguments.stays)
    bases, _ = train(batch, schedule_of("1"))
    print(f"bsp: perplexity {statistics.fmean(bases):.2f} at the end, by seed {', '.join(f'{it:.2f}' for it in bases)}")
    for text, schedule in arguments.schedules:
        ends, sent = train(batch, schedule)
        above = [100 * (end / base - 1) for end, base in zip(ends, bases, strict=True)]
        error = statistics.stdev(above) / math.sqrt(len(above)) if len(above) > 1 else math.nan
        row: list[Any] = [text, f"{statistics.fmean(above):+.1f} ± {error:.1f}", f"{max(above):+.1f}", f"{sent:.3g}"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
