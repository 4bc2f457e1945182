"""Which image data a folder holds: the file names of each format, and where its archive unpacks them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from plesio.core.errors import DataError, TaskError, nearest
from plesio.tasks.cifar10_files import read_cifar10_binary, read_cifar10_python
from plesio.tasks.mnist_files import read_mnist


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """File names of one format, relative to one of ``folders``; each name may have one of ``endings``."""

    folders: tuple[str, ...]
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    read: Callable[[tuple[Path, ...]], tuple[Tensor, Tensor]]
    endings: tuple[str, ...] = ("",)


FORMATS: dict[str, _Format] = {
    "cifar10-python": _Format(
        folders=(".", "cifar-10-batches-py"),
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        held_out=("test_batch",),
        read=read_cifar10_python,
    ),
    "cifar10-binary": _Format(
        folders=(".", "cifar-10-batches-bin"),
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        held_out=("test_batch.bin",),
        read=read_cifar10_binary,
    ),
    "mnist": _Format(
        folders=(".", "MNIST/raw", "raw"),
        train=("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        held_out=("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        read=read_mnist,
        endings=("", ".gz"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFiles:
    """Complete image data that were found: all files are there; none has been read."""

    format: str
    train: tuple[Path, ...]
    held_out: tuple[Path, ...]

    def read(self, paths: tuple[Path, ...]) -> tuple[Tensor, Tensor]:
        """Read images [number, channels, height, width] of dtype uint8 and labels [number] of dtype int64.

        Raises `DataError` if a file is not in the format it claims.
        """
        return FORMATS[self.format].read(paths)

    def train_images(self) -> tuple[Tensor, Tensor]:
        """Read the images to train on, as `read` gives them."""
        return self.read(self.train)

    def held_out_images(self) -> tuple[Tensor, Tensor]:
        """Read the images to measure with."""
        return self.read(self.held_out)


def find_images(folder: Path, *, format: str = "auto") -> ImageFiles:
    """Find the image data in ``folder``, or in the folder below it that their archive unpacks to.

    Raises:
        TaskError: No such format, or files of several formats and ``auto``.
        DataError: The folder does not exist, or a file is missing from it; the message lists what was looked for.
    """
    if format != "auto" and format not in FORMATS:
        raise TaskError(f'task "images": no format "{format}": {nearest(format, [*FORMATS, "auto"])}')
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder.absolute()} to read images from")
    names = list(FORMATS) if format == "auto" else [format]
    looked = [_look(folder / place, name) for name in names for place in FORMATS[name].folders]
    complete = {files.format: files for files, missing in reversed(looked) if not missing}
    if len(complete) > 1:
        raise TaskError(f'task "images": {folder} holds {" and ".join(sorted(complete))}; say which by format')
    if complete:
        return next(iter(complete.values()))
    raise DataError(_what_is_missing(folder, names, looked))


def _look(place: Path, name: str) -> tuple[ImageFiles, tuple[Path, ...]]:
    """Return the files of a format in one place, and which of them are missing."""
    endings = FORMATS[name].endings

    def existing(stem: str) -> Path:
        candidates = [place / (stem + ending) for ending in endings]
        return next((path for path in candidates if path.is_file()), candidates[0])

    train = tuple(map(existing, FORMATS[name].train))
    held_out = tuple(map(existing, FORMATS[name].held_out))
    missing = tuple(path for path in (*train, *held_out) if not path.is_file())
    return ImageFiles(format=name, train=train, held_out=held_out), missing


def _what_is_missing(folder: Path, names: list[str], looked: list[tuple[ImageFiles, tuple[Path, ...]]]) -> str:
    files, missing = max(looked, key=lambda found: 1 - len(found[1]) / len((*found[0].train, *found[0].held_out)))
    if len(missing) < len((*files.train, *files.held_out)):
        listed = ", ".join(path.name for path in missing)
        return f"{missing[0].parent} holds only a part of {files.format}; missing: {listed}"
    wanted = "; ".join(f"{name}: {', '.join((*FORMATS[name].train, *FORMATS[name].held_out))}" for name in names)
    places = sorted({place for name in names for place in FORMATS[name].folders} - {"."})
    return f"no images in {folder.absolute()} (nor in {', '.join(places)} below it); looked for {wanted}"
