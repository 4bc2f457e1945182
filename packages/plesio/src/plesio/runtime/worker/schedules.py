"""Schedulers that the session steps, by a clock of the whole run: rounds of all its workers.

A round is a batch of each worker that the run began with, which is what one synchronous step takes. A worker's own
steps are no such clock: under a relaxed policy workers take unequally many, and after a loss those that are left take
more. The samples of all workers are one. In a loop over the data of which they have trained on ``s``, as many rounds
are done as ``s`` samples fill, and at its end all of them. Between two exchanges with the store, all workers are taken
to train on as much as this one, so that a schedule moves in the steps that it makes alone. So the clock shows
`Session.steps_per_epoch` after each epoch, however the samples were shared out, and a schedule of so many steps an
epoch comes to its end.

A schedule moves once a step of the optimizer. So where a script accumulates the gradients of several batches, as many
rounds are one step of the schedule, as alone; fewer are one at the end of an epoch, if they have had a step.

The clock never goes back. Where samples of a lost worker are dealt out again it stands until the count is where it was;
workers that form a new group all go on from the furthest clock, so their learning rates are equal.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from plesio.core.errors import ConfigError
from plesio.protocol.figures import Alike
from plesio.protocol.plans import PlanFigures, num_rounds
from plesio.runtime.worker.objects import objects_of
from plesio.runtime.worker.unreached import first_change

_TELLING = 2
"""So many steps of one loop that each move a scheduler are no schedule by epochs."""
_MARK = "_wrapped_by_lr_sched"
_LENGTHS = ("T_max", "total_steps", "total_iters", "step_size", "milestones")


def has_scheduler(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Tell whether an optimizer has had a scheduler, which marks its step."""
    return any(hasattr(optimizer.step, _MARK) for optimizer in optimizers)


class HandStepped:
    """Schedulers of one worker's optimizers, as the script steps them, or rates that it sets itself.

    Alone a script reckons ``epochs * len(loader)`` steps. Each of several workers takes a part of the loader, so a
    schedule of that length is half-way when the run of two workers ends. A script that asks the session for the number
    of steps or of workers has reckoned with it. One that asks nothing, and steps a scheduler or sets rates at every
    step of a loop over shared data, is told so: when the rates change, or at the end if the steps of all workers would
    have changed them. A progress bar that asks for the length of its loop counts for nothing, and so does the length
    once the schedule is made.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._knows = False
        """True if the script has asked for what gives the number of steps, or has been told."""
        self._schedulers: list[weakref.ref[LRScheduler]] | None = None
        self._begun_with: list[float] = []
        """Rates when the schedulers were found."""
        self._loop: int | None = None
        self._looks = self._more = 0
        """Steps of this loop, and those that whole loops would have had beyond this worker's if it were alone."""
        self._places: list[Any] = []
        self._moved: list[int] = []
        """Latest steps in a row that have moved each of them."""
        self._latest: list[Any] = []
        """Rates in the latest step, as they stand in the groups."""
        self._changes = 0
        """Latest steps in a row with other rates than the one before."""

    def asked(self, *, by_length: bool = False) -> None:
        self._knows = self._knows or not by_length or not has_scheduler(self._optimizers)

    def is_due(self) -> bool:
        """Tell, once a step, whether to look at this one: an optimizer has a scheduler, or its rates have changed."""
        rates = [group.get("lr") for optimizer in self._optimizers for group in optimizer.param_groups]
        self._changes = self._changes + 1 if self._latest and rates != self._latest else 0
        self._latest = rates
        return self._changes > 0 or any(hasattr(one.step, _MARK) for one in self._optimizers)  # no call in most steps

    def stepped(self, *, loop: int, num_workers: int, warn: Callable[[str], None]) -> None:
        """Look at the schedulers and rates in a step of a loop over shared data, where that is due."""
        if self._knows or num_workers == 1:
            return
        if loop != self._loop:  # between two loops schedules by epochs are stepped
            self._loop, self._places, self._changes, self._looks = loop, [], 0, 1
            return
        self._looks += 1
        if not has_scheduler(self._optimizers):
            if self._changes >= _TELLING:
                self._knows = True
                warn(_line_on_rates(num_workers=num_workers))
            return
        if self._schedulers is None:
            self._schedulers, self._begun_with = _schedulers_of(self._optimizers), self._rates()
            self._moved = [0] * len(self._schedulers)
        before, self._places = self._places, [_place(one()) for one in self._schedulers]
        for number, (was, now) in enumerate(zip(before, self._places, strict=False)):
            self._moved[number] = self._moved[number] + 1 if was != now else 0
        if (found := self._by_steps()) and self._rates() != self._begun_with:
            self._knows = True
            warn(_line(found[0], num_workers=num_workers))

    def looped(self, *, num_workers: int, alone: int | None) -> None:
        """Count the steps that a loop would have had ``alone``; None: those of its stream are not known."""
        own, self._looks = self._looks, 0
        most = own * num_workers - (num_workers - 1) * (alone is None)  # fewer were made here if it was resumed
        self._more += max(0, min(most, most if alone is None else alone) - own)

    def at_end(self, *, num_workers: int, warn: Callable[[str], None]) -> None:
        """Tell of a scheduler that has never changed the rates, and would have, in the steps of all workers."""
        if self._knows or not self._more or self._rates() != self._begun_with:
            return
        for one in self._by_steps():
            made = getattr(one, "last_epoch", 0)
            if change := first_change(one, steps=self._more - 1):  # none follows the last one
                told = f", and alone this one would have changed the rate after {made + change} steps"
                warn(_line(one, num_workers=num_workers, told=told))
                return

    def _by_steps(self) -> list[LRScheduler]:
        """Return the schedulers that each of the latest steps has moved."""
        found = [one() for one, moved in zip(self._schedulers or (), self._moved, strict=True) if moved >= _TELLING]
        return [one for one in found if one is not None]

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


def _line(scheduler: LRScheduler, *, num_workers: int, told: str = "") -> str:
    lengths = [f"{key}={_length(getattr(scheduler, key))}" for key in _LENGTHS if hasattr(scheduler, key)]
    length = f" ({', '.join(lengths)})" if lengths else ""
    return (
        f"the script steps this {type(scheduler).__name__}{length} once a step, {_not_asked(num_workers)}"
        f"{told}; write epochs * session.steps_per_epoch(loader) for its length, and session.schedule(scheduler) in "
        "place of scheduler.step()"
    )


def _length(value: Any) -> Any:
    return sorted(value.elements()) if isinstance(value, Counter) else value


def _line_on_rates(*, num_workers: int) -> str:
    return (
        f"the script sets another learning rate at each step, {_not_asked(num_workers)}; reckon with "
        "epochs * session.steps_per_epoch(loader) steps"
    )


def _not_asked(num_workers: int) -> str:
    return (
        f"and has not asked how many steps there are: each of {num_workers} workers makes a part of len(loader), so a "
        "schedule reckoned by that does not come to its end"
    )


_STEADY = 2
"""So many steps in a row have equal rates where a schedule does not go by steps."""


class RoundClock:
    """Rounds that a run has done, by a worker's latest news.

    >>> clock, loop = RoundClock(num_workers=2), PlanFigures(num_samples=10, batch_size=3, budget_samples=10)
    >>> clock.begin(loop)
    >>> clock.begin_steps()
    >>> [clock.stepped(samples) for samples in (3, 6, 9)]
    [0, 1, 1]
    >>> clock.end(10, whole=True, exact=True)
    >>> clock.reached, clock.steps
    (2, 2)
    """

    def __init__(self, *, num_workers: int) -> None:
        self.reached = 0
        self.steps = 0
        """Steps of the optimizer that these rounds make."""
        self._open = self._counted = 0
        """Rounds that make no whole step yet, and all that are counted in steps or there."""
        self.num_workers = num_workers
        self._figures: PlanFigures | None = None
        self._before = 0
        """Rounds before the loop that the worker is in."""
        self._samples = 0
        """Samples of all workers before it."""
        self._deals = False
        """True if the latest loop was dealt out, where samples tell the rounds."""
        self.given = 0
        """Batches since the last step."""
        self._sizes: Counter[int] = Counter()
        """Steps by their number of batches."""
        self._usual = 1
        """Batches of most steps."""
        self.is_new = True
        """True before this worker's first step, which shows how many batches a step has."""

    @property
    def steps_alone(self) -> int | None:
        """Steps that the loop would have without other workers; None where it is not dealt out."""
        return None if self._figures is None else num_rounds(self._figures, num_workers=1) // self._usual

    def begin(self, figures: PlanFigures | None) -> None:
        """Begin a loop over the data; None: over a loader that is not dealt out."""
        self._figures, self._deals, self._before = figures, figures is not None, self.reached

    def stepped(self, samples: int) -> int:
        """Count a step and so many samples of all workers, and return the rounds that are done.

        If samples are not dealt out, a round is a batch, or else a step, of this worker.
        """
        given, self.given = self.given, 0
        if self._figures is not None:
            part = max(0, samples - self._samples)
            done = num_rounds(self._figures, num_workers=self.num_workers, samples=part)
            self.reached = max(self.reached, self._before + done)
        elif not (given and self._deals):  # else the end of their loop has counted them
            given = max(1, given)
            self.reached += given
        if given:
            self._sizes[given] += 1
            if self._sizes[given] > self._sizes[self._usual]:
                self._usual = given
        if self.reached - self._counted + self._open == given > 0:  # workers step together
            self.steps, self._open, self._counted = self.steps + 1, 0, self.reached
        else:
            self._count()
        return self.reached

    def begin_steps(self) -> None:
        """Count the epochs that were over before this worker's first step, so that it is made at the others' rate."""
        self.is_new, self._usual = False, max(1, self.given)
        self._count()

    def meet(self, reached: int) -> None:
        """Go on from ``reached``, if that is further."""
        self.reached = max(self.reached, reached)
        self._count()

    def _count(self) -> None:
        """Count the rounds up to here in steps, if it is known how many batches those have."""
        if self.is_new:
            return
        made, self._open = divmod(self._open + self.reached - self._counted, self._usual)
        self.steps, self._counted = self.steps + made, self.reached

    def end(self, samples: int, *, whole: bool, exact: bool) -> None:
        """End the loop.

        Args:
            samples: Samples of all workers that have been trained on, by the latest news.
            whole: True if all of the loop has been trained on.
            exact: True if the number is the present one, the same on all workers.
        """
        figures, self._figures = self._figures, None
        if figures is not None and whole:
            self.reached = max(self.reached, self._before + num_rounds(figures, num_workers=self.num_workers))
        self._count()
        if whole and self._open and not self.given:
            self.steps, self._open = self.steps + 1, 0
        self.given = self.given if whole else 0
        self._samples = samples if exact or not whole or figures is None else self._samples + figures.budget_samples

    def state_dict(self) -> dict[str, int]:
        return {
            "reached": self.reached,
            "steps": self.steps,
            "open": self._open,
            "usual": self._usual,
            "before": self._before,
            "samples": self._samples,
            "num_workers": self.num_workers,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["reached"] >= self.reached:
            self.reached = self._counted = state["reached"]
            self.steps, self._open, self._usual = state["steps"], state["open"], state["usual"]
            self._sizes, self.is_new = Counter([self._usual]), False
        self._before, self._samples = state["before"], state["samples"]
        self.num_workers = state["num_workers"]


class Scheduled:
    """A scheduler that follows the clock."""

    def __init__(self, scheduler: LRScheduler, clock: RoundClock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._begun = clock.steps
        self._done = 0
        self._left_at: int | None = None
        """The scheduler's own count after the session's last step of it."""

    def catch_up(self) -> None:
        due = self._clock.steps - self._begun
        if self._done < due and self._left_at is not None and self._count() != self._left_at:
            name = type(self._scheduler).__name__
            raise ConfigError(
                f"the session steps this {name}, and the script has stepped it too: leave scheduler.step() out, "
                "or session.schedule(...)"
            )
        while self._done < due:
            self._done += 1
            try:
                self._scheduler.step()
            except ValueError as error:
                if (steps := getattr(self._scheduler, "total_steps", None)) is None:
                    raise
                raise ConfigError(
                    f"this {type(self._scheduler).__name__} has {steps} steps, and the run makes more: give it "
                    "epochs * session.steps_per_epoch(loader), by the batches of a step where gradients are accumulated"
                ) from error
            self._left_at = self._count()

    def _count(self) -> int:
        return int(getattr(self._scheduler, "last_epoch", self._done))

    def state_dict(self) -> dict[str, Any]:
        mine = {"begun": self._begun, "done": self._done}
        return {"scheduler": self._scheduler.state_dict(), "clock": self._clock.state_dict(), **mine}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state["scheduler"])
        self._clock.load_state_dict(state["clock"])
        self._begun, self._done, self._left_at = state["begun"], state["done"], None


class Schedules:
    """The schedulers of one worker's session."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], *, num_workers: int) -> None:
        self.clock = RoundClock(num_workers=num_workers)
        self.by_hand = HandStepped(optimizers)
        """Schedulers that the script steps."""
        self._optimizers = optimizers
        self._rates: list[list[float]] = []
        """In the steps since the latest evaluation."""
        self._evaluations = 0
        self._scheduled: list[Scheduled] = []

    def add(self, scheduler: LRScheduler) -> tuple[str, Scheduled]:
        """Have the session step ``scheduler`` from now on; returns it as it is kept, with its name.

        Raises:
            ConfigError: It is no scheduler, one that goes by a metric, or one of another optimizer.
        """
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ConfigError(
                "ReduceLROnPlateau goes by a metric, not by the clock: step it yourself, on all workers with the "
                "value that session.evaluate(..., everywhere=True) gives"
            )
        if not isinstance(scheduler, LRScheduler):
            raise ConfigError(
                f"session.schedule takes a scheduler of torch.optim.lr_scheduler, and this is a "
                f"{type(scheduler).__name__}"
            )
        of = getattr(scheduler, "optimizer", None)
        if of is not None and getattr(of, "wrapped", of) not in self._optimizers:  # or a session's (`SessionOptimizer`)
            raise ConfigError(
                "session.schedule: this scheduler is of another optimizer than the session's; make it of the one that "
                "plesio.join was given"
            )
        self.by_hand.asked()
        scheduled = Scheduled(scheduler, self.clock)
        self._scheduled.append(scheduled)
        return f"schedule {len(self._scheduled)}", scheduled

    def note_rates(self, num_evaluations: int, *, report: Callable[[Alike, int, list[float]], None]) -> None:
        """Report the rates that training goes on with after so many evaluations, where an optimizer has a scheduler.

        Schedules by steps are ahead of each other under a relaxed policy. So nothing is reported where two steps in a
        row have other rates, or the session steps a schedule.
        """
        if num_evaluations != self._evaluations:
            self._rates, self._evaluations = [], num_evaluations
        if self._scheduled or len(self._rates) == _STEADY or not has_scheduler(self._optimizers):
            return
        self._rates.append([float(group["lr"]) for one in self._optimizers for group in one.param_groups])
        if len(self._rates) == _STEADY and self._rates[0] == self._rates[-1]:
            report("rates", num_evaluations, self._rates[0])

    def catch_up(self) -> None:
        for scheduled in self._scheduled:
            scheduled.catch_up()

    def begin_steps(self) -> None:
        self.clock.begin_steps()
        self.catch_up()

    def stepped(self, samples: int) -> None:
        self.clock.stepped(samples)
        if self._scheduled:
            self.catch_up()

    def end(self, samples: int, *, whole: bool, exact: bool) -> None:
        alone = self.clock.steps_alone if whole else 0
        self.by_hand.looped(num_workers=self.clock.num_workers, alone=alone)
        self.clock.end(samples, whole=whole, exact=exact)
        self.catch_up()

    def meet(self, reached: int) -> None:
        """Go on with all workers from here, where the furthest of them is."""
        self.clock.meet(reached)
        self.catch_up()

    def warn_unless_kept(self, objects: Iterable[object], *, why: str, warn: Callable[[str], None]) -> None:
        """Tell the user of a scheduler that none of the registered objects is, or has, as far as one can tell."""
        if has_scheduler(self._optimizers) and not any(map(_has_scheduler, objects)):
            warn(
                f"the optimizer has a scheduler that is not registered, so {why}: write "
                "session.register(scheduler=scheduler), or session.schedule(scheduler)"
            )


def _has_scheduler(one: object) -> bool:
    parts = [one, *getattr(one, "__dict__", {}).values()]
    return any(isinstance(part, LRScheduler | ReduceLROnPlateau | Scheduled) for part in parts)
