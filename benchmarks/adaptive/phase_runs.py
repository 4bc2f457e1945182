"""The runs of `phases.py`: which model, data, start and schedule; and how one is trained and recorded."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from phase_schedules import Schedule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from plesio.policies.adaptive.readings.reading import GradientFigures, Reading
from plesio.tasks.digits import digits
from plesio.tasks.quadratic import quadratic
from plesio.tasks.stdlib_lm import stdlib_lm
from plesio.tasks.task import Task, seeded

__all__ = ["Recording", "Run", "record_run"]

VERSION = 5
"""Of what is recorded: runs of another one are done again."""
REVIEW_STEPS = 16
SAMPLE_STEPS = 32
METRIC_REVIEWS = 4
EVALUATION_STEPS = 8
EVALUATION_SAMPLES = 200
PRETRAINING_STEPS = 600

Signal = Literal["loss", "metric", "gradient", "progress"]
SIGNALS: tuple[Signal, ...] = ("loss", "metric", "gradient", "progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        name: What tables call it.
        kind: The group it is reported in.
        task: A name in `MODELS`.
        rate: Peak learning rate.
        schedule: Of the rate, relative to the peak.
        seed: Of initialisation and batches.
        start: ``fresh``; ``trained`` on the same data; ``new data``: trained, but on other data.
        shift_at: The step from which the data are other ones, or None.
        lacks: Signals that readings do not have.
    """

    name: str
    kind: str
    task: str
    rate: float
    schedule: Schedule
    seed: int
    start: Literal["fresh", "trained", "new data"] = "fresh"
    shift_at: int | None = None
    lacks: tuple[Signal, ...] = ()

    @property
    def measures_settling(self) -> bool:
        """Whether it has a boundary that its schedule does not say: the end of what follows a start or other data."""
        return self.shift_at is not None or (self.start != "trained" and not self.schedule.starts_with_warm_up)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a run has shown.

    Attributes:
        readings: One every `REVIEW_STEPS` steps: all that a detector sees.
        evaluations: Loss on a fixed sample of the training data before every `EVALUATION_STEPS`-th step, of the data
            that are trained on then; for labels only, and empty where they need none.
    """

    readings: list[Reading]
    evaluations: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A task, its other data, and the rate at which a trained model is made.

    Attributes:
        task: The task.
        other: Turns the training tensors into those of another data set of the same shape.
        pretraining_rate: Constant.
    """

    task: Task
    other: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
    pretraining_rate: float


class _Perceptron(nn.Module):
    """Two hidden layers on the pixels of `digits`; nothing is normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.output = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.output(self.layers(images))
        return logits


def _build_perceptron(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    del seed  # `Task` seeds torch before it calls
    model = _Perceptron()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def _negative(data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Black on white instead of white on black, and mirrored."""
    images, labels = data
    return 1 - images.flip(3), labels


def _renamed(data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each digit has the name of another."""
    images, labels = data
    return images, (labels + 3) % 10


def _other_case(data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Bytes of small letters and capitals change places, as do digits and punctuation."""
    (windows,) = data
    return (torch.where(windows >= 64, windows ^ 32, windows ^ 16),)


def _moved(data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Another optimum, 4 from the old one."""
    rows, targets = data
    direction = torch.linspace(-1, 1, rows.shape[1])
    return rows, targets + rows @ (4 * direction / direction.norm())


@functools.cache
def model_named(name: str) -> Model:
    """The models: three of the catalogue's tasks in small, variants of them, and a perceptron with momentum."""
    lm = functools.partial(stdlib_lm, corpus_bytes=400_000, batch_size=8)
    match name:
        case "digits":
            return Model(task=digits(), other=_negative, pretraining_rate=0.15)
        case "digits renamed":
            return Model(task=digits(), other=_renamed, pretraining_rate=0.15)
        case "lm":
            task = lm(context=32, width=32, depth=1, num_heads=2)
            return Model(task=task, other=_other_case, pretraining_rate=3e-3)
        case "lm wide":
            task = lm(context=48, width=48, depth=2, num_heads=4)
            return Model(task=task, other=_other_case, pretraining_rate=2e-3)
        case "quadratic":
            return Model(task=quadratic(condition_number=30.0), other=_moved, pretraining_rate=0.1)
        case "quadratic noisy":
            return Model(task=quadratic(condition_number=10.0, noise=1.0), other=_moved, pretraining_rate=0.1)
        case "perceptron":
            task = dataclasses.replace(digits(), name="perceptron", build=_build_perceptron)
            return Model(task=task, other=_negative, pretraining_rate=0.02)
    raise AssertionError(name)


def record_run(run: Run, *, folder: Path) -> Recording:
    """Train the run, or read what was recorded when it was trained before."""
    digest = hashlib.sha256(f"{VERSION} {run!r}".encode()).hexdigest()[:12]
    path = folder / f"{run.name.replace(' ', '-')}-{digest}.json"
    if not path.exists():
        recording = _train(run)
        content = {
            "readings": [dataclasses.asdict(reading) for reading in recording.readings],
            "evaluations": recording.evaluations,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return _read(path)


def _read(path: Path) -> Recording:
    content = json.loads(path.read_text(encoding="utf-8"))
    readings = []
    for fields in content["readings"]:
        gradient = fields.pop("gradient")
        readings.append(Reading(gradient=gradient and GradientFigures(**gradient), **fields))
    return Recording(readings=readings, evaluations=content["evaluations"])


def _train(run: Run) -> Recording:
    model = model_named(run.task)
    task = model.task
    network, optimizer = task.build(run.seed)
    with seeded(1_000 + run.seed):
        own = tuple(task.train_set()[:])
        other = model.other(own)
        if run.start != "fresh":
            _pretrain(task, network, optimizer, own, rate=model.pretraining_rate)
            optimizer.state.clear()
        data = other if run.start == "new data" else own
        recorder = _Recorder(run, task)
        batches = _batches(data, size=task.batch_size)
        for step, factor in enumerate(run.schedule.rates):
            if step == run.shift_at:
                data = other
                batches = _batches(data, size=task.batch_size)
            for group in optimizer.param_groups:
                group["lr"] = run.rate * factor
            recorder.before(step, network, data)
            recorder.after(step, network, optimizer, next(batches), validates=data is own)
    return Recording(readings=recorder.readings, evaluations=recorder.evaluations)


def _pretrain(
    task: Task, network: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Tensor, ...], *, rate: float
) -> None:
    batches = _batches(data, size=task.batch_size)
    for group in optimizer.param_groups:
        group["lr"] = rate
    for _ in range(PRETRAINING_STEPS):
        optimizer.zero_grad()
        task.loss(network, next(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _batches(data: tuple[Tensor, ...], *, size: int) -> Iterator[tuple[Tensor, ...]]:
    dataset = TensorDataset(*data)
    while True:
        for chosen in torch.randperm(len(dataset)).split(size):  # type: ignore[no-untyped-call]
            if len(chosen) == size:
                yield dataset[chosen]


class _Recorder:
    """Takes a reading every `REVIEW_STEPS` steps, as two workers with half a batch each would give it."""

    def __init__(self, run: Run, task: Task) -> None:
        self._run = run
        self._task = task
        self._losses: list[float] = []
        self._halves: list[list[Tensor]] = []
        self.readings: list[Reading] = []
        self.evaluations: list[float] = []

    def before(self, step: int, network: nn.Module, data: tuple[Tensor, ...]) -> None:
        """Evaluate, when it is time to."""
        if self._run.measures_settling and step % EVALUATION_STEPS == 0:
            sample = tuple(part[:: max(1, len(part) // EVALUATION_SAMPLES)] for part in data)
            with torch.no_grad():
                self.evaluations.append(float(self._task.loss(network, sample)))

    def after(
        self,
        step: int,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: tuple[Tensor, ...],
        *,
        validates: bool,
    ) -> None:
        """Do the step, its gradient being the mean of those of two half batches; end the review, when it is time to.

        ``validates`` is false on other data: the task's held-out data are not of their kind.
        """
        if step % SAMPLE_STEPS >= 2 or "gradient" in self._run.lacks:
            optimizer.zero_grad()
            self._losses.append(self._backward(network, batch))
        else:
            self._sample(network, optimizer, batch)
        optimizer.step()
        if step % REVIEW_STEPS == REVIEW_STEPS - 1:
            self._end_review(step, network, len(batch[0]) // 2, validates=validates)

    def _backward(self, network: nn.Module, batch: tuple[Tensor, ...]) -> float:
        loss = self._task.loss(network, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _sample(self, network: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, ...]) -> None:
        """The gradients of both half batches apart, and then their mean in the parameters' ``grad``."""
        half = len(batch[0]) // 2
        losses, gradients = [], []
        for part in (tuple(x[:half] for x in batch), tuple(x[half:] for x in batch)):
            optimizer.zero_grad()
            losses.append(self._backward(network, part))
            gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
        self._losses.append(sum(losses) / 2)
        for parameter, first, second in zip(network.parameters(), *gradients, strict=True):
            parameter.grad = (first + second) / 2
        self._halves.append([torch.cat([g.flatten() for g in gradient]) for gradient in gradients])

    def _end_review(self, step: int, network: nn.Module, half: int, *, validates: bool) -> None:
        lacks = self._run.lacks
        sign = 1 if self._task.metric_goal == "max" else -1
        evaluates = validates and "metric" not in lacks and (step + 1) % (METRIC_REVIEWS * REVIEW_STEPS) == 0
        self.readings.append(
            Reading(
                clock=step + 1,
                num_steps=REVIEW_STEPS,
                learning_rate=self._run.rate * self._run.schedule.rates[step],
                loss=math.nan if "loss" in lacks else sum(self._losses) / len(self._losses),
                gradient=_figures(self._halves, half=half) if self._halves else None,
                metric=sign * self._task.metric(network) if evaluates else None,
                progress=None if "progress" in lacks else (step + 1) / self._run.schedule.num_steps,
            )
        )
        self._losses, self._halves = [], []


def _figures(halves: list[list[Tensor]], *, half: int) -> GradientFigures:
    """The figures of two workers in two consecutive steps."""
    norm_sq = sum(float(g.square().sum()) for step in halves for g in step) / 4
    mean_norm_sq = sum(float(a @ b) for a, b in halves) / 2
    between = sum(float((a - b).square().sum()) for a, b in halves) / 4
    within = sum(float((a - b).square().sum()) for a, b in zip(*halves, strict=True)) / 4
    noise_scale = half * between / mean_norm_sq if mean_norm_sq > 0 else math.inf
    figures: dict[str, Any] = {"norm_sq": norm_sq, "mean_norm_sq": mean_norm_sq, "within": within, "between": between}
    return GradientFigures(**figures, noise_scale=noise_scale)
