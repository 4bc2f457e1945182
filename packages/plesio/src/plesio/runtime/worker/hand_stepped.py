"""A watch for a scheduler that the script steps once a step, and whose length it cannot know.

Alone a script reckons ``epochs * len(loader)`` steps. Each of several workers takes a part of the loader, so a schedule
of that length is half-way when the run of two workers ends. A script that asks the session for the number of steps or
of workers has reckoned with it. One that asks nothing, and steps a scheduler at every step of a loop over shared data,
is told so. Progress bars ask for the length of the loop too; once the schedule is made that counts for nothing.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from plesio.runtime.worker.objects import objects_of

__all__ = ["HandStepped", "has_scheduler"]

_TELLING = 2
"""So many steps of one loop that each move a scheduler are no schedule by epochs."""
_LENGTHS = ("T_max", "total_steps", "total_iters")


def has_scheduler(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Tell whether an optimizer has had a scheduler, which marks its step."""
    return any(hasattr(optimizer.step, "_wrapped_by_lr_sched") for optimizer in optimizers)


class HandStepped:
    """Schedulers of one worker's optimizers, as the script steps them.

    Args:
        optimizers: The session's.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._knows = False
        """True if the script has asked for what gives the number of steps, or has been told."""
        self._schedulers: list[weakref.ref[LRScheduler]] | None = None
        self._begun_with: list[float] = []
        """Rates when the schedulers were found."""
        self._loop: int | None = None
        self._places: list[Any] = []
        self._moved: list[int] = []
        """Latest steps in a row that have moved each of them."""

    def asked(self, *, by_length: bool = False) -> None:
        """Take note that the script has asked for a number of steps or workers; progress bars ask for lengths."""
        self._knows = self._knows or not by_length or not has_scheduler(self._optimizers)

    def stepped(self, *, loop: int, num_workers: int, warn: Callable[[str], None]) -> None:
        """Look at the schedulers in a step of a loop over shared data, where an optimizer has one."""
        if self._knows or num_workers == 1:
            return
        if loop != self._loop:  # between two loops schedules by epochs are stepped
            self._loop, self._places = loop, []
            return
        if self._schedulers is None:
            self._schedulers, self._begun_with = _schedulers_of(self._optimizers), self._rates()
            self._moved = [0] * len(self._schedulers)
        before, self._places = self._places, [_place(one()) for one in self._schedulers]
        for number, (was, now) in enumerate(zip(before, self._places, strict=False)):
            self._moved[number] = self._moved[number] + 1 if was != now else 0
        found = [one() for one, moved in zip(self._schedulers, self._moved, strict=True) if moved >= _TELLING]
        if found and self._rates() != self._begun_with:
            self._knows = True
            warn(_line([one for one in found if one is not None], num_workers=num_workers))

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups]


def _schedulers_of(optimizers: Sequence[torch.optim.Optimizer]) -> list["weakref.ref[LRScheduler]"]:
    """Find the schedulers, to which an optimizer has no link. Compound ones come before their parts."""
    ids = {id(optimizer) for optimizer in optimizers}
    found = [one for one in objects_of(LRScheduler) if id(vars(one).get("optimizer")) in ids]
    return [weakref.ref(one) for one in sorted(found, key=lambda one: not hasattr(one, "_schedulers"))]


def _place(scheduler: LRScheduler | None) -> tuple[Any, Any]:
    """Return a number of steps, and the place within a cycle, which may be a fraction."""
    return getattr(scheduler, "last_epoch", None), getattr(scheduler, "T_cur", None)


def _line(schedulers: Sequence[LRScheduler], *, num_workers: int) -> str:
    name = type(schedulers[0]).__name__
    lengths = [f"{key}={getattr(schedulers[0], key)}" for key in _LENGTHS if hasattr(schedulers[0], key)]
    length = f" ({', '.join(lengths)})" if lengths else ""
    return (
        f"the script steps this {name}{length} once a step, and has not asked how many steps there are: each of "
        f"{num_workers} workers makes a part of len(loader), so a schedule reckoned by that does not come to its end; "
        "write epochs * session.steps_per_epoch(loader) for its length, and session.schedule(scheduler) in place of "
        "scheduler.step()"
    )
