"""The system side: the least slack that hides waiting and communicating, found by asking "what if" of measured steps.

Theory of operation. Every review brings, of each worker and step, the seconds that it computed and the seconds that it
stood still in an exchange. From these two things follow:

- the *transfer*: seconds of an exchange from the moment when the last worker has come. Whoever comes last waits for
  nobody, so the shortest time is the transfer (`core.trace.split_blocked`): of the times blocked where every step ends
  in an exchange, else of the times from a worker's beginning of an exchange until it was complete;
- the *pace* of each worker: seconds that a step takes it, or would take if it had an equal share of the round (in
  proportion to its samples), remembered for the last `SystemConfig.memory` steps.

The remembered steps are then run again, in thought, under every setting of a ladder of periods and delays
(`predict_step_s`): a worker's step k ends ``compute`` after its last, an exchange ends ``transfer`` after the last
worker has come to it, and a worker stops where the exchange that it should merge is not complete. This counts
persistent slowness, chance and heavy tails as they were measured, and no distribution is assumed.

The *choice* is the setting of the least slack among those that training can afford whose predicted time is within
``tolerance`` of the best of them. A change must promise ``gain``; one that only gives slack back must promise nothing
but is made when two reviews running agree, so the setting does not swing between two that are about equal.

Slack: with period H and delay d a worker sees the others' steps H + d - 1 steps late at most.

*Shares.* Slack cannot hide persistent slowness: sooner or later everyone waits for the slowest. So workers whose pace
differs significantly from the median (by `SIGNIFICANCE` standard errors, of logarithms) take shares of each round in
proportion to their pace; gradients and parameters are weighted by samples, so the mean is that of the same global
batch. With a part of a step that does not depend on its samples the rule reaches equal times in a few reviews.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plesio.core.errors import PolicySpecError
from plesio.policies.bsp import BSP
from plesio.policies.events import Reviewed
from plesio.policies.fields import require_whole
from plesio.policies.local_sgd import LocalSGD

__all__ = ["MODERATE", "SYNCHRONOUS", "Choice", "Setting", "SystemConfig", "SystemMonitor", "ladder", "predict_step_s"]

SIGNIFICANCE = 4.0
"""Standard errors from the median that make a worker's pace its own."""
SHORTEST_S = 1e-9
"""Of a step: clocks have a resolution, and a step that took no time has a pace all the same."""
SMALLEST_SHARE = 0.02
"""Of an equal share: less is not worth a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """The system side's parameters.

    Args:
        gain: Share of the time of a step that a change must promise to save.
        tolerance: Settings this much slower than the best count as equally good.
        memory: Steps of each worker that are remembered.
        largest_period: Longest period to consider.
        balance: Whether slow workers are given smaller shares of the samples.

    Raises:
        PolicySpecError: A value out of its range.
    """

    gain: float = 0.05
    tolerance: float = 0.03
    memory: int = 32
    largest_period: int = 32
    balance: bool = True

    def __post_init__(self) -> None:
        for name in ("gain", "tolerance"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise PolicySpecError(f"adaptive: system.{name} is {value}; write a share between 0 and 1")
        require_whole("adaptive", "system.memory", self.memory, minimum=8)
        require_whole("adaptive", "system.largest_period", self.largest_period, minimum=1)


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """A period and a delay, in the order of their slack.

    >>> Setting(slack=0, period=1, delay=0).spec, Setting.of(period=8, delay=4).spec
    ('bsp', 'local_sgd:8,delay=4')
    """

    slack: int
    period: int
    delay: int

    @classmethod
    def of(cls, *, period: int, delay: int) -> "Setting":
        """The setting with its slack, H + d - 1."""
        return cls(slack=period + delay - 1, period=period, delay=delay)

    @property
    def policy(self) -> BSP | LocalSGD:
        """The policy that runs it."""
        return BSP() if self.slack == 0 else LocalSGD(period=self.period, delay=self.delay)

    @property
    def spec(self) -> str:
        """The policy's text."""
        return self.policy.spec

    @property
    def cycle(self) -> int:
        """Steps after which the setting repeats itself."""
        return self.period


SYNCHRONOUS = Setting(slack=0, period=1, delay=0)
MODERATE = Setting(slack=7, period=4, delay=4)
"""To begin with where training may begin with slack: a transfer is felt once in four steps, and measured by then."""


def ladder(largest_period: int) -> tuple[Setting, ...]:
    """The settings to choose from, least slack first: each period without, with half, and with a whole one's delay."""
    periods = [2**k for k in range(int(math.log2(largest_period)) + 1)]
    settings = {Setting.of(period=h, delay=d) for h in periods for d in {0, h // 2, h}}
    return tuple(sorted(settings))


def predict_step_s(compute_s: Sequence[Sequence[float]], *, transfer_s: float, setting: Setting) -> float:
    """Seconds that a step takes on average, if these steps were run under ``setting``, over and over.

    Args:
        compute_s: ``[num_workers][num_steps]`` seconds of computing; all workers have as many steps.
        transfer_s: Seconds of an exchange once all have come.
        setting: Period and delay.

    >>> predict_step_s([[0.02], [0.03]], transfer_s=0.01, setting=SYNCHRONOUS)
    0.04
    """
    period, delay = setting.period, setting.delay
    recorded = len(compute_s[0])
    sums_s = [list(itertools.accumulate(steps, initial=0.0)) for steps in compute_s]

    def computed_s(clock: int) -> list[float]:
        """Of each worker, the seconds that all steps up to ``clock`` compute."""
        cycles, column = divmod(clock, recorded)
        return [cycles * sums[recorded] + sums[column] for sums in sums_s]

    # the first run through the recorded steps fills the pipeline, the second one counts
    rounds = max(2, -(-recorded // period))
    merged_s, done_s = [0.0] * len(compute_s), [0.0] * len(compute_s)  # of each worker: when, and computed until then
    ends_s = [0.0]
    for clock in range(period, 2 * rounds * period + 1, period):
        start_s, merge_s = computed_s(clock), computed_s(clock + delay)
        came_s = [at_s + to_s - from_s for at_s, to_s, from_s in zip(merged_s, start_s, done_s, strict=True)]
        ends_s.append(max(*came_s, ends_s[-1]) + transfer_s)
        merged_s = [
            max(at_s + to_s - from_s, ends_s[-1]) for at_s, to_s, from_s in zip(came_s, merge_s, start_s, strict=True)
        ]
        done_s = merge_s
    return (ends_s[-1] - ends_s[rounds]) / (rounds * period)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the system side wants within the slack that it is given.

    Attributes:
        setting: The one to go on with.
        least: What it would be if training could afford any slack.
        shares: By rank, adding up to 1; empty is equal shares.
        reason: Why, as a clause.
        inputs: The figures behind it, by name.
    """

    setting: Setting
    least: Setting
    shares: tuple[float, ...]
    reason: str
    inputs: tuple[tuple[str, float], ...]


class SystemMonitor:
    """Remembers the workers' steps and chooses period, delay and shares.

    Args:
        config: Its parameters.
    """

    __slots__ = ("_config", "_counts_samples", "_ladder", "_less_wanted", "_pace_s", "_transfer_s")

    def __init__(self, config: SystemConfig) -> None:
        self._config = config
        self._ladder = ladder(config.largest_period)
        self._pace_s: dict[int, deque[float]] = {}
        """Of each worker, the seconds of its last steps, brought to equal shares."""
        self._transfer_s: dict[bool, float] = {}
        """Of an exchange of gradients (True: every step) and of parameters (False)."""
        self._less_wanted: Setting | None = None
        self._counts_samples = False
        """Whether samples are dealt in rounds; else there are no shares to change."""

    def observe(self, reviews: Mapping[int, Reviewed], *, setting: Setting) -> None:
        """Take in what the workers saw while ``setting`` was in force."""
        self._counts_samples = all(sum(review.samples) > 0 for review in reviews.values())
        means = [sum(sizes) / len(sizes) for sizes in zip(*(it.samples for it in reviews.values()), strict=True)]
        for worker, review in reviews.items():
            pace = self._pace_s.setdefault(worker, deque(maxlen=self._config.memory))
            steps = zip(review.compute_s, review.samples, means, strict=True)
            pace.extend(max(SHORTEST_S, s * mean / own if own else s) for s, own, mean in steps)
        for worker in self._pace_s.keys() - reviews.keys():
            del self._pace_s[worker]
        synchronous = setting.slack == 0
        seen = _every_step(reviews) if synchronous else _now_and_then(reviews)
        if seen:
            self._transfer_s[synchronous] = statistics.fmean(seen)

    @property
    def knows_transfer(self) -> bool:
        """Whether an exchange has been measured yet."""
        return bool(self._transfer_s)

    def transfer_s(self, setting: Setting) -> float:
        """Seconds of one exchange under ``setting``, as far as is known."""
        synchronous = setting.slack == 0
        return self._transfer_s.get(synchronous, self._transfer_s.get(not synchronous, 0.0))

    def choose(self, *, slack: float, current: Setting, shares: Sequence[float]) -> Choice:
        """Period, delay and shares for the next steps.

        Args:
            slack: Most that training can afford, in steps.
            current: What is in force.
            shares: In force; empty is equal shares.
        """
        new_shares = self._shares(shares) if self._config.balance and self._counts_samples else tuple(shares)
        compute_s = self._compute_s(new_shares)
        if not compute_s:
            return Choice(
                setting=SYNCHRONOUS,
                least=SYNCHRONOUS,
                shares=tuple(shares),
                reason="nothing is measured yet",
                inputs=(),
            )
        if new_shares != tuple(shares) and not self._worth(shares, new_shares, current):
            new_shares = tuple(shares)
            compute_s = self._compute_s(new_shares)
        predicted = {
            setting: predict_step_s(compute_s, transfer_s=self.transfer_s(setting), setting=setting)
            for setting in self._ladder
        }
        affordable = [setting for setting in self._ladder if setting.slack <= slack]
        wanted, least = self._cheapest(affordable, predicted), self._cheapest(self._ladder, predicted)
        gains = predicted[wanted] <= predicted[current] * (1 - self._config.gain)
        gives_back = wanted.slack < current.slack and self._less_wanted == wanted
        setting = current
        if current.slack > slack or (self.knows_transfer and (gains or gives_back)):
            setting = wanted
        self._less_wanted = wanted if setting == current and wanted.slack < current.slack else None
        inputs = {
            "system.bsp_step_s": predicted[SYNCHRONOUS],
            "system.step_s": predicted[setting],
            "system.before_step_s": predicted.get(current, predicted[SYNCHRONOUS]),
            "system.least_step_s": min(predicted.values()),
            "system.transfer_s": self.transfer_s(setting),
            "system.compute_s": max(sum(steps) / len(steps) for steps in compute_s),
        }
        reason = _reason(setting, predicted[setting], predicted[SYNCHRONOUS])
        return Choice(setting=setting, least=least, shares=new_shares, reason=reason, inputs=tuple(inputs.items()))

    def _cheapest(self, settings: Sequence[Setting], predicted: Mapping[Setting, float]) -> Setting:
        """Of the settings that are about as fast as the fastest of them, the one of least slack."""
        best_s = min(predicted[setting] for setting in settings)
        return next(setting for setting in settings if predicted[setting] <= best_s * (1 + self._config.tolerance))

    def _worth(self, before: Sequence[float], after: Sequence[float], setting: Setting) -> bool:
        times = [
            predict_step_s(
                self._compute_s(shares),
                transfer_s=self.transfer_s(setting),
                setting=setting,
            )
            for shares in (before, after)
        ]
        return times[1] <= times[0] * (1 - self._config.gain)

    def _compute_s(self, shares: Sequence[float]) -> list[list[float]]:
        """Seconds of computing of each worker's remembered steps, if it had these shares."""
        steps = min((len(pace) for pace in self._pace_s.values()), default=0)
        if steps == 0:
            return []
        workers = sorted(self._pace_s)
        parts = shares or [1 / len(workers)] * len(workers)
        return [
            [seconds * part * len(workers) for seconds in list(self._pace_s[worker])[-steps:]]
            for worker, part in zip(workers, parts, strict=True)
        ]

    def _shares(self, before: Sequence[float]) -> tuple[float, ...]:
        """Shares in proportion to pace for workers whose pace is their own, the median's for all others."""
        workers = sorted(self._pace_s)
        if not workers or min(len(self._pace_s[worker]) for worker in workers) < 3:
            return tuple(before)
        means = {worker: sum(self._pace_s[worker]) / len(self._pace_s[worker]) for worker in workers}
        middle = statistics.median(means.values())
        levels = {worker: statistics.fmean(map(math.log, self._pace_s[worker])) for worker in workers}
        usual = statistics.median(levels.values())
        rates = []
        for worker in workers:
            own = abs(levels[worker] - usual) > _chance(self._pace_s[worker])
            differs = abs(means[worker] - middle) > self._config.gain * middle
            rates.append(1 / means[worker] if own and differs else 1 / middle)
        total = sum(rates)
        equal = 1 / len(workers)
        shares = tuple(max(rate / total, SMALLEST_SHARE * equal) for rate in rates)
        return () if max(shares) - min(shares) < 1e-9 else tuple(share / sum(shares) for share in shares)


def _chance(seconds: Sequence[float]) -> float:
    """How far the mean logarithm of a worker's steps may be off by chance; of few steps its spread is a guess."""
    count = len(seconds)
    spread = statistics.stdev(map(math.log, seconds))
    return SIGNIFICANCE * (1 + 2 / (count - 1)) * spread / math.sqrt(count)


def _every_step(reviews: Mapping[int, Reviewed]) -> list[float]:
    """The transfer of each step, where every step ends in an exchange: the shortest time that a worker was blocked."""
    return [min(blocked) for blocked in zip(*(review.blocked_s for review in reviews.values()), strict=True)]


def _now_and_then(reviews: Mapping[int, Reviewed]) -> list[float]:
    """The transfer of each exchange that all report: the time it took whoever began it last."""
    tables = [{row[0]: row[1] for row in review.exchanges} for review in reviews.values()]
    clocks = set.intersection(*(set(table) for table in tables))
    return [min(table[clock] for table in tables) for clock in sorted(clocks)]


def _reason(setting: Setting, step_s: float, bsp_s: float) -> str:
    if setting.slack == 0:
        return f"no slack saves enough: bsp takes {bsp_s * 1e3:.3g} ms a step"
    return f"a step takes {step_s * 1e3:.3g} ms and would take {bsp_s * 1e3:.3g} ms under bsp"
