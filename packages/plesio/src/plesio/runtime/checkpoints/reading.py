"""Reads the tensors and values of a checkpoint, which torch.distributed.checkpoint's format keeps as files in a file.

A tensor is copied once, from the file to where it stays. torch's own reader allocates it, reads it into a second one,
and copies that, which takes two to three times as long (`benchmarks/bench_checkpoint.py`).

Nothing that is read can run. torch's table of contents, ``.metadata``, is a pickle, and torch's own reader runs
whatever a pickle says; here it may name the few classes that such a table is made of. Values are read with
``weights_only``.
"""

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.utils import _create_file_view

from plesio.core.errors import DataError

__all__ = ["StateDict", "check", "plain", "read"]

StateDict = dict[str, Any]

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


def read(path: Path) -> StateDict:
    """Read all tensors and values of the checkpoint in this folder, as ``{"model": ..., "optimizer": ...}``.

    Raises:
        DataError: They cannot be read, or hold something that could run.
    """
    with _as_data_error(path):
        table = _table(path)
        state: StateDict = dict(unflatten_state_dict(dict(_values(path, table)), table.planner_data))
        state["model"].keys()
        state["optimizer"].setdefault("state", {})  # a table without entries is not in the file
        return state


def check(path: Path) -> None:
    """Read all of it, a tensor at a time, and keep nothing.

    Raises:
        DataError: `read` would fail.
    """
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
        if (module_name, global_name) in _CLASSES or _is_dtype(module_name, global_name):
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"{_TABLE} names {module_name}.{global_name}, which no table of contents has")


def _is_dtype(module_name: str, global_name: str) -> bool:
    return module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype)


def _values(path: Path, table: Metadata) -> Iterator[tuple[str, Any]]:
    by_file: dict[str, list[tuple[str, _StorageInfo]]] = {}
    for index, place in table.storage_data.items():
        by_file.setdefault(place.relative_path, []).append((index.fqn, place))
    for name, places in by_file.items():
        if Path(name).name != name:
            raise ValueError(f"{_TABLE} names {name}, which is in another folder")
        with (path / name).open("rb") as file:
            for key, place in places:
                entry = table.state_dict_metadata[key]
                if isinstance(entry, TensorStorageMetadata):
                    yield key, _tensor(file, place, entry)
                else:
                    yield key, _value(file, place)


def _tensor(file: io.BufferedReader, place: _StorageInfo, entry: TensorStorageMetadata) -> torch.Tensor:
    """Read a whole tensor, whose elements lie in the file in order (`plesio.runtime.checkpoints.tensors.Share`)."""
    dtype = entry.properties.dtype
    if entry.size.numel() == 0:
        return torch.empty(entry.size, dtype=dtype)
    view = _create_file_view(file, place.offset, place.length)
    archive: Any = torch._C.PyTorchFileReader(cast("IO[bytes]", view))
    file.seek(place.offset + archive.get_record_offset("data/0"))
    elements = np.empty(entry.size.numel() * dtype.itemsize, dtype=np.uint8)
    if file.readinto(elements.data) != elements.nbytes:
        raise EOFError(f"{file.name} ends within a tensor")
    return torch.frombuffer(elements, dtype=dtype).reshape(entry.size)


def _value(file: io.BufferedReader, place: _StorageInfo) -> Any:
    file.seek(place.offset)
    return torch.load(io.BytesIO(file.read(place.length)), weights_only=True)
