"""The parts of a worker's memory: parameters, gradients, optimizer state, activations and the rest.

Tensors that have a name are counted: parameters and buffers, gradients and the optimizer's state when the gradient of a
step is complete, sharded ones by this worker's part. Activations have none. They are what the allocator had given out
at the moment of forward and backward at which that was most, less what it had given out when the forward pass began and
the gradients that had come by then. The moments are the end of the forward pass, the begin of backward at its output
(the loss has come between), and those at which some of the parameters have got their gradients. This needs neither a
profiler nor hooks on saved tensors, which would get in the way of the user's own and of ``torch.func``. It is right
with activation checkpointing, and it counts whatever else a pass takes for a while (under FSDP the parameters that are
gathered). Allocations of other threads meanwhile are counted, too.

A step is measured if its number is 3 or a power of two from 2 on, so a long run pays nothing for it; the step that took
most counts. The hooks on the model are there during these steps only. The allocator's free memory is looked at as often
as utilisation is: the process is larger than what it has in use by that much.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from plesio.core.results import MemorySplit
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.memory import MemoryReadings
from plesio.runtime.worker.own_hook import OwnHook

MOST_MARKED = 16
"""Parameters whose gradients are moments of backward at which memory is read."""


def local_bytes(tensors: Iterable[torch.Tensor], *, device_type: str) -> int:
    """Count the bytes of these tensors on a device of this type: this worker's part of a sharded one.

    >>> sparse = torch.eye(4).to_sparse()
    >>> local_bytes([torch.ones(3), sparse], device_type="cpu")  # 3 numbers; 4 values, and 8 indices of 8 bytes
    92
    """
    return sum(_num_bytes(tensor) for tensor in tensors if tensor.device.type == device_type)


def _num_bytes(tensor: torch.Tensor) -> int:
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor if to_local is None else to_local()
    if local.is_sparse:
        return _num_bytes(local._indices()) + _num_bytes(local._values())
    return local.numel() * local.element_size()


def _tensors_in(value: object) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(one)


class _Hook(OwnHook):
    """Marks a moment: on the model, before and after forward; on its output and on parameters, in backward."""

    def __init__(self, gauge: "MemoryGauge", *, begins: bool = False) -> None:
        super().__init__(self._mark)
        self._gauge, self._begins = gauge, begins

    __call__ = _disable_dynamo(OwnHook.__call__)  # compiled with the model, it would be warned of

    def _mark(self, hooked: object, arguments: object = None, output: Any = None) -> None:
        if isinstance(hooked, torch.nn.Module) and not torch.is_grad_enabled():
            return  # it is evaluated
        self._gauge.mark(begins=self._begins)
        results = (one for one in tree_leaves(output) if isinstance(one, torch.Tensor) and one.requires_grad)
        result = next(results, None)
        if result is not None:
            result.register_hook(self)  # type: ignore[no-untyped-call]


class MemoryGauge:
    """Measures some steps of one worker."""

    def __init__(self, replica: Replica, memory: MemoryReadings) -> None:
        self._replica, self._memory = replica, memory
        held = sum(self._held_bytes())
        self._before_bytes = max(0, memory.resident_bytes() - held)
        heap = memory.heap()
        self._live_before = None if heap is None else heap.live_bytes - held
        """Bytes that were allocated before and are not the model's."""
        self._taken_bytes = 0
        """Most that the allocator had taken from the system, as far as it was looked at."""
        self._shared_bytes = 0
        self._most_live_bytes = 0
        """Most that it had given out, in the step that counts."""
        self._hooks: list[RemovableHandle] = []
        self._measures = False
        """True while the step under way is measured."""
        self._marks: list[tuple[int, int]] = []
        """Bytes allocated, and bytes of gradients, at moments of that step; the first is where forward begins."""
        self._num_steps = 0
        self._split: MemorySplit | None = None
        self._peak_bytes = 0
        """In steps, as far as it was read."""
        self._peak_aside_bytes = 0
        self._is_aside = False

    def split(self) -> MemorySplit | None:
        """Return the parts of the peak so far; None before a step was measured. May be called from any thread."""
        split = self._split
        if split is None:
            return None
        now = self._memory.peak_bytes()
        in_steps = self._peak_bytes if self._is_aside else max(self._peak_bytes, now)
        peak = max(in_steps, self._peak_aside_bytes, now)
        split = replace(split, peak_bytes=peak, shared_bytes=self._shared_bytes, evaluation_bytes=peak - in_steps)
        if split.cached_bytes is None:
            return split
        free = max(0, self._taken_bytes - self._most_live_bytes)  # some of it need not be resident
        return replace(split, cached_bytes=max(0, min(free, split.rest_bytes)))

    def peak_bytes(self) -> int:
        return max(self._peak_bytes, self._peak_aside_bytes, self._memory.peak_bytes())

    def leave_steps(self) -> None:
        self._peak_bytes = max(self._peak_bytes, self._memory.peak_bytes())
        self._is_aside = True
        self._memory.forget()

    def return_to_steps(self) -> None:
        self._peak_aside_bytes = max(self._peak_aside_bytes, self._memory.peak_bytes())
        self._is_aside = False
        self._memory.forget()

    def stepped(self) -> None:
        """Take note of a finished step: if the next one is to be measured, wait for its forward pass."""
        self._num_steps += 1
        step = self._num_steps + 1
        if (step & (step - 1) and step != 3) or self._measures:
            return
        self._measures = True
        self._marks.clear()
        model = self._replica.model
        if model._compiled_call_impl is None:  # else hooks would be compiled, too
            parameters = [p for p in self._replica.parameters.values() if p.requires_grad]  # some may be frozen by now
            self._hooks = [
                model.register_forward_pre_hook(_Hook(self, begins=True), prepend=True),
                model.register_forward_hook(_Hook(self)),
            ]
            for parameter in parameters[:: max(1, -(-len(parameters) // MOST_MARKED))]:
                handle = parameter.register_post_accumulate_grad_hook(_Hook(self))  # type: ignore[no-untyped-call]
                self._hooks.append(handle)

    def look(self) -> None:
        """Record the shared memory, and what the allocator has taken from the system."""
        self._shared_bytes = max(self._shared_bytes, self._memory.shared_bytes())
        self._live()

    def _live(self) -> int | None:
        heap = self._memory.heap()
        if heap is None:
            return None
        self._taken_bytes = max(self._taken_bytes, heap.taken_bytes)
        return heap.live_bytes

    def mark(self, *, begins: bool) -> None:
        """Record a moment of forward or backward; the first is a begin."""
        live = self._live() if self._measures and (begins or self._marks) else None
        if live is not None:
            self._marks.append((live, self._gradient_bytes()))

    def ready(self) -> dict[str, Any] | None:
        if not self._measures:
            return None
        self._measures = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        live = self._live()
        most_live = 0 if live is None else max(live, *(now for now, _ in self._marks), 0)
        if self._split is not None and most_live <= self._most_live_bytes:
            return None
        self._most_live_bytes = most_live
        self._split = self._measured(live)
        split = self.split()
        return None if split is None else asdict(split)

    def _measured(self, live: int | None) -> MemorySplit:
        parameters, optimizer = self._held_bytes()
        gradients = self._gradient_bytes()
        activations, other, reused = None, None, 0
        if live is not None and self._live_before is not None:
            other = max(0, live - self._live_before - parameters - gradients - optimizer)
            if self._marks:
                activations, reused = _activations(self._marks, (live, gradients))
        return MemorySplit(
            device=self._memory.device_type,
            peak_bytes=self.peak_bytes(),
            before_bytes=self._before_bytes,
            parameters_bytes=parameters,
            gradients_bytes=gradients,
            optimizer_bytes=optimizer,
            activations_bytes=activations,
            other_bytes=other,
            cached_bytes=None if live is None else 0,
            reused_bytes=reused,
        )

    def _held_bytes(self) -> tuple[int, int]:
        """Return the bytes of the model, and of the optimizer."""
        model, device_type = self._replica.model, self._memory.device_type
        parameters = local_bytes((*model.parameters(), *model.buffers()), device_type=device_type)
        state = [entry for _, entry in self._replica.optimizer.state.items()]
        return parameters, local_bytes(_tensors_in(state), device_type=device_type)

    def _gradient_bytes(self) -> int:
        gradients = (one.grad for one in self._replica.model.parameters() if one.grad is not None)
        return local_bytes(gradients, device_type=self._memory.device_type)


def _activations(marks: Sequence[tuple[int, int]], end: tuple[int, int]) -> tuple[int, int]:
    """Count the bytes of activations, and of gradients that came where activations had been.

    Gradients may be made in backward, or lie in buckets that are there all the time; what is allocated at the end and
    was not at the begin says which.

    >>> _activations([(100, 0), (150, 0), (140, 20), (120, 30)], (130, 30))  # 50 of activations, 30 of gradients
    (50, 30)
    >>> _activations([(130, 0), (180, 0), (150, 20)], (130, 30))  # the same with buckets
    (50, 0)
    """
    (live_at_begin, gradients_at_begin), (live, gradients) = marks[0], end
    made = gradients - gradients_at_begin
    share = min(1.0, max(0.0, (live - live_at_begin) / made)) if made > 0 else 0.0
    activations = max(0, *(round(now - share * (held - gradients_at_begin)) - live_at_begin for now, held in marks))
    most = max(live, *(now for now, _ in marks))
    return activations, max(0, live + activations - most)
