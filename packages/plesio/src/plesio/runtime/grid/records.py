"""A grid's records: what each worker counts, snapshots and evaluations, and the result that all come to at the end.

The worker that collects (`plesio.runtime.grid.collector`) evaluates the mean over the groups, and makes the result of
all workers' figures. The others send it theirs when they are done, and wait for the result.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from plesio.core.clock import TrainingClock
from plesio.core.records import Record, from_values, to_values
from plesio.core.results import Evaluation, Found, RunResult, RunStatus, Staleness, write_results
from plesio.policies.grid import GridSetting
from plesio.protocol.figures import Report, RunInfo
from plesio.runtime.coordinator.ledger import Ledger, World
from plesio.runtime.grid.collector import Collector
from plesio.runtime.grid.messages import as_tensor, as_text
from plesio.runtime.grid.network import state_of
from plesio.runtime.grid.regrouping import Composed
from plesio.runtime.grid.tick import Tally
from plesio.runtime.worker.evaluation import Goals, Judge, Metric
from plesio.runtime.worker.exchange.exchange import SnapshotTaker
from plesio.runtime.worker.exchange.replica import State
from plesio.runtime.worker.machine import environment
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.past import WorkerPast


class Figures(Record, frozen=True, kw_only=True):
    """One worker's figures, for the collector.

    Attributes:
        staleness: How many updates had which.
        shots: Samples of all workers and seconds of training at each snapshot.
    """

    rank: int
    report: Report
    staleness: list[tuple[int, int]]
    shots: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Shot:
    """A stage's state after ``samples`` samples of all groups, ``at_s`` seconds of training after the first step.

    Attributes:
        samples: Those that count.
        tensors: The state; empty of a worker that was not there yet.
        dealt: Samples that were given out, lost ones among them: alike on all workers.
    """

    samples: int
    at_s: float
    tensors: list[Tensor]
    dealt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRun:
    """A run, as its result names it.

    Attributes:
        setting: The grid that it began with.
        folder: Where the result goes; None for nowhere.
        on_ended: Called with the whole run's result, on the collector.
    """

    setting: GridSetting
    info: RunInfo
    world: World
    folder: Path | None
    racks: tuple[int, ...]
    on_ended: Callable[[RunResult], None]


@dataclass(slots=True, kw_only=True)
class GridRecords:
    """One worker's.

    Attributes:
        past: Evaluations that the program has come through.
        evaluations: On the worker that collects.
        result: The whole run's, or where it has ended with an error this worker's part.
        final: The whole network at the end, on the worker that collects.
    """

    collector: Collector
    run: GridRun
    timeline: WorkerTimeline
    training: TrainingClock
    snapshots: SnapshotTaker
    past: WorkerPast
    tally: Tally = field(default_factory=Tally)
    shots: list[Shot] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    finished: bool = False
    result: RunResult | None = None
    final: State | None = None

    def shoot(self, composed: Composed) -> None:
        """Keep the stage's state where the samples dealt to all groups have passed the next multiple."""
        if self.snapshots.due(self.tally.dealt):
            self.snapshots.passed(self.tally.dealt)
            self.shots.append(self._shot(composed))

    def _shot(self, composed: Composed) -> Shot:
        state = state_of(composed.worker.stage.layers)
        return Shot(self.tally.samples, self.training.elapsed_s(), state, self.tally.dealt)

    def mean(self, composed: Composed) -> tuple[State, float] | None:
        """Return the mean over the groups and their distance from it, on the worker that collects; None elsewhere."""
        own = state_of(composed.worker.stage.layers)
        return self._whole(composed, self.collector.retried(lambda: self.collector.gather(own)))

    def _whole(self, composed: Composed, states: Mapping[int, list[Tensor]] | None) -> tuple[State, float] | None:
        return None if states is None else composed.network.whole(states, self.collector.formation.setting)

    def evaluate(self, composed: Composed, metric: Metric, goal: Goals) -> Found:
        """Evaluate the mean over the groups; returns the metric on the worker that collects, None elsewhere."""
        with self.timeline.beside_steps():
            if (mean := self.mean(composed)) is None:
                return self.past.evaluated(None)
            samples, at_s = self.tally.samples, self.training.elapsed_s()
            return self.past.evaluated(self._measure(composed, mean, metric, goal, samples=samples, at_s=at_s))

    def _measure(
        self, composed: Composed, mean: tuple[State, float], metric: Metric, goal: Goals, *, samples: int, at_s: float
    ) -> Found:
        state, distance = mean
        with composed.network.loaded(state):
            self.evaluations.append(Judge(self.run.info).judged(metric, goal, samples=samples, at_s=at_s))
        clock = composed.worker.machine.given
        self.timeline.event("consensus", at_s=self.timeline.now_s(), clock=clock, distance=distance)
        return self.evaluations[-1].found

    def settle(self, composed: Composed, metric: Metric | None, goal: Goals) -> None:
        """Come to the run's result, together with all that are there; evaluates every snapshot, if there is a metric.

        Raises:
            PeerGoneError: A worker of this group is gone.
        """
        self.finished = True
        shots = [*self.shots, final := self._shot(composed)]
        if len(shots) > 1 and shots[-2].dealt == final.dealt:
            del shots[-2]
        own, before = as_tensor(json.dumps(to_values(self._figures(shots)))), list(self.evaluations)

        def conclude() -> tuple[str, State | None]:
            self.evaluations[:] = before
            rows = self.collector.gather([own])
            figures = [] if rows is None else [_figures_in(row) for _, [row] in sorted(rows.items())]
            mean = None
            for number, shot in enumerate(shots):
                mean = self._whole(composed, self.collector.gather(shot.tensors))
                if mean is not None and metric is not None:
                    at_s = max(one.shots[number][1] for one in figures)
                    self._measure(composed, mean, metric, goal, samples=shot.samples, at_s=at_s)
            if mean is None:  # another worker collects
                return self.collector.tell(None), None
            state, _ = mean
            composed.network.keep(state)
            result = self._result_of(figures, sha256=composed.network.sha256(state))
            self._keep(result)
            return self.collector.tell(json.dumps(result.to_json())), state

        text, self.final = self.collector.retried(conclude)
        self.result = RunResult.from_json(json.loads(text))

    def _figures(self, shots: Sequence[Shot] = ()) -> Figures:
        meter = self.timeline.meter
        return Figures(
            rank=self.collector.rank,
            report=meter.take() if self.finished else meter.so_far(),
            staleness=sorted(self.tally.staleness.items()),
            shots=[(shot.samples, shot.at_s) for shot in shots],
        )

    def _result_of(
        self,
        all_figures: Sequence[Figures],
        *,
        sha256: str | None,
        status: RunStatus = "finished",
        error: str | None = None,
    ) -> RunResult:
        run = self.run
        ledger = Ledger(policy=run.setting.spec, info=run.info, num_workers=run.setting.num_workers, world=run.world)
        ledger.begin(0.0, rack_of=run.racks)
        ledger.ran_on(environment())
        ledger.metric.enter(self.evaluations, parameters_sha256=sha256)
        there = {figures.rank for figures in all_figures}
        for worker in sorted({*self.collector.known, *range(run.setting.num_workers)} - there):
            ledger.lose(worker)
        staleness: Counter[int] = Counter()
        for figures in all_figures:
            ledger.report(figures.rank, figures.report)
            staleness.update(dict(figures.staleness))
        ledger.stale(staleness)
        if ledger.lost and all_figures[0].shots:  # what lost groups have done counts, too
            of_these = sum(figures.report.samples for figures in all_figures)
            ledger.regrouped(sorted(there), samples=all_figures[0].shots[-1][0], own=of_these, dropped=0)
        result = ledger.result(status=status, error=error)
        own = {figures.rank: Staleness.of(dict(figures.staleness)) for figures in all_figures}
        return replace(result, workers=tuple(replace(it, staleness=own.get(it.worker)) for it in result.workers))

    def so_far(self, *, status: RunStatus = "running", error: str | None = None) -> RunResult:
        """Return this worker's own part."""
        return replace(self._result_of([self._figures()], sha256=None, status=status, error=error), lost_workers=())

    def break_off(self, error: BaseException) -> None:
        """Keep this worker's part of a run that ends here; the one that collects writes it."""
        if isinstance(error, KeyboardInterrupt):
            self.result = self.so_far(status="interrupted", error="interrupted")
        else:
            self.result = self.so_far(status="failed", error=f"{type(error).__name__}: {error}")
        if self.collector.collects:
            self._keep(self.result)

    def _keep(self, result: RunResult) -> None:
        if self.run.folder is not None:
            self.run.folder.mkdir(parents=True, exist_ok=True)
            write_results(self.run.folder / "results.json", [result])
        self.run.on_ended(result)

    def values(self) -> dict[str, Any]:
        meter = self.timeline.meter
        return {
            "training_s": self.training.elapsed_s(),
            "report": msgspec.to_builtins(meter.so_far()),
            "losses": [list(one) for one in meter.totals.losses],
            "metrics": self.past.metrics,
            "evaluations": [msgspec.to_builtins(one) for one in self.evaluations],
            "shots": [[it.samples, it.at_s, [tensor.clone() for tensor in it.tensors], it.dealt] for it in self.shots],
        }

    def load(self, values: dict[str, Any]) -> None:
        """Go on from what `values` gave; the worker has its tally by now."""
        self.snapshots.passed(self.tally.dealt)
        meter = self.timeline.meter
        meter.go_on_from(Report(**values["report"]))
        meter.totals.losses = [tuple(one) for one in values["losses"]]
        self.evaluations = [Evaluation(**one) for one in values["evaluations"]]
        self.shots = [Shot(*shot) for shot in values["shots"]]


def _figures_in(tensor: Tensor) -> Figures:
    figures: Figures = from_values(json.loads(as_text(tensor)), Figures)
    return figures
