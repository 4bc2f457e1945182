"""torch's own post-local SGD: `post_localSGD_hook` on DDP, and `PeriodicModelAverager` behind the optimizer's steps.

In the warm-up this is DDP. After it a worker steps with its own gradient, which it alone refuses if that is not finite,
and torch's averager makes parameters equal every H steps. The rest, which torch leaves to its user, is as under
``local_sgd``: an evaluation sees the mean of the replicas, and at the end they become that.

In a group that is formed after a loss the hook counts its warm-up anew, as torch's has no other way to know; the
averager goes by the worker's clock.
"""

from collections.abc import Iterator

import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from plesio.policies import Policy, TorchHook
from plesio.runtime.worker.compression.comm_hooks import torch_comm_hook
from plesio.runtime.worker.exchange.ddp import DdpExchange
from plesio.runtime.worker.exchange.exchange import HeldSteps, Participant, StepProgress
from plesio.runtime.worker.exchange.flat import by_dtype, flat_of, write_parts
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.replica import State


class PostLocalExchange(DdpExchange):
    """Gradients are averaged for a while, then parameters now and then."""

    def __init__(self, own: Participant, *, group: TorchGroup, policy: Policy, hook: TorchHook, elastic: bool) -> None:
        super().__init__(own, group=group, comm_hook=torch_comm_hook(hook, group.process_group), elastic=elastic)
        self._policy = policy
        self._warmup = hook.start
        self._averager = PeriodicModelAverager(policy.period, hook.start, group.process_group)
        self._averaged: int | None = None
        """Clock at which all replicas were equal last."""

    def step(self, progress: StepProgress) -> None:
        clock = progress.clock
        if self.reduce(progress):
            self._replica.stepper.step()
        self._averager.step = clock - 1
        begun_s = self._timeline.now_s()
        self._averager.average_parameters(self._replica.optimizer.param_groups)
        self._replica.optimizer.zero_grad(set_to_none=True)
        self._stepped = clock
        if self._policy.exchanges_at(clock):
            self._averaged = clock
            self._snapshots.offer(progress.global_samples, at_s=progress.at_s, state=self._replica.state)
        if self._policy.exchanges_at(clock) and clock > self._warmup:
            self._timeline.blocked(begun_s, self._timeline.now_s(), clock=clock)

    def _blame(self, progress: StepProgress) -> None:
        """Refuse the step: after the warm-up this worker alone, whose own gradient it is, before it with the others."""
        if progress.clock > self._warmup:
            self._timeline.refuse(progress.clock, "not_finite")
        else:
            super()._blame(progress)

    def held_steps(self) -> HeldSteps | None:
        return None if self._stepped is None else HeldSteps(settled=self._averaged or 0, counted=self._stepped)

    def units(self) -> list[int]:
        return list(range(self._group.size))

    @torch.no_grad()
    def _average(self) -> None:
        for alike in by_dtype(self._averaging()):
            self._group.all_reduce(flat := flat_of(alike)).wait()
            write_parts(flat.div_(self._group.size), alike)

    def _averaging(self) -> Iterator[torch.Tensor]:
        return (tensor.detach() for tensor in self._replica.parameters.values())

    def shared(self) -> State | None:
        if self._stepped == self._averaged:
            return super().shared()
        own = [tensor.clone() for tensor in self._averaging()]
        self._average()
        state = super().shared()
        with torch.no_grad():
            for tensor, before in zip(self._averaging(), own, strict=True):
                tensor.copy_(before)
        return state

    def finish(self) -> None:
        if self._stepped != self._averaged:
            self._average()
            self._averaged = self._stepped
