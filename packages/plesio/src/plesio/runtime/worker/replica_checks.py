"""Checks of the model and the optimizer when a worker joins; each refuses in one line.

Workers exchange the gradients of the module that they are given, once. So a module whose gradients another library
exchanges is refused, and so is one whose parameters are parts of tensors or have no values yet.
"""

import gc
from collections.abc import Iterator
from traceback import walk_tb

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.contract import _get_registry
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils import checkpoint

from plesio.core.errors import TaskError
from plesio.runtime.parameters.optimizer_spec import group_options
from plesio.runtime.worker.objects import objects_of

_WRAPPERS = (DistributedDataParallel, FullyShardedDataParallel, DataParallel)


def check_model(model: nn.Module, *, in_island: bool = False) -> None:
    """Refuse a module whose gradients another library exchanges, or whose parameters are not there.

    The ranks of an island exchange gradients among each other by torch's own means, but for FSDP1's flat parameters.
    """
    for module in model.modules():
        if in_island and isinstance(module, FullyShardedDataParallel):
            raise TaskError(
                "the model is in FullyShardedDataParallel, whose parameters are flat; use fully_shard (FSDP2)"
            )
        if isinstance(module, _WRAPPERS) and not in_island:
            raise TaskError(_twice(type(module).__name__))
        if "replicate" in (_get_registry(module) or {}) and not in_island:
            raise TaskError(_twice("replicate"))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, DTensor) and not in_island:
            raise TaskError(
                f'"{name}" is a DTensor, of which each worker has a part; pass the model as it is before fully_shard '
                "or parallelize_module, and let policy=fsdp cut it"
            )
        if nn.parameter.is_lazy(tensor):
            raise TaskError(f'"{name}" has no shape yet; call the model once, on a batch, before plesio.join')
        if tensor.is_meta:
            raise TaskError(f'"{name}" is on the meta device, without values; call model.to_empty and set it first')


def check_layers(model: nn.Module, *, policy: str) -> None:
    """Refuse layers that meet the other workers in every forward pass, for a ``policy`` whose workers do not.

    Raises:
        TaskError: There is one.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise TaskError(
                f'"{name}" is a SyncBatchNorm, whose statistics are of all workers in every step, and under {policy} '
                "workers are not in step; write BatchNorm there, or train under bsp or fsdp"
            )


def explain_backward(error: BaseException) -> TaskError | None:
    """Explain an error of DDP's in the script's backward pass that does not say what to write."""
    if "mark a variable ready only once" not in str(error):
        return None
    if any(frame.f_code.co_filename == checkpoint.__file__ for frame, _ in walk_tb(error.__traceback__)):
        return TaskError(
            "torch.utils.checkpoint with use_reentrant=True goes through a parameter again that DDP has reduced by "
            "then, under bsp: write use_reentrant=False, or train under local_sgd, ssp or asp"
        )
    return TaskError(
        "the loss uses a parameter of the model beside model(x), which the first step's had not, and under bsp DDP has "
        "reduced it by then: compute that part of the loss in the model's forward, or use the parameter from the first "
        "step on"
    )


def _twice(wrapper: str) -> str:
    return (
        f"the model is in {wrapper}, which exchanges gradients too; pass and call the module itself, without "
        f"{wrapper}: the session exchanges what the policy says"
    )


def check_beginning(model: nn.Module, optimizer: torch.optim.Optimizer, *, in_island: bool) -> None:
    """Refuse what workers would not have in common when they begin, though one process alone could go on from it.

    Raises:
        TaskError: There are gradients, the optimizer has parameters that the model has not, or DDP has the model.
    """
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is not None and (gradient.coalesce().values() if gradient.is_sparse else gradient).any():
            raise TaskError(
                f'"{name}" has a gradient already, which would be a part of the first step; call '
                "optimizer.zero_grad() before plesio.join"
            )
    own = {id(parameter) for parameter in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in own and parameter.requires_grad:
                raise TaskError(
                    f"group {number} of the optimizer has a parameter of shape {tuple(parameter.shape)} that is not "
                    "the model's, so each worker would train one of its own; make it part of the module that is passed "
                    "to plesio.join (a loss with parameters: nn.ModuleDict of both)"
                )
    if dist.is_initialized() and not in_island and any(one.module is model for one in _all_ddp()):
        gc.collect()  # one that nobody has any more
        if any(one.module is model for one in _all_ddp()):
            raise TaskError(_twice(DistributedDataParallel.__name__))


def _all_ddp() -> Iterator[DistributedDataParallel]:
    return (one for one in objects_of(DistributedDataParallel) if "_modules" in vars(one))


def left_out(model: nn.Module, optimizer: torch.optim.Optimizer) -> str | None:
    """Write a line on the parameters that require a gradient and that the optimizer has not; None if there are none."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    names = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if not names:
        return None
    some = ", ".join(f'"{name}"' for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"the optimizer has not {some}, so that stays as it is: add it to the optimizer, or freeze it "
        "(requires_grad_(False))"
    )


def settings_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """List the optimizer's class and its groups' sizes and options: equal on workers that may join one run."""
    settings = [type(optimizer).__name__]
    for number, (group, options) in enumerate(zip(optimizer.param_groups, group_options(optimizer), strict=True)):
        settings.append(f"{len(group['params'])} parameters in group {number}")
        settings += [f"{key}={value!r} in group {number}" for key, value in sorted(options.items())]
    return tuple(settings)
