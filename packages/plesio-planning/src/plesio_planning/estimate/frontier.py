"""Which machines are worth their money: the Pareto front of a run's time and cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from plesio.core.errors import ConfigError
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.model import Model
from plesio_planning.estimate.own_constants import OwnConstants, estimate_own
from plesio_planning.estimate.search import Search, fastest_layouts
from plesio_planning.estimate.search_walk import LayoutQuestion
from plesio_planning.estimate.training import Conditions, Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The same run on some machines, each laid out in its fastest way.

    Attributes:
        trainings: A run for each machine that the model fits on, the fastest first.
        searches: Searches on each of them, by the machine's name.
        refused: Why not, by the machine's name.
    """

    trainings: tuple[Training, ...]
    searches: Mapping[str, Search]
    refused: Mapping[str, str]

    @property
    def front(self) -> tuple[Training, ...]:
        """Runs than which no other is both faster and cheaper."""
        return pareto_front(self.trainings)

    def on(self, machine: Machine) -> Training:
        """Return the run on this machine, which the model fits on."""
        return next(training for training in self.trainings if training.machine == machine)


def pareto_front(trainings: Sequence[Training]) -> tuple[Training, ...]:
    """Return the runs that no other beats: none is as fast and as cheap, and better in one of them. Fastest first."""
    front: list[Training] = []
    for training in sorted(trainings, key=lambda one: (one.total_s, one.cost)):
        if not front or training.cost < front[-1].cost:
            front.append(training)
    return tuple(front)


def find_frontier(
    model: Model,
    machines: Sequence[Machine],
    *,
    tokens: float,
    conditions: Conditions | None = None,
    calibration: OwnConstants | None = None,
    top: int = 1,
    on_progress: Callable[[str, int, int], None] = lambda machine, done, total: None,
    **how: Any,
) -> Frontier:
    """Find the fastest layout of each machine, and the time and cost of the run with it.

    The first machine is the one that must do, and of which so many of the fastest are found. ``calibration`` has
    constants of one's own steps. ``on_progress`` is told a machine's name, the layouts tried on it, and all of them.
    ``how`` are arguments of `search_layouts`.

    Raises:
        ConfigError: The model cannot be trained on the first.
    """
    trainings, refused = [], {}
    searches: dict[str, Search] = {}
    how["wanted"] = how.pop("global_batch")
    if calibration is not None:
        how["constants"] = calibration.constants
    for machine in machines:
        try:
            shown = top if machine == machines[0] else 1
            like = next((one.best.layout for one in searches.values()), None)
            question = LayoutQuestion(model=model, machine=machine, top=shown, like=like, **how)
            found = fastest_layouts(question, partial(on_progress, machine.name))
            training = estimate_own(
                model,
                found.best.layout,
                machine,
                global_batch=found.best.step.num_samples,
                tokens=tokens,
                conditions=conditions,
                calibration=calibration,
            )
        except ConfigError as error:
            # the user's own machine must do; others are only comparisons
            if machine == machines[0]:
                raise
            refused[machine.name] = str(error)
            continue
        searches[machine.name] = found
        trainings.append(training)
    return Frontier(
        trainings=tuple(sorted(trainings, key=lambda training: training.total_s)), searches=searches, refused=refused
    )
