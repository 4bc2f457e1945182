"""Parameters, buffers and the optimizer's state in torch.distributed.checkpoint's format, each worker a share of them.

All workers have equal replicas when a checkpoint is taken, so each can compute the same plan of what there is to write
and takes its own part of it; nothing has to be agreed on. Names are those of torch's own helpers, so a checkpoint loads
without Plesio:

    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    torch.distributed.checkpoint.load(state, checkpoint_id="DIR/step-00001200")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

An entry of a table of values beside tensors (a learning rate, a flag) is written by worker 0.
"""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from plesio.core.errors import DataError
from plesio.core.exact import own_numbers
from plesio.runtime.checkpoints.folder import HashedFile, WrittenFile
from plesio.runtime.checkpoints.part_reports import FilePlace
from plesio.runtime.checkpoints.reading import StateDict
from plesio.runtime.worker.exchange.replica import Replica

__all__ = ["Share", "check_model", "load", "load_optimizer_state", "state_of"]


def state_of(replica: Replica) -> StateDict:
    """Return the replica's parameters, buffers and optimizer state, by torch's names; the tensors are its own."""
    names = {id(parameter): name for name, parameter in replica.model.named_parameters()}
    optimizer = replica.optimizer
    state = {
        names[id(parameter)]: {key: own_numbers(_dense(value)) for key, value in values.items()}
        for parameter, values in optimizer.state.items()
        if id(parameter) in names and values
    }
    groups = [
        {**options, "params": _named(group["params"], names)}
        for options, group in zip(replica.stepper.options(), optimizer.param_groups, strict=True)
    ]
    return {"model": dict(replica.model.state_dict()), "optimizer": {"state": state, "param_groups": groups}}


def _named(parameters: Sequence[torch.Tensor], names: Mapping[int, str]) -> list[str]:
    return [names[id(parameter)] for parameter in parameters if id(parameter) in names]


def _dense(value: Any) -> Any:
    return value.to_dense() if isinstance(value, torch.Tensor) and value.is_sparse else value


def check_model(replica: Replica, state: Mapping[str, Any]) -> None:
    """Check that ``state`` is of this model.

    Raises:
        DataError: It is of another one; the message names what differs.
    """
    own = replica.model.state_dict()
    if own.keys() != state["model"].keys():
        name = min(own.keys() ^ state["model"].keys())
        where = "model" if name in own else "checkpoint"
        raise DataError(f'the checkpoint is of another model: only the {where} has "{name}"')
    for name, tensor in state["model"].items():
        if tensor.shape != own[name].shape:
            raise DataError(
                f'the checkpoint is of another model: "{name}" has shape {tuple(own[name].shape)} here and '
                f"{tuple(tensor.shape)} there"
            )


@torch.no_grad()
def load(replica: Replica, state: Mapping[str, Any]) -> None:
    """Set a replica to what `plesio.runtime.checkpoints.reading.read` gave of this model and optimizer."""
    replica.model.load_state_dict(dict(state["model"]))
    load_optimizer_state(replica, state["optimizer"]["state"])
    for group, saved in zip(replica.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})


@torch.no_grad()
def load_optimizer_state(replica: Replica, state: Mapping[str, Mapping[str, Any]]) -> None:
    replica.optimizer.state.clear()
    for name, parameter in replica.model.named_parameters():
        for key, value in state.get(name, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                value = value.to(parameter.device, copy=True)
            elif isinstance(value, torch.Tensor):
                value = value.clone()
            replica.optimizer.state[parameter][key] = value
    replica.stepper.sparse_momentum()


class Share:
    """The share of one writing worker, copied out of the replica so that training can go on.

    Args:
        number: Number of the share, from 0.
        num_shares: Workers that write.
    """

    def __init__(self, number: int, state: StateDict, *, num_shares: int) -> None:
        self.number = number
        self._num_shares = num_shares
        self._planner = DefaultSavePlanner()
        self._planner.set_up_planner(state, is_coordinator=True)
        whole = self._planner.create_local_plan()
        items = [[] for _ in range(self._num_shares)]  # type: list[list[WriteItem]]
        sizes = [0] * self._num_shares
        for item in sorted(whole.items, key=_num_bytes, reverse=True):
            smallest = 0 if item.type is WriteItemType.BYTE_IO else sizes.index(min(sizes))
            items[smallest].append(item)
            sizes[smallest] += _num_bytes(item)
        plans = [replace(whole, items=mine) for mine in items]
        self._plans, self._metadata = self._planner.create_global_plan(plans)
        flat = self._planner.state_dict
        own = {item.index.fqn for item in self._plans[self.number].items}
        self._planner.state_dict = {
            name: _copied(value) if name in own and isinstance(value, torch.Tensor) else value
            for name, value in flat.items()
        }

    def write(self, path: Path) -> tuple[dict[str, WrittenFile], dict[str, FilePlace]]:
        """Write it into the checkpoint's folder, on the disk when this returns.

        Returns:
            The files, and where in them everything is, by name.
        """
        writer = FileSystemWriter(path, single_file_per_rank=True, sync_files=False)
        writer.fs = files = _HashedFiles()
        writer.set_up_storage_writer(is_coordinator=True)
        plans = writer.prepare_global_plan(self._plans)
        plan: SavePlan = self._planner.finish_plan(plans[self.number])
        places = {
            result.index.fqn: FilePlace(
                result.storage_data.relative_path, result.storage_data.offset, result.storage_data.length
            )
            for result in writer.write_data(plan, self._planner).value()
        }
        return files.written, places

    def finish(self, path: Path, places: Mapping[str, FilePlace]) -> WrittenFile:
        """Write the table of contents, when all shares are there.

        Raises:
            DataError: They are not those of the shares.
        """
        indices = {item.index.fqn: item.index for plan in self._plans for item in plan.items}
        if indices.keys() != places.keys():
            raise DataError(f'"{min(indices.keys() ^ places.keys())}" is not what one share has written, or is in none')
        results = [
            WriteResult(index, places[name].num_bytes, _StorageInfo(*msgspec.structs.astuple(places[name])))
            for name, index in indices.items()
        ]
        writer = FileSystemWriter(path, sync_files=False)
        writer.fs = files = _HashedFiles()
        writer.set_up_storage_writer(is_coordinator=True)
        writer.finish(self._metadata, [results])
        return next(iter(files.written.values()))


class _HashedFiles(FileSystem):
    """Files that are flushed, and of which the checksum is taken, as they are written."""

    def __init__(self) -> None:
        self.written: dict[str, WrittenFile] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb", mode
        with HashedFile(Path(path)) as file:
            yield file
        self.written[Path(path).name] = file.written


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the CPU, its elements in the order in which they are read."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _num_bytes(item: WriteItem) -> int:
    data = item.tensor_data
    return 0 if data is None else data.size.numel() * data.properties.dtype.itemsize
