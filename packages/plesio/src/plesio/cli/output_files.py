"""Names of files that an option gives for what a command finds."""

from pathlib import Path

from plesio.core.errors import ConfigError

__all__ = ["check_output_file"]


def check_output_file(option: str, path: Path | None) -> None:
    """Say what is wrong with a file's name before anything is measured; None is no file.

    Raises:
        ConfigError: It is in no folder, or is one.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; write a file's name")
