"""Phases of training, found while it goes on: critical, stable, final; and less slack in those that are sensitive.

What the phases mean. A *cycle* begins with the run and whenever the learning rate rises by a tenth over its lowest
value (a warm-up, a warm restart). Its *budget* is the sum of its learning rates: how far it can move the parameters, up
to the size of the gradients.

    critical   the rate rises; or it has jumped up, and has not yet spent a twentieth of a cycle's budget since; or
               training begins (or is set back, as by other data) and most of the loss's fall is still to come
    final      less than a twentieth of the cycle's budget is left: the rate is annealed, or few steps are to come
    stable     all else

The learning rate speaks first: who writes a warm-up marks the first phase, and its end ends it, whatever the loss does.
The loss decides only where the schedule is silent. A step decay is no phase of its own: at a smaller rate the replicas
of workers differ less, so nothing asks for strictness that was not needed before (Gu et al. 2024 lengthen the period
then). It is the beginning of ``final`` if it is deep enough, and else nothing.

Where to be strict. Early: steps that are too large for an untrained model harm for good, which is what warm-up prevents
(Goyal et al. 2017); what goes wrong in the first epochs is not made good later (Achille et al. 2019); communicating
exactly first and rarely later keeps accuracy (post-local SGD, Lin et al. 2020; Sync-Switch, Li et al. 2021; Accordion,
Agarwal et al. 2021, which takes what follows a step decay for critical as well). Late: local steps raise the noise in
which SGD ends, so the period should shrink as the loss does (AdaComm, Wang & Joshi 2019). Hence ``direction``.

How they are found:

- *Rate*. A cycle begins when the rate exceeds ``rise`` times its lowest since the last peak. It rises for as long as it
  grows by half of what it grew by before (every review; or, where a schedule moves once an epoch, every few reviews). A
  rise that is over after one review is a jump.
- *Budget*. The future being unknown, what is left is the smaller of two estimates: a straight line down to zero, or
  where the fall slows down a parabola, continued from the last three reviews if the rate fell in each; and the present
  rate for the steps that progress says are to come. ``final_share`` of its peak is final in any case (after a step
  decay nobody knows how long the new rate lasts). Only a new cycle ends ``final``.
- *Start*. Two figures fall: the loss and the norm of the mean gradient. Of each, h is the highest value, r the recent
  one (mean over the last third of the steps), m that of half the steps ago. Its fall is over when the newer half holds
  less than ``settled_loss`` (``settled_gradient``) of it: m - r < settled (h - r). Steps are counted from the start, so
  an exponential fall ends at about the same height whatever its time constant. The start is over when both falls are:
  the loss alone is early where a fast fall is followed by a long slow one, the gradient alone is noisy. A loss that
  has fallen by less than ``least_fall`` of h, or by less than ``straightness`` of its way up and down, does not fall:
  the model was trained before. If it falls after all (as long as its way is straight, and for ``start_steps`` in any
  case) the phase is critical again. Without a loss, ‖E g‖² below ``noise_share`` of ‖g‖² tells a trained model; with
  neither loss nor gradient the metric takes their place; with nothing a start lasts ``start_steps``.
- *Setback*. A loss above its usual level by ``setback`` of it, by ``setback_noise`` standard deviations, and by
  ``least_fall`` of what it once fell by: twice in a row, or once by twice as much. A start follows.

How long the end is strict. Under a cosine the last twentieth of the rates' sum takes three tenths of the steps. So
where it is known how many steps there are, the last ``final_steps`` of them are strict, whatever the rate does, and a
final phase before them allows anything.

Noise does not make the phase flap: a setback must exceed it and needs four usual readings before, and a start that was
taken for over can return to ``critical`` once.
"""

import math

from plesio.policies.adaptive.config.phase import PhaseConfig
from plesio.policies.adaptive.readings.reading import ComponentAdvice, Reading
from plesio.policies.adaptive.training.rate_cycles import RateCycles
from plesio.policies.adaptive.training.starts import TrainingStart, UsualLoss
from plesio.policies.adaptive.training.verdict import STRICT, Phase, Verdict

__all__ = ["PhaseDetector"]

_AHEAD = 1.5
"""Reviews until the end begins at which it is time to act: the next may be late by half of one, and acting takes as
long where workers on the store have to be stopped."""


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

    __slots__ = ("_config", "_ends", "_rate", "_start", "_usual_loss", "_verdict")

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._ends = False
        """The last steps have begun, as far as it is known how many there are."""
        self._rate = RateCycles(config)
        self._usual_loss = UsualLoss(config)
        self._start: TrainingStart | None = TrainingStart(config)
        """The one that is not over."""
        self._verdict = Verdict(phase="critical", reason="training has just begun", inputs={})
        """What the phase follows from; renewed with every reading while the phase is critical."""

    @property
    def phase(self) -> Phase:
        """That of the steps to come."""
        return self._verdict.phase

    def observe(self, reading: Reading) -> ComponentAdvice:
        """Take a review's reading; say what the phase allows from now on, and what made it this phase."""
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
        """Whether the steps to come are in a phase that is strict; the end is the last steps, where they are known."""
        strict = STRICT[self._config.direction]
        if "final" not in strict or reading.progress is None or not reading.clock:
            return self.phase in strict
        to_come = _AHEAD * reading.num_steps / reading.clock
        self._ends = self._ends or reading.progress * (1 + to_come) >= 1 - self._config.final_steps
        return self._ends or (self.phase == "critical" and "critical" in strict)

    def _by_rate(self) -> Verdict | None:
        """What the learning rate says; None where it is silent."""
        verdict = self._rate.verdict()
        if verdict is None:
            return self._verdict if self.phase == "final" else None
        self._start = None
        self._usual_loss.forget()
        return verdict

    def _by_figures(self, reading: Reading) -> Verdict:
        """What loss, gradient and metric say."""
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
