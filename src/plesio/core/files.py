"""Files that are written at once."""

import contextlib
import os
from pathlib import Path

from plesio.core.errors import DataError

__all__ = ["write_whole"]


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old file or the new one, never half of one.

    A text is written as UTF-8.

    Raises:
        DataError: It cannot be written; the old file is as it was.
    """
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {error.strerror}") from None
