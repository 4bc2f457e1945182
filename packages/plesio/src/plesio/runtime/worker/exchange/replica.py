"""A worker's model and optimizer, seen as the tensors that an exchange moves."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor

from plesio.core.errors import TaskError
from plesio.runtime.parameters.optimizers import parts_of
from plesio.runtime.worker.exchange.island_parts import AlikeGradients, place_gradients
from plesio.runtime.worker.exchange.local_part import local_part, whole_tensor
from plesio.runtime.worker.exchange.replica_tensors import ReplicaTensors
from plesio.runtime.worker.exchange.stepper import Stepper
from plesio.runtime.worker.island import Island
from plesio.runtime.worker.loss_scaling import LossScaler, given_scaler, stray_scaler
from plesio.runtime.worker.own_changes import OwnChanges
from plesio.runtime.worker.replica_checks import check_model

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

State = dict[str, torch.Tensor]
"""Tensors by name: parameters and buffers, detached, on the CPU."""


class Holder(Protocol):
    """An exchange that keeps something of the shared state elsewhere than in the replica."""

    def gathered(self) -> AbstractContextManager[None]:
        """Make the replica the shared state within this context."""
        ...

    def replaced(self) -> None:
        """Take the replica, which has been set on every worker alike, as the shared state."""
        ...


class Cutter(Holder, Protocol):
    """Has cut the replica into parts, of which this worker has its own."""

    def loaded(self, state: State) -> AbstractContextManager[None]:
        """Put ``state`` into the model of this worker alone within this context."""
        ...


_NO_GRADIENT = (
    "session.step() was called without a gradient: call loss.backward() first, and session.step() once a step"
)


class Replica:
    """The model and optimizer that one worker trains.

    Args:
        model: The user's module; never wrapped or replaced.
        optimizer: Its optimizer, or several as one (`plesio.runtime.parameters.optimizers`).
        scaler: The scaler of the loss; None, or one that is not enabled, for no scale.
        island: The ranks that hold it together, each its part of every tensor; None where this process has all of it.

    Raises:
        TaskError: The model has no parameter that is trained, or the optimizer holds none of them; a parameter is
            complex, or float16 where the loss is scaled, or then some are DTensors and some are not; the optimizer's
            step needs a closure; or the model is in a wrapper, or not there yet
            (`plesio.runtime.worker.replica_checks`).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scaler: GradScaler | None = None,
        island: Island | None = None,
    ) -> None:
        check_model(model, in_island=island is not None)
        self.model, self.optimizer, self.island = model, optimizer, island
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise TaskError(
                f"the model ({type(model).__name__}) has no trainable parameters; give it some, or set requires_grad"
            )
        for name, parameter in self.parameters.items():
            if parameter.is_complex():
                raise TaskError(
                    f'"{name}" is complex, and workers exchange real numbers; keep its real view as the parameter, and '
                    f"make it complex where it is used: torch.view_as_complex({name})"
                )
        self._has_stepped = False
        given_scaler(scaler)
        self.scaling = None
        if scaler is not None and scaler.is_enabled():
            self.scaling = LossScaler(scaler, parts_of(optimizer))
            _check_scaled(self.parameters)
        embedded = {id(module.weight) for module in model.modules() if makes_sparse_gradients(module)}
        self.sparse = {name: p for name, p in self.parameters.items() if id(p) in embedded}
        """Parameters whose gradients are sparse, by torch's modules."""
        self.changes = OwnChanges(
            lambda: (
                self.local_parameters() if island is not None else {} if self._cutter is not None else self.parameters
            )
        )  # of a replica in parts nothing that is written is lost: the others have it from here
        """The script's own writes into the parameters."""
        self.stepper = Stepper(optimizer, sparse=self.sparse, changes=self.changes)
        self.buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
        group_of = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
        missing = [name for name, p in self.parameters.items() if id(p) not in group_of]
        if len(missing) == len(self.parameters):
            raise TaskError("the optimizer holds none of the model's parameters; build it from model.parameters()")
        self._group_of = {name: group_of.get(id(p), -1) for name, p in self.parameters.items()}
        self._holder: Holder | None = None
        self._cutter: Cutter | None = None
        self._list_tensors()
        self._num_held = sum(len(group["params"]) for group in optimizer.param_groups)
        # the first and the last parameter: a model that is converted has both converted
        ends = next(iter(self.parameters)), next(reversed(self.parameters))
        self._begun_as = [(name, p.dtype, p.device.type) for name in ends for p in (self.parameters[name],)]

    def _list_tensors(self) -> None:
        named = list(self.model.named_parameters())
        self.parameters = {name: p for name, p in named if p.requires_grad}
        self._frozen = {name: p for name, p in named if not p.requires_grad}
        self.tensors = ReplicaTensors(
            model=self.model,
            parameters=self.parameters,
            frozen=self._frozen,
            buffers=self.buffers,
            group_of=self._group_of,
        )

    def held_by(self, holder: Holder | None) -> None:
        """Keep part of the shared state there from here on; None for nowhere."""
        self._holder = holder

    def sharded_by(self, cutter: Cutter | None) -> None:
        """Take the model's parameters as this worker's parts from here on; None: they are whole."""
        self._holder = self._cutter = cutter
        self._list_tensors()

    def local_parameters(self) -> dict[str, torch.Tensor]:
        """Return this process's parts of the parameters, by name; a write into one counts as a write of its version.

        An island's next forward pass is of these parts, whatever the last one has left whole.
        """
        if self.island is None and self._cutter is None:
            return {name: p.detach() for name, p in self.parameters.items()}
        for module in self._gathering:
            module.reshard()
        return {name: local_part(p).detach() for name, p in self.parameters.items()}  # a DTensor's detach counts anew

    @cached_property
    def _gathering(self) -> list["FSDPModule"]:
        """The island's modules of FSDP2, in which a forward pass without a backward one leaves parameters whole."""
        if self.island is None:
            return []
        from torch.distributed.fsdp import FSDPModule  # a fifth of a second that other workers need not wait

        return [module for module in self.model.modules() if isinstance(module, FSDPModule)]

    @property
    def is_cut(self) -> bool:
        return self._cutter is not None

    def whole(self) -> AbstractContextManager[None]:
        """Make the replica the shared state within this context: the servers' or all parts, else as it is."""
        return nullcontext() if self._holder is None else self._holder.gathered()

    def settable(self) -> AbstractContextManager[None]:
        """Let model and optimizer be set to whole tensors within this context."""
        return nullcontext() if self._cutter is None else self._cutter.gathered()

    def replaced(self) -> None:
        """Take note that the replica has been set, on every worker alike, and that no step has been made."""
        if self._holder is not None:
            self._holder.replaced()

    def look_at_gradients(self, *, looks: bool, warn: Callable[[str], None]) -> None:
        """Warn of a step without a gradient, and, at the first, of gradients that a scaler has scaled.

        One worker ``looks`` for such a scaler for all, since their scripts are alike.
        """
        if not self.has_gradients():
            warn(_NO_GRADIENT)
        if self.island is not None:
            place_gradients(self.parameters)
        if not self._has_stepped:
            self._has_stepped = True
            if looks and self.scaling is None and (line := stray_scaler()) is not None:
                warn(line)

    def check_as_joined(self) -> None:
        """Check that the model and optimizer are still those that the workers agreed on.

        Raises:
            TaskError: A parameter has been unfrozen, or added to the optimizer: it would move on this worker alone. The
                model has been converted. Or the script has changed a parameter by itself, and that would be lost.
        """
        for name, dtype, device in self._begun_as:
            now = self.parameters[name]
            if (dtype, device) != (now.dtype, now.device.type):
                raise TaskError(
                    f'"{name}" was {dtype} on {device} when this session began and is {now.dtype} on {now.device.type} '
                    "now; convert the model before plesio.join, or close the session and join anew"
                )
        self.changes.check()
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise TaskError(
                    f'"{name}" was frozen when this session began and requires a gradient now, and a session trains '
                    "what it began with; close it and join anew, or let it require a gradient from the start"
                )
        num_now = sum(len(group["params"]) for group in self.optimizer.param_groups)
        if num_now != self._num_held:
            raise TaskError(
                f"the optimizer held {self._num_held} parameters when this session began and holds "
                f"{num_now} now; close the session and join anew, or give it all from the start"
            )

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    @property
    def frozen_since(self) -> str | None:
        """The first parameter that was trained when the session began and is frozen now."""
        return next((name for name, p in self.parameters.items() if not p.requires_grad), None)

    def gradients(self) -> list[torch.Tensor]:
        """List the gradients that are there; sparse ones are coalesced in their place, so that each row comes once."""
        found = []
        for parameter in self.parameters.values():
            if (gradient := parameter.grad) is not None:
                if gradient.is_sparse:
                    parameter.grad = gradient = gradient.coalesce()
                found.append(gradient)
        return found if self.island is None else [local_part(gradient) for gradient in found]

    def has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.parameters.values())

    def gradients_finite(self) -> bool:
        """Tell whether the gradient has neither NaN nor infinity, on all ranks of an island.

        It raises TaskError if these differ in what they hold alike.
        """
        finite = all_finite([g.values() if g.is_sparse else g for g in self.gradients()])
        if self._alike is None:
            return finite
        finite = self._alike.agree(finite=finite)
        if self.scaling is not None:
            self.scaling.common(finite)
        return finite

    @cached_property
    def _alike(self) -> AlikeGradients | None:
        return None if self.island is None else AlikeGradients(self.parameters, self.island)

    def true_units(self, clock: int) -> AbstractContextManager[None]:
        """Unscale the gradients within this context, where step ``clock`` is made; at the end the scale moves on."""
        return nullcontext() if self.scaling is None else self.scaling.step(clock)

    def refusal(self, loss: float | None) -> str:
        """Explain why a step is left out whose gradient is not finite: where the loss is, the scale was too large."""
        if self.scaling is None or (loss is not None and not math.isfinite(loss)):
            return "not_finite"
        return "overflow"

    def state(self) -> State:
        copied = {name: p.to("cpu", copy=True) for name, p in self.local_parameters().items()}
        copied.update({name: b.detach().to("cpu", copy=True) for name, b in self.model.named_buffers()})
        return copied

    @torch.no_grad()
    def load(self, state: State) -> None:
        for name, part in self.local_parameters().items():
            part.copy_(state[name])
        for name, buffer in self.model.named_buffers():
            if name in state:
                buffer.copy_(state[name])

    @contextmanager
    def loaded(self, state: State) -> Iterator[None]:
        """Put ``state`` into the model within this context; what was there before comes back afterwards."""
        if self._cutter is not None:
            with self._cutter.loaded(state):
                yield
            return
        own = self.state()
        self.load(state)
        try:
            yield
        finally:
            self.load(own)


def _check_scaled(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    whole = [name for name, parameter in parameters.items() if not isinstance(parameter, DTensor)]
    if whole and len(whole) < len(parameters):
        raise TaskError(
            f'"{whole[0]}" is an ordinary tensor beside DTensors, and torch.amp.GradScaler does not unscale '
            "gradients of both; place it too, by SequenceParallel or as Replicate, or train in bfloat16"
        )
    for name, parameter in parameters.items():
        if parameter.dtype == torch.float16:
            raise TaskError(
                f'"{name}" is float16, and a loss scale is for float32 parameters under torch.autocast: its gradient '
                "could not be unscaled in the range of float16; keep the model in float32, or train without a scaler"
            )


def makes_sparse_gradients(module: torch.nn.Module) -> bool:
    """Tell whether the gradient of its weight is a COO tensor: the test that DDP makes, too."""
    return isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse


def all_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether no tensor holds NaN or infinity.

    A sum is finite only if every term is. A sum of finite terms overflows only if they are of 1e30 and more, which
    counts as bad.
    """
    sums = [tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
    if all(total.is_cpu for total in sums):
        return all(math.isfinite(total.item()) for total in sums)
    return bool(torch.isfinite(torch.stack([total.float() for total in sums])).all())  # the device is asked once


class GradientBuckets:
    """Gradients that are views of a few flat tensors, as DDP keeps them; checked a tensor at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._views: list[torch.Tensor] = []
        """The gradients that were looked at last: DDP gives a parameter the same one in every step."""
        self._ids: list[int] = []
        self._flat: list[torch.Tensor] = []

    def finite(self, gradients: list[torch.Tensor]) -> bool:
        """Tell whether these gradients, all that the replica has, are finite."""
        if (ids := list(map(id, gradients))) != self._ids:  # the tensors are kept, so an id is not used again
            if any(gradient.is_sparse for gradient in gradients):
                return self._replica.gradients_finite()
            self._views, self._ids = gradients, ids
            of_storage = {gradient.untyped_storage().data_ptr(): gradient for gradient in gradients}
            self._flat = [
                torch.empty(0, dtype=gradient.dtype, device=gradient.device).set_(gradient.untyped_storage())
                for gradient in of_storage.values()
            ]
        # a place that no gradient is a view of may hold anything
        return all_finite(self._flat) or self._replica.gradients_finite()


def parameters_sha256(
    parameters: Iterable[str], state: State, *, placed: Mapping[str, torch.Tensor] | None = None
) -> str:
    """Hash the bytes of these parameters in ``state``, in name order (SHA-256).

    Where ``state`` has parts of tensors that are ``placed`` like these, all ranks that share them call it.
    """
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode())
        whole = state[name] if placed is None else whole_tensor(placed[name], state[name])
        digest.update(whole.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()
