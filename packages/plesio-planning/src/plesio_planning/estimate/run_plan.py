"""A plan of a run, and the chance that it keeps to a day and to a budget.

A plan is a machine with a layout. Its time is lognormal about that of the estimate, times what runs took over the
fastest layout that a search finds for them (`RUN_OVER_SEARCH`); its relative variance is that of the step, of failures
by chance, and of that factor. Its cost follows from the time and the price, which has an error of its own. With x and y
normal,

    P(on time and within the budget) = P(T e^x <= D, C e^(x + y) <= B)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from statistics import NormalDist
from typing import Annotated, Any

from plesio.core.errors import ArgumentError
from plesio.core.within import ABOVE_0, Within
from plesio_planning.estimate.training import Training

RUN_OVER_SEARCH = 1.4
"""Time that runs took over that of the fastest layout that a search finds for them: the mean of the nine whole runs in
docs/planning/index.md, which took 1.2 to 1.6 times as long."""
_RUN_OVER_SEARCH_ERROR = 0.09
"""Relative standard deviation of these nine."""
_YEARS = 2000, 2100
"""Years that a day may be of."""
_POINTS = 64
"""Points at which a probability is integrated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The time and the money that a run may take.

    Attributes:
        by: Day by which the run must have ended, as in 2027-03-01: finds the machines that do it.
        start: Day on which it begins; else today.
        budget_dollars: US dollars that it may cost, as in 2M: finds the machines that do it.
        margin: Time of a run over that of the fastest layout found; else 1.4, as nine published runs took.
    """

    by: str | None = None
    start: str | None = None
    budget_dollars: Annotated[float | None, ABOVE_0] = None
    margin: Annotated[float | None, Within(1, 10)] = None

    def __post_init__(self) -> None:
        if not self.given:
            lone = [name for name in ("start", "margin") if getattr(self, name) is not None]
            if lone:
                raise ArgumentError(f"`{lone[0]}` is of a search for machines; add `by` or `budget_dollars`")
            return
        if self.start is None:
            object.__setattr__(self, "start", str(date.today()))
        first = self.first_day
        if self.by is not None and self.seconds <= 0:
            raise ArgumentError(f"`by` is {self.by}, and the run begins on {first}; write a later day")

    @property
    def given(self) -> bool:
        """True if there is one."""
        return self.by is not None or self.budget_dollars is not None

    @property
    def first_day(self) -> date:
        """The day on which the run begins."""
        return _day("start", self.start or "")

    @property
    def seconds(self) -> float:
        """Seconds from the first day to the last; infinite without one."""
        return math.inf if self.by is None else (_day("by", self.by) - self.first_day).total_seconds()

    @property
    def dollars(self) -> float:
        """The budget; infinite without one."""
        return math.inf if self.budget_dollars is None else self.budget_dollars

    @property
    def margin_and_error(self) -> tuple[float, float]:
        """The time of a run over that of the fastest layout found, and its relative deviation: 0 of one given."""
        return (RUN_OVER_SEARCH, _RUN_OVER_SEARCH_ERROR) if self.margin is None else (self.margin, 0.0)

    def check_alone(self, others: Mapping[str, Any]) -> None:
        """Make sure that nothing is asked for that is of one machine, where the limits find machines.

        Raises:
            ConfigError: Something is; ``others`` has what is asked for, by the option's name.
        """
        lone = [name for name, asked in others.items() if asked]
        if self.given and lone:
            raise ArgumentError(
                f"`{lone[0]}` is of one machine, and `by` and `budget_dollars` find machines; leave one of them out"
            )

    def later(self, days: int) -> "Limits":
        """Return the same with so many days more."""
        assert self.by is not None
        return replace(self, by=str(_day("by", self.by) + timedelta(days=days)))


def _day(name: str, text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ArgumentError(f'`{name}` is "{text}", no day; write one as in 2027-03-01') from None
    if not _YEARS[0] <= day.year <= _YEARS[1]:
        raise ArgumentError(f"`{name}` is {text}; write a day of {_YEARS[0]} to {_YEARS[1]}")
    return day


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A machine and a layout.

    Attributes:
        training: The run as estimated, in the fastest layout found.
        limits: The time and the money that it may take.
        chance: Probability that it keeps to both.
        within_budget: Probability that it keeps to the budget, whenever it ends.
    """

    training: Training
    limits: Limits
    chance: float
    within_budget: float

    @classmethod
    def of(cls, training: Training, limits: Limits) -> "RunPlan":
        """Make the plan of a run, with its chance."""
        margin, error = limits.margin_and_error
        log_time = math.log(limits.seconds / (margin * training.total_s))
        log_money = math.log(limits.dollars / (margin * training.cost)) if training.cost else math.inf
        errors = {"time_error": math.hypot(training.time_error, error), "price_error": training.price_error}
        return cls(
            training=training,
            limits=limits,
            chance=_chance(log_time, log_money, **errors),
            within_budget=_chance(math.inf, log_money, **errors),
        )

    @property
    def total_s(self) -> float:
        """Seconds that it will take, as likely more as less."""
        return self.limits.margin_and_error[0] * self.training.total_s

    @property
    def cost(self) -> float:
        """US dollars that it will cost."""
        return self.limits.margin_and_error[0] * self.training.cost

    @property
    def interval_s(self) -> tuple[float, float]:
        """Seconds between which it will take, with the conditions' confidence."""
        factor = self.training.conditions.interval_factor(self._time_error)
        return self.total_s / factor, self.total_s * factor

    @property
    def cost_interval(self) -> tuple[float, float]:
        """US dollars between which it will cost."""
        error = math.hypot(self._time_error, self.training.price_error)
        factor = self.training.conditions.interval_factor(error)
        return self.cost / factor, self.cost * factor

    @property
    def _time_error(self) -> float:
        return math.hypot(self.training.time_error, self.limits.margin_and_error[1])

    @property
    def sure(self) -> bool:
        """True if the chance is the conditions' confidence or more."""
        return self.chance >= self.training.conditions.confidence

    @property
    def order(self) -> tuple[float, ...]:
        """A key that puts the best plan first.

        Of those that are sure it is the cheapest, or the fastest without a day; then the others by their chance.
        """
        if not self.sure:
            return 1.0, -self.chance, self.cost
        return 0.0, *((self.total_s, self.cost) if self.limits.by is None else (self.cost, self.total_s))


def _chance(log_time: float, log_money: float, *, time_error: float, price_error: float) -> float:
    """Return ``P(x <= log_time, x + y <= log_money)`` of normal x and y with these deviations.

    >>> round(_chance(math.inf, 0.0, time_error=0.3, price_error=0.4), 6)
    0.5
    >>> round(_chance(0.0, 0.0, time_error=0.3, price_error=0.0), 6)
    0.5
    """
    normal = NormalDist()
    if price_error == 0:
        return normal.cdf(min(log_time, log_money) / time_error)
    on_time = normal.cdf(log_time / time_error)
    if on_time == 0 or log_money == math.inf:
        return on_time
    # a run that is on time is one of these, each as likely as the others
    delays = (time_error * normal.inv_cdf((point + 0.5) / _POINTS * on_time) for point in range(_POINTS))
    return on_time * sum(normal.cdf((log_money - delay) / price_error) for delay in delays) / _POINTS
