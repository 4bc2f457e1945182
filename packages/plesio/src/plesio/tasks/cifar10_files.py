"""The two formats of CIFAR-10 (Krizhevsky 2009): the "python version" and the "binary version".

The python version is a pickle, and a pickle can run any program. Such a file comes from anywhere, so it is read by an
unpickler whose only globals are the stand-ins below: enough for arrays of bytes, and nothing that imports or calls
anything else, nor hands numpy a state that it would have to trust.
"""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plesio.core.errors import DataError
from plesio.core.files import reason_of

NUM_CLASSES = 10
SHAPE = (3, 32, 32)
IMAGE_BYTES = math.prod(SHAPE)
RECORD_BYTES = 1 + IMAGE_BYTES

Bytes = npt.NDArray[np.uint8]


def read_cifar10_binary(paths: tuple[Path, ...]) -> tuple[Tensor, Tensor]:
    """Read images [number, 3, 32, 32] of dtype uint8 and labels [number] of dtype int64, of all files in order.

    A file is records of one label byte and 3,072 pixel bytes (red, green, blue planes; rows from the top). Raises
    `DataError` for one that cannot be read, is no whole number of records, or has a label beyond 9.
    """
    batches = []
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path}: {reason_of(error)}") from error
        if not content or len(content) % RECORD_BYTES:
            raise DataError(
                f"{path} is cut short or no CIFAR-10 file: {len(content)} bytes are no whole number of records "
                f"of {RECORD_BYTES} bytes"
            )
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD_BYTES)
        batches.append(_checked(path, records[:, 1:], records[:, 0].tolist()))
    return _joined(batches)


def read_cifar10_python(paths: tuple[Path, ...]) -> tuple[Tensor, Tensor]:
    """Read images [number, 3, 32, 32] of dtype uint8 and labels [number] of dtype int64, of all files in order.

    Raises `DataError` for a file that cannot be read, is no pickle, asks for anything but plain values and arrays of
    bytes, or lacks ``data`` and ``labels`` of matching sizes.
    """
    batches = []
    for path in paths:
        content = _unpickle(path)
        if not isinstance(content, dict):
            raise DataError(f"{path} is no CIFAR-10 batch: it holds a {type(content).__name__}, not a dictionary")
        batches.append(_checked(path, getattr(content.get(b"data"), "values", None), content.get(b"labels")))
    return _joined(batches)


def _checked(path: Path, pixels: object, labels: object) -> tuple[Bytes, list[int]]:
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (IMAGE_BYTES,):
        raise DataError(f"{path} is no CIFAR-10 batch: its data are no array of bytes with {IMAGE_BYTES} columns")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not labels:
        raise DataError(f"{path} is no CIFAR-10 batch: it must have one label for each of {len(pixels)} images")
    wrong = [label for label in labels if not isinstance(label, int) or not 0 <= label < NUM_CLASSES]
    if wrong:
        raise DataError(f"{path} has the label {wrong[0]!r}; labels are 0 to {NUM_CLASSES - 1}")
    return pixels, labels


def _joined(batches: list[tuple[Bytes, list[int]]]) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(np.concatenate([pixels for pixels, _ in batches])).reshape(-1, *SHAPE)
    return images, torch.tensor([label for _, labels in batches for label in labels], dtype=torch.int64)


def _unpickle(path: Path) -> object:
    try:
        with path.open("rb") as file:
            # The authors wrote it with Python 2: its texts are bytes.
            return _ArrayUnpickler(file, encoding="bytes").load()
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error
    except Exception as error:  # a damaged pickle can make the unpickler raise nearly anything
        raise DataError(f"{path} is no CIFAR-10 batch of the python version: {error}") from error


class _ByteType:
    """Stands for the type of an array of bytes."""

    def __setstate__(self, state: object) -> None:
        """Ignore the state: byte order, alignment and fields, which bytes do not have."""


class _PickledArray:
    """Stands for an array until its state arrives."""

    values: Bytes

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, shape, kind, columns_first, content = state
        if not isinstance(kind, _ByteType) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array in it is not of bytes")
        array = np.frombuffer(content, dtype=np.uint8)
        self.values = array.reshape(shape, order="F" if columns_first else "C")  # type: ignore[call-overload]


class _StandIn:
    """A global that a pickle may call; its state cannot be set, so no file changes how the next one is read."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it changes a function")


def _array(*arguments: object) -> _PickledArray:
    """Replace numpy's ``_reconstruct``, which makes the empty array whose state follows."""
    return _PickledArray()


def _array_type(*arguments: object) -> object:
    """Replace ``numpy.ndarray``: an argument of ``_reconstruct``, never called."""
    raise pickle.UnpicklingError("it makes an array of a given size; refused")


def _element_type(name: object, *_: object) -> _ByteType:
    if name not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"an array in it has the type {name!r}; only bytes (u1) are read")
    return _ByteType()


def _encoded(text: object, *_: object) -> bytes:
    """Replace ``_codecs.encode``, by which Python 3 writes bytes for Python 2 (always as Latin-1)."""
    if not isinstance(text, str):
        raise pickle.UnpicklingError("it encodes something else than a text")
    return text.encode("latin1")


_GLOBALS = {
    ("numpy", "ndarray"): _StandIn(_array_type),
    ("numpy", "dtype"): _StandIn(_element_type),
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_array),
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_array),  # where NumPy 2 writes it from
    ("_codecs", "encode"): _StandIn(_encoded),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _GLOBALS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data never need; refused") from None
