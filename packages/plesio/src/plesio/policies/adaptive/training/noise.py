"""Cost of the noise of a worker's batch to an optimizer that divides by its gradients' size, as Adam does.

Such an optimizer takes steps of about the same length whatever the gradient is, in the direction of signal and noise
alike. With ν the noise of one worker's gradient over its signal, tr Var(g) / ‖E g‖², the share of a step that is
progress is 1 / sqrt(1 + ν); of a step with the mean of N gradients it is 1 / sqrt(1 + ν/N). An average of N workers'
replicas removes the noise afterwards, but the length of their progress stays that of noisy steps:

    efficiency = sqrt((1 + ν/N) / (1 + ν)),        from 1 (no noise) to 1 / sqrt(N) (nothing but noise)

This is the argument of square-root scaling for Adam (Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive
Gradient Algorithms") turned round: there the rate grows with the root of the batch, here the batch shrinks by N. An
optimizer that does not normalise loses nothing: the mean of its steps is the step of the mean.

If the optimizer normalises, the system side counts a local step as that share of one (`ComponentAdvice.efficiency`), so
local steps must save more time than they lose progress. Below ``least_efficiency`` there are none, since the formula is
no theorem about a network. The efficiency is computed from the noisiest of the last figures. Until a window of them is
there nothing is allowed either: an untrained model's gradients are all signal, and predict little.

*Moments of the mean.* Adam, AdamW, RMSprop and Adagrad can keep, in local steps, the moments that they would have with
the mean gradient (`LocalSGD.moments`). A local step is then as long as a synchronous one and counts as a whole one. One
cost remains: gradients are computed at replicas that noise has moved, which harms most at the beginning. A transformer
that makes local steps after the first quarter of its run ends as under BSP; one that makes them from a twentieth on
ends 3 to 10 % above it. The slack with these moments is therefore:

    first ``noisy_from`` of a run, or       0 if a replica's own step makes less progress than ``least_efficiency``,
    its length is unknown                   however few share the noise; else ``noisy_slack``
    later, above ``least_efficiency``       unlimited
    later, below it                         ``noisy_slack``
    later, below half of it                 1; only more than 16 workers come to it

The first part of a run ends sooner, except for the store, when it has cost `MOST_SPENT` of what all later steps are
predicted to take under the fastest setting that is allowed later. On thin links a strict step may take ten times as
long as a loose one: the strict quarter of a run would then take three times as long as the other three.

A worker's estimate of these moments is the noisier the more workers there are, and it needs steps until it is good
(`mean_moments`): runs with 4 to 8 times as many steps as workers ended a point lower with it (`docs/log.md`, section
59). So in a run of fewer than ``least_steps`` times as many, local steps are treated as if the moments were not kept.

*Rising rate.* While the learning rate rises in that first part of a run, there are no local steps: gradients have less
noise in a warm-up than after it. With four workers ν of that transformer was 0.5 to 2 in step 33, far above 10 after
the warm-up, and local steps from step 40 on ended 9 % above BSP (`docs/log.md`, section 61).

*Racks.* If the n workers of R racks step together in their racks, R replicas step on batches that are n/R times as
large, with a noise of ν R/n: averaged over workers that holds for racks of different sizes too. Their efficiency is

    sqrt((1 + ν/n) / (1 + ν R/n)),        from 1 to 1 / sqrt(R)

With 16 workers in 2 racks at ν = 1 it is 0.97 between racks and 0.73 between workers.

*Store.* The servers normalise by the mean of a round (`plesio.runtime.server.interleaved`) and no worker steps by
itself, as long as it exchanges at every step. So there is no objection to the store, except in the first ``noisy_from``
of the run, or if its length is unknown. A transformer under Adam that went to the store in its fifth step had not
recovered after fifty, and two autoencoders that went there in their fortieth took 1.2 and 1.7 times as long as under
BSP (`docs/log.md`, section 60). But the store has a price: if gradients are so noisy that there are no local steps, a
step on the store counts as ``store_efficiency`` of one. That transformer needs 1.3 to 1.7 times as many of them, with
gradients that come a round late; no measurement during training shows it, nor does a trial of a few reviews
(`docs/log.md`, section 57).

*Different data.* Between workers gradients vary by the noise of their batches and by the differences of their data;
within a worker, from one step to the next, by the noise and by the move of the mean gradient. If the first was once
above ``largest_spread`` times the second (and 1 + 2/N times that, for chance), workers draw from different data, and
local steps lead them apart (Zhao et al. 2018, "Federated Learning with Non-IID Data"; Karimireddy et al. 2020). The
data do not change during training, but their difference shows less when replicas differ. So from then on, whatever the
optimizer is, the slack is at most ``spread_slack``, except on the store.
"""

import math
from collections import deque

from plesio.policies.adaptive.config.noise import NoiseConfig
from plesio.policies.adaptive.readings.reading import NO_OBJECTION, ComponentAdvice, Reading

__all__ = ["NoiseMonitor"]

MOST_SPENT = 0.5
"""Most seconds of the strict beginning, over those that the rest of the run is predicted to take."""
ROUNDING = 1e-6
"""Share of a learning rate by which a constant one may seem to rise."""


class NoiseMonitor:
    """Objects to slack if an optimizer that normalises would learn noise; the module's head has the rule."""

    def __init__(self, config: NoiseConfig) -> None:
        self._config = config
        self._ratios: deque[float] = deque(maxlen=config.window)
        """ν of the newest readings with figures."""
        self._is_spent = False
        """True once the first part of the run has cost as much as it may."""
        self._highest_rate = 0.0
        """The highest learning rate so far."""
        self._spread = 0.0
        """The largest variance between workers over that within them, of those that were too large; 0 if none was."""

    def observe(self, reading: Reading) -> ComponentAdvice:
        if reading.num_workers == 1:
            return NO_OBJECTION
        figures = reading.gradient
        if figures is not None and figures.within > 0 and math.isfinite(figures.between):
            spread, chance = figures.between / figures.within, 1 + 2 / reading.num_workers
            if spread > self._config.largest_spread * chance:
                self._spread = max(self._spread, spread)
        advice = self._of_noise(reading) if reading.normalises else NO_OBJECTION
        # once workers were seen to draw from different data, the limit stays
        most = self._config.spread_slack
        if not self._spread or max(advice.slack, advice.drift) <= most:
            return advice
        return ComponentAdvice(
            slack=min(advice.slack, most),
            by_racks=min(advice.drift, most),
            on_store=advice.staleness,
            efficiency=advice.efficiency,
            rack_efficiency=advice.rack_efficiency,
            store_efficiency=advice.store_efficiency,
            reason=f"gradients differed {self._spread:.3g} times as much between workers as within: their data differ",
            inputs={"spread": self._spread},
        )

    def _of_noise(self, reading: Reading) -> ComponentAdvice:
        figures, rises = reading.gradient, self._rises(reading.learning_rate)
        if figures is not None and math.isfinite(figures.between) and math.isfinite(figures.mean_norm_sq):
            signal = figures.mean_norm_sq
            self._ratios.append(figures.between / signal if signal > 0 else math.inf)
        if len(self._ratios) < self._config.window:
            return ComponentAdvice(slack=0, reason="how noisy a worker's gradient is, is not known yet")
        ratio, workers, racks = max(self._ratios), reading.num_workers, reading.num_racks
        by_racks = racks / workers if 1 < racks < workers else 1.0
        slack, drift = (self._slack(ratio, share=share, reading=reading) for share in (1.0, by_racks))
        self._is_spent = self._is_spent or reading.spent(slack, drift) > MOST_SPENT
        begins = self._begins(reading) and not self._is_spent
        if begins and rises:
            return ComponentAdvice(
                slack=0, reason="how noisy a worker's gradient will be, is not known while the rate rises"
            )
        has_moments = self._has_moments(reading)
        if begins and has_moments:
            slack, drift = (self._slack_early(ratio, share=share) for share in (1.0, by_racks))
        efficiency = _efficiency(ratio, share=1.0, num_workers=workers)
        rack_efficiency = _efficiency(ratio, share=by_racks, num_workers=workers)
        inputs = {"efficiency": efficiency}
        if by_racks < 1:
            inputs["rack_efficiency"] = rack_efficiency
        return ComponentAdvice(
            slack=slack,
            by_racks=drift,
            on_store=0 if self._begins(reading) else math.inf,
            efficiency=1.0 if has_moments else efficiency,
            rack_efficiency=1.0 if has_moments else rack_efficiency,
            store_efficiency=self._config.store_efficiency if efficiency < self._config.least_efficiency else 1.0,
            reason=f"steps of this optimizer on one worker's noisy gradient are {efficiency:.0%} as good",
            inputs=inputs,
        )

    def _slack(self, ratio: float, *, share: float, reading: Reading) -> float:
        """Return the slack of replicas of that share of the workers, at this ν of one worker, after the first part."""
        config = self._config
        efficiency = _efficiency(ratio, share=share, num_workers=reading.num_workers)
        if efficiency >= config.least_efficiency:
            return math.inf
        if not self._has_moments(reading):
            return 0
        return config.noisy_slack if efficiency >= config.least_efficiency / 2 else min(1, config.noisy_slack)

    def _slack_early(self, ratio: float, *, share: float) -> float:
        """Return it in the first part, with the moments of the mean gradient."""
        noisy = _efficiency(ratio, share=share, num_workers=math.inf) < self._config.least_efficiency
        return 0 if noisy else self._config.noisy_slack

    def _rises(self, rate: float) -> bool:
        rises = 0 < self._highest_rate < rate * (1 - ROUNDING)
        self._highest_rate = max(self._highest_rate, rate)
        return rises

    def _begins(self, reading: Reading) -> bool:
        """Return True unless the beginning of the run is known to be over."""
        return reading.progress is None or reading.progress < self._config.noisy_from

    def _has_moments(self, reading: Reading) -> bool:
        """Return True if local steps keep the moments of the mean gradient, in a run that is long enough for it."""
        if not reading.shares_moments or not reading.progress:
            return reading.shares_moments
        return reading.clock / reading.progress >= self._config.least_steps * reading.num_workers


def _efficiency(ratio: float, *, share: float, num_workers: float) -> float:
    """Return the efficiency by the formula of the module's head, ``ratio`` being ν and ``share`` that of replicas.

    With infinitely many workers it is the share of a replica's own step that is progress.
    """
    return math.sqrt(
        1 / (share * num_workers) if ratio == math.inf else (1 + ratio / num_workers) / (1 + ratio * share)
    )
