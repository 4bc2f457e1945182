"""Layouts as files of training programs, and back.

Each program has a module that writes its file and reads it, with the names of options that it publishes; what a program
cannot express is refused. `FORMATS` has them by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plesio.core.errors import ConfigError
from plesio.core.files import read_given
from plesio_planning.estimate.exports import deepspeed, megatron, torchtitan
from plesio_planning.estimate.exports.file_format import FileFormat, ImportedRun
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Model

__all__ = ["FORMATS", "FileFormat", "ImportedRun", "ProgramFiles", "import_run"]

FORMATS: Mapping[str, FileFormat] = {
    "megatron": FileFormat(suffix=".sh", write=megatron.write, read=megatron.read),
    "torchtitan": FileFormat(suffix=".toml", write=torchtitan.write, read=torchtitan.read),
    "deepspeed": FileFormat(suffix=".json", write=deepspeed.write, read=deepspeed.read),
}
"""By the program's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFiles:
    """The files of training programs that an estimate reads and writes.

    Attributes:
        layout_file: Flags of Megatron-LM (.sh), or the file of torchtitan (.toml) or DeepSpeed (.json), that the layout
            is read from; other options change it.
        calibrate: Steps that you measured, to which constants are fitted: a table (.csv) with a column step and
            options of this command, a trace (.jsonl), or a log of Megatron-LM.
        export: Show the layout as flags of Megatron-LM, or as the file of torchtitan or DeepSpeed.
    """

    layout_file: str | None = None
    calibrate: str | None = None
    export: Literal["megatron", "torchtitan", "deepspeed"] | None = None

    def imported(self) -> ImportedRun:
        """Return what the file has; nothing without one.

        Raises:
            ConfigError: It cannot be read.
        """
        return ImportedRun(layout={}) if self.layout_file is None else import_run(Path(self.layout_file))

    def exported(self, model: Model, layout: Layout, *, global_batch: int) -> str:
        """Return the text of the file that was asked for; empty if none was.

        Raises:
            ConfigError: The program cannot express the layout.
        """
        return "" if self.export is None else FORMATS[self.export].write(model, layout, global_batch)


def import_run(path: Path) -> ImportedRun:
    """Read the layout that a program's file describes, by its suffix: flags of Megatron-LM where it has no other.

    Raises:
        ConfigError: It cannot be read, or has something that is not modelled. One line.
    """
    text = read_given(path, "file", instead="write one of Megatron-LM, torchtitan or DeepSpeed")
    known = {one.suffix: one for one in FORMATS.values()}
    try:
        return known.get(path.suffix, FORMATS["megatron"]).read(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
