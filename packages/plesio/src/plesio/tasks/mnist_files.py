"""The IDX format of MNIST (LeCun, Cortes & Burges 1998), plain or gzipped; Fashion-MNIST and KMNIST use it as well.

A file is a magic number (two zero bytes, a type byte, the number of dimensions), the dimensions as big-endian 32-bit
numbers, then the values. MNIST has bytes (type 8) in one dimension for labels and in three for images.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plesio.core.errors import DataError
from plesio.core.files import reason_of

UNSIGNED_BYTE = 8
NUM_CLASSES = 10
MAX_BYTES = 2**31
"""A header that promises more is taken for a wrong one, before memory is asked for."""


def read_mnist(paths: tuple[Path, ...]) -> tuple[Tensor, Tensor]:
    """Read images [number, 1, height, width] of dtype uint8 and labels [number] of dtype int64, from a file of each.

    Raises `DataError` if one is not in the format, is cut short, or the two do not belong together.
    """
    images_path, labels_path = paths
    images = read_idx(images_path, num_dimensions=3)
    labels = read_idx(labels_path, num_dimensions=1)
    if len(images) != len(labels):
        raise DataError(f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels")
    if images.size == 0:
        raise DataError(f"{images_path} holds no image")
    if labels.max() >= NUM_CLASSES:
        raise DataError(f"{labels_path} has the label {labels.max()}; labels are 0 to {NUM_CLASSES - 1}")
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def read_idx(path: Path, *, num_dimensions: int) -> npt.NDArray[np.uint8]:
    """Read the bytes of an IDX file, in the shape that its header gives.

    Raises `DataError` if it cannot be read, has another magic number, or not the length that its header says.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    header = struct.Struct(f">I{num_dimensions}I")
    try:
        with opened(path, "rb") as file:
            head = file.read(header.size)
            if len(head) < header.size:
                raise DataError(f"{path} is cut short: it ends within its header")
            magic, *shape = header.unpack(head)
            if magic != UNSIGNED_BYTE << 8 | num_dimensions:
                wanted = UNSIGNED_BYTE << 8 | num_dimensions
                raise DataError(f"{path} is not the IDX file expected: magic number {magic:#010x}, not {wanted:#010x}")
            num_bytes = math.prod(shape)
            if num_bytes > MAX_BYTES:
                raise DataError(f"{path} claims to hold {num_bytes} bytes; its header is damaged")
            body = file.read(num_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error
    if len(body) != num_bytes:
        length = "cut short" if len(body) < num_bytes else "too long"
        raise DataError(f"{path} is {length}: its header promises {num_bytes} bytes of values")
    return np.frombuffer(bytearray(body), dtype=np.uint8).reshape(shape)
