"""A user's setting of checkpoints: where, how often, how many, and whether to go on from one."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from plesio.core.arguments import check_fields
from plesio.core.errors import ConfigError
from plesio.core.files import make_writable
from plesio.core.within import AT_LEAST_1
from plesio.runtime.checkpoints.folder import MANIFEST

VARIABLE = "PLESIO_CHECKPOINT"
"""Names the folder; with ``_EVERY``, ``_KEEP`` and ``_RESUME`` the rest."""
_UNITS = {"s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}


def parse_every(every: str | float) -> tuple[float | None, int | None]:
    """Parse the seconds, or steps, between two checkpoints; ConfigError if it is neither.

    >>> parse_every("10 min"), parse_every("500 steps"), parse_every(30)
    ((600.0, None), (None, 500), (30.0, None))
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", str(every).lower())
    number = None
    if match is not None:
        try:
            number = float(match[1])
        except ValueError:
            number = None
    if match is not None and number is not None and number > 0:
        unit = match[2].removesuffix("s") or "s"
        if unit == "step" and number == int(number):
            return None, int(number)
        if unit in _UNITS:
            return number * _UNITS[unit], None
    raise ConfigError(
        f'checkpoints every "{every}": write a time, as in "10 min" or "30 s", or steps, as in "500 steps"'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSetting:
    """Checkpoints of a run.

    Args:
        folder: Where they go; every host of the run must see it.
        every: Between two of them: a time, as in ``"10 min"`` (a number is seconds), or steps, ``"500 steps"``.
        keep: How many are kept, the latest.
        resume: ``"auto"`` goes on from the latest if there is one, ``"no"`` begins afresh; or the folder of one.

    Raises:
        ConfigError: ``every`` cannot be read, ``keep`` is below 1, or ``resume`` names no checkpoint.
    """

    folder: Path
    every: str | float = "10 min"
    keep: Annotated[int, AT_LEAST_1] = 3
    resume: str = "auto"

    @classmethod
    def of(cls, folder: Path | str | None, *, every: str | float, keep: int, resume: str) -> "CheckpointSetting | None":
        """Read a call's arguments, or the environment that ``plesio run --checkpoint`` makes; else None."""
        if folder is not None:
            return cls(folder=Path(folder).absolute(), every=every, keep=keep, resume=resume)
        named = os.environ.get(VARIABLE)
        if not named:
            parse_every(every)
            if (every, keep) != ("10 min", 3):
                raise ConfigError(
                    f"every={every!r}, keep={keep}: there is no folder for checkpoints; write checkpoint=FOLDER, start "
                    "it by plesio run --checkpoint FOLDER, or leave both out"
                )
            return None
        number = os.environ.get(f"{VARIABLE}_KEEP", str(keep))
        if not number.isdecimal():
            raise ConfigError(f"{VARIABLE}_KEEP={number}: write how many checkpoints are kept, as in 3")
        return cls(
            folder=Path(named).absolute(),
            every=os.environ.get(f"{VARIABLE}_EVERY", every),
            keep=int(number),
            resume=os.environ.get(f"{VARIABLE}_RESUME", resume),
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that `of` reads in another process."""
        resume = self.resume if self.resume in ("auto", "no") else str(Path(self.resume).absolute())
        return {
            VARIABLE: str(self.folder.absolute()),
            f"{VARIABLE}_EVERY": str(self.every),
            f"{VARIABLE}_KEEP": str(self.keep),
            f"{VARIABLE}_RESUME": resume,
        }

    def __post_init__(self) -> None:
        parse_every(self.every)
        check_fields(self, "checkpoints: ")
        if self.resume not in ("auto", "no") and not (Path(self.resume) / MANIFEST).is_file():
            raise ConfigError(
                f'resume "{self.resume}": there is no checkpoint; write auto, no, or the folder of one, such as '
                f"{self.folder / 'step-00000100'}"
            )

    def prepare(self) -> None:
        """Make the folder; an error (ConfigError) here spares a run that could not save anything."""
        make_writable(self.folder, "checkpoints")
