"""Bulk synchronous training on the collective exchange: `DistributedDataParallel` itself.

The reducer, the buckets and the overlap are those of a hand-written DDP loop. What differs is only that the user goes
on calling their own module: the two hooks that DDP puts around ``forward`` are hooked onto it (as torch's composable
``replicate`` does, which however neither keeps buffers in step nor can be taken off again).

A rank is *blocked* from the moment its own gradient is complete until the reductions of the last buckets are; DDP does
not know on what. `plesio.core.trace.split_blocked` tells waiting from communicating once all ranks have reported.

**Parameters that a step does not use.** DDP waits for the gradient of every parameter, unless it is told to look for
those that a forward pass has left out, which costs a walk through the graph and one reduction more a step. So ranks
look in their first step. If what is computed there leaves one out on any of them, the gradients of that step are
averaged after the backward pass, when it is known whether the loss has used it beside the forward pass (a temperature):

    the loss has used     from then on
    none of them          DDP looks for them in every step
    all, on every rank    DDP waits for all
    some                  gradients are averaged after the backward pass: what DDP has found it takes for unused

**Gradients after the mean.** All ranks see the same mean, so all refuse alike one that is not finite; that is looked at
when the backward pass is over, and again at the step where somebody has written to the gradients since (clipping does).
What is not finite only then is this rank's own doing, of which the others cannot know. Looking counts as computing.
Where the loss is scaled, so is the mean, by one scale that all ranks have; `loss_scaling` divides by it afterwards.

**Beside the forward pass.** DDP averages what follows a call of the model, ``model(x)``. A loss that a method or a part
of the model computes, ``model.loss(x)``, passes it by, and its gradients would stay this rank's own. Those of such a
step are averaged after the backward pass, without overlap and uncompressed. So are those of all steps where the first
one's pass by DDP because the script writes them itself, from ``torch.autograd.grad`` or ``torch.func.grad``.

**When a worker is lost.** DDP's reductions would raise in the user's ``backward()``, and where it sends buffers in the
user's ``forward()``. In an elastic run a hook takes what a reduction raises: the backward pass ends, with gradients
that nobody uses, and `reduce` raises it in the session's step, which the workers then go on from in a new group.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from msgspec import UNSET
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors
from torch.utils._pytree import tree_leaves

from plesio.core.errors import ExchangeError
from plesio.runtime.worker.compression.comm_hooks import CommHook
from plesio.runtime.worker.exchange.exchange import Gauge, Participant
from plesio.runtime.worker.exchange.flat import by_dtype, flat_of, write_parts
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.replica import GradientBuckets
from plesio.runtime.worker.exchange.synchronous import ReducingExchange
from plesio.runtime.worker.loss_scaling import LossScaler
from plesio.runtime.worker.own_hook import OwnHook

Unused = Literal["none", "found", "told", "beside"]
"""Parameters that forward passes leave out: there are none, or the loss uses all of them; this first step has found
some; DDP is told to look for them; the loss uses some of them, and DDP averages nothing."""

_SUM = dist.AllreduceOptions()
_SUM.asyncOp = True


class DdpExchange(ReducingExchange):
    """Bulk synchronous: DDP averages the gradients of every step.

    Args:
        own: Without a gauge DDP reduces without a hook.
        comm_hook: torch's own compression of a bucket; None for none.
    """

    def __init__(self, own: Participant, *, group: TorchGroup, comm_hook: CommHook | None, elastic: bool) -> None:
        super().__init__(own)
        self._buckets = GradientBuckets(replica := own.replica)
        self._torch_group = group
        self._comm_hook = comm_hook
        self._failures = _Failures(group) if elastic else None
        self._ddp = self._build(find_unused=False)
        self._unused: Unused = "none"
        self._left_out: list[tuple[torch.nn.Parameter, tuple[int, int] | None]] = []
        """The parameters that the forward passes of the first step have left out, and their gradients' marks then."""
        self._used: set[int] | None = set()
        """The parameters (ids) that the forward passes before this backward pass have used; None after a step."""
        self._reduces = False
        """True if DDP averages in the next backward pass, because a forward pass came before it."""
        self._mean_finite = True
        self._bare = False
        """True if the latest backward pass has left no gradient in any parameter."""
        self._written: int | None = None
        """How often gradients had been written to when the mean was looked at; None if it has not been."""
        self._hooks = [
            replica.model.register_forward_pre_hook(OwnHook(self._before_forward), with_kwargs=True),
            replica.model.register_forward_hook(OwnHook(self._after_forward)),
        ]

    def _build(self, *, find_unused: bool) -> DistributedDataParallel:
        device = self._replica.device
        with _thawed(self._replica.parameters.values()):  # a GAN's loop freezes the part that is not trained at present
            ddp = _Ddp(
                self._replica.model,
                device_ids=None if device.type == "cpu" else [device],
                process_group=self._torch_group.process_group,
                gradient_as_bucket_view=True,
                init_sync=False,
                find_unused_parameters=find_unused,
            )
        ddp.group = self._torch_group
        hook = self._comm_hook
        if self._failures is not None:
            hook = self._failures.noted(hook)
        if self._gauge is not None:
            state = self._gauge, self._ranks, self._replica.scaling, self._torch_group, hook or allreduce_hook
            ddp.register_comm_hook(state, _reduce_gauged)
        elif hook is not None:
            ddp.register_comm_hook(self._torch_group.process_group, hook)
        return ddp

    def _before_forward(self, _module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        # Without gradients (evaluation) nothing may be exchanged: perhaps only this rank is here.
        if not torch.is_grad_enabled():
            return None
        if self._cut_off:
            return None
        totals, ddp = self._timeline.meter.totals, self._ddp
        totals.within = "forward"  # rank 0's buffers
        try:
            if self._unused == "told" and not ddp.find_unused_parameters and ddp.require_backward_grad_sync:
                ddp = self._ddp = self._build(find_unused=True)
            return ddp._pre_forward(*args, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "Expected to have finished reduction" not in str(error):
                self._take(error)
                return None
            frozen = self._replica.frozen_since
            if frozen is not None:
                raise ExchangeError(
                    f'"{frozen}" was trained when this session began and is frozen now, and the workers wait for its '
                    "gradient; close the session and join anew, or freeze it before plesio.join"
                ) from None
            raise ExchangeError(
                "the last step gave some parameters no gradient that the first one had used, and the others wait for "
                "it; use all parameters in every step, or leave one out in the first step too"
            ) from None
        finally:
            totals.within = UNSET

    def _after_forward(self, _module: torch.nn.Module, _args: Any, output: Any) -> Any:
        if not torch.is_grad_enabled() or self._cut_off:
            return None
        if self._ddp.require_backward_grad_sync:
            if self._used is not None:
                try:
                    with self._timeline.meter.within("forward"):
                        self._look_for_unused(output, used=self._used)
                except RuntimeError as error:
                    self._take(error)
                    return None
            self._reduces = self._unused != "found"
        if self._unused != "found":
            output = self._ddp._post_forward(output)  # type: ignore[no-untyped-call]
        for leaf in (output,) if isinstance(output, torch.Tensor) else tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._on_backward)  # type: ignore[no-untyped-call]
                break
        return output

    def _look_for_unused(self, output: Any, *, used: set[int]) -> None:
        """Find out whether the forward passes before this backward pass leave out a parameter on any rank."""
        # as DDP finds them; where it finds none, it cannot look
        tensors = list(_find_tensors(output))  # type: ignore[no-untyped-call]
        used |= _reached(tensors)
        left_out = [p for p in self._replica.parameters.values() if id(p) not in used] if tensors else []
        self._left_out = [(parameter, _mark(parameter)) for parameter in left_out]
        [found] = self._agree(bool(left_out))
        self._unused = "found" if found else "none"

    def _decide_on_unused(self) -> None:
        """Decide by the backward pass of the first step what becomes of the parameters that it has found."""
        by_loss = [_mark(parameter) != before for parameter, before in self._left_out]
        all_left_out = len(by_loss) == len(self._replica.parameters)  # they were others: torch.func.functional_call
        some, not_all = self._agree(any(by_loss), all_left_out or not all(by_loss))
        self._unused = ("beside" if not_all else "none") if some else "told"
        self._end_first()

    def _end_first(self) -> None:
        self._used, self._left_out = None, []
        if self._unused == "beside":
            self._ddp.require_backward_grad_sync = False

    def _agree(self, *flags: bool) -> list[bool]:
        counts = torch.tensor(flags, dtype=torch.float32, device=self._replica.device)
        self._torch_group.all_reduce(counts).wait()
        return [count > 0 for count in counts.tolist()]

    @property
    def _cut_off(self) -> bool:
        return self._failures is not None and self._failures.first is not None

    def _take(self, error: RuntimeError) -> None:
        """Keep what a collective has raised until the step, from which the workers can go on; else raise it."""
        if self._failures is None:
            raise error
        self._failures.note(error)
        self._ddp.require_backward_grad_sync = False

    def _complete(self, clock: int) -> None:
        """Average the gradients, unless DDP has; RuntimeError where what the mean was made with is gone."""
        if self._failures is not None and self._failures.first is not None:
            raise self._failures.first
        if self._reduces and self._used is not None and self._agree(self._bare and bool(self._replica.gradients()))[0]:
            self._unused, self._reduces, self._written = "beside", False, None
            self._end_first()
        if self._reduces:
            return
        if self._unused == "found":
            self._decide_on_unused()
        super()._complete(clock)

    def average(self, clock: int) -> None:
        self._complete(clock)

    def _on_backward(self, _grad: torch.Tensor) -> None:
        # The engine runs its callbacks in order when the last gradient is computed; DDP's own, which waits for the
        # reductions, is queued later than this one.
        torch.autograd.Variable._execution_engine.queue_callback(self._on_gradients_complete)

    def _on_gradients_complete(self) -> None:
        if self._used is not None:
            self._used.clear()
        if not self._reduces:
            return
        self.ready_s = self._timeline.now_s()
        if self._ddp.require_backward_grad_sync and not self._cut_off:  # behind DDP's own callback
            self._timeline.meter.totals.within = "step"  # until the step is over
            torch.autograd.Variable._execution_engine.queue_callback(self._on_mean)

    def _on_mean(self) -> None:
        begun_s = self._timeline.now_s()
        gradients = self._replica.gradients()
        self._bare = not gradients
        self._mean_finite, self._written = self._buckets.finite(gradients), _times_written(gradients)
        if self.ready_s is not None:
            self.ready_s += self._timeline.now_s() - begun_s

    def _finite(self) -> bool:
        written, self._written = self._written, None
        if self._reduces:
            self._used, self._reduces = None, False
        gradients = self._replica.gradients()
        if written is None:  # the loss was not computed from tensors that the model returned
            return self._buckets.finite(gradients)
        if self._mean_finite and written != _times_written(gradients) and not self._buckets.finite(gradients):
            raise ExchangeError(
                "a gradient was finite when the workers had averaged it, and is not any more: what changes gradients "
                "between backward() and step() must do the same on every worker"
            )
        return self._mean_finite

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        with self._ddp.no_sync():
            yield

    def close(self) -> None:
        """Take the hooks off the model, and record the sizes of the buckets in the trace."""
        told = self._ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        sizes = told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes", "")
        if sizes:
            num_bytes = [int(size) for size in sizes.split(", ")]
            clock = self._timeline.meter.totals.clock
            self._timeline.event("buckets", at_s=self._timeline.now_s(), clock=clock, num_bytes=num_bytes)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        del self._ddp, self._buckets


class _Ddp(DistributedDataParallel):
    """DDP whose buffers are sent by the group, whose waits end when it is aborted."""

    group: TorchGroup

    def _distributed_broadcast_coalesced(
        self, tensors: list[torch.Tensor], _buffer_size: int, authoritative_rank: int = 0
    ) -> None:
        for alike in by_dtype(tensors):
            self.group.broadcast(flat := flat_of(alike), source=authoritative_rank)
            write_parts(flat, alike)


class _Failures:
    """Errors that reductions have raised, on whichever thread."""

    def __init__(self, group: TorchGroup) -> None:
        self.first: RuntimeError | None = None
        self._group = group

    def note(self, error: RuntimeError) -> None:
        self.first = self.first or error

    def _mean(self, gradient: torch.Tensor, done: torch.futures.Future[Any]) -> torch.Tensor:
        try:
            value = done.value()
        except RuntimeError as error:
            self.note(error)
            return gradient
        mean: torch.Tensor = value[0] if isinstance(value, list) else value
        return mean

    def noted(self, hook: CommHook | None) -> CommHook:
        """Wrap a hook so that it never fails: after a failure it leaves gradients as they are."""

        def reduce(
            group: dist.ProcessGroup,
            bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at the annotation
        ) -> torch.futures.Future[torch.Tensor]:
            gradient: torch.Tensor = bucket.buffer()
            if self.first is None:
                take = partial(self._mean, gradient)
                try:
                    if hook is not None:
                        return self._group.assured(hook(group, bucket), take)
                    # as DDP's own reduction, to the bit; it goes by no function of torch.distributed either
                    gradient.mul_(1 / self._group.size)
                    return self._group.assured(group.allreduce([gradient], _SUM).get_future(), take)
                except RuntimeError as error:  # the group is broken already
                    self.note(error)
            over: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            over.set_result(gradient)
            return over

        return reduce


@contextmanager
def _thawed(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _times_written(gradients: Sequence[torch.Tensor]) -> int:
    written = 0
    for gradient in gradients:  # twice a step: a sum over a generator takes twice as long
        written += gradient._version
    return written


def _mark(parameter: torch.nn.Parameter) -> tuple[int, int] | None:
    """Return what is another after a backward pass that adds to the gradient; None where there is none yet."""
    return None if parameter.grad is None else (id(parameter.grad), parameter.grad._version)


def _reached(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Find the leaves (ids) that these were computed from."""
    found = {id(tensor) for tensor in tensors}
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)  # keeps them alive, so that each is known again
    while waiting:
        node = waiting.pop()
        if (leaf := getattr(node, "variable", None)) is not None:  # an AccumulateGrad
            found.add(id(leaf))
        fresh = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= fresh
        waiting.extend(fresh)
    return found


def _reduce_gauged(
    state: tuple[Gauge, Sequence[int] | None, LossScaler | None, TorchGroup, CommHook],
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at the annotation
) -> torch.futures.Future[torch.Tensor]:
    gauge, ranks, scaling, group, reduce = state
    gradient: torch.Tensor = bucket.buffer()
    gauge.measure([gradient], scale=1.0 if scaling is None else scaling.scale)
    if (weight := gauge.weight(ranks)) != 1.0:
        gradient.mul_(weight)
    return reduce(group.process_group, bucket)
