"""A replica that is cut among the ranks by torch's FSDP2, and whole when that is asked for.

Between steps each rank has a part of every parameter (a ``DTensor``, as `fully_shard` makes it), and the optimizer's
groups hold these parts, so what it remembers is in parts too. Where the whole is needed all ranks gather it:

- the whole parameters, on the rank that evaluates (`state`, then `loaded` there alone);
- model and optimizer whole on every rank, for as long as somebody reads or sets them (`gathered`);
- the whole parameters for good, at the end (`undo`).

A buffer is each rank's own, as torch has it, and rank 0's counts for all where the state is gathered.

`fully_shard` changes a model for good: it gives modules another class, hooks that gather parameters, and attributes of
its own. Plesio takes that off while one worker alone uses the model (others would have to take part in every
gathering), while its state is read or set, and when the session ends. Nothing of `fully_shard` is called for that: a
module is set to what it was, except for hooks that others have added meanwhile.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from plesio.core.errors import ExchangeError, TaskError
from plesio.runtime.worker.exchange.fsdp_collectives import FsdpCollectives
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.exchange.sections import check_sections, sections_of

__all__ = ["Sharding", "Wrapping"]

_FSDP = "torch.distributed.fsdp"


@dataclass(slots=True)
class _Coat:
    """The changes to one module."""

    bare: type[nn.Module]
    worn: type[nn.Module]
    attributes: tuple[str, ...]
    hooks: dict[str, list[tuple[int, Any]]]
    """By the table of the module that they are in, all hooks in their order while they are off."""


class Wrapping:
    """Takes what `fully_shard` adds to a model off, and on again; made before that is called."""

    def __init__(self, model: nn.Module) -> None:
        self._before = {module: (type(module), frozenset(vars(module))) for module in model.modules()}
        self._coats: dict[nn.Module, _Coat] = {}

    def put_on(self) -> None:
        """Record what `fully_shard` has changed."""
        for module, (bare, names) in self._before.items():
            self._coats[module] = _Coat(bare, type(module), tuple(vars(module).keys() - names), {})

    def take_off(self) -> None:
        """Make the modules what they were; parameters are not touched."""
        for module, coat in self._coats.items():
            module.__class__ = coat.bare
            for name, table in _hook_tables(module):
                if any(_is_of_fsdp(hook) for hook in table.values()):
                    coat.hooks[name] = list(table.items())
                    for number in [number for number, hook in table.items() if _is_of_fsdp(hook)]:
                        del table[number]

    def put_back(self) -> None:
        for module, coat in self._coats.items():
            module.__class__ = coat.worn
            for name, hooks in coat.hooks.items():
                table = getattr(module, name)
                before = {number: hook for number, hook in hooks if _is_of_fsdp(hook) or number in table}
                added = {number: hook for number, hook in table.items() if number not in before}
                table.clear()
                table.update(before | added)
            coat.hooks.clear()

    def remove(self) -> None:
        """Take it off for good."""
        self.take_off()
        for module, coat in self._coats.items():
            for name in coat.attributes:
                vars(module).pop(name, None)
            _module_state_mapping.pop(module, None)  # where torch looks whether it has been called for a module
        self._coats.clear()


def _hook_tables(module: nn.Module) -> Iterator[tuple[str, dict[int, Any]]]:
    """Yield the module's dictionaries of hooks by number (flags of hooks are in others)."""
    for name, table in vars(module).items():
        if isinstance(table, dict) and name.endswith("_hooks"):
            yield name, table


def _is_of_fsdp(hook: Any) -> bool:
    function = getattr(hook, "hook", hook)  # load_state_dict's are in an object
    return str(getattr(function, "__module__", "")).startswith(_FSDP)


_Parameters = dict[str, nn.Parameter]


class Sharding:
    """The cutter of a replica, which is equal on all ranks; it can make it whole again.

    Args:
        blocks: Classes of modules that are gathered one at a time; none are those of lists.

    Raises:
        TaskError: The model or the optimizer's state cannot be cut.
        ExchangeError: This torch's FSDP2 is too old.
    """

    def __init__(
        self, replica: Replica, *, group: TorchGroup, blocks: tuple[str, ...], collectives: FsdpCollectives
    ) -> None:
        model = replica.model
        _check(replica)
        sections = sections_of(model, blocks)
        check_sections(replica, sections)
        _check_optimizer(replica)
        self._replica = replica
        self._group = group
        self._collectives = collectives
        self._places = _places(model)
        for parameter in model.parameters():
            if not parameter.requires_grad:  # the others are equal by now
                group.broadcast(parameter.data)
        whole = dict(model.named_parameters())
        self._mesh = DeviceMesh.from_group(group.process_group, replica.device.type)
        self._wrapping = Wrapping(model)
        for section in sections:
            fully_shard(section.module, mesh=self._mesh, reshard_after_forward=not section.is_root)
        self._wrapping.put_on()
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for number, module in enumerate(self._modules):
            collectives.carry(module, number)
            module.set_reduce_scatter_unused_params(True, recurse=False)
        self._parts: _Parameters = dict(model.named_parameters())
        self._give_optimizer(whole, self._parts, self._cut)
        replica.sharded_by(self)

    def _cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a tensor that all have, as a DTensor."""
        view = distribute_tensor(tensor, self._mesh, [Shard(0)], src_data_rank=None)
        own = view.to_local().clone()  # else all of it stays in memory
        return DTensor.from_local(
            own, self._mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride()
        )

    def _give_optimizer(self, old: _Parameters, new: _Parameters, change: Any) -> None:
        """Have the optimizer train ``new`` in place of ``old``; what it remembers of one is changed like it."""
        optimizer = self._replica.optimizer
        of_old = {id(parameter): (parameter, new[name]) for name, parameter in old.items()}
        for group in optimizer.param_groups:
            group["params"] = [of_old[id(p)][1] if id(p) in of_old else p for p in group["params"]]
        for before, after in of_old.values():
            if before in optimizer.state:
                optimizer.state[after] = {
                    key: change(value) if isinstance(value, torch.Tensor) and value.shape == before.shape else value
                    for key, value in optimizer.state.pop(before).items()
                }

    def _fold(self) -> None:
        """Make parts of what a forward pass without a backward pass has left whole."""
        for module in self._modules:
            module.reshard()

    @torch.no_grad()
    def _gather(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all whole parameters, a section at a time; each is there until the next one is asked for."""
        self._fold()
        for module in self._modules:
            module.unshard()
            inside = set(module.modules())
            for name, [(holder, attribute), *_] in self._places.items():
                tensor = holder._parameters[attribute]
                if holder in inside and tensor is not None and not isinstance(tensor, DTensor):
                    yield name, tensor.detach()
            module.reshard()
        self._collectives.begin()

    def _share_buffers(self) -> None:
        for buffer in self._replica.model.buffers():
            self._group.broadcast(buffer)

    @torch.no_grad()
    def state(self) -> State | None:
        """Gather the whole parameters and rank 0's buffers, on the CPU, on rank 0 alone; all ranks call it."""
        leads = self._group.rank == 0
        copied = {name: whole.to("cpu", copy=True) for name, whole in self._gather() if leads}
        if not leads:
            return None
        buffers = {name: b.detach().to("cpu", copy=True) for name, b in self._replica.model.named_buffers()}
        return copied | buffers

    @contextmanager
    def loaded(self, state: State) -> Iterator[None]:
        """Put ``state`` into the model of this rank, in which no other takes part."""
        buffers = {name: buffer.detach().clone() for name, buffer in self._replica.model.named_buffers()}
        self._fold()
        self._wrapping.take_off()
        device = self._group_device
        self._place({name: self._like(name, state[name].to(device)) for name in self._parts})
        self._set_buffers(state)
        try:
            yield
        finally:
            self._set_buffers(buffers)
            self._place(self._parts)
            self._wrapping.put_back()

    @property
    def _group_device(self) -> torch.device:
        return next(iter(self._parts.values())).device

    def _like(self, name: str, whole: torch.Tensor) -> nn.Parameter:
        return nn.Parameter(whole, requires_grad=self._parts[name].requires_grad)

    @torch.no_grad()
    def _set_buffers(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, buffer in self._replica.model.named_buffers():
            buffer.copy_(state[name])

    def _place(self, parameters: _Parameters) -> None:
        for name, places in self._places.items():
            for module, attribute in places:
                module._parameters[attribute] = parameters[name]

    def _whole(self) -> _Parameters:
        gathered = {name: whole.clone() for name, whole in self._gather()}
        return {name: self._like(name, gathered[name]) for name in self._parts}

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Make model and optimizer whole on every rank, and cut them again as they are at the end; all call it."""
        whole = self._whole()
        self._share_buffers()
        self._wrapping.take_off()
        self._place(whole)
        self._give_optimizer(self._parts, whole, _full)
        try:
            yield
        finally:
            self._give_optimizer(whole, self._parts, self._cut)
            with torch.no_grad():
                for name, part in self._parts.items():
                    assert isinstance(part, DTensor), "as fully_shard has made it"
                    cut = self._cut(whole[name].detach())
                    assert isinstance(cut, DTensor), "made of a part"
                    part.to_local().copy_(cut.to_local())
            self._place(self._parts)
            self._wrapping.put_back()

    def replaced(self) -> None:
        """Do nothing: the parts have the new values already."""

    def undo(self) -> None:
        """Make the parameters whole on every rank for good; the optimizer begins anew with them. All call it.

        The optimizer's state is let go first, so that the end takes no more memory than training has.
        """
        self._replica.optimizer.zero_grad(set_to_none=True)
        for part in self._parts.values():
            self._replica.optimizer.state.pop(part, None)
        whole = self._whole()
        self._share_buffers()
        self._wrapping.remove()
        self._place(whole)
        self._give_optimizer(self._parts, whole, _full)
        self._replica.sharded_by(None)


def _full(part: torch.Tensor) -> torch.Tensor:
    return part.full_tensor() if isinstance(part, DTensor) else part


def _places(model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Find the places of each parameter by its name: more than one place if it is shared."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    places: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in name_of.values()}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                places[name_of[id(parameter)]].append((module, attribute))
    return places


def _check(replica: Replica) -> None:
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise ExchangeError(f"fsdp needs the FSDP2 of torch 2.13; this is torch {torch.__version__}")
    if any(isinstance(module, FSDPModule) for module in replica.model.modules()):
        raise TaskError(
            "the model is cut already, by fully_shard or a session that did not come to its end; build it anew"
        )


def _check_optimizer(replica: Replica) -> None:
    for name, parameter in replica.parameters.items():
        for key, value in replica.optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                raise TaskError(
                    f'what the optimizer remembers of "{name}" ({key}, of shape {tuple(value.shape)}) is not shaped '
                    "like it and cannot be cut; join with an optimizer that has made no step"
                )
