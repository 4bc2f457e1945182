"""The worth of a step under a setting, in steps of BSP: the expected logarithm, and its standard deviation.

By kind, and what is known beforehand:

    rounded       almost nothing is lost: rounding is right in the mean (docs/log.md, section 14)
    coarse        4 bits have 12 times the error of 8 there, and so 12 times the price; not of local steps of an
                  optimizer that normalises, with the mean's moments: it moves all numbers about as far (section 95)
    low rank      a part of each gradient comes late; not where the optimizer normalises (section 41)
    local, racks  a price that grows with each doubling of 1 + drift, the steps that replicas are apart by: with r of
                  them it is r (r + 1) / 2 prices; more where data differ, and under momentum, by which a replica
                  carries on the noise of its own steps, the more the more workers there are
    store         a price; others' steps come one step late, which acts as momentum: with momentum of its own the
                  optimizer has too much of it, the more the more workers there are (Mitliagkas et al. 2016)

An optimizer that normalises makes noisy steps as long as clean ones. With nu, the noise of one worker's gradient over
its signal, N workers on their own make sqrt((1 + nu/N) / (1 + nu)) of the progress of their mean gradient (after
Malladi et al. 2022). What never forgets (Adagrad) keeps a worker's own noise for good: it has slack only with the
moments of the mean gradient. With these replicas make the steps of the mean gradient but for what changes while they
are apart. A run after t steps changes with t, as a power law does: a drift of r costs 2 r / t, whatever the noise.

The price of a kind is a belief, a normal distribution. A trial updates it: by its measurement, if it could measure; by
less doubt, if it passed; by what must at least be lost, if it failed.
"""

import math
from collections import deque
from dataclasses import dataclass

from plesio.policies.adaptive.numbers import Numbers
from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.system.setting import Sent, Setting

# All that follow were chosen by hand on development scenarios with one seed (docs/log.md, section 77; OWN_MOMENTUM in
# section 80), but for COARSE (a ratio of errors) and SETTLED (section 102). No table shows how much each matters.
ROUNDED, COARSE, LOW_RANK = 0.005, 0.06, 0.08
_ROUNDINGS = {Sent.ROUNDED: "rounded", Sent.COARSE: "coarse"}
UNLIKE, UNLIKE_PRICE = 1.6, 0.2
"""Variance between many workers over that within them, above which their data differ; and what slack costs there more
from the second doubling of the drift on."""
PASSED = 0.7
"""Share of the doubt that is left after a trial that found no harm."""
SETTLED, SETTLED_OUTER = 100, 50
"""Steps after which a step of drift costs one price, where local steps keep the moments of the mean gradient; and with
an outer momentum."""
NOISY = 0.5
"""Share of a step below which gradients count as nearly all noise."""
STORE_BEGINS, STORE_NOISY = 0.4, 0.6
"""Worth of a step on the store of an optimizer that normalises: in the beginning, and if gradients are noisy."""
MOMENTUM = 0.5
"""Momentum from which steps that come late do harm."""
OWN_MOMENTUM = 0.5
"""Share of what momentum costs on the store that it costs replicas: there it carries a worker's own noise on."""
WITH_SLACK = ("local", "racks", "store")
"""Kinds under which workers differ."""
RISING = 15.0
"""Noise over signal that is expected while the learning rate rises."""


@dataclass(slots=True)
class _Price:
    """Belief about the price of one kind: a normal distribution of the logarithm that is lost."""

    mean: float
    deviation: float

    def see(self, value: float, error: float) -> None:
        """Update the belief by a measurement."""
        before, new = self.deviation**-2, error**-2
        self.mean = (before * self.mean + new * value) / (before + new)
        self.deviation = (before + new) ** -0.5


class Worth:
    """Beliefs about what a step is worth; the module's head has the rule."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._prices = {
            "local": _Price(numbers.price, numbers.doubt),
            "racks": _Price(numbers.price, numbers.doubt),
            "store": _Price(numbers.store_price, numbers.store_doubt),
            "rounded": _Price(ROUNDED, ROUNDED),
            "coarse": _Price(COARSE, COARSE),
            "low rank": _Price(LOW_RANK, LOW_RANK / 2),
        }
        self._noises: deque[float] = deque(maxlen=4)
        """Logarithms of nu of the newest readings with figures, within bounds."""
        self._highest_rate = 0.0
        self._rises = self._unlike = self._has_momentum = False
        self._reading: Reading | None = None

    def observe(self, reading: Reading, *, momentum: float) -> None:
        """Take in the noise of the gradients, and what the optimizer does."""
        self._has_momentum = momentum >= MOMENTUM
        self._reading, rate = reading, reading.learning_rate
        self._rises = 0 < self._highest_rate < rate * (1 - 1e-6)
        self._highest_rate = max(self._highest_rate, rate)
        figures = reading.gradient
        if figures is None or not math.isfinite(figures.between):
            return
        spread = figures.between / figures.within if figures.within > 0 else 0.0
        self._unlike |= spread > UNLIKE * (1 + 2 / reading.num_workers)
        signal = figures.mean_norm_sq
        if math.isfinite(signal):
            ratio = figures.between / signal if signal > 0 else math.inf
            self._noises.append(math.log(min(1e3, max(1e-3, ratio))))

    def of(self, setting: Setting, *, drift: float) -> tuple[float, float]:
        """Return the expected logarithm of a step's worth, and its standard deviation."""
        kind = kind_of(setting)
        if kind is None:
            return 0.0, 0.0
        mean, deviation = 0.0, 0.0
        assert self._reading is not None, "nothing was observed"
        normalises = self._reading.normalises
        if setting.sent in _ROUNDINGS:
            of_moves = normalises and kind in ("local", "racks") and setting.moments == "mean"
            rounding = self._prices["rounded" if of_moves else _ROUNDINGS[setting.sent]]
            mean, deviation = -rounding.mean, rounding.deviation
        if kind in ("rounded", "coarse"):
            return mean, deviation
        price = self._prices[kind]
        if kind == "low rank" and normalises:
            return -math.inf, 0.0
        if normalises:
            mean += self._of_noise(setting)
        rungs = self._rungs(setting, kind, drift)
        more = 0.0
        if self._unlike and kind in ("local", "racks"):
            more = UNLIKE_PRICE * max(0.0, math.log2(1 + drift) - 1)
        if kind in WITH_SLACK and self._has_momentum and not normalises:
            share = 1.0 if kind == "store" else OWN_MOMENTUM
            more += share * self._numbers.momentum_price * math.log2(self._reading.num_workers)
        return mean - price.mean * rungs - more, math.hypot(deviation, price.deviation * rungs)

    def passed(self, setting: Setting, *, drift: float, found: tuple[float, float] | None) -> None:
        """Take in that a trial has shown no harm, and what it measured: the logarithm of a step's worth, its error."""
        kind = kind_of(setting)
        if kind is None:
            return
        self._prices[kind].deviation *= PASSED
        assert self._reading is not None, "nothing was observed"
        noise = self._of_noise(setting) if self._reading.normalises and kind in WITH_SLACK else 0.0
        if found is not None and math.isfinite(noise):
            rungs = self._rungs(setting, kind, drift)
            self._prices[kind].see((noise - found[0]) / rungs, found[1] / rungs)

    def fail(self, setting: Setting, *, drift: float, lost: float) -> None:
        """Believe from now on that this setting loses ``lost`` at least, and what is looser of its kind more."""
        kind = kind_of(setting)
        if kind is None:
            return
        # single workers bear even less than racks do, and the store less than local steps
        for one in {"local", "store", kind} if kind in WITH_SLACK and kind != "store" else {kind}:
            self._prices[one].mean = max(self._prices[one].mean, lost / self._rungs(setting, one, max(1.0, drift)))

    def _rungs(self, setting: Setting, kind: str, drift: float) -> float:
        """Return how many prices of this kind the setting costs now."""
        if kind not in ("local", "racks"):
            return 1.0
        assert self._reading is not None, "nothing was observed"
        if setting.moments == "mean":
            return (SETTLED_OUTER if setting.has_outer else SETTLED) * drift / self._reading.clock
        doublings = math.log2(1 + drift)
        return doublings * (doublings + 1) / 2

    def _of_noise(self, setting: Setting) -> float:
        """Return the logarithm of what noise leaves of a step of an optimizer that normalises."""
        reading = self._reading
        assert reading is not None, "nothing was observed"
        has_moments = not setting.on_store and self._has_moments(reading)
        if len(self._noises) < 2 or (reading.accumulates and not has_moments):
            return -math.inf
        begins = self._begins
        noise = math.exp(sum(self._noises) / len(self._noises))
        if begins and self._rises:
            noise = max(noise, RISING)
        workers, racks = reading.num_workers, reading.num_racks
        share = racks / workers if setting.by_racks and 1 < racks < workers else 1.0
        own = math.sqrt((1 + noise / workers) / (1 + noise * share))
        if setting.on_store:
            return math.log((STORE_BEGINS if begins else 1.0) * (STORE_NOISY if own < NOISY else 1.0))
        return min(0.0, math.log(own / NOISY) / 4) if has_moments else math.log(own)

    @property
    def _begins(self) -> bool:
        """True in the part of the run in which an optimizer that normalises learns its noise, or if none is known."""
        progress = None if self._reading is None else self._reading.progress
        return progress is None or progress < self._numbers.begins

    def _has_moments(self, reading: Reading) -> bool:
        """Return True if local steps keep the moments of the mean gradient, in a run that is long enough for it."""
        if not reading.shares_moments or not reading.progress:
            return reading.shares_moments
        return reading.clock / reading.progress >= 10 * reading.num_workers


def kind_of(setting: Setting) -> str | None:
    """Return by what a setting is looser than BSP; None for BSP itself."""
    if setting.on_store:
        return "store"
    if setting.steps_together:
        return {Sent.FULL: None, Sent.LOW_RANK: "low rank", **_ROUNDINGS}[setting.sent]
    return "racks" if setting.by_racks else "local"
