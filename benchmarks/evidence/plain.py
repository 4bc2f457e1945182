"""Plain single-process training of a family's problem with the global batch: what rates and targets are fixed by.

No policy is run here, and nothing of Plesio trains: torch's optimizer, torch's schedule, one batch after the other.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from families import FAMILIES, Leapt, Problem
from own_optimizers import FixedLength, Lion
from scenario import Scenario
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from plesio.tasks.task import evaluation_mode, seeded

NUM_EVALUATIONS = 40
"""In a run, plain or under a policy."""
FLOOR = -100.0
"""Points of a model whose outputs are not finite."""
PLATEAU_PARTS = 20
"""Number of parts of a run; after each the plateau schedule is given the metric."""


def _muon(parameters: Iterable[nn.Parameter], lr: float) -> Optimizer:
    """Make Muon whose steps are as long as AdamW's would be, so that both have one rate."""
    return torch.optim.Muon(parameters, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")


OPTIMIZERS: Mapping[str, tuple[Callable[..., Optimizer], float]] = {
    "sgd": (torch.optim.SGD, 0.1),
    "momentum": (lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9), 0.02),
    "nesterov": (lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True), 0.02),
    "adam": (torch.optim.Adam, 0.004),
    "adamw": (torch.optim.AdamW, 0.004),
    "adagrad": (torch.optim.Adagrad, 0.03),
    "rmsprop": (torch.optim.RMSprop, 0.002),
    "fixed_length": (FixedLength, 0.1),
    "lion": (Lion, 0.0005),
    "nadam": (torch.optim.NAdam, 0.004),
    "radam": (torch.optim.RAdam, 0.004),
    "adadelta": (torch.optim.Adadelta, 2.0),
    "sparse_adam": (torch.optim.SparseAdam, 0.004),
} | ({"muon": (_muon, 0.01)} if hasattr(torch.optim, "Muon") else {})
"""How each is made from parameters and ``lr``, and the rate at which its sweep begins.

Muon is for matrices and SparseAdam for sparse embeddings alone; AdamW and Adam train the other parameters beside them.
"""


def _cosine(share: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))


SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "cosine": _cosine,
    "warm-up": lambda share: share / 0.1 if share < 0.1 else _cosine((share - 0.1) / 0.9),
    "step": lambda share: 0.1 if share >= 0.75 else 0.3 if share >= 0.5 else 1.0,
}
"""The rate relative to its peak, by the share of the run that is over. The warm-up is a tenth, a cosine follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of a run's evaluations, by samples trained on; the first is before any."""

    samples: tuple[int, ...]
    points: tuple[float, ...]


def build_model(problem: Problem, scenario: Scenario) -> nn.Module:
    """Build the problem's model, with its backbone frozen if the scenario says so."""
    model = problem.build()
    if scenario.frozen:
        model.get_submodule(FAMILIES[scenario.family].backbone).requires_grad_(False)
    return model


def make_optimizers(name: str, model: nn.Module, *, rate: float) -> list[Optimizer]:
    """Make the optimizer of this name for what is trained, and one beside it for parameters that it does not take."""
    make, _ = OPTIMIZERS[name]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "muon":
        taken = [parameter for parameter in trained if parameter.ndim == 2]
    elif name == "sparse_adam":
        bags = [module for module in model.modules() if isinstance(module, nn.EmbeddingBag) and module.sparse]
        taken = [bag.weight for bag in bags]
    else:
        return [make(trained, lr=rate)]
    places = {id(parameter) for parameter in taken}
    others = [parameter for parameter in trained if id(parameter) not in places]
    beside = torch.optim.AdamW if name == "muon" else torch.optim.Adam
    return [kind(some, lr=rate) for kind, some in ((make, taken), (beside, others)) if some]


def make_schedule(name: str, optimizer: Optimizer, *, num_steps: int) -> LRScheduler:
    """Make the schedule of this name over ``num_steps``; the first step's rate is above zero.

    One cycle rises for 30 % of the steps and falls to almost nothing. With momentum it also takes the optimizer's
    momentum or first beta from 0.95 to 0.85 and back, if there is one.
    """
    if name in SCHEDULES:
        return LambdaLR(optimizer, lambda step: SCHEDULES[name]((step + 1) / (num_steps + 1)))
    cycles = name == "one-cycle-momentum" and not optimizer.defaults.keys().isdisjoint({"momentum", "betas"})
    rate = optimizer.param_groups[0]["lr"]
    return OneCycleLR(optimizer, max_lr=rate, total_steps=num_steps + 1, cycle_momentum=cycles)


def make_plateaus(optimizers: Sequence[Optimizer]) -> list[ReduceLROnPlateau]:
    """Make the plateau schedule of each: a third of the rate after three parts of the run without a better metric."""
    return [ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=3) for optimizer in optimizers]


def plateau_parts(scenario: Scenario) -> list[int]:
    """Return the samples of the parts after which a plateau schedule is given the metric; one if there is none."""
    if scenario.schedule != "plateau":
        return [scenario.num_samples]
    ends = [scenario.num_steps * number // PLATEAU_PARTS for number in range(PLATEAU_PARTS + 1)]
    return [(end - begin) * scenario.accumulation * scenario.global_batch for begin, end in pairwise(ends)]


def clip(model: nn.Module, scenario: Scenario) -> None:
    """Clip the norm of the gradient if the scenario says so."""
    if scenario.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), scenario.clip_norm)


def points_of(problem: Problem, model: nn.Module, *, leapt: bool = False) -> float:
    """Return the metric now, or FLOOR where it is not finite; perhaps on inputs that have leapt."""
    with evaluation_mode(model):
        points = problem.points(Leapt(model) if leapt else model)
    return points if math.isfinite(points) else FLOOR


def train_plain(problem: Problem, scenario: Scenario, *, rate: float, seed: int) -> Curve:
    """Train in this process as BSP would; a run whose loss is no longer finite has FLOOR from there on."""
    with seeded(seed):
        model = build_model(problem, scenario)
    run = _PlainRun(problem, scenario, model, rate=rate)
    due = iter(_evaluations_due(scenario))
    next_due = next(due)
    samples, points = [0], [run.points()]
    for rows in _batches(problem, scenario.pass_sizes(), seed=seed):
        run.train(rows)
        if run.samples >= next_due:
            next_due = next((samples_due for samples_due in due if samples_due > run.samples), math.inf)
            samples.append(run.samples)
            points.append(run.points())
    return Curve(samples=tuple(samples), points=tuple(points))


def _evaluations_due(scenario: Scenario) -> list[int]:
    steps = [round(scenario.num_steps * number / NUM_EVALUATIONS) for number in range(1, NUM_EVALUATIONS + 1)]
    return [number * scenario.accumulation * scenario.global_batch for number in steps]


class _PlainRun:
    """A run in this process; ``samples`` is how many it has trained on."""

    def __init__(self, problem: Problem, scenario: Scenario, model: nn.Module, *, rate: float) -> None:
        self._problem, self._scenario, self._model = problem, scenario, model
        self._optimizers = make_optimizers(scenario.optimizer, model, rate=rate)
        self._plateaus: list[ReduceLROnPlateau] = []
        self._schedules: list[LRScheduler] = []
        if scenario.schedule == "plateau":
            self._plateaus = make_plateaus(self._optimizers)
        else:
            self._schedules = [
                make_schedule(scenario.schedule, one, num_steps=scenario.num_rounds) for one in self._optimizers
            ]
        self._parts_end = list(accumulate(plateau_parts(scenario)))
        self._finite, self._passes, self._rounds, self.samples = True, 0, 0, 0
        self._loss = torch.zeros(())

    def points(self) -> float:
        self._finite = self._finite and math.isfinite(self._loss.item())
        return points_of(self._problem, self._model, leapt=self._scenario.leaps) if self._finite else FLOOR

    def train(self, rows: Tensor) -> None:
        """Make a backward pass, and a step if it is the last one of a step or of the run."""
        before, self.samples = self.samples, self.samples + len(rows)
        self._passes += 1
        if not self._finite:
            return
        leapt = before >= self._scenario.leaps_after
        model = Leapt(self._model) if leapt else self._model
        self._loss = self._problem.loss(model, [tensor[rows] for tensor in self._problem.train])
        (self._loss / self._scenario.accumulation).backward()
        if self._passes % self._scenario.accumulation and self.samples < self._scenario.num_samples:
            return
        clip(self._model, self._scenario)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._catch_up()

    def _catch_up(self) -> None:
        """Step the schedules as often as the samples fill rounds."""
        while self._rounds < self.samples // self._scenario.global_batch:
            self._rounds += 1
            for schedule in self._schedules:
                schedule.step()
        while self._plateaus and self._parts_end and self.samples >= self._parts_end[0]:
            del self._parts_end[0]
            metric = self.points()
            for plateau in self._plateaus:
                plateau.step(metric)


def _batches(problem: Problem, sizes: Iterable[int], *, seed: int) -> Iterator[Tensor]:
    """Rows of each backward pass: every sample once before any comes again."""
    random = torch.Generator().manual_seed(seed)
    left = torch.empty(0, dtype=torch.long)
    for size in sizes:
        while len(left) < size:
            left = torch.cat([left, torch.randperm(problem.num_samples, generator=random)])
        yield left[:size]
        left = left[size:]
