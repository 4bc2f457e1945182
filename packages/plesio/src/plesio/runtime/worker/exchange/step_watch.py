"""Notices steps of optimizers that the session does not make.

A session steps its optimizer itself, as the policy says. A step of it by the program or by ``scaler.step``, or of
another optimizer that has the same parameters (in a hook on gradients, say), moves the parameters of this worker alone,
or twice. torch calls one hook before the steps of all optimizers; it finds the session by the first of its parameters.
"""

import itertools
import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from plesio.core.errors import TaskError
from plesio.runtime.worker.exchange.replica import Replica

__all__ = ["StepWatch"]


class StepWatch:
    """From when it is made until it is closed, steps of a replica's parameters that it has not asked for are refused.

    Args:
        replica: The worker's; it is asked whether it is making a step.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._watched = [
            replica.optimizer,
            *replica.parameters.values(),
        ]  # kept, so that nothing else has an id of theirs
        _watches.add(self, self._watched)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step that an optimizer of the parameters is about to make and that the replica has not asked for.

        Raises:
            TaskError: The optimizer steps by itself.
        """
        # a step at rate 0 moves nothing: torch.distributed.checkpoint makes one to have an optimizer's state
        if self._replica.stepper.is_stepping or not any(group.get("lr", 1.0) for group in optimizer.param_groups):
            return
        raise TaskError(
            f"{type(optimizer).__name__}.step() was called beside session.step(), which steps the same parameters: "
            "leave it out, and scaler.step(optimizer) and optimizers in hooks on gradients too; session.step(loss) "
            "steps the optimizer that plesio.join was given"
        )

    def close(self) -> None:
        """Stop watching: steps are the program's own again."""
        _watches.remove(self._watched)
        self._watched.clear()


class _Watches:
    """Watches of all sessions of this process, by the ids of their optimizers and parameters."""

    def __init__(self) -> None:
        self._of: dict[int, StepWatch] = {}
        self._lock = threading.Lock()
        self._hook: torch.utils.hooks.RemovableHandle | None = None

    def add(self, watch: StepWatch, watched: Iterable[object]) -> None:
        with self._lock:
            self._of.update({id(one): watch for one in watched})
            self._hook = self._hook or register_optimizer_step_pre_hook(self._before)

    def remove(self, watched: Iterable[object]) -> None:
        with self._lock:
            for one in watched:
                self._of.pop(id(one), None)
            if not self._of and self._hook is not None:
                self._hook.remove()
                self._hook = None

    def _before(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        for one in itertools.chain((optimizer,), held):
            if (watch := self._of.get(id(one))) is not None:
                watch.stepped(optimizer)
                return


_watches = _Watches()
