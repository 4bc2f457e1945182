"""The session of an S x K grid: what a training loop sees of it.

    with plesio.grid(stages, optimizer_factory, loss, groups=2) as grid:
        for x, y in grid.shard(loader):
            grid.step(x, y)
        grid.evaluate(lambda: accuracy(grid.model, held_out))

Every worker goes through the same loop and is given the same micro-batches as its group; the first stage reads x, the
last one y. A call of `Grid.step` does what the stage's schedule (`plesio.policies.grid.schedule`) has until the next
micro-batch, so a worker waits for nothing but what its next pass needs.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from plesio.core.clock import TrainingClock
from plesio.core.errors import ConfigError, PlesioError, TaskError
from plesio.core.results import Evaluation, RunResult
from plesio.policies.grid import Action, Backward, BeginMixing, EndMixing, Forward, GridSetting, StageMachine, Update
from plesio.runtime.grid.column import Column, GridPlace, lost
from plesio.runtime.grid.mixer import Mixer
from plesio.runtime.grid.records import Books, Collector, Figures, Network, Shot, as_figures, as_tensor, state_of
from plesio.runtime.grid.stage import Stage
from plesio.runtime.grid.stage_pacing import StagePacer
from plesio.runtime.worker.exchange.group import CutOffError
from plesio.runtime.worker.loading import SynchronousBatches, plan_figures, shard
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.timeline import Timeline

__all__ = ["Grid", "Work"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Work:
    """What one worker of a grid works with; composed once, before the first step.

    Attributes:
        stage: Its layers and optimizer.
        machine: Its schedule.
        column: Its neighbours in the group.
        mixer: Its neighbours in other groups; None with one group.
        network: The whole network.
        pacer: Makes passes take their time; None lets them take as long as they do.
    """

    stage: Stage
    machine: StageMachine
    column: Column
    mixer: Mixer | None
    network: Network
    pacer: StagePacer | None


@dataclass(slots=True)
class _Tally:
    """What this worker counts."""

    samples: int = 0
    """Of all groups."""
    staleness: Counter[int] = field(default_factory=Counter)
    shots: list[Shot] = field(default_factory=list)
    marked_s: float = 0.0
    sizes: list[int] = field(default_factory=list)
    """Samples of the micro-batches under way."""
    losses: list[float] = field(default_factory=list)


class Grid:
    """One worker's part in a grid. Made by `plesio.grid`; see there for the arguments.

    Attributes:
        setting: The grid's.
        rank: This worker's number.
        group: s, its group, from 0.
        stage: k, its stage, from 0.
        model: The whole network. Within `evaluate` it has the groups' mean weights; otherwise a worker's own stage
            alone is up to date.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        setting: GridSetting,
        place: GridPlace,
        make: Callable[[Any], Work],
        collector: Collector,
        books: Books,
        timeline: Timeline,
        release: Callable[[], None],
        snapshot_every: int | None = None,
    ) -> None:
        self.model = model
        self.setting = setting
        self.group, self.stage = place.group, place.stage
        self.rank = collector.rank
        self._place = place
        self._make = make
        self._work: Work | None = None
        self._collector = collector
        self._books = books
        self._timeline = timeline
        self._release = release
        self._snapshot_every = snapshot_every
        self._training = TrainingClock(timeline.clock)
        self._rounds = RoundRecords(place.group, setting.groups)
        self._tally = _Tally()
        self._evaluations: list[Evaluation] = []
        self._num_plans = 0
        self._more = False
        """Whether another micro-batch is known to follow the present one."""
        self._result: RunResult | None = None
        self._final: dict[str, Tensor] | None = None
        self._finished = self._closed = False

    @property
    def layers(self) -> nn.Module:
        """This worker's own stage; it is there from the first step on.

        Raises:
            ConfigError: There has been none.
        """
        return self._ready().stage.layers

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of this worker's stage; it is there from the first step on."""
        return self._ready().stage.optimizer

    @property
    def clock(self) -> int:
        """Micro-batches that this worker has been given."""
        return 0 if self._work is None else self._work.machine.given

    @property
    def elapsed_s(self) -> float:
        """Training time so far: evaluation does not count."""
        return self._training.elapsed_s()

    def _ready(self) -> Work:
        if self._work is None:
            raise ConfigError("the grid is cut at its first step; this is there after grid.step(x, y)")
        return self._work

    def shard(self, loader: DataLoader[Any], *, samples: int | None = None) -> Iterator[Any]:
        """This group's micro-batches: every sample once an epoch, over all groups. All stages of it get the same.

        Args:
            loader: A loader over a map-style data set; its sampler is replaced. Its ``batch_size`` is a micro-batch's.
            samples: Train on this many samples over all groups, crossing epochs; None is one epoch.

        Yields:
            Batches in the loader's own form.

        Raises:
            DataError: The data set has no length, or has fewer samples than there are groups.
        """
        self._ensure_open()
        figures = plan_figures(loader, samples=samples)
        plan, self._num_plans = self._num_plans, self._num_plans + 1
        source = SynchronousBatches(
            figures.whole(),
            batch_size=figures.batch_size,
            plan=plan,
            seed=self._books.info.seed,
            rounds=self._rounds,
        )
        batches = shard(loader, source=source, now_s=self._timeline.now_s, on_waited=lambda begun_s, ended_s: None)
        upcoming = next(batches, None)
        while upcoming is not None:
            (batch, _), upcoming = upcoming, next(batches, None)
            self._more = upcoming is not None
            yield batch
        self._more = False

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
            return self._step(x, y)
        except (PlesioError, CutOffError) as error:
            raise self._leaving(error) from error

    def _step(self, x: Any, y: Any) -> float | None:
        if self._work is None:
            self._work = self._make(x)
        self._training.start()
        tally = self._tally
        tally.marked_s = tally.marked_s or self._timeline.now_s()
        inputs = list(x) if isinstance(x, tuple | list) else [x]
        size = len(inputs[0])
        tally.sizes.append(size)
        loss = self._do(self._work.machine.give(), inputs, y)
        if loss is not None:
            tally.losses.append(loss)
        return loss

    def _do(self, actions: Sequence[Action], inputs: Sequence[Tensor], target: Any) -> float | None:
        work, loss = self._ready(), None
        if work.column.behind is not None and any(isinstance(action, Backward) for action in actions):
            work.column.behind.expect()
        for action in actions:
            match action:
                case Forward():
                    loss = self._forward(action, inputs, target)
                case Backward():
                    self._backward(action)
                case Update():
                    self._update(action)
                case BeginMixing(version=version):
                    assert work.mixer is not None, "there are other groups"
                    work.mixer.begin(version)
                case EndMixing(version=version):
                    self._end_mixing(version)
        return loss

    def _forward(self, action: Forward, inputs: Sequence[Tensor], target: Any) -> float | None:
        work, timeline = self._ready(), self._timeline
        if work.column.before is not None:
            self._computed()
            inputs, _ = work.column.before.take(more=self._more)
            self._waited()
        started_s = timeline.now_s()
        outputs, loss = work.stage.forward(action, inputs, target)
        if work.pacer is not None:
            work.pacer.pace(action.micro_batch, backward=False, started_s=started_s)
        if work.column.onward is not None:
            work.column.onward.send(outputs)
        return loss

    def _backward(self, action: Backward) -> None:
        work, timeline = self._ready(), self._timeline
        gradients: list[Tensor] = []
        if work.column.behind is not None:
            self._computed()
            gradients, _ = work.column.behind.take(more=work.machine.given > action.micro_batch + 1)
            self._waited()
        started_s = timeline.now_s()
        sent = work.stage.backward(action, gradients)
        if work.pacer is not None:
            work.pacer.pace(action.micro_batch, backward=True, started_s=started_s)
        if work.column.back is not None:
            work.column.back.send(sent)
        self._tally.staleness[action.staleness] += 1

    def _update(self, action: Update) -> None:
        work, tally, timeline = self._ready(), self._tally, self._timeline
        work.stage.update(action)
        began_s = tally.marked_s
        self._computed()
        samples = sum(tally.sizes[: action.num_micro_batches])
        del tally.sizes[: action.num_micro_batches]
        tally.samples += samples * (self.setting.groups - len(self._collector.lost))
        loss = tally.losses.pop(0) if tally.losses and work.stage.is_last else None
        timeline.step(
            clock=action.version,
            samples=samples if self.stage == 0 else 0,
            duration_s=timeline.now_s() - began_s,
            loss=loss,
            at_s=self._training.elapsed_s(),
        )
        self._shoot(samples)

    def _shoot(self, samples: int) -> None:
        """Keep the stage's state where the samples of all groups pass a multiple of ``snapshot_every``."""
        every, now = self._snapshot_every, self._tally.samples
        if every is not None and now // every > (now - samples * self.setting.groups) // every:
            self._tally.shots.append(Shot(now, self._training.elapsed_s(), state_of(self._ready().stage.layers)))

    def _end_mixing(self, version: int) -> None:
        work = self._ready()
        assert work.mixer is not None, "there are other groups"
        self._computed()
        work.mixer.end(version, more=False)
        self._waited()
        self._timeline.event("mix", at_s=self._timeline.now_s(), clock=version, disagreement=work.mixer.disagreement)

    def _computed(self) -> None:
        """What was done since the last mark was computing."""
        now_s = self._timeline.now_s()
        self._timeline.compute(self._tally.marked_s, now_s, clock=self._ready().machine.version)
        self._tally.marked_s = now_s

    def _waited(self) -> None:
        """What was done since the last mark was waiting for a message."""
        now_s = self._timeline.now_s()
        self._timeline.wait(self._tally.marked_s, now_s, clock=self._ready().machine.version)
        self._tally.marked_s = now_s

    def state_dict(self) -> dict[str, Tensor] | None:
        """The whole network's ordinary state, the mean over the groups, on the worker that collects; None elsewhere.

        All workers call it at the same place. It loads into the network as it was before it was cut.
        """
        if self._finished:
            return self._final
        found = self._gathered(state_of(self._ready().stage.layers))
        return None if found is None else found[0]

    def _gathered(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], float] | None:
        states = self._collector.gather(tensors)
        return None if states is None else self._ready().network.whole(states, self.setting)

    def evaluate(self, metric: Callable[[], float]) -> float | None:
        """Evaluate the groups' mean weights, with the training clock stopped. All workers call it at the same place.

        Args:
            metric: Called with these weights in `model`, in evaluation mode, on the worker that collects.

        Returns:
            The metric there; None elsewhere.
        """
        self._ensure_open()
        begun_s = self._timeline.now_s()
        self._training.pause()
        try:
            found = self._gathered(state_of(self._ready().stage.layers))
            if found is None:
                return None
            self._evaluations.append(self._measure(metric, found, self._tally.samples, self._training.elapsed_s()))
            return self._evaluations[-1].metric
        finally:
            self._training.resume()
            self._tally.marked_s = self._timeline.now_s()
            self._timeline.evaluate(begun_s, self._tally.marked_s, clock=self.clock)

    def _measure(
        self, metric: Callable[[], float], found: tuple[dict[str, Tensor], float], samples: int, at_s: float
    ) -> Evaluation:
        state, distance = found
        with self._ready().network.loaded(state):
            value = float(metric())
        self._timeline.event("consensus", at_s=self._timeline.now_s(), clock=self.clock, distance=distance)
        return Evaluation(samples=samples, at_s=at_s, metric=value)

    def finish(self, metric: Callable[[], float] | None = None) -> None:
        """Go back with the micro-batches that are under way, and put the network and the figures together.

        Called by `close`; call it yourself to have every snapshot and the final network evaluated.
        """
        self._ensure_open()
        if self._finished:
            return
        if self._work is None:
            raise ConfigError("the grid has made no step; there is nothing to finish")
        try:
            self._do(self._work.machine.end(), [], None)
            self._training.pause()
            self._finished = True
            self._result = self._settle(metric)
        except (PlesioError, CutOffError) as error:
            raise self._leaving(error) from error

    def _settle(self, metric: Callable[[], float] | None) -> RunResult:
        """The collector evaluates and writes; all hear the result."""
        final = Shot(self._tally.samples, self._training.elapsed_s(), state_of(self._ready().stage.layers))
        shots = [*self._tally.shots, final]
        if len(shots) > 1 and shots[-2].samples == final.samples:
            del shots[-2]
        told = self._collector.gather([as_tensor(self._figures(shots))])
        figures = None if told is None else [as_figures(rows[0]) for _, rows in sorted(told.items())]
        sha256 = None
        for number, shot in enumerate(shots):
            found = self._gathered(shot.tensors)
            if found is None or figures is None:
                continue
            at_s = max(one.shots[number][1] for one in figures)
            if metric is not None:
                self._evaluations.append(self._measure(metric, found, shot.samples, at_s))
            if shot is final:
                self._final = found[0]
                self._ready().network.keep(found[0])
                sha256 = self._ready().network.sha256(found[0])
        text = None
        if figures is not None:
            result = self._books.result(figures, evaluations=self._evaluations, sha256=sha256)
            text = json.dumps(result.to_json())
        return RunResult.from_json(json.loads(self._collector.tell(text)))

    def _figures(self, shots: Sequence[Shot]) -> Figures:
        report = self._timeline.meter.take()
        return Figures(
            rank=self.rank,
            report=report,
            staleness=sorted(self._tally.staleness.items()),
            shots=[(shot.samples, shot.at_s) for shot in shots],
        )

    def report(self) -> RunResult:
        """The run's figures: after `finish` or `close` of the whole run; before, what this worker has done."""
        if self._result is not None:
            return self._result
        figures = self._figures([])
        return self._books.result([figures], evaluations=self._evaluations, sha256=None)

    def _leaving(self, error: PlesioError | CutOffError) -> PlesioError:
        """This worker cannot go on: tell those who wait for it, once."""
        said = lost(error, self._place, self.setting) if isinstance(error, CutOffError) else error
        assert isinstance(said, PlesioError)
        if self._work is not None:
            self._work.column.leave(str(said))
            if self._work.mixer is not None:
                self._work.mixer.leave(str(said))
        self._collector.leave(str(said))
        return said

    def close(self) -> None:
        """End this worker's part; harmless when repeated."""
        if self._closed:
            return
        try:
            if self._work is not None:
                self.finish()
        finally:
            self._shut()

    def _shut(self) -> None:
        if not self._closed:
            self._closed = True
            self._timeline.trace.close()
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if not isinstance(error, PlesioError) and self._work is not None and isinstance(error, Exception):
            self._leaving(TaskError(f"worker {self.rank} ended with an error ({type(error).__name__}: {error})"))
        self._shut()

    def _ensure_open(self) -> None:
        if self._closed:
            raise ConfigError("this grid is closed; plesio.grid(...) opens another")
