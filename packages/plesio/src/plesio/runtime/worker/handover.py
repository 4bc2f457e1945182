"""The handover to a worker that joins a collective, beside parameters, optimizer state and samples.

    progress of the training loop       loops over the data, metrics, seconds: `plesio.runtime.worker.past`
    the optimizer's options             a learning rate that a schedule has set
    objects that the program registered schedulers, averages, and the loss scaler
    memory of the exchange              the momentum of outer steps, usual steps and learning rates

A program begins anew where it joins, as one that is resumed does. So the options and what is registered are set once
when the worker joins, and once more when the loop begins that the others are in: a scheduler that is stepped after
every epoch has then been stepped in epochs that were over.

It travels as plain values and tensors, by the group's own collectives; reading it runs no code.
"""

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

from plesio.core.errors import ConfigError
from plesio.protocol.positions import common_clock, common_plan
from plesio.protocol.to_worker import Regroup
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.quiescent_point import QuiescentPoint
from plesio.runtime.worker.registered import Registered, Stateful
from plesio.runtime.worker.schedules import Schedules


def packed(values: dict[str, Any]) -> bytes:
    """Pack plain values and tensors into bytes; ConfigError if there is something else in them."""
    file = io.BytesIO()
    try:
        torch.save(values, file)
    except Exception as error:  # pickle's own, and whatever an object's state raises
        raise ConfigError(f"a registered object's state cannot be sent: {str(error).splitlines()[0]}") from error
    try:
        unpacked(file.getvalue())
    except Exception as error:
        line = str(error).splitlines()[0]
        raise ConfigError(f"a registered object's state holds more than plain values and tensors: {line}") from error
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, Any]:
    """Unpack the values that `packed` was given, on the CPU."""
    values: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    return values


class Handover:
    """The handover of one worker: the values that it would send, and the values that it has received."""

    def __init__(self, replica: Replica, *, num_workers: int) -> None:
        self._replica = replica
        self.schedules = Schedules(replica.stepper.optimizers, num_workers=num_workers)
        """Schedulers that the session steps."""
        self._registered = Registered()
        self._session: Callable[[], dict[str, Any]] = lambda: {"metrics": [], "training_s": 0.0}
        self._received: dict[str, Any] | None = None
        if replica.scaling is not None:
            self.register("scaler", replica.scaling.scaler)

    def adds(self, session: Callable[[], dict[str, Any]]) -> None:
        """Add the session's values to the handover: plain values, as in a checkpoint."""
        self._session = session

    def register(self, name: str, one: Stateful) -> None:
        self._registered.add(name, one)

    def warn(self, warn: Callable[[str], None]) -> None:
        """Warn the user of what joining workers do not receive."""
        why = "a worker that joins begins it anew and trains with another learning rate"
        self.schedules.warn_unless_kept(self._registered.objects.values(), why=why, warn=warn)

    def state(self) -> dict[str, Any]:
        groups = self._replica.optimizer.param_groups
        return {
            "session": self._session(),
            "options": [{key: value for key, value in group.items() if key != "params"} for group in groups],
            "registered": self._registered.states(),
        }

    def take(self, received: dict[str, Any]) -> None:
        self._received, self._registered.before = received, received["registered"]
        self._replica.stepper.takes_steps_elsewhere()  # else a scheduler takes the past for a mistake
        self._go_on()

    def past(self, regroup: Regroup, *, samples: int) -> WorkerPast:
        """Make the past of this worker's training loop from the others' positions; ``samples`` are of all workers."""
        assert self._received is not None, "the leader has handed over"
        point = QuiescentPoint(
            clock=common_clock(regroup.positions),
            policy="",
            next_review=0,
            next_clock=0,
            samples=samples,
            plan=common_plan(regroup.positions),
        )
        return WorkerPast(point, values=self._received["session"], go_on=self._go_on)

    def _go_on(self) -> None:
        assert self._received is not None, "the leader has handed over"
        for group, options in zip(self._replica.optimizer.param_groups, self._received["options"], strict=True):
            group.update(deepcopy(options))
        self._registered.go_on()
