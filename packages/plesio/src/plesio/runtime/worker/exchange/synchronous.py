"""Bulk synchronous training on a collective, less the reduction itself: what every step does with the mean gradient."""

import math

import torch

from plesio.runtime.worker.exchange.exchange import (
    CollectiveExchange,
    HeldSteps,
    Participant,
    SharedState,
    StepProgress,
)
from plesio.runtime.worker.exchange.group import takes_blame
from plesio.runtime.worker.exchange.replica import State
from plesio.runtime.worker.exchange.sparse_mean import SparseMean


class SynchronousExchange(CollectiveExchange):
    """All replicas are equal, and step with the same mean gradient."""

    ready_s: float | None = None

    def __init__(self, own: Participant) -> None:
        self._replica, self._group, self._timeline = own.replica, own.group, own.timeline
        self._snapshots, self._gauge, self._ranks = own.snapshots, own.gauge, own.ranks
        self._leads = own.group.rank == 0
        self._buffers = [buffer for _, buffer in own.replica.model.named_buffers()]
        self._judges_together = True
        """True if a step is made of the mean of that step's gradients, which all ranks judge alike."""
        self._stepped: int | None = None
        """Clock of the step that the replica made last."""

    def held_steps(self) -> HeldSteps | None:
        return None if self._stepped is None else HeldSteps(settled=self._stepped, counted=self._stepped)

    def units(self) -> list[int]:
        return [0] * self._group.size

    def step(self, progress: StepProgress) -> None:
        if self.reduce(progress):
            self._replica.stepper.step()
        self._replica.optimizer.zero_grad(set_to_none=True)
        self._stepped = progress.clock
        self._snapshots.offer(progress.global_samples, at_s=progress.at_s, state=self._replica.state)

    def reduce(self, progress: StepProgress) -> bool:
        """Complete the mean gradient of a step, the same on every rank; False, and a rank's blame, if not finite."""
        self._complete(progress.clock)
        self.ready_s = None
        finite = self._finite()  # the mean is the same on all ranks, so all decide alike
        scaling = self._replica.scaling
        if scaling is not None and self._judges_together:
            scaling.common(finite)
        if not finite:
            self._blame(progress)
        return finite

    def _complete(self, clock: int) -> None:
        """Wait until the mean gradient is in the replica."""

    def _finite(self) -> bool:
        return self._replica.gradients_finite()

    def _blame(self, progress: StepProgress) -> None:
        """Refuse the step; the rank whose own loss is not finite takes the blame, else rank 0 for all.

        An overflow of a scaled loss is nobody's fault, and costs every rank its step.
        """
        if self._replica.scaling is not None:
            self._timeline.refuse(progress.clock, self._replica.refusal(progress.loss))
            return
        guilty = progress.loss is not None and not math.isfinite(progress.loss)
        if takes_blame(self._group, guilty=guilty, device=self._replica.device):
            self._timeline.refuse(progress.clock, "not_finite")

    def shared(self) -> State | None:
        return self._replica.state() if self._leads else None

    def snapshots(self) -> list[SharedState]:
        return self._snapshots.take()


class ReducingExchange(SynchronousExchange):
    """Reduces the gradients itself, after the backward pass; for groups that DDP cannot use."""

    @torch.no_grad()
    def _complete(self, clock: int) -> None:
        """Average the gradients; buffers become rank 0's, as DDP makes them before each forward pass."""
        begun_s = self._timeline.now_s()
        gradients = self._replica.gradients()
        weight = 1.0
        if self._gauge is not None:
            self._gauge.measure(gradients)
            weight = self._gauge.weight(self._ranks)
        if any(gradient.is_sparse for gradient in gradients):
            self._average_sparse(weight)
        unused = self._fill_unused()
        dense = [p.grad for p in self._replica.parameters.values() if p.grad is not None and not p.grad.is_sparse]
        # as `flat` does it, without calls: a virtual worker comes here in every step
        for dtype in dict.fromkeys(gradient.dtype for gradient in dense):
            alike = [gradient for gradient in dense if gradient.dtype == dtype]
            flat = torch.cat([gradient.reshape(-1) for gradient in alike]).mul_(weight).div_(self._group.size)
            self._group.all_reduce_gradient(flat).wait()
            parts = torch.split(flat, [gradient.numel() for gradient in alike])
            for gradient, part in zip(alike, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        for parameter in unused:
            if parameter.grad is not None and not parameter.grad.any():
                parameter.grad = None  # nobody has used it: the optimizer leaves it alone, as it does under DDP
        for buffer in self._buffers:
            self._group.broadcast(buffer)
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=clock)

    def _fill_unused(self) -> list[torch.nn.Parameter]:
        """Give the dense parameters that this rank's step has not used a gradient of zeros, for others may have."""
        replica = self._replica
        unused = [p for name, p in replica.parameters.items() if p.grad is None and name not in replica.sparse]
        for parameter in unused:
            parameter.grad = torch.zeros_like(parameter)
        return unused

    def _average_sparse(self, weight: float) -> None:
        trained = self._replica.parameters.values()
        touched = [(p, p.grad) for p in trained if p.grad is not None and p.grad.is_sparse]
        own = [gradient for _, gradient in touched]
        means = SparseMean(own, group=self._group, weight=weight / self._group.size).wait()
        for (parameter, _), mean in zip(touched, means, strict=True):
            parameter.grad = mean
