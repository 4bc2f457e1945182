"""Reads the tensors and values of a checkpoint, which torch.distributed.checkpoint's format keeps as files in a file.

A tensor in one piece is copied once, from the file to where it stays. torch's own reader allocates it, reads it into a
second one, and copies that, which takes two to three times as long (`benchmarks/bench_checkpoint.py`). A process that
holds parts keeps its part of each tensor before the next one is read.

Nothing that is read can run. torch's table of contents, ``.metadata``, is a pickle, and torch's own reader runs
whatever a pickle says; here it may name the few classes that such a table is made of. Values are read with
``weights_only``.
"""

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.utils import _create_file_view

from plesio.core.errors import DataError

StateDict = dict[str, Any]
Place = Callable[[Sequence[Any], torch.Tensor], torch.Tensor]
"""Makes what is kept of a tensor, given the keys that lead to it and all of it."""

_TABLE = ".metadata"
_CLASSES = {
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
}


def read(path: Path, *, place: Place = lambda keys, tensor: tensor) -> StateDict:
    """Read all tensors and values of the checkpoint in this folder, as ``{"model": ..., "optimizer": ...}``.

    It raises DataError if they cannot be read, or hold something that could run.
    """
    with _as_data_error(path):
        table = _table(path)
        keys = table.planner_data
        flat = {
            name: place(keys[name], value) if isinstance(value, torch.Tensor) else value
            for name, value in _values(path, table)
        }
        state: StateDict = dict(unflatten_state_dict(flat, keys))
        state["model"].keys()
        state["optimizer"].setdefault("state", {})  # a table without entries is not in the file
        return state


def shapes(path: Path) -> dict[str, torch.Size | None]:
    """Return the shapes of the model's tensors in the checkpoint in this folder, by name; None for what is none.

    It raises DataError if they cannot be read.
    """
    with _as_data_error(path):
        table = _table(path)
        entries = [(table.planner_data[name], entry) for name, entry in table.state_dict_metadata.items()]
        return {
            keys[1]: entry.size if isinstance(entry, TensorStorageMetadata) and len(keys) == 2 else None
            for keys, entry in entries
            if keys[0] == "model"
        }


def check(path: Path) -> None:
    """Read all of it, a tensor at a time, and keep nothing; DataError if `read` would fail."""
    with _as_data_error(path):
        for _ in _values(path, _table(path)):
            pass


@contextmanager
def _as_data_error(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a table of another shape can make a reader raise nearly anything
        reason = " ".join(str(error).split("\n")[0].split()) or "it has another shape"
        raise DataError(f"the tensors of {path} cannot be read: {type(error).__name__}: {reason}") from error


def _table(path: Path) -> Metadata:
    table = _Table(io.BytesIO((path / _TABLE).read_bytes())).load()
    if not isinstance(table, Metadata):
        raise TypeError(f"{_TABLE} is a {type(table).__name__}")
    return table


def plain(state: StateDict) -> StateDict:
    """Convert to the form of a model's and an optimizer's ``state_dict``: there parameters have numbers, not names."""
    groups = state["optimizer"]["param_groups"]
    names = [name for group in groups for name in group["params"]]
    number = {name: index for index, name in enumerate(names)}
    return {
        "model": state["model"],
        "optimizer": {
            "state": {number[name]: values for name, values in state["optimizer"]["state"].items()},
            "param_groups": [{**group, "params": [number[name] for name in group["params"]]} for group in groups],
        },
    }


class _Table(pickle.Unpickler):
    """A table of contents: only a `Metadata` can be made of it."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the class, if such a table may have it; dtypes are torch's own names."""
        is_dtype = module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype)
        if (module_name, global_name) in _CLASSES or is_dtype:
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"{_TABLE} names {module_name}.{global_name}, which no table of contents has")


_Places = list[tuple[MetadataIndex, _StorageInfo]]


def _values(path: Path, table: Metadata) -> Iterator[tuple[str, Any]]:
    found: dict[str, _Places] = {}
    for index, where in table.storage_data.items():
        if Path(where.relative_path).name != where.relative_path:
            raise ValueError(f"{_TABLE} names {where.relative_path}, which is in another folder")
        found.setdefault(index.fqn, []).append((index, where))
    with ExitStack() as opened:
        files = {
            name: opened.enter_context((path / name).open("rb"))
            for name in dict.fromkeys(where.relative_path for where in table.storage_data.values())
        }
        for key, places in found.items():
            entry = table.state_dict_metadata[key]
            if isinstance(entry, TensorStorageMetadata):
                yield key, _tensor(files, places, entry)
            else:
                [(_, where)] = places
                file = files[where.relative_path]
                file.seek(where.offset)
                yield key, torch.load(io.BytesIO(file.read(where.length)), weights_only=True)


def _tensor(files: Mapping[str, io.BufferedReader], places: _Places, entry: TensorStorageMetadata) -> torch.Tensor:
    """Read a whole tensor, in one piece or in boxes."""
    sizes = {box.offsets: box.sizes for box in entry.chunks}
    boxes = [(at, sizes[at], where) for index, where in places for at in [index.offset or torch.Size()]]
    if sum(size.numel() for _, size, _ in boxes) != entry.size.numel():
        raise ValueError(f"{_TABLE} names other parts of a tensor than there are")
    whole = None
    for begins, size, where in boxes:
        part = _part(files[where.relative_path], where, size, entry.properties.dtype)
        if size == entry.size:
            return part
        if whole is None:
            whole = torch.empty(entry.size, dtype=part.dtype)
        whole[tuple(slice(begin, begin + n) for begin, n in zip(begins, size, strict=True))] = part
    assert whole is not None, "it has parts"
    return whole


def _part(file: io.BufferedReader, place: _StorageInfo, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Read a box, whose elements lie in the file in order (`plesio.runtime.checkpoints.tensors.Share`)."""
    if size.numel() == 0:
        return torch.empty(size, dtype=dtype)
    view = _create_file_view(file, place.offset, place.length)
    archive: Any = torch._C.PyTorchFileReader(cast("IO[bytes]", view))
    file.seek(place.offset + archive.get_record_offset("data/0"))
    elements = np.empty(size.numel() * dtype.itemsize, dtype=np.uint8)
    if file.readinto(elements.data) != elements.nbytes:
        raise EOFError(f"{file.name} ends within a tensor")
    return torch.frombuffer(elements, dtype=dtype).reshape(size)
