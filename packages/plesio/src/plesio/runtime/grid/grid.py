"""The session of an S x K grid: what a training loop sees of it.

    with plesio.grid(stages, optimizer_factory, loss, groups=2) as grid:
        for x, y in grid.shard(loader):
            grid.step(x, y)
        grid.evaluate(lambda: accuracy(grid.model, held_out))

Every worker goes through the same loop and is given the same micro-batches as its group; the first stage reads x, the
last one y. A call of `Grid.step` does what the stage's schedule (`plesio.policies.grid.schedule`) has until the next
micro-batch, so a worker waits for nothing but what its next pass needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from plesio.core.clock import TrainingClock
from plesio.core.errors import ConfigError, PlesioError, TaskError, WorkerLostError
from plesio.core.results import Evaluation, Found, RunResult, RunStatus
from plesio.policies.grid import GridSetting
from plesio.protocol.figures import Report
from plesio.runtime.checkpoints.worker import random_states, set_random_states
from plesio.runtime.grid.column import GridPlace, lost
from plesio.runtime.grid.feed import Feed, FeedState
from plesio.runtime.grid.messages import PeerFailedError
from plesio.runtime.grid.records import Books, Collector, Figures, Shot, state_of
from plesio.runtime.grid.regrouping import Composed
from plesio.runtime.grid.saving import GridSaver
from plesio.runtime.grid.settling import Settlement
from plesio.runtime.grid.tick import Tally
from plesio.runtime.worker.exchange.links import PeerGoneError
from plesio.runtime.worker.judge import Goals, Judge, Metric
from plesio.runtime.worker.loops import Shard
from plesio.runtime.worker.timeline import Timeline

__all__ = ["Grid"]

M = TypeVar("M", bound=float | Mapping[str, float])


class Grid:
    """One worker's part in a grid. Made by `plesio.grid`; see there for the arguments.

    Attributes:
        rank: This worker's number.
        group: s, its group, from 0. Groups that join have numbers from S on.
        stage: k, its stage, from 0.
        model: The whole network. Within `evaluate` it has the groups' mean weights; otherwise a worker's own stage
            alone is up to date.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        place: GridPlace,
        compose: Callable[[Any, TrainingClock], Composed],
        collector: Collector,
        books: Books,
        timeline: Timeline,
        release: Callable[[], None],
        finished_without: Callable[[Sequence[int]], None],
        snapshot_every: int | None = None,
        saver: GridSaver | None = None,
        past: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.group, self.stage = place.group, place.stage
        self.rank = collector.rank
        self._place = place
        self._compose = compose
        self._composed: Composed | None = None
        self._collector = collector
        self._books = books
        self._timeline = timeline
        self._release = release
        self._finished_without = finished_without
        self._snapshot_every = snapshot_every
        self._shots: list[Shot] = []
        self._passed = 0
        """Multiples of ``snapshot_every`` that the samples have passed."""
        self._saver = saver
        self._past = past
        self._random: dict[str, Any] | None = None if past is None else past["random"]
        """Where random numbers are to go on from, until they have."""
        self._training = TrainingClock(timeline.clock, already_s=0.0 if past is None else past["training_s"])
        self._feed = Feed(
            place.group,
            collector.formation,
            seed=books.info.seed,
            now_s=timeline.now_s,
            say=timeline.meter.totals.fallbacks.append,
            past=None if past is None else FeedState.from_values(past["feed"]),
            go_on=self._go_on,
        )
        self._evaluations: list[Evaluation] = []
        self._metrics: list[Found] = []
        self._metrics_before: list[Found] = [] if past is None else list(past["metrics"])
        """What evaluations gave before the checkpoint."""
        self._result: RunResult | None = None
        self._broken: RunResult | None = None
        """Figures of a run that ends with an error here."""
        self._final: dict[str, Tensor] | None = None
        self._finished = self._closed = False
        self._take_up()

    @property
    def setting(self) -> GridSetting:
        """The grid's, of the groups that are there."""
        return self._collector.formation.setting

    @property
    def layers(self) -> nn.Module:
        """This worker's own stage; it is there from the first step on.

        Raises:
            ConfigError: There has been none.
        """
        return self._ready().worker.stage.layers

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of this worker's stage; it is there from the first step on."""
        return self._ready().worker.stage.optimizer

    @property
    def clock(self) -> int:
        """Micro-batches that this worker has been given."""
        return 0 if self._composed is None else self._composed.worker.machine.given

    @property
    def elapsed_s(self) -> float:
        """Training time so far: evaluation does not count."""
        return self._training.elapsed_s()

    def _ready(self) -> Composed:
        if self._composed is None:
            raise ConfigError("the grid is cut at its first step; this is there after grid.step(x, y)")
        return self._composed

    def shard(self, loader: DataLoader[Any], *, samples: int | None = None) -> Shard:
        """This group's micro-batches of what the loader's sampler gives in an epoch. All of its stages get the same.

        Args:
            loader: A loader over a map-style data set. Its ``batch_size`` is a micro-batch's.
            samples: Train on this many samples over all groups, crossing epochs; None is one epoch.

        Returns:
            What gives the batches in the loader's own form, and has a length; iterated anew it is the next epoch.

        Raises:
            DataError: The data set has no length, or has fewer samples than there are groups.
        """
        self._ensure_open()
        return self._feed.shard(loader, samples=samples)

    def step(self, x: Any, y: Any) -> float | None:
        """Train on a micro-batch: forward with this one, backward with an earlier one, update, send on.

        Args:
            x: What the network is given: a tensor, or several; the first stage uses it.
            y: What the loss is given beside the network's output; the last stage uses it.

        Returns:
            The loss of this micro-batch, on the last stage; None elsewhere.

        Raises:
            TaskError: The stages do not chain, share weights, or the loss is not the mean over a micro-batch.
            WorkerLostError: A worker of this group is gone.
        """
        self._ensure_open()
        try:
            if self._composed is None:
                self._composed = self._compose(x, self._training)
            self._go_on()
            self._training.start()
            inputs = list(x) if isinstance(x, tuple | list) else [x]
            worker = self._composed.worker
            of_all = self._feed.take_samples(self.clock)
            if of_all is None:
                of_all = len(inputs[0]) * self.setting.groups
            loss = worker.tick(inputs, y, of_all=of_all, more=self._feed.more)
            self._shoot()
            self._save_if_due()
            self._composed.regrouper.after_tick(self._feed, self._values)
        except (PlesioError, PeerGoneError) as error:
            raise self._leaving(error) from None
        return loss

    def _shoot(self) -> None:
        """Keep the stage's state where the samples dealt to all groups have passed a multiple of ``snapshot_every``."""
        every, tally = self._snapshot_every, self._ready().worker.tally
        if every is not None and tally.dealt // every > self._passed:
            self._passed = tally.dealt // every
            self._shots.append(self._shot())

    def _shot(self) -> Shot:
        tally = self._ready().worker.tally
        return Shot(tally.samples, self._training.elapsed_s(), state_of(self.layers), tally.dealt)

    def state_dict(self) -> dict[str, Tensor] | None:
        """The whole network's ordinary state, the mean over the groups, on the worker that collects; None elsewhere.

        All workers call it at the same place. It loads into the network as it was before it was cut.
        """
        if self._finished:
            state = self._final
        else:
            found = self._gathered(state_of(self.layers))
            state = None if found is None else found[0]
        return None if state is None else self._ready().network.as_state_dict(state)

    def _gathered(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], float] | None:
        states = self._collector.retried(lambda: self._collector.gather(tensors))
        return None if states is None else self._ready().network.whole(states, self.setting)

    def evaluate(self, metric: Callable[[], M], *, goal: Goals = None) -> M | None:
        """Evaluate the groups' mean weights, with the training clock stopped. All workers call it at the same place.

        Args:
            metric: Called with these weights in `model`, in evaluation mode, on the worker that collects.
            goal: As in `plesio.Session.evaluate`.

        Returns:
            The metric there; None elsewhere.
        """
        self._ensure_open()
        if len(self._metrics) < len(self._metrics_before):  # it was done before the checkpoint
            self._metrics.append(self._metrics_before[len(self._metrics)])
            return cast("M | None", self._metrics[-1])
        begun_s = self._timeline.now_s()
        self._training.pause()
        try:
            with self._timeline.beside_steps():
                found = self._gathered(state_of(self.layers))
                value: Found = None
                if found is not None:
                    samples = self._ready().worker.tally.samples
                    self._evaluations.append(self._measure(metric, goal, found, samples, self._training.elapsed_s()))
                    value = self._evaluations[-1].found
            self._metrics.append(value)
            return cast("M | None", value)
        except PeerGoneError as error:
            raise self._leaving(error) from None
        finally:
            self._training.resume()
            self._ready().worker.mark()
            self._timeline.evaluate(begun_s, self._timeline.now_s(), clock=self.clock)

    def _measure(
        self, metric: Metric, goal: Goals, found: tuple[dict[str, Tensor], float], samples: int, at_s: float
    ) -> Evaluation:
        state, distance = found
        with self._ready().network.loaded(state):
            evaluation = Judge(self._books.info).judged(metric, goal, samples=samples, at_s=at_s)
        self._timeline.event("consensus", at_s=self._timeline.now_s(), clock=self.clock, distance=distance)
        return evaluation

    def finish(self, metric: Metric | None = None, *, goal: Goals = None) -> None:
        """Go back with the micro-batches that are under way, and put the network and the figures together.

        Called by `close`; call it yourself to have every snapshot and the final network evaluated.
        """
        self._ensure_open()
        if self._finished:
            return
        worker = self._ready().worker
        try:
            worker.end(between=self._shoot)
            self._ready().regrouper.end(self._feed)
            self._shoot()
            self._training.pause()
            self._timeline.leave_steps()
            self._finished = True
            self._settle(metric, goal)
        except (PlesioError, PeerGoneError) as error:
            raise self._leaving(error) from None

    def _settle(self, metric: Metric | None, goal: Goals) -> None:
        """Come to the run's result, together with all that are there."""
        ready = self._ready()
        shots = [*self._shots, final := self._shot()]
        if len(shots) > 1 and shots[-2].dealt == final.dealt:
            del shots[-2]
        settlement = Settlement(
            collector=self._collector,
            network=ready.network,
            books=self._books,
            evaluations=self._evaluations,
            measure=None if metric is None else partial(self._measure, metric, goal),
        )
        self._result, self._final = settlement.settle(self._figures(shots), shots)

    def _figures(self, shots: Sequence[Shot]) -> Figures:
        tally = Tally() if self._composed is None else self._composed.worker.tally
        report = self._timeline.meter.take() if self._finished else self._timeline.meter.so_far()
        return Figures(
            rank=self.rank,
            report=report,
            staleness=sorted(tally.staleness.items()),
            shots=[(shot.samples, shot.at_s) for shot in shots],
        )

    def report(self) -> RunResult:
        """The run's figures: after `finish` or `close` of the whole run; before, what this worker has done."""
        return self._result or self._broken or self._so_far()

    def _so_far(self, *, status: RunStatus = "running", error: str | None = None) -> RunResult:
        """What this worker alone knows."""
        figures = [self._figures([])]
        result = self._books.result(figures, evaluations=self._evaluations, sha256=None, status=status, error=error)
        return replace(result, lost_workers=())

    def _reason(self, gone: PeerGoneError) -> PlesioError:
        """What a neighbour has left with, or that it was lost, or that this worker was."""
        if self._collector.watch.doubtful:
            return WorkerLostError.expelled(self.rank)
        told = None if self._composed is None else self._composed.worker.column.said(gone)
        return lost(gone, self._place, self.setting) if told is None else PeerFailedError(told)

    def save(self) -> None:
        """Take a checkpoint after the next micro-batch; all workers call it at the same place.

        Raises:
            ConfigError: The grid has no checkpoints.
        """
        self._ensure_open()
        if self._saver is None:
            raise ConfigError('this grid has no checkpoints; plesio.grid(..., checkpoint="FOLDER") has')
        self._saver.ask()

    def _save_if_due(self) -> None:
        saver, news = self._saver, self._ready().worker.news
        if saver is None:
            return
        is_due = saver.due(self.clock, saves=news.saves)
        news.save(saver.announce(self.clock, save_at=news.save_at, now_s=self._training.elapsed_s()))
        if is_due:
            samples = self._ready().worker.tally.samples
            saver.take(self._values(), tick=self.clock, samples=samples, elapsed_s=self._training.elapsed_s())

    def _values(self) -> dict[str, Any]:
        """All that this worker remembers, plain."""
        composed, meter = self._ready(), self._timeline.meter
        return {
            **composed.worker.state(),
            "ends": list(composed.network.ends),
            "random": random_states(),
            "feed": self._feed.state().to_values(),
            "training_s": self._training.elapsed_s(),
            "report": msgspec.to_builtins(meter.so_far()),
            "losses": [list(one) for one in meter.totals.losses],
            "metrics": list(self._metrics),
            "evaluations": [msgspec.to_builtins(one) for one in self._evaluations],
            "shots": [[it.samples, it.at_s, [tensor.clone() for tensor in it.tensors], it.dealt] for it in self._shots],
        }

    def _take_up(self) -> None:
        """Go on from the checkpoint, if there is one."""
        past = self._past
        if past is None:
            return
        self._composed = self._compose(None, self._training)
        self._composed.worker.load(past)
        if self._snapshot_every is not None:
            self._passed = self._composed.worker.tally.dealt // self._snapshot_every
        meter = self._timeline.meter
        meter.go_on_from(Report(**past["report"]))
        meter.totals.losses = [tuple(one) for one in past["losses"]]
        self._evaluations = [Evaluation(**one) for one in past["evaluations"]]
        self._shots = [Shot(*shot) for shot in past["shots"]]

    def _go_on(self) -> None:
        """Have random numbers go on from the checkpoint."""
        if self._past is not None and self._random is not None:
            set_random_states(self._random)
            self._random = None

    def _leaving(self, error: PlesioError | PeerGoneError) -> PlesioError:
        """This worker cannot go on: tell those who wait for it, once."""
        said = self._reason(error) if isinstance(error, PeerGoneError) else error
        if self._composed is not None:
            worker = self._composed.worker
            worker.column.leave(str(said))
            if worker.mixer is not None:
                worker.mixer.leave(str(said))
        self._collector.leave(str(said))
        return said

    def close(self) -> None:
        """End this worker's part; harmless when repeated."""
        if self._closed:
            return
        try:
            if self._composed is not None:
                self.finish()
        except BaseException as error:
            self._shut(error)
            raise
        self._shut()

    def _shut(self, error: BaseException | None = None) -> None:
        if not self._closed:
            self._closed = True
            if error is not None and self._result is None:
                self._keep_broken(error)
            if self._result is not None and self._result.lost_workers and self._collector.collects:
                self._finished_without(self._result.lost_workers)
            if self._composed is not None and (self._result is not None or self.setting.groups == 1):
                self._composed.regrouper.close()
            if self._saver is not None:
                self._saver.writer.close(failed=error is not None or bool(self._collector.lost))
            self._timeline.trace.close()
            self._collector.watch.close()
            self._release()

    def _keep_broken(self, error: BaseException) -> None:
        """Keep what this worker knows of a run that ends here, its own figures; the one that collects writes them."""
        if isinstance(error, KeyboardInterrupt):
            self._broken = self._so_far(status="interrupted", error="interrupted")
        else:
            self._broken = self._so_far(status="failed", error=f"{type(error).__name__}: {error}")
        if self._collector.collects:
            self._books.keep(self._broken)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if not isinstance(error, PlesioError) and isinstance(error, Exception):
            self._leaving(TaskError(f"worker {self.rank} ended with an error ({type(error).__name__}: {error})"))
        self._shut(error)

    def _ensure_open(self) -> None:
        if self._closed:
            raise ConfigError("this grid is closed; plesio.grid(...) opens another")
