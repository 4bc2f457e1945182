"""A run's checkpoints on disk.

    DIR/step-00001200/manifest.json     what it is, and of each file its length and XXH3; written last of all
                      .metadata         parameters, buffers, optimizer: torch.distributed.checkpoint
                      __0_0.distcp ...  their tensors, each worker's share
                      worker-0.pt ...   what is a worker's own
                      books.json        the run's records, and its policy's events
        step-00001800.part/             one that is being written, or was when the run ended
        step-00000600.old.part/         one that is being removed
        .lock                           which job writes here: `plesio.runtime.checkpoints.claim`

A checkpoint counts when its folder has the name without ``.part``. Every file is on the disk by then: it is written,
flushed (fsync), and only then named in the manifest, which is flushed too; then the folder is renamed, which is one
step for every reader, and its parent flushed. So whatever moment a crash comes at, the latest checkpoint is whole. One
that is removed loses its name first, so a crash leaves no half of it.

Only this user writes into a folder that is being written: it is made so, and one that another user has made in its
place is refused. A link is not followed.
"""

import contextlib
import ctypes
import io
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash

from plesio.core.errors import DataError
from plesio.protocol.plans import PlanFigures, Remainder

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SCHEMA_VERSION = 5
MANIFEST = "manifest.json"
"""The file that makes a folder a checkpoint."""
_NAME = re.compile(r"step-(\d{8,})")
_PART, _OLD = ".part", ".old.part"
_MODE, _OTHERS_WRITE = 0o755, 0o022
_BLOCK_BYTES = 2**20
_BEGIN_BYTES = 2**23
_SYNC_FILE_RANGE_WRITE = 2
_LIBC = ctypes.CDLL(None)


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is on the disk.

    Attributes:
        xxh3: Its XXH3 of 128 bits, in hexadecimal digits. It finds damage; it is no proof against a forger, who could
            write the manifest too.
    """

    num_bytes: int
    xxh3: str


class OptimizerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer as the program made it.

    Attributes:
        groups: Of each parameter group the names of its parameters.
        settings: Of each group its options, as texts.
    """

    name: str
    groups: tuple[tuple[str, ...], ...]
    settings: tuple[dict[str, str], ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a checkpoint.

    Attributes:
        policy: The run's, as it was asked for.
        stage: The static policy that was in force.
        clock: Steps that the furthest worker had finished.
        samples: Samples of all workers that had been trained on.
        layout: Digest of the model's tensors.
        plan: Number of the loop over the data that the workers were in, from 0; None in none.
    """

    schema: int = SCHEMA_VERSION
    policy: str
    stage: str
    clock: int
    samples: int
    elapsed_s: float
    num_workers: int
    workers: tuple[int, ...]
    layout: str
    seed: int
    optimizers: tuple[OptimizerRecord, ...] = ()
    plan: int | None = None
    figures: PlanFigures | None = None
    remainder: Remainder | None = None
    created_unix_s: float = 0.0
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    files: dict[str, WrittenFile] = msgspec.field(default_factory=dict)


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _silent(_: int) -> None:
    pass


def written(path: Path, *, on_bytes: Callable[[int], None] = _silent) -> WrittenFile:
    """Return the length and checksum of a file; ``on_bytes`` is called with the size of each block that was read."""
    digest, num_bytes = xxhash.xxh3_128(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
            on_bytes(len(block))
    return WrittenFile(num_bytes=num_bytes, xxh3=digest.hexdigest())


class HashedFile(io.RawIOBase):
    """A file that is written from its beginning to its end, its checksum taken on the way: one pass over the bytes.

    The kernel is asked to put each block on the disk as it comes, so that little is left for `flush` to wait for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with HashedFile(Path(folder, "file")) as file:
    ...         _ = file.write(b"abc")
    ...     file.written == written(Path(folder, "file"))
    True
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, how, 0o666)
        self._digest = xxhash.xxh3_128()
        self._num_bytes = 0
        self._num_begun = 0
        """Bytes that are on their way to the disk, or there."""

    @property
    def written(self) -> WrittenFile:
        return WrittenFile(num_bytes=self._num_bytes, xxh3=self._digest.hexdigest())

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def tell(self) -> int:
        return self._num_bytes

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write all of ``data``, a block at a time, so that threads that wait for the interpreter get it in between."""
        left = memoryview(data).cast("B")
        num_bytes = len(left)
        while left:
            block = left[:_BLOCK_BYTES]
            done = os.write(self._descriptor, block)
            self._digest.update(block[:done])
            self._num_bytes += done
            left = left[done:]
            if self._num_bytes - self._num_begun >= _BEGIN_BYTES:
                _begin_to_flush(self._descriptor, self._num_begun, self._num_bytes - self._num_begun)
                self._num_begun = self._num_bytes
        return num_bytes

    def close(self) -> None:
        """Flush it to the disk; harmless when repeated."""
        if not self.closed:
            try:
                os.fsync(self._descriptor)
            finally:
                os.close(self._descriptor)
                super().close()


def _begin_to_flush(descriptor: int, start: int, num_bytes: int) -> None:
    """Ask the kernel to begin to put these bytes on the disk: a hint, where the system has one (Linux)."""
    begin = getattr(_LIBC, "sync_file_range", None)
    if begin is not None:
        begin(descriptor, ctypes.c_int64(start), ctypes.c_int64(num_bytes), _SYNC_FILE_RANGE_WRITE)


def seal(part: Path, manifest: Manifest) -> Path:
    """Commit a checkpoint whose files are all written; returns where it is from then on."""
    with HashedFile(part / MANIFEST) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    flush(part)
    whole = part.with_name(part.name.removesuffix(_PART))
    if whole.exists():  # of a run that was taken back to an earlier one and came here again
        _remove(whole)
    part.rename(whole)
    flush(whole.parent)
    return whole


def _remove(path: Path) -> None:
    """Delete a checkpoint's folder, or one that is being written; whatever is left of it is no checkpoint."""
    old = path
    if not path.name.endswith(_PART):
        old = path.with_name(path.name + _OLD)
        shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def read_manifest(path: Path) -> Manifest:
    """Read the description of the checkpoint in this folder; DataError if it is none, or one of another version."""
    try:
        values = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is no checkpoint: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path / MANIFEST} cannot be read: {error}") from None
    version = values.get("schema") if isinstance(values, dict) else None
    if version != SCHEMA_VERSION:
        raise DataError(f"{path} has checkpoint schema {version}; this Plesio reads {SCHEMA_VERSION}")
    try:
        return msgspec.convert(values, Manifest)
    except msgspec.ValidationError as error:
        raise DataError(f"{path / MANIFEST}: {error}") from None


def faults(path: Path, files: Mapping[str, WrittenFile], *, on_bytes: Callable[[int], None] = _silent) -> Iterator[str]:
    """Find the faults of a checkpoint's files, a line each; ``on_bytes`` is called with the size of each block read."""
    for name, expected in files.items():
        try:
            found = written(path / name, on_bytes=on_bytes)
        except OSError as error:
            yield f"{name}: {error.strerror}"
            continue
        if found.num_bytes != expected.num_bytes:
            yield f"{name}: {found.num_bytes} bytes, not the {expected.num_bytes} of the manifest"
        elif found.xxh3 != expected.xxh3:
            yield f"{name}: its checksum is not the manifest's"


def _committed_unix_s(path: Path) -> float:
    """Return when the checkpoint in this folder was committed; without a manifest, when the folder last changed."""
    try:
        return read_manifest(path).created_unix_s
    except DataError:
        return path.stat().st_mtime


class Folder:
    """All checkpoints of one run.

    Args:
        path: The folder, which every host of the run sees.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[Path]:
        """List the committed checkpoints, the latest last.

        The latest is the one that was committed last: a run that was taken back to an earlier one has fewer steps than
        those that are there already.
        """
        if not self.path.is_dir():
            return []
        found = [one for one in self.path.iterdir() if _NAME.fullmatch(one.name)]
        return sorted(found, key=lambda one: (_committed_unix_s(one), one.name))

    def unfinished(self) -> list[Path]:
        """List the checkpoints that are being written, or were when the run ended."""
        return sorted(self.path.glob(f"step-*{_PART}"))

    def part(self, clock: int) -> Path:
        return self.path / f"step-{clock:08}{_PART}"

    def begin(self, clock: int) -> Path:
        """Make the folder `part`, or find that another worker has.

        Raises:
            DataError: Another user has made it, or it is a link, or others may write into it.
        """
        path = self.part(clock)
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=_MODE)
        except FileExistsError:
            self._check_mine(path)
            if path.lstat().st_mode & _OTHERS_WRITE:
                raise DataError(f"others may write to {path}; delete it") from None
        return path

    def _check_mine(self, part: Path) -> None:
        with tempfile.TemporaryFile(dir=self.path) as mine:
            own = os.fstat(mine.fileno()).st_uid  # as this file system has it, which may be another than this process's
        found = part.lstat()
        if found.st_uid != own:
            raise DataError(f"{part} belongs to another user ({found.st_uid}); use a folder of your own")
        if not stat.S_ISDIR(found.st_mode):
            raise DataError(f"{part} is no folder; delete it")

    def latest(self) -> tuple[Path, Manifest, list[str]] | None:
        """Find the latest whole checkpoint with its manifest; and a line on the fault of each later one.

        Raises:
            DataError: There are checkpoints, and none of them is whole.
        """
        damaged: list[str] = []
        for path in reversed(self.all()):
            try:
                manifest = read_manifest(path)
            except DataError as error:
                damaged.append(str(error))
                continue
            wrong = list(faults(path, manifest.files))
            if not wrong:
                return path, manifest, damaged
            damaged.append(f"{path}: {'; '.join(wrong)}")
        if damaged:
            raise DataError(f"no checkpoint in {self.path} is whole: {damaged[0]}")
        return None

    def clear(self) -> None:
        """Delete what a run that ended was writing, or removing; DataError if something there is another user's."""
        for part in self.unfinished():
            self._check_mine(part)
            _remove(part)

    def give_up(self, clock: int) -> None:
        _remove(self.part(clock))

    def keep(self, number: int) -> None:
        """Delete all but the latest ``number``, and what was begun before them and never committed."""
        committed = self.all()
        for path in committed[:-number]:
            _remove(path)
        newest = committed[-1].name if committed else ""
        for part in self.unfinished():
            if part.name.removesuffix(_PART).removesuffix(_OLD) < newest:
                _remove(part)
