"""Exchanges gradients through `CompressedReducer`s, and applies their mean d steps later: delayed and compressed BSP.

    step c                   wait for the mean of step c - d  |  begin the mean of step c  |  step the optimizer
    under way meanwhile      c - d ... c - 1                     c - d + 1 ... c

With d = 0 the mean of step c is begun and waited for at once: bulk synchronous, with whatever compression. It is
reduced after the backward pass, so unlike DDP's it does not overlap with it. With d steps of delay it is hidden behind
the next d steps instead.

**Memory.** Between two steps d flat gradients are held, of d steps, beside what the codec keeps (a residual for each).

**Compression under delay.** A reducer makes one mean at a time, so there are d of them, one step each in rotation: what
one keeps back of step c it adds to step c + d. Summed up they have sent all gradients less their residuals, like one.

**Sparse gradients** are sent in full, whatever the compression: the rows that a batch has touched. How many each rank
has must be known before they are sent, so at every step all ranks wait for that, a few bytes; the rows themselves go
behind the next d steps, as all else does.

**At the end**, or when another policy follows, the means under way are applied; then everything that was kept back is
sent in full, and its mean is applied beyond the last step (`late_gradient`).

**Buffers** become rank 0's at every step without delay, as DDP makes them. With a delay, under which a broadcast would
wait behind the means under way, every rank has its own, and rank 0's are everybody's at the end.
"""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from plesio.policies import Policy
from plesio.runtime.worker.compression import CompressedReducer, PendingMean
from plesio.runtime.worker.compression.records import CompressionRecords
from plesio.runtime.worker.exchange.exchange import HeldSteps, Participant, StepProgress
from plesio.runtime.worker.exchange.flat_gradients import FlatGradients, apply_late
from plesio.runtime.worker.exchange.sparse_mean import SparseMean
from plesio.runtime.worker.exchange.synchronous import SynchronousExchange

_Due = tuple[StepProgress, list[Tensor], list[Tensor]]
"""The step that a mean gradient is of, and the mean: a flat tensor for each dtype, and the sparse ones."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    started: StepProgress
    means: list[PendingMean]
    sparse: SparseMean | None


class GradientMeanExchange(SynchronousExchange):
    """All replicas are equal, and step with the mean gradient of ``policy.delay`` steps before."""

    def __init__(self, own: Participant, *, policy: Policy, seed: int) -> None:
        super().__init__(own)
        replica, group = own.replica, own.group
        self._delay = policy.delay
        self._judges_together = policy.delay == 0
        self._flat = FlatGradients(replica)
        self._rotation = [
            [CompressedReducer(group, policy.compression, shapes=shapes, seed=seed) for shapes in self._flat.shapes]
            for _ in range(max(1, policy.delay))
        ]
        reducers = [reducer for one in self._rotation for reducer in one]
        self._records = CompressionRecords(reducers, timeline=own.timeline)
        self._keeps_residual = policy.compression.keeps_residual
        self._kept_back = False
        """True if something has been sent in part since everything was sent in full."""
        self._under_way: deque[_UnderWay] = deque()
        self._latest: StepProgress | None = None
        self._began: int | None = None
        """Clock of the last step before this exchange's first."""
        if policy.delay:  # the first step applies nothing; a scheduler would take that for a mistake
            replica.stepper.takes_steps_elsewhere()

    def held_steps(self) -> HeldSteps | None:
        """Return the replica's steps: a step counts when its mean is applied; in the first d steps none is."""
        if self._stepped is not None or self._began is None:
            return super().held_steps()
        return HeldSteps(settled=self._began, counted=self._began)

    def step(self, progress: StepProgress) -> None:
        """Begin the mean of this step's gradient, and step the optimizer with the one that is due, if one is."""
        self.ready_s = None
        self._latest = progress
        if self._began is None:
            self._began = progress.clock - 1
        scaling = self._replica.scaling
        if self._delay and scaling is not None and scaling.overflowed:
            # known now, and not when the mean is there: the others' steps go on without this one
            self._timeline.refuse(progress.clock, self._replica.refusal(progress.loss))
            self._replica.optimizer.zero_grad(set_to_none=True)
        weight = 1.0
        if self._gauge is not None:
            self._gauge.measure(self._replica.gradients())
            weight = self._gauge.weight(self._ranks)
        own = self._flat.take()
        if self._delay == 0:
            begun_s = self._timeline.now_s()
            self._begin(own, progress, weight=weight)
            due = self._first()
            self._share_buffers()
            self._timeline.blocked(begun_s, self._timeline.now_s(), clock=progress.clock)
            self._apply(*due)
        elif len(self._under_way) == self._delay:
            due = self._await_first()  # before another is begun, so that no more than d are held
            self._begin(own, progress, weight=weight)
            self._apply(*due)
        else:
            self._begin(own, progress, weight=weight)

    def _begin(self, own: list[Tensor], progress: StepProgress, *, weight: float) -> None:
        reducers = self._rotation[progress.clock % len(self._rotation)]
        means = [
            reducer.begin(flat, progress.clock, weight=weight / self._group.size)
            for reducer, flat in zip(reducers, own, strict=True)
        ]
        rows = self._flat.take_sparse()
        sparse = SparseMean(rows, group=self._group, weight=weight / self._group.size) if rows else None
        self._under_way.append(_UnderWay(progress, means, sparse))
        self._kept_back = self._keeps_residual

    def _first(self) -> _Due:
        first = self._under_way.popleft()
        means = [mean.wait() for mean in first.means]
        took_s = [each_s for mean in first.means if (each_s := mean.took_s()) is not None]
        if self._gauge is not None and first.sparse is None and len(took_s) == len(means):
            self._gauge.exchanged(first.started.clock, took_s=max(took_s))
        self._records.exchanged(first.started.clock)
        return first.started, means, [] if first.sparse is None else first.sparse.wait()

    def _await_first(self) -> _Due:
        begun_s = self._timeline.now_s()
        due = self._first()
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=due[0].clock)
        return due

    def _apply(self, started: StepProgress, means: list[Tensor], sparse: list[Tensor]) -> None:
        """Step the optimizer with the mean gradient of the step ``started``; the parameters are there only now."""
        self._flat.give(means)
        self._flat.leave_alone()
        self._flat.give_sparse(sparse)
        assert self._latest is not None, "a step has begun it"
        super().step(started._replace(at_s=self._latest.at_s))

    @torch.no_grad()
    def _share_buffers(self) -> None:
        for buffer in self._buffers:
            self._group.broadcast(buffer)

    def finish(self) -> None:
        while self._under_way:
            self._apply(*self._await_first())
        if self._latest is None:
            return
        begun_s = self._timeline.now_s()
        kept = self._send_rest(self._latest.clock) if self._kept_back else None
        if self._delay:
            self._share_buffers()
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=self._latest.clock)
        if kept is not None:
            apply_late(self._replica, self._flat, kept)

    def _send_rest(self, clock: int) -> list[Tensor]:
        nothing = self._flat.zeros()
        sent = [
            [reducer.begin(flat, clock, in_full=True).wait() for reducer, flat in zip(reducers, nothing, strict=True)]
            for reducers in self._rotation
        ]
        self._kept_back = False
        self._records.settled(clock)
        return [torch.stack(same).sum(0) for same in zip(*sent, strict=True)]

    def close(self) -> None:
        self._under_way.clear()
        if self._latest is not None:
            self._records.close(self._latest.clock)
