"""A replica that is cut among the ranks of a group by torch's FSDP2, and whole when that is asked for.

Between steps each rank has a part of every parameter (a ``DTensor``, as `fully_shard` makes it), and the optimizer's
groups hold these parts, so what it remembers is in parts too. All ranks gather the whole where it is needed:

- the whole parameters, on the rank that evaluates (`state`, then `loaded` there alone);
- model and optimizer whole on every rank, for as long as they are read or set (`gathered`);
- the whole parameters for good, at the end (`whole`, then `undo`).

A buffer is each rank's own, as torch has it, and rank 0's counts for all where the state is gathered.

For another group the model is cut anew in its place. The parameters stay the objects that the script and the optimizer
know: a part of another size is put into them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from plesio.core.errors import ExchangeError, TaskError
from plesio.runtime.worker.exchange.fsdp_collectives import FsdpCollectives, SumGroup
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.local_part import local_part
from plesio.runtime.worker.exchange.parts import Cut, Giver, Key, gather
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.exchange.sections import check_sections, sections_of
from plesio.runtime.worker.exchange.wrapping import Wrapping, without_views

Plain = Mapping[str, Mapping[str, Any]]
"""By parameter, what the optimizer remembers that is not cut."""

_Parameters = dict[str, nn.Parameter]


class CutReplica:
    """A replica in parts, from when it is first cut until that is undone.

    Args:
        blocks: Classes of modules that are gathered one at a time; none are those of lists.

    Raises:
        TaskError: The model or the optimizer's state cannot be cut.
        ExchangeError: This torch's FSDP2 is too old.
    """

    def __init__(self, replica: Replica, *, blocks: tuple[str, ...]) -> None:
        model = replica.model
        _check(replica)
        sections = sections_of(model, blocks)
        check_sections(replica, sections)
        _check_optimizer(replica)
        self._replica = replica
        self._places = _places(model)
        self._parts: _Parameters = dict(model.named_parameters())
        """By name; whole while nothing is cut."""
        name_of = {id(parameter): name for name, parameter in self._parts.items()}
        self._sections = [(one.module, [name_of[id(p)] for p in one.parameters], one.is_root) for one in sections]
        self._modules: list[FSDPModule] = []

    @property
    def is_cut(self) -> bool:
        return bool(self._modules)

    @torch.no_grad()
    def cut(self, group: TorchGroup) -> None:
        """Cut a replica that is equal on all ranks, or about to be set on all."""
        whole = self._parts
        self._wrap(group, empty=False)
        self._parts = dict(self._replica.model.named_parameters())
        self._give_optimizer(whole, self._parts, lambda _, value: self._part_of(value))
        self._replica.sharded_by(self)

    def _wrap(self, group: TorchGroup, *, empty: bool) -> None:
        """Have `fully_shard` cut for this group: the parameters that are there, or ``empty`` ones in their place."""
        self._group = group
        self._sums = SumGroup(group.process_group)
        self._mesh = DeviceMesh.from_group(self._sums, self._replica.device.type)
        self._wrapping = Wrapping(self._replica.model)
        for module, names, is_root in self._sections:
            if empty:
                self._place({name: self._empty(name) for name in names})
            module.register_forward_hook(without_views)
            fully_shard(module, mesh=self._mesh, reshard_after_forward=not is_root)
        self._wrapping.put_on()
        self._modules = [module for module in self._replica.model.modules() if isinstance(module, FSDPModule)]
        for cut in self._modules:
            cut.set_reduce_scatter_unused_params(True, recurse=False)

    def _empty(self, name: str) -> nn.Parameter:
        like = self._parts[name]
        return self._like(name, torch.empty(like.shape, dtype=like.dtype, device=like.device))

    def carried_by(self, collectives: FsdpCollectives) -> None:
        self._sums.carried_by(collectives)
        for number, module in enumerate(self._modules):
            collectives.carry(module, number)

    def _part_of(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a tensor that all have, as a DTensor."""
        cut = Cut(("", ""), whole.dtype, tuple(whole.shape))
        return self._as_dtensor(whole[cut.rows(self._group.rank, num_ranks=self._group.size)].clone(), like=whole)

    def _as_dtensor(self, own: Tensor, *, like: Tensor) -> Tensor:
        return DTensor.from_local(own, self._mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride())

    def _give_optimizer(self, old: _Parameters, new: _Parameters, change: Callable[[Key, Tensor], Tensor]) -> None:
        """Have the optimizer train ``new`` in place of ``old``; what it remembers in the shape of one is changed."""
        optimizer = self._replica.optimizer
        of_old = {id(parameter): new[name] for name, parameter in old.items()}
        for group in optimizer.param_groups:
            group["params"] = [of_old.get(id(p), p) for p in group["params"]]
        for name, before in old.items():
            if before in optimizer.state:
                optimizer.state[new[name]] = {
                    key: change((name, key), value)
                    if isinstance(value, Tensor) and value.shape == before.shape
                    else value
                    for key, value in optimizer.state.pop(before).items()
                }

    def _fold(self) -> None:
        """Make parts of what a forward pass without a backward pass has left whole."""
        for module in self._modules:
            module.reshard()

    def _cuts(self, *, state: bool) -> list[Cut]:
        """List all that is cut, the optimizer's ``state`` with it or not."""
        cuts = [Cut((name, ""), part.dtype, tuple(part.shape)) for name, part in self._parts.items()]
        if state:
            for name, part in self._parts.items():
                for key, value in sorted(self._replica.optimizer.state.get(part, {}).items()):
                    if isinstance(value, DTensor):
                        cuts.append(_cut_of(name, key, value))
        return cuts

    def _in_sections(self, cuts: Sequence[Cut]) -> Iterator[list[Cut]]:
        """Yield those that are gathered together: of one section, of one kind."""
        for _, names, _ in self._sections:
            inside, kinds = set(names), dict.fromkeys(cut.key[1] for cut in cuts)
            for kind in kinds:
                if alike := [cut for cut in cuts if cut.key[1] == kind and cut.key[0] in inside]:
                    yield alike

    def _own(self, cuts: Sequence[Cut]) -> dict[Key, Tensor]:
        """Return this rank's own part, sharing its memory."""
        state = self._replica.optimizer.state
        return {
            (name, key): local_part(self._parts[name] if not key else state[self._parts[name]][key]).detach()
            for (name, key), _, _ in cuts
        }

    @torch.no_grad()
    def _gather(self, *, state: bool) -> Iterator[tuple[Key, Tensor]]:
        """Yield all that is cut as a whole; all ranks exhaust it."""
        self._group.meet()  # another may be in the gathering of a step
        self._fold()
        cuts, device = self._cuts(state=state), self._replica.device
        own, givers = [self._own(cuts)], [Giver(rank, 0) for rank in range(self._group.size)]
        for section in self._in_sections(cuts):
            for cut, whole in gather(section, group=self._group, gives=own, givers=givers, device=device):
                yield cut.key, whole

    def _share_buffers(self) -> None:
        for buffer in self._replica.model.buffers():
            self._group.broadcast(buffer)

    @torch.no_grad()
    def state(self) -> State | None:
        """Gather the whole parameters and rank 0's buffers, on the CPU, on rank 0 alone; all ranks call it."""
        leads = self._group.rank == 0
        copied = {name: whole.to("cpu", copy=True) for (name, _), whole in self._gather(state=False) if leads}
        return copied | self._buffers(torch.device("cpu")) if leads else None

    def _buffers(self, device: torch.device) -> dict[str, Tensor]:
        return {name: b.detach().to(device, copy=True) for name, b in self._replica.model.named_buffers()}

    @contextmanager
    def loaded(self, state: State) -> Iterator[None]:
        """Put ``state`` into the model of this rank, in which no other takes part."""
        buffers = self._buffers(self._replica.device)
        self._fold()
        self._wrapping.take_off()
        device = self._replica.device
        self._place({name: self._like(name, state[name].to(device)) for name in self._parts})
        self._set_buffers(state)
        try:
            yield
        finally:
            self._set_buffers(buffers)
            self._place(self._parts)
            self._wrapping.put_back()

    def _like(self, name: str, whole: Tensor) -> nn.Parameter:
        return nn.Parameter(whole, requires_grad=self._parts[name].requires_grad)

    @torch.no_grad()
    def _set_buffers(self, state: Mapping[str, Tensor]) -> None:
        for name, buffer in self._replica.model.named_buffers():
            buffer.copy_(state[name])

    def _place(self, parameters: _Parameters) -> None:
        for name, parameter in parameters.items():
            for module, attribute in self._places[name]:
                module._parameters[attribute] = parameter

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Make model and optimizer whole on every rank, and cut them again as they are at the end; all call it."""
        gathered = {key: whole.clone() for key, whole in self._gather(state=True)}
        self._share_buffers()
        whole = {name: self._like(name, gathered.pop((name, ""))) for name in self._parts}
        self._wrapping.take_off()
        self._place(whole)
        self._give_optimizer(self._parts, whole, lambda key, _: gathered[key])
        try:
            yield
        finally:
            self._give_optimizer(whole, self._parts, lambda _, value: self._part_of(value))
            with torch.no_grad():
                for name, part in self._parts.items():
                    local_part(part).copy_(local_part(self._part_of(whole[name].detach())))
            self._place(self._parts)
            self._wrapping.put_back()

    def replaced(self) -> None:
        """Do nothing: the parts have the new values already."""

    def _plain(self) -> dict[str, dict[str, Any]]:
        """Copy what the optimizer remembers that is not cut, and equal on all ranks."""
        plain = {}
        for name, part in self._parts.items():
            entry = self._replica.optimizer.state.get(part, {}).items()
            plain[name] = {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in entry
                if not isinstance(value, DTensor)
            }
        return plain

    @torch.no_grad()
    def cut_anew(
        self, group: TorchGroup, own: Mapping[Key, Tensor], *, plain: Plain, buffers: Mapping[str, Tensor]
    ) -> None:
        """Cut the model for another group, of which this rank has its part; no other takes part in it."""
        was_cut, before = self.is_cut, self._parts
        if was_cut:
            self._wrapping.remove()
        self._wrap(group, empty=True)
        cut = dict(self._replica.model.named_parameters())
        if was_cut:
            for name, part in before.items():  # the objects that the script knows
                part._local_tensor, part._spec = cut[name]._local_tensor, cut[name]._spec  # type: ignore[attr-defined]
            self._place(before)
        else:
            self._parts = cut
            self._give_optimizer(before, cut, lambda _, value: value)
            self._replica.sharded_by(self)
        state = self._replica.optimizer.state
        for name, part in self._parts.items():
            local_part(part).copy_(own[name, ""])
            remembered = {
                key: self._as_dtensor(tensor.clone(), like=part)
                for (of, key), tensor in own.items()
                if key and of == name
            }
            state.pop(part, None)
            if entry := {**deepcopy(plain[name]), **remembered}:
                state[part] = entry
        self._set_buffers(buffers)

    def whole(self) -> _Parameters:
        """Gather the whole parameters on every rank, and rank 0's buffers, for the end; all call it.

        The optimizer's state is let go first, so that the end takes no more memory than training has.
        """
        self._replica.optimizer.zero_grad(set_to_none=True)
        for part in self._parts.values():
            self._replica.optimizer.state.pop(part, None)
        whole = {name: self._like(name, whole.clone()) for (name, _), whole in self._gather(state=False)}
        self._share_buffers()
        return whole

    def undo(self, whole: _Parameters) -> None:
        """Make the parameters whole for good; the optimizer begins anew with them."""
        self._wrapping.remove()
        self._place(whole)
        self._give_optimizer(self._parts, whole, lambda _, value: value)
        self._parts, self._modules = whole, []
        self._replica.sharded_by(None)


def _cut_of(name: str, key: str, value: DTensor) -> Cut:
    if value.placements != (Shard(0),):
        raise TaskError(
            f'what the optimizer remembers of "{name}" ({key}) is placed as {", ".join(map(str, value.placements))}, '
            "not in rows, and fsdp cannot put it together; use an optimizer that goes element by element"
        )
    return Cut((name, key), value.dtype, tuple(value.shape))


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
            if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                raise TaskError(
                    f'what the optimizer remembers of "{name}" ({key}, of shape {tuple(value.shape)}) is not shaped '
                    "like it and cannot be cut; join with an optimizer that has made no step"
                )
