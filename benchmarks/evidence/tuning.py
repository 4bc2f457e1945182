"""A scenario's rate and target, fixed by plain runs before any policy is run.

Rate. From the optimizer's usual rate the sweep goes by two octaves with one seed, until both sides are worse; then
from the best by half octaves with two seeds, until two in a row are worse on each side. A rate's score is the smoothed
curve's last value, plus a tenth of the curve's mean: where several rates end alike, as where all is learned, the one
that comes there sooner is better. The scenario's rate is the tuned one times its factor. Where a single process at
that rate keeps less than half of the tuned rise, the factor goes down by half octaves: there BSP itself breaks down.

Target. Of the two plain runs at that rate the curves are smoothed (`smooth`) and averaged. The target is the start
plus 80 % of the rise from the start to the best, or 90 or 95 %, the first of them that is not reached in the first 30 %
of the run; 95 % if none is.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from families import FAMILIES
from plain import OPTIMIZERS, Curve, train_plain
from scenario import Scenario
from smooth import Array, samples_to, smoothed

from plesio.core.files import write_whole

SEEDS = (900, 901)
"""Seeds of plain runs; policies run with others."""
HALF_OCTAVE = math.sqrt(2.0)
SHARES = (0.8, 0.9, 0.95)
NOT_BEFORE = 0.3
KEPT_RISE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The findings of plain runs.

    Attributes:
        hash: `Scenario.plain_hash`.
        tuned_rate: The best of the sweep.
        rate: The scenario's.
        start: Points before training, mean of the seeds.
        final: Of the plain runs at the scenario's rate, off the smoothed curve.
        target: Points whose first reaching is timed.
        target_share: Of the rise.
        reached_share: Of the run's samples, when the plain runs' mean curve is there.
        scores: Of the rates of the sweep, by rate.
    """

    hash: str
    tuned_rate: float
    rate: float
    start: float
    final: float
    target: float
    target_share: float
    reached_share: float
    scores: dict[str, float]


def tuned(scenario: Scenario, *, folder: Path) -> Tuned:
    """Return the findings of a scenario's plain runs, kept in ``folder`` and done again if the scenario changes."""
    path = folder / f"{scenario.name}.json"
    if path.exists():
        kept = Tuned(**json.loads(path.read_text()))
        if kept.hash == scenario.plain_hash:
            return kept
    found = _tune(scenario)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(found), indent=1) + "\n")
    return found


class _Bench:
    """Plain runs of a scenario, each done once."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._problem = FAMILIES[scenario.family].make(scenario.seed, scenario.difficulty)
        self._curves: dict[tuple[float, int], Curve] = {}

    def curve(self, rate: float, *, num_seeds: int) -> tuple[Array, Array]:
        """Return samples, and the mean of the smoothed curves."""
        curves = [self._run(rate, seed) for seed in SEEDS[:num_seeds]]
        fits = [smoothed(curve.samples, curve.points) for curve in curves]
        return np.asarray(curves[0].samples, dtype=float), np.mean(fits, axis=0)

    def score(self, rate: float, *, num_seeds: int) -> float:
        """How good a rate is."""
        _, fit = self.curve(rate, num_seeds=num_seeds)
        return float(fit[-1] + 0.1 * fit.mean())

    def _run(self, rate: float, seed: int) -> Curve:
        if (rate, seed) not in self._curves:
            self._curves[rate, seed] = train_plain(self._problem, self._scenario, rate=rate, seed=seed)
        return self._curves[rate, seed]


def _tune(scenario: Scenario) -> Tuned:
    bench = _Bench(scenario)
    _, begin = OPTIMIZERS[scenario.optimizer]
    coarse = _sweep(bench, begin, factor=4.0, num_seeds=1, patience=1)
    scores = _sweep(bench, max(coarse, key=coarse.__getitem__), factor=HALF_OCTAVE, num_seeds=2, patience=2)
    best = max(scores, key=scores.__getitem__)
    rate = _bearable(bench, best, factor=scenario.rate_factor)
    samples, fit = bench.curve(rate, num_seeds=2)
    for share in SHARES:
        target = fit[0] + share * (fit.max() - fit[0])
        reached = samples_to(target, samples.tolist(), fit.tolist()) / samples[-1]
        if reached >= NOT_BEFORE:
            break
    return Tuned(
        hash=scenario.plain_hash,
        tuned_rate=best,
        rate=rate,
        start=float(fit[0]),
        final=float(fit[-1]),
        target=float(target),
        target_share=share,
        reached_share=float(reached),
        scores={f"{rate:.3g}": score for rate, score in sorted(scores.items())},
    )


def _sweep(bench: _Bench, begin: float, *, factor: float, num_seeds: int, patience: int) -> dict[float, float]:
    """Scores by rate: from ``begin`` to both sides, until ``patience`` in a row are worse than the best."""
    scores = {begin: bench.score(begin, num_seeds=num_seeds)}
    for step in (factor, 1 / factor):
        rate, worse = begin, 0
        while worse < patience:
            rate *= step
            best = max(scores.values())
            scores[rate] = bench.score(rate, num_seeds=num_seeds)
            worse = worse + 1 if scores[rate] <= best else 0
    return scores


def _bearable(bench: _Bench, best: float, *, factor: float) -> float:
    """Return the rate of this factor, or the next below it at which a single process still learns."""

    def rise(rate: float) -> float:
        _, fit = bench.curve(rate, num_seeds=2)
        return float(fit[-1] - fit[0])

    rate = best * factor
    while factor > 1.0 and rate > best and rise(rate) < KEPT_RISE * rise(best):
        rate /= HALF_OCTAVE
    return rate
