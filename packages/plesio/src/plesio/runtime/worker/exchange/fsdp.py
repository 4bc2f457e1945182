"""Bulk synchronous training on the collective exchange with everything in parts: torch's FSDP2 itself.

A step's collectives are FSDP2's own (`plesio.runtime.worker.exchange.fsdp_collectives` carries them): each section of
the model is gathered before its forward pass and, but for the root, again before its backward pass, and its gradient is
reduce-scattered behind that. On CPUs they run one after the other with the computing. So the time that a rank was
inside them is not one span: `ready_s` is put as far before the step's end as they have taken.

A part of the mean gradient is on one rank alone, so no rank can tell alone whether all of it is finite. At each step
all gather two numbers of each: whether its part is, and a checksum of the collectives that it has taken part in.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from plesio.core.errors import TaskError
from plesio.runtime.parameters.optimizers import kind_of
from plesio.runtime.worker.exchange.exchange import HeldSteps, Participant, StepProgress
from plesio.runtime.worker.exchange.fsdp_collectives import FsdpCollectives
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.replica import State, all_finite
from plesio.runtime.worker.exchange.sharding import Sharding
from plesio.runtime.worker.exchange.synchronous import SynchronousExchange


class FsdpExchange(SynchronousExchange):
    """Bulk synchronous: FSDP2 averages the gradients of every step, and each rank steps its part.

    Args:
        own: Its replica is cut from now on until all have finished.
        sharding: Has cut it for the group, or does so now.
        mirror: Steps after which copies of parts are renewed; 0 for none.
    """

    def __init__(
        self,
        own: Participant,
        *,
        sharding: Sharding,
        group: TorchGroup,
        workers: Sequence[int],
        mirror: int,
        elastic: bool,
        samples: int,
    ) -> None:
        self._collectives = FsdpCollectives(own.timeline, group=group, elastic=elastic)
        super().__init__(own)
        self._sharding = sharding
        if not sharding.is_cut:
            sharding.begin(group, workers)
        sharding.carried_by(self._collectives)
        self._snapshots.passed(samples)  # a snapshot is a collective, so all must find the same ones due
        self._mirror = mirror
        self._mirrored: int | None = None
        """Clock of the step that all go back to when a worker is lost; None before the first step."""
        self._whole: dict[str, torch.nn.Parameter] | None = None

    @property
    def ready_s(self) -> float | None:  # type: ignore[override]  # the others know it as a moment
        """The time now less what the step's collectives have taken; None if the step waited for none."""
        blocked_s = self._collectives.blocked_s
        return self._timeline.now_s() - blocked_s if blocked_s else None

    def held_steps(self) -> HeldSteps | None:
        if not self._mirror or self._mirrored is None:
            return super().held_steps()
        return HeldSteps(settled=self._mirrored, counted=self._mirrored)

    def step(self, progress: StepProgress) -> None:
        if self._mirrored is None:
            self._mirrored = progress.clock - 1
        if self.reduce(progress):
            self._step()
        self._replica.optimizer.zero_grad(set_to_none=True)
        self._stepped = progress.clock
        if self._mirror and progress.clock % self._mirror == 0:
            self.settle()
        if self._snapshots.due(progress.global_samples):
            state = self.shared()
            self._snapshots.offer(progress.global_samples, at_s=progress.at_s, state=lambda: state or {})
        self._collectives.begin()

    def _step(self) -> None:
        try:
            self._replica.stepper.step()
        except RuntimeError as error:
            if not str(error).startswith("aten."):  # torch's names of operations that it cannot do on a DTensor
                raise
            raise TaskError(
                f"this {kind_of(self._replica.optimizer)} mixes the elements of a parameter in a way that torch cannot "
                "do where each worker has a part of it: under fsdp take an optimizer that goes element by element "
                "(SGD, Adam, AdamW ...), or train under bsp or local_sgd"
            ) from error

    def settle(self) -> None:
        """Renew the copies of parts, if a step has been made since."""
        if self._mirror and self._stepped is not None and self._stepped != self._mirrored:
            begun_s = self._timeline.now_s()
            self._sharding.keep()
            self._mirrored = self._stepped
            self._timeline.blocked(begun_s, self._timeline.now_s(), clock=self._stepped)

    def reduce(self, progress: StepProgress) -> bool:
        """Find out whether the mean gradient, of which each rank has a part, is finite everywhere.

        It raises ExchangeError if steps went through different blocks, RuntimeError if the group is no more.
        """
        self._collectives.assure()
        begun_s = self._timeline.now_s()
        parts = [p.grad.to_local() for p in self._replica.parameters.values() if isinstance(p.grad, DTensor)]
        own = torch.tensor([float(not all_finite(parts)), float(self._collectives.checksum)], dtype=torch.float64)
        looked_s = self._timeline.now_s() - begun_s
        gathered = torch.stack(self._group.all_gather(own.to(self._replica.device.type)).wait()).tolist()
        self._timeline.blocked(begun_s + looked_s, self._timeline.now_s(), clock=progress.clock)
        self._collectives.compare([checksum for _, checksum in gathered])
        self._collectives.agreed()
        finite = not any(broken for broken, _ in gathered)
        if self._replica.scaling is not None:
            self._replica.scaling.common(finite)
        if not finite:
            self._blame(progress)
        return finite

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Leave out the reduction of backward passes in this context; gradients are whole until one is reduced."""
        model = self._replica.model
        assert isinstance(model, FSDPModule), "it is the root"
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def shared(self) -> State | None:
        if self._whole is not None:
            self._sharding.undo(self._whole)
            self._whole = None
        if not self._sharding.is_cut:
            return super().shared()
        self.settle()  # else steps would be lost with a worker that no step of a loop makes again
        return self._sharding.state()

    def finish(self) -> None:
        """Gather the whole parameters on every worker; the parts are kept until all have them."""
        if self._sharding.is_cut:
            self.settle()
            self._whole = self._sharding.whole()
