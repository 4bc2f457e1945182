"""Moves of a whole run's schedule, as records: a schedule that fails is a file of them.

A move names a worker and never a message, so a schedule from which moves were dropped is a schedule still: a move for
which there is nothing to do does nothing.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from plesio.core.errors import DataError
from plesio.core.records import Record, from_values, to_values
from plesio.policies import LeaveReason

Kind = Literal[
    "act",  # the worker goes on, if what it waits for is there
    "cut",  # its collective breaks off, if its group is no more
    "say",  # its next control message arrives at server 0
    "bulk",  # its next bulk message arrives at a server
    "beat",  # what its heartbeat's thread has said arrives
    "hear",  # it hears what server 0 said to it next
    "urgent",  # its heartbeat's thread does
    "order",  # a further server gets its next orders
    "part",  # what a further server has said arrives at server 0
    "spoil",  # its next step gives NaN
    "kill",  # it is gone
    "notice",  # it is counted lost, gone or not
    "come",  # another worker comes
    "save",  # it asks for a checkpoint
]


class Move(Record, frozen=True, kw_only=True):
    """One move.

    Attributes:
        kind: What happens.
        worker: To whom; of ``order`` and ``part``, which server.
        server: Of ``bulk``, at which it arrives.
    """

    omits = ("server",)

    kind: Kind
    worker: int
    server: int = 0


class Setting(Record, frozen=True, kw_only=True, tag_field="of", tag="run"):
    """The beginning of a schedule.

    Attributes:
        policy: Its text.
        racks: The rack of each worker.
        num_servers: That hold parameters.
        num_samples: Of the data set, in each loop over it.
        batch_size: Of each worker.
        num_plans: Loops over the data.
        elastic: Whether a collective goes on without a lost worker.
        save_every: Steps between two checkpoints; None for none.
    """

    policy: str
    racks: tuple[int, ...]
    num_servers: int = 1
    num_samples: int = 8
    batch_size: int = 2
    num_plans: int = 1
    elastic: bool = True
    save_every: int | None = None


StepKind = Literal["join", "run", "deliver", "leave", "go"]


class Alone(Record, frozen=True, kw_only=True, tag_field="of", tag="machine"):
    """The setting of a schedule of a policy's machine alone."""

    policy: str


class Step(Record, frozen=True, kw_only=True):
    """One event of a schedule, by the methods of `support.schedules.machine_laws.Laws`.

    Attributes:
        kind: What happens; "go" is to leave while resting.
        worker: To whom.
        num_steps: Of "run".
        finite: Of "run": whether what the worker pushes is.
        reason: Of "leave" and "go".
    """

    omits = ("num_steps", "finite", "reason")

    kind: StepKind
    worker: int
    num_steps: int = 1
    finite: bool = True
    reason: LeaveReason = LeaveReason.CLOSED


def write_schedule(path: Path, setting: Setting | Alone, moves: Sequence[Move | Step]) -> None:
    """Write a schedule as JSON lines: its setting, then what happens."""
    path.write_text("".join(json.dumps(to_values(one)) + "\n" for one in (setting, *moves)), encoding="utf-8")


def read_schedule(path: Path) -> tuple[Setting | Alone, list[Move | Step]]:
    """The schedule in a file that `write_schedule` has written.

    Raises:
        DataError: It is none; the message names the line.
    """
    first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    setting: Setting | Alone = _read(path, 1, first, Setting | Alone)
    kind = Move if isinstance(setting, Setting) else Step
    return setting, [_read(path, number, line, kind) for number, line in enumerate(lines, start=2)]


def _read(path: Path, number: int, line: str, kind: Any) -> Any:
    try:
        return from_values(json.loads(line), kind)
    except (DataError, ValueError) as error:
        raise DataError(f"{path}, line {number}: {error}") from error
