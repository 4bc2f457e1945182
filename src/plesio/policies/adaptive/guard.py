"""Guard: notices divergence (being calibrated)."""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from plesio.policies.adaptive.level import Level
from plesio.policies.adaptive.numbers import require_number
from plesio.policies.adaptive.reading import Reading
from plesio.policies.fields import require_whole

__all__ = ["Alarm", "Guard", "GuardConfig"]

_RECENT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Training diverges.

    Attributes:
        reason: One clause for people.
        inputs: The numbers that it follows from, by name.
    """

    reason: str
    inputs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """When to raise an alarm."""

    window: int = 16
    noise_factor: float = 4.5
    loss_rise: float = 0.15
    worst_rise: float = 0.5
    norm_jump: float = 5.0
    creep: float = 4.5
    memory: int = 10
    refused_share: float = 0.25
    rate_reviews: int = 4
    rate_tolerance: float = 2.0
    rearm_reviews: int = 4


class Guard:
    """Raises an alarm when training diverges."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._good = False
        self._loss = Level(window=config.window, recent=_RECENT)
        self._worst = Level(window=config.window, recent=_RECENT)
        self._norm = Level(window=8, recent=4)
        self._rate = math.nan
        self._since_rate = 10**9
        self._quiet = 0

    @property
    def good(self) -> bool:
        """Whether the present state is worth keeping."""
        return self._good

    def observe(self, reading: Reading) -> Alarm | None:
        """Take a review."""
        c = self._config
        self._since_rate += 1
        if reading.learning_rate > 1.3 * self._rate:
            self._since_rate = 0
        self._rate = reading.learning_rate
        tol = c.rate_tolerance if self._since_rate < c.rate_reviews else 1.0
        alarm = None
        good = True
        if reading.num_refused >= max(2, c.refused_share * reading.num_steps):
            alarm = Alarm(reason="refused", inputs={"n": reading.num_refused})
        if math.isinf(reading.loss):
            alarm = Alarm(reason="infinite")
        for name, level, value, rise in (("loss", self._loss, reading.loss, c.loss_rise), ("worst", self._worst, reading.worst_loss, c.worst_rise)):
            if not math.isfinite(value):
                continue
            if level.is_known:
                e = level.excess(value)
                if name == "loss":
                    low = level.creep(value)
                    if low.noises > c.creep * tol and low.share > rise * tol:
                        alarm = alarm or Alarm(reason="creep", inputs={"n": low.noises, "s": low.share})
                if e.noises > c.noise_factor * tol and e.share > rise * tol:
                    alarm = alarm or Alarm(reason=name, inputs={"n": e.noises, "s": e.share})
                good = good and e.noises < 2
            level.add(value)
        g = reading.gradient
        if g is not None and math.isfinite(g.norm_sq) and g.norm_sq > 0:
            if self._norm.is_known:
                e = self._norm.excess(g.norm_sq)
                if e.noises > c.noise_factor and e.share > c.norm_jump**2:
                    alarm = alarm or Alarm(reason="norm", inputs={"n": e.noises, "s": e.share})
            self._norm.add(g.norm_sq)
        self._good = good and alarm is None
        if self._quiet:
            self._quiet -= 1
            return None
        if alarm:
            self._quiet = c.rearm_reviews
        return alarm
