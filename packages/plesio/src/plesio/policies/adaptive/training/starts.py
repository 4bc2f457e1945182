"""Falls of loss and gradient norm after a start, and the level that follows, until a setback.

`plesio.policies.adaptive.training.phase` has the rules, under *Start* and *Setback*.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping

from plesio.policies.adaptive.config.phase import PhaseConfig
from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.training.verdict import LARGEST, USUAL_READINGS, Verdict

__all__ = ["TrainingStart", "UsualLoss"]

_RECENT_SHARE = 1 / 3
_MIDDLE_WIDTH = 0.1
"""Shares of a start's steps: the recent value is taken over the first, the middle one over the second on each side of
half of them."""
_MOST_VALUES = 128
"""Most values of one figure; at this number each two are merged into one."""


class TrainingStart:
    """Judges the fall of the figures from one start on: not over, over, or absent."""

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._num_steps = 0
        self._falls = {name: _Fall() for name in ("loss", "gradient", "metric")}
        """The figures, in order of preference."""
        self._signals: list[float] = []
        """Values of ‖E g‖² / ‖g‖², by reading."""
        self._has_paused = self._has_returned = False
        self.is_over = False

    def observe(self, reading: Reading) -> Verdict | None:
        self._num_steps += reading.num_steps
        gradient = reading.gradient
        if abs(reading.loss) < LARGEST:
            self._falls["loss"].add(reading.loss, at=self._num_steps)
        if gradient is not None and 0 < gradient.norm_sq < LARGEST and abs(gradient.mean_norm_sq) < LARGEST:
            self._falls["gradient"].add(math.sqrt(max(0.0, gradient.mean_norm_sq)), at=self._num_steps)
            self._signals.append(gradient.mean_norm_sq / gradient.norm_sq)
        if reading.metric is not None and abs(reading.metric) < LARGEST:
            self._falls["metric"].add(-reading.metric, at=self._num_steps)
        is_late = self._num_steps >= self._config.start_steps
        known = [name for name, fall in self._falls.items() if len(fall.values) > 1]
        if not known:
            return (
                self._pause("nothing tells of a fall", {"num_steps": self._num_steps}, for_good=True)
                if is_late
                else None
            )
        return self._judge(known, is_late=is_late)

    def _judge(self, known: list[str], *, is_late: bool) -> Verdict | None:
        """Judge the ``known`` figures, those with more than one value; the first decides if there is a fall."""
        config = self._config
        name = known[0]
        fall = self._falls[name]
        inputs = {"highest": fall.highest, "recent": fall.recent}
        # without a loss, a gradient of little signal shows a model that was trained before
        if name == "gradient":
            signal_share = statistics.fmean(self._signals)
            if signal_share < config.noise_share:
                return self._pause("the gradient is mostly noise", {"signal_share": signal_share}, for_good=is_late)
        is_straight = fall.depth >= config.straightness * fall.way
        if not is_straight or fall.depth <= config.least_fall * abs(fall.highest):
            if name == "gradient" and not is_late:
                return None  # it often rises at first
            return self._pause(f"the {name} does not fall", inputs, for_good=is_late and not is_straight)
        # there is a fall: it is over when its newer half holds little of it, for the gradient as well
        shares = {key: self._falls[key].newer_share for key in known if key in (name, "gradient")}
        inputs |= {f"{key}_newer_share": share for key, share in shares.items()}
        limits = {"loss": config.settled_loss, "gradient": config.settled_gradient, "metric": config.settled_loss}
        if all(share < limits[key] for key, share in shares.items()):
            return self._pause(f"the {name} has most of its fall behind it", inputs, for_good=True)
        # back to critical after a pause: once, and not on few values
        if self._has_paused:
            if len(fall.values) < USUAL_READINGS:
                return None
            self._has_returned = True
        return Verdict(phase="critical", reason=f"the {name} falls", inputs=inputs)

    def _pause(self, reason: str, inputs: Mapping[str, float], *, for_good: bool) -> Verdict:
        self._has_paused = True
        self.is_over = for_good or self._has_returned
        return Verdict(phase="stable", reason=reason, inputs=inputs)


class _Fall:
    """Values of one figure since a start, and their fall."""

    def __init__(self) -> None:
        self.values: list[tuple[int, float]] = []
        """Pairs of steps since the start and value."""
        self.highest = self.recent = math.nan
        """The highest value, and the mean over the last third of the steps."""

    def add(self, value: float, *, at: int) -> None:
        self.values.append((at, value))
        if len(self.values) == _MOST_VALUES:
            pairs = zip(self.values[::2], self.values[1::2], strict=True)
            self.values = [(step, (before + after) / 2) for (_, before), (step, after) in pairs]
        last = self.values[-1][0]  # 0 while no worker has made a step
        first = (1 - _RECENT_SHARE) * last
        self.highest = max(each for _, each in self.values)
        self.recent = statistics.fmean([each for step, each in self.values if step > first or step == last])

    @property
    def depth(self) -> float:
        """Fall from the highest value to the recent one."""
        return self.highest - self.recent

    @property
    def way(self) -> float:
        return math.fsum([abs(after - before) for (_, before), (_, after) in itertools.pairwise(self.values)])

    @property
    def newer_share(self) -> float:
        """Share of the depth that belongs to the newer half of the steps."""
        if self.depth <= 0:
            return 0.0
        half = self.values[-1][0] / 2
        nearest = min(abs(step - half) for step, _ in self.values)
        width = max(nearest, _MIDDLE_WIDTH * self.values[-1][0])
        middle = statistics.fmean([value for step, value in self.values if abs(step - half) <= width])
        return (middle - self.recent) / self.depth


class UsualLoss:
    """Usual level of the loss; finds a lasting rise above it."""

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._highest = -math.inf
        self._usual: deque[float] = deque(maxlen=2 * USUAL_READINGS)
        self.outliers: list[Reading] = []
        """The newest readings, while their losses are above the usual."""

    def forget(self) -> None:
        self._usual.clear()
        self.outliers = []

    def notice(self, loss: float) -> None:
        """Take a loss of a start, which tells the height of a fall but nothing of the usual level."""
        if abs(loss) < LARGEST:
            self._highest = max(self._highest, loss)

    def observe(self, reading: Reading) -> Verdict | None:
        loss = reading.loss
        if not abs(loss) < LARGEST:
            return None
        level, limit = self._limit()
        if not loss - level > limit:
            self.notice(loss)
            self._usual.append(loss)
            self.outliers = []
            return None
        self.outliers.append(reading)
        if len(self.outliers) < 2 and loss - level < 2 * limit:
            return None
        reason = f"the loss has risen from {level:.3g} to {loss:.3g}"
        return Verdict(phase="critical", reason=reason, inputs={"loss": loss, "level": level})

    def _limit(self) -> tuple[float, float]:
        """Return the level, and the largest excess of a usual loss over it."""
        config = self._config
        if len(self._usual) < USUAL_READINGS:
            return math.nan, math.inf
        level = statistics.fmean(self._usual)
        noise = config.setback_noise * math.sqrt(statistics.fmean((loss - level) ** 2 for loss in self._usual))
        return level, max(noise, config.setback * abs(level), config.least_fall * (self._highest - level))
