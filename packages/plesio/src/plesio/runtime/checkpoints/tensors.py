"""Parameters, buffers and the optimizer's state in torch.distributed.checkpoint's format, each worker a share of them.

All workers have equal replicas when a checkpoint is taken, so each can compute the same plan of what there is to write
and takes its own part of it; nothing has to be agreed on. Processes that hold one replica together write the parts that
they have, and the first of them what all hold alike: in the files tensors are whole, in one piece or in boxes. Names
are those of torch's own helpers, so a checkpoint loads without Plesio:

    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    torch.distributed.checkpoint.load(state, checkpoint_id="DIR/step-00001200")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

An entry of a table of values beside tensors (a learning rate, a flag) is written by worker 0.
"""

import io
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter, _StorageInfo, _StoragePrefix
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from plesio.core.errors import ConfigError, DataError
from plesio.core.exact import own_numbers
from plesio.runtime.checkpoints.folder import HashedFile, WrittenFile
from plesio.runtime.checkpoints.part_reports import FilePlace
from plesio.runtime.checkpoints.reading import Place, StateDict
from plesio.runtime.worker.exchange.local_part import box_held, local_part, part_placed, placed_like
from plesio.runtime.worker.exchange.replica import Replica


def state_of(replica: Replica) -> StateDict:
    """Return the replica's parameters, buffers and optimizer state, by torch's names; the tensors are its own."""
    model = dict(replica.model.state_dict())  # first: FSDP2 puts parts back that a forward pass may have left whole
    names = {id(parameter): name for name, parameter in replica.model.named_parameters()}
    optimizer = replica.optimizer
    state = {
        names[id(parameter)]: {
            key: own_numbers(value.to_dense() if isinstance(value, torch.Tensor) and value.is_sparse else value)
            for key, value in values.items()
        }
        for parameter, values in optimizer.state.items()
        if id(parameter) in names and values
    }
    groups = [
        {**options, "params": [names[id(p)] for p in group["params"] if id(p) in names]}
        for options, group in zip(replica.stepper.options(), optimizer.param_groups, strict=True)
    ]
    return {"model": model, "optimizer": {"state": state, "param_groups": groups}}


def check_model(replica: Replica, shapes: Mapping[str, torch.Size | None]) -> None:
    """Check that a checkpoint with tensors of these names and shapes is of this model."""
    own = replica.model.state_dict()
    if own.keys() != shapes.keys():
        name = min(own.keys() ^ shapes.keys())
        where = "model" if name in own else "checkpoint"
        raise DataError(f'the checkpoint is of another model: only the {where} has "{name}"')
    for name, shape in shapes.items():
        if shape is not None and shape != own[name].shape:
            raise DataError(
                f'the checkpoint is of another model: "{name}" has shape {tuple(own[name].shape)} here and '
                f"{tuple(shape)} there"
            )


def placing(replica: Replica) -> Place:
    """Return what keeps of a checkpoint's tensor the part that this process has of it in the replica."""
    own = replica.model.state_dict()

    def place(keys: Sequence[Any], whole: torch.Tensor) -> torch.Tensor:
        like = own.get(keys[2] if keys[0] == "optimizer" else keys[1])
        return placed_like(whole, like) if isinstance(like, DTensor) and whole.shape == like.shape else whole

    return place


@torch.no_grad()
def load(replica: Replica, state: Mapping[str, Any]) -> None:
    """Set a replica to what `plesio.runtime.checkpoints.reading.read` gave of this model and optimizer.

    For a replica in parts it was read as `placing` says.
    """
    replica.model.load_state_dict(dict(state["model"]))
    load_optimizer_state(replica, state["optimizer"]["state"])
    for group, saved in zip(replica.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})


@torch.no_grad()
def load_optimizer_state(replica: Replica, state: Mapping[str, Mapping[str, Any]]) -> None:
    replica.optimizer.state.clear()
    for name, parameter in replica.model.named_parameters():
        for key, kept in state.get(name, {}).items():
            value = part_placed(kept, parameter)
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                value = value.to(parameter.device, copy=True)
            elif isinstance(value, torch.Tensor):
                value = value.clone()
            replica.optimizer.state[parameter][key] = value
    replica.stepper.sparse_momentum()


class Share:
    """The share of one writing process, copied out of the replica so that training can go on.

    Args:
        num_shares: Replicas that are equal, each of which writes a share.
        rank: Number of this process among those that hold its replica in parts; 0 where it has all of it.
    """

    def __init__(self, number: int, state: StateDict, *, num_shares: int, rank: int = 0) -> None:
        self._files_begin = f"__{number}_" if rank == 0 else f"__{number}.{rank}_"
        self._planner = _Copies()
        self._planner.set_up_planner(state, is_coordinator=True)
        self._items = self._planner.create_local_plan().items
        sizes = [0] * num_shares
        mine = []
        for item in sorted(self._items, key=_num_bytes, reverse=True):
            smallest = 0 if item.type is WriteItemType.BYTE_IO else sizes.index(min(sizes))
            sizes[smallest] += _num_bytes(item)
            if smallest == number and _writes(self._planner.state_dict[item.index.fqn], rank=rank):
                mine.append(item)
        self._mine = SavePlan(mine, storage_data=_StoragePrefix(self._files_begin))
        self._planner.copy({item.index.fqn for item in mine})

    def write(self, path: Path) -> tuple[dict[str, WrittenFile], tuple[FilePlace, ...]]:
        """Write it into the checkpoint's folder, on the disk when this returns.

        Returns:
            The files, and where in them everything is.
        """
        writer = FileSystemWriter(path, single_file_per_rank=True, sync_files=False)
        writer.fs = files = _HashedFiles()
        writer.set_up_storage_writer(is_coordinator=True)
        places = []
        for result in writer.write_data(self._mine, self._planner).value():
            name, where = result.index.fqn, result.storage_data
            box = self._planner.boxes[name]
            places.append(FilePlace(name, where.relative_path, where.offset, where.length, *box))
        return files.written, tuple(places)

    def finish(self, path: Path, places: Iterable[FilePlace]) -> WrittenFile:
        """Write the table of contents, when all shares are there; DataError if they are not those of the shares."""
        written: dict[str, dict[tuple[int, ...] | None, FilePlace]] = {item.index.fqn: {} for item in self._items}
        for place in places:
            if place.name not in written:
                raise DataError(f'"{place.name}" is not what one share has written, or is in none')
            written[place.name].setdefault(place.begins, place)  # ranks may hold a box alike
        entries = {item.index.fqn: _entry(item, written[item.index.fqn].values()) for item in self._items}
        results = [
            WriteResult(_index(place), place.num_bytes, _StorageInfo(place.file, place.offset, place.num_bytes))
            for boxes in written.values()
            for place in boxes.values()
        ]
        writer = FileSystemWriter(path, sync_files=False)
        writer.fs = files = _HashedFiles()
        writer.set_up_storage_writer(is_coordinator=True)
        writer.finish(Metadata(entries, planner_data=self._planner.mappings), [results])
        return next(iter(files.written.values()))


class _Copies(DefaultSavePlanner):
    """Has copies of the tensors that are written: of a `DTensor` the part that is here."""

    def copy(self, names: set[str]) -> None:
        """Copy these, and let go of the others."""
        own = {name: value for name, value in self.state_dict.items() if name in names}
        self.boxes = {name: _box(name, value) for name, value in own.items()}
        self.state_dict = {
            # elements in the order in which they are read
            name: local_part(value).detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            if isinstance(value, torch.Tensor)
            else value
            for name, value in own.items()
        }

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn]


def _box(name: str, value: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Return the first index and the shape of what is here of a tensor; None and nothing of a value."""
    if not isinstance(value, torch.Tensor):
        return None, ()
    box = box_held(value) if isinstance(value, DTensor) else ([0] * value.dim(), list(value.shape))
    if box is None or tuple(box[1]) != local_part(value).shape:
        raise ConfigError(
            f'"{name}" is in parts that are no boxes of it ({", ".join(map(str, getattr(value, "placements", ())))}): '
            "checkpoints need Replicate, or Shard of dimensions that divide"
        )
    return tuple(box[0]), tuple(box[1])


def _writes(value: Any, *, rank: int) -> bool:
    """Tell whether this process writes a value: its part of one, or as the first of those that hold it alike."""
    if not isinstance(value, DTensor):
        return rank == 0
    coordinate = value.device_mesh.get_coordinate()
    assert coordinate is not None, "each rank has a part of every tensor"
    first = all(at == 0 for at, placement in zip(coordinate, value.placements, strict=True) if placement.is_replicate())
    return first and (local_part(value).numel() > 0 or not value.numel())


def _entry(item: WriteItem, places: Collection[FilePlace]) -> TensorStorageMetadata | BytesStorageMetadata:
    """Describe a tensor or value in the table of contents; DataError if not all of it has been written."""
    data = item.tensor_data
    numel = 1 if data is None else data.size.numel()
    if not places or numel != sum(math.prod(place.sizes) for place in places):
        raise DataError(f'"{item.index.fqn}" is not what one share has written, or is in none')
    if data is None:
        return BytesStorageMetadata()
    chunks = [ChunkStorageMetadata(torch.Size(place.begins or ()), torch.Size(place.sizes)) for place in places]
    return TensorStorageMetadata(data.properties, data.size, chunks)


def _index(place: FilePlace) -> MetadataIndex:
    """Return the name in torch's table: a value's is without a place."""
    return MetadataIndex(place.name, None if place.begins is None else torch.Size(place.begins))


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


def _num_bytes(item: WriteItem) -> int:
    data = item.tensor_data
    return 0 if data is None else data.size.numel() * data.properties.dtype.itemsize
