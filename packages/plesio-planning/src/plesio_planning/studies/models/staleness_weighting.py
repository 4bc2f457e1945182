"""When counting stale updates less pays.

Update t of a delayed gradient descent (`studies.delayed_descent`) is τ(t) updates stale and counts with a weight
w(τ(t)) (`plesio.policies.weighting`). A coordinate loses ``αλ E[w]`` an update, and what makes it unstable is ``E[w
τ]``: a weighting is worth something if it takes more from the second than from the first. With constant staleness it is
only a smaller step by another name. Two questions: which weighting survives a step of 1/L that nobody tuned, and which
is the fastest when each has its best step.

``docs/planning/studies/staleness-weighting.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Axis, Chart, HeatMap, LineChart, Series, Table
from plesio.core.errors import ArgumentError, PolicySpecError
from plesio.core.only_with import OnlyWith
from plesio.core.units import counted
from plesio.core.within import Within
from plesio.policies.weighting import UNWEIGHTED, Weighting, parse_weighting
from plesio_planning.sim.recurrences import order_updates, simulate_bound
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.delayed_descent import (
    BestStep,
    DelayedDescent,
    LateUpdates,
    descend,
    eigenvalues_of,
    find_best_step,
)
from plesio_planning.studies.interval import Interval, interval_of
from plesio_planning.studies.order_statistics import LogNormalTimes
from plesio_planning.studies.study import Answer

_FEWEST_UPDATES, _MOST_UPDATES = 20_000, 500_000
"""That a descent may take: more the worse the condition, up to what can be waited for."""
_NUM_CURVE_POINTS = 200
_LARGEST_STEP = 4.0
"""The largest step in units of 1/L; twice what is stable where everything is fresh."""
_NUM_WORKERS, _CV, _SLOWDOWN = 11, 0.3, 3.0
"""The asynchronous run whose staleness is one of the distributions; unweighted mean staleness is about 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntunedWeighting:
    """A weighting with a step that was not tuned for it.

    Attributes:
        name: Treatment of an update.
        step: The step of a fresh update, in units of 1/L.
        iterations: Updates until the target; infinite where a trial did not arrive.
        by_trial: Updates of each trial; infinite where it did not arrive.
        curve_iterations: Iterations at which the first trial was looked at.
        curve_distance: Its distance there, as a share of the start's.
    """

    name: str
    step: float
    iterations: Interval
    by_trial: tuple[float, ...]
    num_diverged: int
    curve_iterations: tuple[int, ...]
    curve_distance: tuple[float, ...]

    @property
    def arrival(self) -> str:
        """Iterations, and how many of the trials got there where not all did.

        With as few as one trial that does not arrive there is no mean over all; that of the others is not what anybody
        can expect.
        """
        arrived = [number for number in self.by_trial if math.isfinite(number)]
        lost = len(self.by_trial) - len(arrived)
        if not lost:
            return f"{self.iterations:.0f}"
        how = "diverge" if self.num_diverged == lost else "do not arrive"
        if not arrived:
            return "diverges" if self.num_diverged == lost else "does not arrive"
        return f"{lost} of {len(self.by_trial)} {how}, the others {interval_of(arrived):.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedWeighting:
    """A weighting with its best step, on one distribution of staleness.

    Attributes:
        weighting: Text that `plesio.policies.weighting` reads.
        step: The best step of a fresh update, in units of 1/L.
        saved: Share of the iterations of unweighted updates, with their best step, that it saves.
        by_step: Updates for all steps that were tried.
    """

    staleness: str
    weighting: str
    step: float
    iterations: float
    saved: float
    by_step: Mapping[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessWeighting(Answer):
    """The effects of weightings.

    Attributes:
        untuned: Runs with steps that were not tuned, on the staleness that was asked for.
        tuned: Runs with the best step for each weighting, on several distributions of staleness.
        shares: Shares of updates by their staleness, for each distribution.
        target: Distance that is wanted, as a share of the start's.
        num_trials: Repetitions of what was not tuned, with other starts and other draws of the staleness.
    """

    unit: ClassVar[str] = "iterations"
    untuned: tuple[UntunedWeighting, ...]
    tuned: tuple[TunedWeighting, ...]
    shares: Mapping[str, tuple[float, ...]]
    target: float
    num_trials: int

    def _untuned(self, name: str) -> UntunedWeighting:
        return next(each for each in self.untuned if each.name == name)

    @property
    def finding(self) -> str:
        """Untuned: who arrives; tuned: what is saved, with staleness that varies and with constant staleness."""
        inverse, small, plain = map(self._untuned, ("inverse", "small", "none"))
        asked = next(iter(self.shares))
        best = max((each for each in self.tuned if each.staleness == asked), key=lambda each: each.saved)
        constant = max(each.saved for each in self.tuned if each.staleness == "constant")
        saves = f"{best.weighting} saves {100 * best.saved:.0f} % of unweighted updates' iterations"
        if best.weighting == "none":
            saves = "no weighting saves iterations"
        return (
            f"With staleness {asked} and a step of 1/L, iterations of unweighted updates: {plain.arrival}; of 1/(1+τ): "
            f"{inverse.arrival}; of one step of {small.step:.3g}/L for all: {small.arrival} (mean of "
            f"{counted(self.num_trials, 'trial')} and its 95 % interval, each from a start of its own). With the best "
            f"step for each, {saves}; where staleness is constant no weighting saves more than {100 * constant:.1f} %."
        )

    @property
    def total(self) -> float:
        """Mean iterations with one small step for all."""
        return self._untuned("small").iterations.mean

    @property
    def parts(self) -> Mapping[str, float]:
        """The iterations that 1/(1+τ) needs, and those that it saves."""
        inverse = self._untuned("inverse").iterations.mean
        if math.isinf(inverse):
            return {"one small step": self.total}
        return {"with 1/(1+τ) at 1/L": inverse, "saved by it": self.total - inverse}

    def tables(self) -> Sequence[Table]:
        """List runs untuned, and with the best steps."""
        return [
            table_of(
                f"Not tuned, {counted(self.num_trials, 'trial')} (mean and 95 % interval):",
                self.untuned,
                {
                    "weighting": lambda each: _LABELS.get(each.name, each.name),
                    "step (1/L)": lambda each: f"{each.step:.4g}",
                    "iterations": lambda each: each.arrival,
                },
            ),
            table_of(
                "With the best step for each:",
                self.tuned,
                {
                    "staleness": lambda each: each.staleness,
                    "weighting": lambda each: each.weighting,
                    "best step (1/L)": lambda each: f"{each.step:.3g}" if math.isfinite(each.iterations) else "–",
                    "iterations": lambda each: (
                        f"{each.iterations:.0f}" if math.isfinite(each.iterations) else "never arrives"
                    ),
                    "saved": lambda each: f"{100 * each.saved:+.1f} %" if math.isfinite(each.iterations) else "–",
                },
            ),
        ]

    def charts(self) -> Sequence[Chart]:
        """Draw the untuned runs, the savings by distribution, iterations by step, and the distributions."""
        return [self._curves(), self._saved(), self._steps(), self._distributions()]

    def _curves(self) -> LineChart:
        series = [
            Series(name=_LABELS.get(each.name, each.name), x=each.curve_iterations, y=each.curve_distance)
            for each in self.untuned
        ]
        return LineChart(
            slug="curves",
            title="At a step that nobody tuned, weighting decides who arrives",
            caption=f"Distance from the optimum, first trial; staleness {next(iter(self.shares))}.",
            x=Axis(title="iterations"),
            y=Axis(title="distance, share of the start's", log=True),
            series=series,
        )

    def _saved(self) -> HeatMap:
        rows = list(self.shares)
        columns = list(dict.fromkeys(each.weighting for each in self.tuned))
        cells = {(each.staleness, each.weighting): each for each in self.tuned}
        ratios = [[1 - cells[row, column].saved for column in columns] for row in rows]
        return HeatMap(
            slug="saved",
            title="Weighting pays where staleness varies, and not where it is constant",
            caption="Iterations with the best step for each weighting, as a share of those of unweighted updates.",
            x=Axis(title="weighting"),
            y=Axis(title="staleness"),
            columns=columns,
            rows=rows,
            values=[[ratio if math.isfinite(ratio) else math.nan for ratio in row] for row in ratios],
            scale=Axis(title="iterations, share of unweighted"),
            texts=[[f"{ratio:.2f}" if math.isfinite(ratio) else "never" for ratio in row] for row in ratios],
        )

    def _steps(self) -> LineChart:
        asked = next(iter(self.shares))
        series = [
            Series(name=each.weighting, x=list(arriving), y=list(arriving.values()))
            for each in self.tuned
            if each.staleness == asked
            for arriving in [{step: number for step, number in each.by_step.items() if math.isfinite(number)}]
        ]
        return LineChart(
            slug="steps",
            title="A weighting allows larger steps",
            caption=f"Iterations by the step of a fresh update, staleness {asked}; a line ends where it diverges.",
            x=Axis(title="step (1/L)", log=True),
            y=Axis(title="iterations", log=True),
            series=series,
        )

    def _distributions(self) -> LineChart:
        largest = {
            name: max(tau for tau, share in enumerate(shares) if share > 0) for name, shares in self.shares.items()
        }
        longest = max(largest, key=lambda name: largest[name])
        return LineChart(
            slug="distributions",
            title=f"The longest tail is that of {longest}: staleness up to {largest[longest]}",
            caption="Share of updates by staleness.",
            x=Axis(title="staleness (updates)"),
            y=Axis(title="updates (%)", log=True),
            series=[
                line
                for name, shares in self.shares.items()
                for line in lines_of(
                    range(len(shares)), points={name: [100 * share or math.nan for share in shares]}, hollow=True
                )
            ],
        )


_LABELS = {"none": "unweighted", "small": "one small step", "inverse": "1/(1+τ)"}


def staleness_weighting(
    *,
    max_staleness: Annotated[int, Within(0, 500), OnlyWith("shares")] = 20,
    shares: Annotated[tuple[float, ...], Within(0, fewest=0, most=500)] = (),
    weightings: tuple[str, ...] = ("exp:0.1", "cap:10"),
    condition_number: Annotated[float, Within(1, 1e5)] = 100.0,
    target: Annotated[float, Within(1e-12, 1, without="high")] = 1e-4,
    num_dimensions: Annotated[int, Within(2, 1000)] = 100,
    num_trials: Annotated[int, Within(1, 100)] = 20,
    seed: int = 0,
) -> StalenessWeighting:
    """Compute iterations by weighting, untuned and with the best step for each.

    >>> answer = staleness_weighting(num_trials=2)
    >>> {each.name: round(each.by_trial[0]) for each in answer.untuned if each.num_diverged == 0}["small"]
    12925

    Args:
        max_staleness: Staleness is drawn evenly from 0 to this.
        shares: Shares of updates with staleness 0, 1, 2 ..., as somebody measured them; they take the place of the even
            ones.
        weightings: Weightings beside none and inverse, as policies take them: exp:RATE or cap:LIMIT.
        condition_number: Largest over smallest eigenvalue.
        target: Distance that is wanted, as a share of the start's.
        num_dimensions: Dimensions of the quadratic without tuned steps; with them only the ends of its spectrum take
            part.
        num_trials: Starts, each with a draw of the staleness, for the steps that are not tuned.
        seed: Seed of starts and draws.
    """
    if shares and sum(shares) == 0:
        raise ArgumentError("`shares` are all 0; write how many updates had staleness 0, 1, 2 ...")
    try:
        parsed = [parse_weighting(text) for text in dict.fromkeys(("none", "inverse", *weightings))]
    except PolicySpecError as error:
        raise ArgumentError.about("weightings", error) from None
    random = np.random.default_rng(seed)
    spectrum = eigenvalues_of(condition_number, num_dimensions=num_dimensions)
    starts = [random.standard_normal(num_dimensions)]
    even = np.array(shares or (1.0,) * (max_staleness + 1))
    even = even / even.sum()
    name = "as measured" if shares else f"0 to {max_staleness}"
    most = _enough(condition_number, num_stalenesses=len(even), target=target)
    draws = [random.choice(len(even), size=most, p=even) for _ in range(num_trials)]
    starts += [random.standard_normal(num_dimensions) for _ in range(num_trials - 1)]
    plans = [(each.spec, 1.0, each) for each in parsed] + [("small", 1 / len(even), UNWEIGHTED)]
    untuned = tuple(_untuned(plan, draws=draws, spectrum=spectrum, starts=starts, target=target) for plan in plans)
    stalenesses = {name: draws[0], **_others(round(float(even @ np.arange(len(even)))), most=most, random=random)}
    ends = eigenvalues_of(condition_number, num_dimensions=2)
    return StalenessWeighting(
        untuned=untuned,
        tuned=tuple(
            each
            for kind, staleness in stalenesses.items()
            for each in _tuned(kind, staleness, weightings=parsed, ends=ends, target=target)
        ),
        shares={kind: tuple((np.bincount(each) / len(each)).tolist()) for kind, each in stalenesses.items()},
        target=target,
        num_trials=num_trials,
    )


def _enough(condition_number: float, *, num_stalenesses: int, target: float) -> int:
    """Return the updates in which the least mean weight, one over the number of stalenesses, arrives at step 1/L."""
    settled = 2 * num_stalenesses
    for_each = num_stalenesses * -math.log(target)
    needed = condition_number * for_each + settled
    if needed > _MOST_UPDATES:
        arrives = max(1, math.floor((_MOST_UPDATES - settled) / for_each))
        raise ArgumentError(
            f"a `condition_number` of {condition_number:g} with a `max_staleness` of {num_stalenesses - 1} takes up to "
            f"{needed:.3g} updates to a `target` of {target:g}; write a `condition_number` of {arrives} or less, or "
            "a smaller `max_staleness` (fewer `shares`), or a larger `target`"
        )
    return max(_FEWEST_UPDATES, math.ceil(needed))


def _others(mean: int, *, most: int, random: np.random.Generator) -> dict[str, NDArray[np.int64]]:
    """Distribute staleness in other ways, with the same mean where it can be chosen."""
    step_s = LogNormalTimes(mean_s=1.0, cv=_CV).draw_s(random, (_NUM_WORKERS, most // _NUM_WORKERS + 1))
    step_s[-1] *= _SLOWDOWN
    asynchronous = order_updates(simulate_bound(step_s, bound=math.inf), exchange_s=0.0)
    # while the slow worker has steps left and the others have none, nothing is stale any more
    running = asynchronous.staleness[: most * 2 // 3]
    return {
        "constant": np.full(most, mean),
        "geometric": random.geometric(1 / (1 + mean), most) - 1,
        f"{_NUM_WORKERS} workers, one slow": np.resize(running, most),
    }


def _weights(weighting: Weighting, staleness: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.array([weighting(tau) for tau in range(int(staleness.max()) + 1)])[staleness]


def _untuned(
    plan: tuple[str, float, Weighting],
    *,
    draws: Sequence[NDArray[np.int64]],
    spectrum: NDArray[np.float64],
    starts: Sequence[NDArray[np.float64]],
    target: float,
) -> UntunedWeighting:
    name, step, weighting = plan

    def trial(start: NDArray[np.float64], staleness: NDArray[np.int64]) -> DelayedDescent:
        wanted = target * float(np.linalg.norm(start))
        steps = step * _weights(weighting, staleness)
        return descend(eigenvalues=spectrum, start=start, updates=LateUpdates.of(staleness, steps=steps), target=wanted)

    trials = [trial(start, staleness) for start, staleness in zip(starts, draws, strict=True)]
    iterations = [each.iterations for each in trials]
    shown = trials[0].distance
    places = np.unique(np.linspace(0, len(shown) - 1, _NUM_CURVE_POINTS).astype(int))
    return UntunedWeighting(
        name=name,
        step=step,
        iterations=interval_of(iterations),
        by_trial=tuple(iterations),
        num_diverged=sum(each.diverged for each in trials),
        curve_iterations=tuple(places.tolist()),
        curve_distance=tuple((shown[places] / shown[0]).tolist()),
    )


def _tuned(
    kind: str,
    staleness: NDArray[np.int64],
    *,
    weightings: Sequence[Weighting],
    ends: NDArray[np.float64],
    target: float,
) -> list[TunedWeighting]:
    start = np.ones(len(ends))

    def best_step(weighting: Weighting) -> BestStep:
        weights = _weights(weighting, staleness)
        return find_best_step(
            lambda step: (
                descend(
                    eigenvalues=ends,
                    start=start,
                    updates=LateUpdates.of(staleness, steps=step * weights),
                    target=target,
                ).iterations
            ),
            largest=_LARGEST_STEP,
        )

    found = {weighting.spec: best_step(weighting) for weighting in weightings}
    plain = found["none"].iterations
    return [
        TunedWeighting(
            staleness=kind,
            weighting=spec,
            step=best.step,
            iterations=best.iterations,
            saved=_saved_share(best.iterations, of=plain),
            by_step=best.tried,
        )
        for spec, best in found.items()
    ]


def _saved_share(iterations: float, *, of: float) -> float:
    """Return the share that is saved: 1 if only the other never arrives, and 0 if neither does."""
    if math.isinf(of):
        return 0.0 if math.isinf(iterations) else 1.0
    return 1 - iterations / of
