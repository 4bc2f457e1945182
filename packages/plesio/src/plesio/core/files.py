"""Files that are written at once, and why one cannot be read."""

import contextlib
import os
import tempfile
from pathlib import Path

from plesio.core.errors import ConfigError, DataError


def reason_of(error: Exception) -> str:
    """Return why a file cannot be read, for a message that names the file.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "x.npz")), reason_of(EOFError("it ends early"))
    ('No such file or directory', 'it ends early')
    """
    return getattr(error, "strerror", None) or str(error)


def check_script(path: Path) -> None:
    """Raise `ConfigError` if there is no script at ``path``."""
    if not path.is_file():
        raise ConfigError(f"there is no script {path}" + (": it is a folder" if path.is_dir() else ""))


def read_text(path: Path, what: str) -> str:
    """Read a file of UTF-8, ``what`` it is by name: ``the trace``; raise `DataError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {what} {path}: {reason_of(error)}") from error


def read_given(path: Path, what: str, *, instead: str) -> str:
    """Read a file of UTF-8 that an input names, ``what`` it is: ``cluster file``.

    Raises `ConfigError` where it cannot be read; where there is none it says what to write ``instead``.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {path}; {instead}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {what} {path}: {reason_of(error)}") from None


def make_writable(folder: Path | None, what: str) -> None:
    """Make a folder, with those that it is in, so that a run that could not write to it does not begin.

    Raises `ConfigError`, whose message says ``what`` is to be written there. None is no folder.
    """
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{what} cannot be written to {folder}: a file is in its place") from None
    except OSError as error:
        raise ConfigError(f"{what} cannot be written to {folder}: {error.strerror}") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old file or the new one, never half of one.

    A text is written as UTF-8. Raises `DataError` where it cannot be written; the old file is as it was.
    """
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {error.strerror}") from None
