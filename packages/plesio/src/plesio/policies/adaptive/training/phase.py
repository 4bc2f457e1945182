"""Phases of training, found while it runs: critical, stable, final; with less slack in the sensitive ones.

Meaning of the phases. A *cycle* begins with the run and whenever the learning rate rises by a tenth over its lowest
value (a warm-up, a warm restart). Its *budget* is the sum of its learning rates: the distance by which it can move the
parameters, up to the size of the gradients.

    critical   the rate rises; or it has jumped up, and has not yet spent a twentieth of a cycle's budget since; or
               training begins (or is set back, as by other data) and most of the loss's fall is still to come
    final      less than a twentieth of the cycle's budget is left: the rate is annealed, or few steps are to come
    stable     all else

The learning rate takes precedence: a warm-up marks the first phase, and its end ends that phase, whatever the loss
does. The loss decides only if the schedule is silent. A step decay is no phase of its own: at a smaller rate the
replicas of workers differ less, so it needs no strictness that was not needed before (Gu et al. 2024 lengthen the
period then). It begins ``final`` if it is deep enough, and otherwise changes nothing.

Reasons to be strict. Early: steps that are too large for an untrained model harm for good, which warm-up prevents
(Goyal et al. 2017); damage of the first epochs is not repaired later (Achille et al. 2019); exact communication first
and rare communication later keeps accuracy (post-local SGD, Lin et al. 2020; Sync-Switch, Li et al. 2021; Accordion,
Agarwal et al. 2021, which takes the time after a step decay for critical as well). Late: local steps raise the noise in
which SGD ends, so the period should shrink as the loss does (AdaComm, Wang & Joshi 2019). Hence ``direction``.

Rules that find them:

- *Rate*. A cycle begins when the rate exceeds ``rise`` times its lowest since the last peak. It rises for as long as it
  grows by half of its last growth (every review; or, if a schedule moves once an epoch, every few reviews). A rise that
  is over after one review is a jump.
- *Budget*. The future is unknown, so the rest is the smaller of two estimates. One is a straight line down to zero, or
  a parabola if the fall slows down, extrapolated from the last three reviews if the rate fell in each; the other is the
  present rate for the steps that progress predicts. ``final_share`` of its peak is final in any case (after a step
  decay it is unknown how long the new rate lasts). Only a new cycle ends ``final``.
- *Start*. Two figures fall: the loss and the norm of the mean gradient. For each, h is the highest value, r the recent
  one (mean over the last third of the steps), m that of half the steps ago. Its fall is over when the newer half holds
  less than ``settled_loss`` (``settled_gradient``) of it: m - r < settled (h - r). Steps are counted from the start, so
  an exponential fall ends at about the same height whatever its time constant. The start is over when both falls are:
  the loss alone is early if a long slow fall follows a fast one, the gradient alone is noisy. A loss that has fallen by
  less than ``least_fall`` of h, or by less than ``straightness`` of its way up and down, does not fall: the model was
  trained before. If it falls after all (as long as its way is straight, and for ``start_steps`` in any case) the phase
  is critical again. Without a loss, ‖E g‖² below ``noise_share`` of ‖g‖² shows a trained model; with neither loss nor
  gradient the metric takes their place; without any of them a start lasts ``start_steps``.
- *Setback*. A loss above its usual level by ``setback`` of it, by ``setback_noise`` standard deviations, and by
  ``least_fall`` of its whole fall: twice in a row, or once by twice as much. A start follows.

Length of the strict end. Under a cosine the last twentieth of the rates' sum takes three tenths of the steps. So if the
number of steps is known, the last ``final_steps`` of them are strict, whatever the rate does, and a final phase before
them allows anything.

Noise does not make the phase flap: a setback must exceed it and needs four usual readings before, and a start that
counted as over can return to ``critical`` once.
"""

import math

from plesio.policies.adaptive.config.phase import PhaseConfig
from plesio.policies.adaptive.readings.reading import ComponentAdvice, Reading
from plesio.policies.adaptive.training.rate_cycles import RateCycles
from plesio.policies.adaptive.training.starts import TrainingStart, UsualLoss
from plesio.policies.adaptive.training.verdict import STRICT, Phase, Verdict

__all__ = ["PhaseDetector"]

_AHEAD = 1.5
"""Reviews before the end at which it is time to act: the next one may be half a review late, and acting takes as long
if workers on the store must be stopped."""


class PhaseDetector:
    """Follows the phase of one run; equal readings give equal phases.

    >>> detector = PhaseDetector(PhaseConfig(direction="both"))
    >>> for review, rate in enumerate([0.2, 0.4, 0.4, 0.4, 0.02], start=1):
    ...     advice = detector.observe(Reading(clock=16 * review, num_steps=16, learning_rate=rate))
    ...     print(detector.phase, advice.slack, advice.reason)
    critical 0 training has just begun
    critical 0 the learning rate rises
    critical 0 the learning rate rises
    stable inf the learning rate rises no more
    final 0 the learning rate is down to 5 % of its peak
    """

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._ends = False
        """True if the last steps have begun, as far as their number is known."""
        self._rate = RateCycles(config)
        self._usual_loss = UsualLoss(config)
        self._start: TrainingStart | None = TrainingStart(config)
        """The start that is not over, if any."""
        self._verdict = Verdict(phase="critical", reason="training has just begun", inputs={})
        """The verdict on the phase; renewed by every reading while the phase is critical."""

    @property
    def phase(self) -> Phase:
        return self._verdict.phase

    def observe(self, reading: Reading) -> ComponentAdvice:
        self._rate.observe(reading, is_critical=self.phase == "critical")
        verdict = self._by_rate() or self._by_figures(reading)
        if verdict.phase != self.phase or verdict.phase == "critical":
            self._verdict = verdict
        slack = self._config.slack if self._is_strict(reading) else math.inf
        reason = self._verdict.reason
        if slack < math.inf and self.phase not in STRICT[self._config.direction]:
            reason = "the run is about to end"
        return ComponentAdvice(slack=slack, reason=reason, inputs=self._verdict.inputs)

    def _is_strict(self, reading: Reading) -> bool:
        """Return True if the steps to come are strict: by their phase, or as the last ones, if these are known."""
        strict = STRICT[self._config.direction]
        if "final" not in strict or reading.progress is None or not reading.clock:
            return self.phase in strict
        to_come = _AHEAD * reading.num_steps / reading.clock
        self._ends = self._ends or reading.progress * (1 + to_come) >= 1 - self._config.final_steps
        return self._ends or (self.phase == "critical" and "critical" in strict)

    def _by_rate(self) -> Verdict | None:
        verdict = self._rate.verdict()
        if verdict is None:
            return self._verdict if self.phase == "final" else None
        self._start = None
        self._usual_loss.forget()
        return verdict

    def _by_figures(self, reading: Reading) -> Verdict:
        if self._start is None:
            setback = self._usual_loss.observe(reading)
            if setback is None:
                return Verdict(phase="stable", reason="the learning rate rises no more", inputs={})
            self._start = TrainingStart(self._config)
            for outlier in self._usual_loss.outliers:
                self._start.observe(outlier)
            self._usual_loss.forget()
            return setback
        self._usual_loss.notice(reading.loss)
        verdict = self._start.observe(reading)
        if self._start.is_over:
            self._start = None
        return verdict or self._verdict
