"""Real training with several workers in one process: local SGD and stale SGD, with faults, seen as the runtime would.

A *run* trains a task from its first step; from a review of it a *branch* may fork with a fault, so that the healthy
run is its own control. All parameters and gradients of a replica lie in one flat buffer each.

- ``local``: every worker steps its own replica with its own optimizer; every H steps the parameters are averaged.
- ``stale``: every worker computes its gradient at the parameters of τ steps ago; one optimizer applies their mean (or,
  undivided, their sum).

A gradient that is not finite is refused, as in the runtime: that worker's part is left out.

A *guarded* branch goes on as the runtime does: its extraordinary gradients are scaled down, its rate is held, and after
an alarm it is taken back to the older of the two states that were kept and goes on without slack. A branch that is not
guarded shows what the fault does if nobody acts.
"""

import copy
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from plesio.policies.adaptive.config.guard import GuardConfig
from plesio.policies.adaptive.controller import MAX_RESTORES
from plesio.policies.adaptive.readings.gradient_figures import GradientSample, gradient_figures
from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.training.guard import Guard
from plesio.policies.adaptive.training.rate_limit import RateLimit
from plesio.policies.adaptive.training.spike import SpikeDetector
from plesio.tasks.task import Task, take_batch

__all__ = ["Fault", "Team", "TeamSetting"]

STEPS_PER_REVIEW = 16
SKETCH_SIZE = 64
Batch = list[Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSetting:
    """How a team trains.

    Attributes:
        mode: ``local`` or ``stale``.
        slack: Steps a worker goes on without the others: H - 1, or τ.
        num_workers: N.
        batch_size: Of one worker.
        momentum: Put into the task's optimizer if it is plain SGD.
        rate: ``rate(step)``: the learning rate.
        seed: Of the parameters and the samples.
    """

    mode: Literal["local", "stale"]
    slack: int
    num_workers: int
    batch_size: int
    rate: Callable[[int], float]
    seed: int
    momentum: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault from a step on.

    Attributes:
        kind: ``rate`` times the learning rate; on one worker: ``labels`` random in this share, ``inputs`` or
            ``gradient`` times a factor, ``flip`` minus the gradient times a factor, ``noise`` of this many times the
            gradient's norm, ``nan`` in this share of the steps; ``loose``: times the slack (plus one), undivided when
            stale, and times 3 the learning rate when local.
        strength: See there.
    """

    kind: Literal["rate", "labels", "inputs", "gradient", "flip", "noise", "nan", "loose"]
    strength: float


class Watch:
    """The guard of a team: detectors of each worker's norms and losses, the rate's limit, and their actions.

    Args:
        num_workers: N.
        config: The guard's.
    """

    def __init__(self, num_workers: int, config: GuardConfig) -> None:
        detectors = [SpikeDetector(jump=config.spike_jump, shift=config.spike_shift) for _ in range(2 * num_workers)]
        self._norms, self._losses = detectors[:num_workers], detectors[num_workers:]
        self._suspect = [False] * num_workers
        self._limit = RateLimit(jump=config.rate_jump)
        self.guard = Guard(config)
        self.kept: deque[Any] = deque(maxlen=2)
        self.clipped: list[tuple[int, int]] = []
        """Step and worker."""
        self.held: list[int] = []
        """Steps."""

    def gradient(self, gradient: Tensor, *, loss: float, worker: int, step: int) -> Tensor:
        """Return the gradient as it is sent; its loss only counts for the next one."""
        factor = self._norms[worker].judge(float(gradient.norm()), suspect=self._suspect[worker])
        self._suspect[worker] = self._losses[worker].judge(loss) < 1.0
        if factor == 1.0:
            return gradient
        self.clipped.append((step, worker))
        return gradient * factor

    def rate(self, rate: float, *, step: int) -> float:
        """Return the rate that is let through."""
        allowed = self._limit.allow(rate)
        if self._limit.holds:
            self.held.append(step)
        return allowed

    def most_clipped(self, *, since: int) -> int:
        """Count the steps from ``since`` on in which the worker with most of them was clipped."""
        counts = Counter(worker for step, worker in self.clipped if step >= since)
        return max(counts.values(), default=0)

    def answered(self, *, good: bool, restored: bool) -> None:
        """Take the answer to a review."""
        if restored:
            self._limit.returned()
        elif good:
            self._limit.good()


class Team:
    """Workers that train a task together."""

    def __init__(self, task: Task, setting: TeamSetting, *, config: GuardConfig) -> None:
        self._task, self._setting = task, setting
        num_replicas = setting.num_workers if setting.mode == "local" else 1
        self._replicas = [_Replica(task, setting) for _ in range(num_replicas)]
        self._data = [task.for_worker(worker, setting.num_workers).train_set() for worker in range(setting.num_workers)]
        self._random = torch.Generator().manual_seed(1000 + setting.seed)
        size = self._replicas[0].flat.numel()
        fixed = torch.Generator().manual_seed(7)
        self._bucket = torch.randint(SKETCH_SIZE, (size,), generator=fixed)
        self._sign = torch.randint(2, (size,), generator=fixed).to(self._replicas[0].flat.dtype) * 2 - 1
        self._history: deque[Tensor] = deque([self._replicas[0].flat.clone()], maxlen=512)
        self._fault: Fault | None = None
        self._fault_step = 0
        self._step = 0
        self._last_rate = self._summed_rate = 0.0
        self._fell_back = False
        self._num_restores = 0
        self._position: Tensor | None = self._sketch(self._replicas[0].flat)
        """Sketch of the parameters at the last review; None after a return."""
        self.watch: Watch | None = Watch(setting.num_workers, config)
        """None for a branch that nothing guards."""

    def fork(self, fault: Fault, *, worker_seed: int, guarded: bool) -> "Team":
        """Copy the team; the copy's fault begins some steps into its first review."""
        other = copy.copy(self)
        other.watch = copy.deepcopy(self.watch, {id(one): one for one in self.watch.kept}) if guarded else None
        other._replicas = [replica.copy() for replica in self._replicas]
        other._history = deque(self._history, maxlen=self._history.maxlen)
        other._random = torch.Generator()
        other._random.set_state(self._random.get_state())
        other._fault = fault
        other._fault_step = self._step + worker_seed % STEPS_PER_REVIEW
        return other

    @property
    def clock(self) -> int:
        """Steps done."""
        return self._step

    @property
    def fault_step(self) -> int:
        """The first step with the fault."""
        return self._fault_step

    def train(self, *, with_gradient: bool) -> Reading:
        """Train for a review; what it saw."""
        num_workers = self._setting.num_workers
        losses: list[list[float]] = [[] for _ in range(num_workers)]
        samples: dict[int, list[GradientSample]] = {worker: [] for worker in range(num_workers)}
        num_refused = 0
        self._summed_rate = 0.0
        for step in range(STEPS_PER_REVIEW):
            found = self._all_gradients()
            for worker, (loss, gradient) in enumerate(found):
                if gradient is None:
                    num_refused += 1
                elif math.isfinite(loss):
                    losses[worker].append(loss)
                if with_gradient and step < 2:
                    samples[worker].append(self._sample(gradient))
        figures = None
        if with_gradient:
            pairs = {worker: (pair[0], pair[1]) for worker, pair in samples.items()}
            figures = gradient_figures(pairs, batch_samples=[self._setting.batch_size] * num_workers)
        means = [sum(of_worker) / len(of_worker) for of_worker in losses if of_worker]
        began = self._step - STEPS_PER_REVIEW
        before, self._position = self._position, self._sketch(self._shared())
        return Reading(
            num_clipped=0 if self.watch is None else self.watch.most_clipped(since=began),
            clock=self._step,
            num_steps=STEPS_PER_REVIEW,
            learning_rate=self._last_rate,
            loss=sum(means) / len(means) if means else math.nan,
            worst_loss=max(means, default=math.nan),
            typical_loss=statistics.median(means) if means else math.nan,
            num_refused=num_refused,
            gradient=figures,
            speed=math.nan if before is None else float((self._position - before).norm()) / self._summed_rate,
        )

    def answer(self, reading: Reading) -> str | None:
        """Do what the guard says of a review; the reason of an alarm. Three of them take the team back."""
        assert self.watch is not None, "guarded"
        alarm = self.watch.guard.observe(reading)
        restored = (
            alarm is not None and not alarm.averted and self._num_restores < MAX_RESTORES and bool(self.watch.kept)
        )
        if alarm is not None and self._fault is not None:
            self._fell_back = True
        if restored:
            self._num_restores += 1
            self._go_back(self.watch.kept[0])
            self.watch.kept = deque([self.watch.kept[0]], maxlen=2)
        elif self.watch.guard.good:
            self.watch.kept.append(self._state())
        self.watch.answered(good=self.watch.guard.good, restored=restored)
        return None if alarm is None else alarm.reason

    def _state(self) -> list["_Replica"]:
        return [replica.copy() for replica in self._replicas]

    def _go_back(self, kept: list["_Replica"]) -> None:
        self._replicas = [replica.copy() for replica in kept]
        mean = torch.stack([replica.flat for replica in self._replicas]).mean(0)
        for replica in self._replicas:
            replica.flat.copy_(mean)
        self._history.append(mean)
        self._position = None

    def _all_gradients(self) -> list[tuple[float, Tensor | None]]:
        """One step of everyone: each worker's loss and gradient as it sends it."""
        local = self._setting.mode == "local"
        fault = self._fault if self._step >= self._fault_step else None
        loose = fault is not None and fault.kind == "loose" and not self._fell_back
        slack = 0 if self._fell_back else self._setting.slack
        if fault is not None and loose:
            slack = round((slack + 1) * fault.strength) - 1
        rate = self._rate(self._step)
        if self.watch is not None:
            rate = self.watch.rate(rate, step=self._step)
        self._last_rate = rate
        self._summed_rate += rate
        found: list[tuple[float, Tensor | None]] = []
        for worker in range(self._setting.num_workers):
            replica = self._replicas[worker if local else 0]
            if not local:
                replica.flat.copy_(self._history[max(0, len(self._history) - 1 - slack)])
            bad = fault if worker == self._fault_step % self._setting.num_workers else None
            loss = replica.gradient(self._task, self._batch(worker, bad))
            gradient = self._spoil(replica.grad.clone(), bad)
            if self.watch is not None:
                gradient = self.watch.gradient(gradient, loss=loss, worker=worker, step=self._step)
            found.append((loss, gradient if bool(torch.isfinite(gradient).all()) else None))
        if local:
            for replica, (_, gradient) in zip(self._replicas, found, strict=True):
                replica.apply(gradient, rate=rate)
            if (self._step + 1) % (slack + 1) == 0:
                mean = torch.stack([replica.flat for replica in self._replicas]).mean(0)
                for replica in self._replicas:
                    replica.flat.copy_(mean)
        else:
            kept = [gradient for _, gradient in found if gradient is not None]
            self._replicas[0].flat.copy_(self._history[-1])
            if kept:
                total = torch.stack(kept).sum(0)
                self._replicas[0].apply(total if loose else total / len(kept), rate=rate)
            self._history.append(self._replicas[0].flat.clone())
        self._step += 1
        return found

    def _rate(self, step: int) -> float:
        rate = self._setting.rate(step)
        if self._fault is not None and step >= self._fault_step:
            if self._fault.kind == "rate":
                return rate * self._fault.strength
            if self._fault.kind == "loose" and self._setting.mode == "local":
                return rate * 3
        return rate

    def _batch(self, worker: int, fault: Fault | None) -> Batch:
        data = self._data[worker]
        indices = torch.randint(len(data), (self._setting.batch_size,), generator=self._random)
        batch = list(take_batch(data, indices.tolist()))
        if fault is not None and fault.kind == "labels":
            batch = self._other_labels(batch, share=fault.strength)
        if fault is not None and fault.kind == "inputs" and batch[0].is_floating_point():
            batch = [batch[0] * fault.strength, *batch[1:]]
        return batch

    def _other_labels(self, batch: Batch, *, share: float) -> Batch:
        spoilt = torch.rand(len(batch[0]), generator=self._random) < share
        labels = batch[-1].clone()
        if labels.is_floating_point():
            labels[spoilt] = labels[spoilt] + 10.0 * torch.randn(int(spoilt.sum()), generator=self._random)
        else:
            largest = int(labels.max()) + 1
            shape = labels[spoilt].shape
            labels[spoilt] = torch.randint(largest, shape, generator=self._random).to(labels.dtype)
        return [*batch[:-1], labels]

    def _spoil(self, gradient: Tensor, fault: Fault | None) -> Tensor:
        match fault:
            case Fault(kind="gradient", strength=factor):
                return gradient * factor
            case Fault(kind="flip", strength=factor):
                return gradient * -factor
            case Fault(kind="noise", strength=factor):
                noise = torch.randn(gradient.shape, generator=self._random)
                return gradient + noise * (factor * gradient.norm() / noise.norm())
            case Fault(kind="nan", strength=share) if torch.rand((), generator=self._random) < share:
                return gradient * math.nan
        return gradient

    def _sample(self, gradient: Tensor | None) -> GradientSample:
        if gradient is None:
            return GradientSample(norm_sq=math.nan, sketch=(math.nan,) * SKETCH_SIZE)
        sketch = tuple(self._sketch(gradient).tolist())
        return GradientSample(norm_sq=float(gradient.double().square().sum()), sketch=sketch)

    def _sketch(self, flat: Tensor) -> Tensor:
        return torch.zeros(SKETCH_SIZE, dtype=flat.dtype).index_add_(0, self._bucket, flat * self._sign)

    def _shared(self) -> Tensor:
        """Return the parameters that the workers have in common: of replicas, their mean."""
        if self._setting.mode == "stale":
            return self._history[-1]
        return torch.stack([replica.flat for replica in self._replicas]).mean(0)

    def metric(self) -> float:
        """Return the shared model's metric; higher is better."""
        first = self._replicas[0]
        own = first.flat.clone()
        if self._setting.mode == "local":
            first.flat.copy_(torch.stack([replica.flat for replica in self._replicas]).mean(0))
        metric = self._task.metric(first.model)
        first.flat.copy_(own)
        return metric if self._task.metric_goal == "max" else -metric


class _Replica:
    def __init__(self, task: Task, setting: TeamSetting) -> None:
        self.model, self._optimizer = task.build(setting.seed)
        if setting.momentum:
            self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, momentum=setting.momentum)
        self._flatten()

    def _flatten(self) -> None:
        parameters = list(self.model.parameters())
        self.flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.grad = torch.zeros_like(self.flat)
        start = 0
        for parameter in parameters:
            part = slice(start, start + parameter.numel())
            parameter.data = self.flat[part].view(parameter.shape)
            parameter.grad = self.grad[part].view(parameter.shape)
            start = part.stop

    def copy(self) -> "_Replica":
        other = copy.copy(self)
        other.model, other._optimizer = copy.deepcopy((self.model, self._optimizer))
        other._flatten()
        return other

    def gradient(self, task: Task, batch: Batch) -> float:
        """Return the loss; its gradient is in ``grad``."""
        self.grad.zero_()
        loss = task.loss(self.model, batch)
        loss.backward()
        return loss.item()

    def apply(self, gradient: Tensor | None, *, rate: float) -> None:
        if gradient is None:
            return
        self.grad.copy_(gradient)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
