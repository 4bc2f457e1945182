"""What can happen next in a schedule of a whole run, as records: a schedule that fails is a file of them.

A move names a worker and never a message, so a schedule from which moves were dropped is a schedule still: a move for
which there is nothing to do does nothing.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from plesio.core.errors import DataError
from plesio.core.records import Record, from_values, to_values

__all__ = ["FAULTS", "MOVES", "Kind", "Move", "Setting", "read_schedule", "write_schedule"]

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
MOVES: tuple[Kind, ...] = get_args(Kind)
FAULTS: tuple[Kind, ...] = ("spoil", "kill", "notice", "come", "save")


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


class Setting(Record, frozen=True, kw_only=True):
    """What a schedule begins with.

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


def write_schedule(path: Path, setting: Setting, moves: Sequence[Move]) -> None:
    """Write a schedule as JSON lines: its setting, then its moves."""
    path.write_text("".join(json.dumps(to_values(one)) + "\n" for one in (setting, *moves)), encoding="utf-8")


def read_schedule(path: Path) -> tuple[Setting, list[Move]]:
    """The schedule in a file that `write_schedule` has written.

    Raises:
        DataError: It is none; the message names the line.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    values: list[Setting | Move] = []
    for number, line in enumerate(lines, start=1):
        try:
            values.append(from_values(json.loads(line), Setting if number == 1 else Move))
        except (DataError, ValueError) as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    match values:
        case [Setting() as setting, *moves]:
            return setting, [one for one in moves if isinstance(one, Move)]
    raise DataError(f"{path} is empty; a schedule begins with its setting")
