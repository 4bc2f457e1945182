"""Limits on a testbed host's use of this machine: cores and memory, by control groups of either version.

Version 1 has a tree for each controller, version 2 one for all. A group takes a process and all that it starts later.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plesio.core.errors import PlesioError

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 10_000
"""Over which a host's share of the cores holds; the kernel's own 100 ms would let steps come in lumps."""
_LEAST_QUOTA_US = 1000
"""The kernel takes no less; a host with less than a tenth of a core has a longer period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """One host's.

    Attributes:
        cores: Cores that its processes may use, as one number; None for all.
        memory_bytes: Memory that they may use; None for all.
    """

    name: str
    cores: float | None = None
    memory_bytes: int | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which the processes are listed."""
        if _is_unified():
            return (_ROOT / self.name,) if self._limits else ()
        return tuple(_ROOT / controller / self.name for controller in self._limits)

    @property
    def _limits(self) -> dict[str, dict[str, str]]:
        """The contents of the group's files, by controller."""
        limits: dict[str, dict[str, str]] = {}
        if self.cores is not None:
            period_us = max(_PERIOD_US, round(_LEAST_QUOTA_US / self.cores))
            quota_us = round(self.cores * period_us)
            if _is_unified():
                limits["cpu"] = {"cpu.max": f"{quota_us} {period_us}"}
            else:
                limits["cpu"] = {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}
        if self.memory_bytes is not None:
            file = "memory.max" if _is_unified() else "memory.limit_in_bytes"
            limits["memory"] = {file: str(self.memory_bytes)}
        return limits

    def make(self) -> None:
        try:
            if _is_unified() and self._limits:
                wanted = " ".join(f"+{controller}" for controller in self._limits)
                (_ROOT / "cgroup.subtree_control").write_text(wanted)
            for controller, files in self._limits.items():
                folder = _ROOT / self.name if _is_unified() else _ROOT / controller / self.name
                folder.mkdir(exist_ok=True)
                for file, text in files.items():
                    (folder / file).write_text(text)
        except OSError as error:
            raise PlesioError(f"cannot limit what a test host uses: {error.filename}: {error.strerror}") from None


def _is_unified() -> bool:
    return (_ROOT / "cgroup.controllers").exists()


def why_no_groups() -> str | None:
    """Return the reason why this process cannot make groups, in words; None if it can."""
    needed = [_ROOT] if _is_unified() else [_ROOT / "cpu", _ROOT / "memory"]
    for folder in needed:
        if not os.access(folder, os.W_OK):
            return f"{folder} cannot be written to: cores and memory of hosts cannot be limited"
    return None


def _groups(prefix: str) -> Iterator[Path]:
    roots = [_ROOT] if _is_unified() else [_ROOT / "cpu", _ROOT / "memory"]
    for root in roots:
        yield from root.glob(f"{prefix}*")


def group_names(prefix: str) -> set[str]:
    return {folder.name for folder in _groups(prefix)}


def remove_groups(prefix: str) -> None:
    """Remove the empty groups whose names begin so."""
    for folder in _groups(prefix):
        with contextlib.suppress(OSError):  # somebody is in it, or it has gone by itself
            folder.rmdir()
