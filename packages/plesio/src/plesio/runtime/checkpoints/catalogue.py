"""The checkpoints in a folder, and their damage if any: for people, and without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from plesio.core.errors import DataError
from plesio.runtime.checkpoints.folder import MANIFEST, Folder, Manifest, faults, read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A checkpoint, or what is left of one.

    Attributes:
        manifest: What it is; None where that cannot be read, or it was never finished.
        fault: Why it cannot be used, as far as lengths of files show; None if nothing is known against it.
    """

    path: Path
    manifest: Manifest | None
    fault: str | None
    finished: bool = True

    @property
    def num_bytes(self) -> int:
        try:
            return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())
        except FileNotFoundError:  # it is being written, or has just been finished
            return 0

    def check(self, *, on_bytes: Callable[[int], None]) -> list[str]:
        """Find its faults, every byte read: a line each; ``on_bytes`` reports the progress."""
        if self.manifest is None:
            return [self.fault or ""]
        return list(faults(self.path, self.manifest.files, on_bytes=on_bytes))

    def to_json(self) -> dict[str, Any]:
        manifest = None if self.manifest is None else msgspec.to_builtins(self.manifest)
        return {"path": str(self.path), "fault": self.fault, "num_bytes": self.num_bytes, "manifest": manifest}


def catalogue(path: Path) -> list[CatalogueEntry]:
    """List the checkpoint in this folder, or all of the run whose folder it is: latest last, then unfinished ones.

    Raises:
        DataError: There is none.
    """
    if (path / MANIFEST).exists():
        return [_committed(path)]
    folder = Folder(path)
    entries = [_committed(one) for one in folder.all()]
    unfinished = "never finished, or being written"
    entries += [
        CatalogueEntry(path=one, manifest=None, fault=unfinished, finished=False) for one in folder.unfinished()
    ]
    if entries:
        return entries
    if not path.is_dir():
        if path.exists():
            raise DataError(f"{path} is no folder; write that of a checkpoint, or of a run's checkpoints")
        raise DataError(f"there is no folder {path}")
    within = sorted(one.parent.name for one in path.glob("*/step-*"))
    hint = f"; {within[0]} in it does" if within else ""
    raise DataError(f"{path} has no checkpoints{hint}")


def newest(path: Path) -> tuple[Path, Manifest]:
    """Find the checkpoint in this folder, or the newest whole one of the run whose folder it is.

    Raises:
        DataError: There is none, or it is damaged.
    """
    if (path / MANIFEST).exists():
        manifest = read_manifest(path)
        for fault in faults(path, manifest.files):
            raise DataError(f"{path} is damaged: {fault}")
        return path, manifest
    found = Folder(path).latest()
    if found is None:
        catalogue(path)  # says better what is missing, unless there is one that was never finished
        raise DataError(f"no checkpoint in {path} was finished")
    return found[:2]


def _committed(path: Path) -> CatalogueEntry:
    try:
        manifest = read_manifest(path)
    except DataError as error:
        return CatalogueEntry(path=path, manifest=None, fault=str(error))
    return CatalogueEntry(path=path, manifest=manifest, fault=_fault_in_lengths(path, manifest))


def _fault_in_lengths(path: Path, manifest: Manifest) -> str | None:
    for name, expected in manifest.files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected.num_bytes:
            return f"{name} has {file.stat().st_size} bytes, not the {expected.num_bytes} of the manifest"
    return None
