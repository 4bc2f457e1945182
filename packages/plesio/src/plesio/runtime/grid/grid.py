"""The session of an S x K grid: what a training loop sees of it.

    with plesio.grid(stages, optimizer_factory, loss, groups=2) as grid:
        for x, y in grid.shard(loader):
            grid.step(x, y)
        grid.evaluate(lambda: accuracy(grid.model, held_out))

Every worker goes through the same loop and is given the same micro-batches as its group; the first stage reads x, the
last one y. A call of `Grid.step` does what the stage's schedule (`plesio.policies.grid.schedule`) has until the next
micro-batch, so a worker waits for nothing but what its next pass needs.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from plesio.core.errors import ConfigError, PlesioError, TaskError, WorkerLostError
from plesio.core.results import RunResult
from plesio.policies.grid import GridSetting
from plesio.runtime.checkpoints.worker import set_random_states
from plesio.runtime.grid.column import lost
from plesio.runtime.grid.feed import Feed, FeedState
from plesio.runtime.grid.formation import GridPlace
from plesio.runtime.grid.messages import PeerFailedError
from plesio.runtime.grid.records import GridRecords
from plesio.runtime.grid.regrouping import Composed
from plesio.runtime.grid.saving import GridSaver, values_of
from plesio.runtime.worker.evaluation import Goals, Metric
from plesio.runtime.worker.exchange.links import PeerGoneError
from plesio.runtime.worker.loops import LoaderShard

M = TypeVar("M", bound=float | Mapping[str, float])


class Grid:
    """One worker's part in a grid. Made by `plesio.grid`; see there for the arguments.

    Attributes:
        group: s, its group, from 0. Groups that join have numbers from S on.
        stage: k, its stage, from 0.
        model: The whole network. Within `evaluate` it has the groups' mean weights; otherwise a worker's own stage
            alone is up to date.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        compose: Callable[[Any], Composed],
        records: GridRecords,
        release: Callable[[Sequence[int]], None],
        saver: GridSaver | None = None,
        past: dict[str, Any] | None = None,
    ) -> None:
        collector = records.collector
        place = GridPlace.of(collector.rank, collector.formation.setting)
        self.model, self.rank = model, collector.rank
        self.group, self.stage = place.group, place.stage
        self._compose = compose
        self._composed: Composed | None = None
        self._records = records
        self._release = release
        self._saver = saver
        self._go_on = contextlib.ExitStack()
        """Closed, once, when random numbers are to go on from the checkpoint."""
        if past is not None and past["random"] is not None:
            self._go_on.callback(set_random_states, past["random"])
        self._feed = Feed(
            place.group,
            collector.formation,
            seed=records.run.info.seed,
            now_s=records.timeline.now_s,
            say=records.timeline.meter.totals.fallbacks.append,
            past=None if past is None else FeedState.from_values(past["feed"]),
            go_on=self._go_on.close,
        )
        self._closed = False
        # a cut is in the checkpoint, so that it need not wait for the first batch
        if past is not None:
            self._composed = compose(None)
            self._composed.worker.load(past)
            records.load(past)

    @property
    def setting(self) -> GridSetting:
        """The grid's, of the groups that are there."""
        return self._records.collector.formation.setting

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
        return self._records.training.elapsed_s()

    def _ready(self) -> Composed:
        if self._composed is None:
            raise ConfigError("the grid is cut at its first step; this is there after grid.step(x, y)")
        return self._composed

    def shard(self, loader: DataLoader[Any], *, samples: int | None = None) -> LoaderShard:
        """Divide what the loader's sampler gives in an epoch over the groups; all stages of a group get the same.

        Args:
            loader: A loader over a map-style data set. Its ``batch_size`` is a micro-batch's.
            samples: Train on this many samples over all groups, crossing epochs; None is one epoch.

        Returns:
            An iterable of batches in the loader's own form, with a length; iterated anew it is the next epoch.

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
                self._composed = self._compose(x)
            composed, records, feed = self._composed, self._records, self._feed
            self._go_on.close()
            records.training.start()
            inputs = list(x) if isinstance(x, tuple | list) else [x]
            of_all = feed.take_samples(self.clock)
            if of_all is None:
                of_all = len(inputs[0]) * self.setting.groups
            loss = composed.worker.tick(inputs, y, of_all=of_all, more=feed.more)
            records.shoot(composed)
            if self._saver is not None:
                self._saver.after_tick(composed, records, feed)
            composed.regrouper.after_tick(feed, lambda: values_of(composed, records, feed))
        except (PlesioError, PeerGoneError) as error:
            raise self._leaving(error) from None
        return loss

    def state_dict(self) -> dict[str, Tensor] | None:
        """Return the whole network's ordinary state, the groups' mean, on rank 0 and None on all other ranks.

        If rank 0 is lost, the lowest rank of the groups that are left has it. All workers call it at the same place. It
        loads into the network as it was before it was cut.
        """
        composed, state = self._ready(), self._records.final
        if not self._records.finished:
            mean = self._records.mean(composed)
            state = None if mean is None else mean[0]
        return None if state is None else composed.network.as_state_dict(state)

    def evaluate(self, metric: Callable[[], M], *, goal: Goals = None) -> M | None:
        """Evaluate the groups' mean weights, with the training clock stopped. All workers call it at the same place.

        Args:
            metric: Called with these weights in `model`, in evaluation mode, on the worker that collects.
            goal: As in `plesio.Session.evaluate`.

        Returns:
            The metric there; None elsewhere.
        """
        self._ensure_open()
        records = self._records
        if records.past.knows_metric:
            return cast("M | None", records.past.metric())
        composed, begun_s = self._ready(), records.timeline.now_s()
        records.training.pause()
        try:
            return cast("M | None", records.evaluate(composed, metric, goal))
        except PeerGoneError as error:
            raise self._leaving(error) from None
        finally:
            records.training.resume()
            composed.worker.mark()
            records.timeline.evaluate(begun_s, records.timeline.now_s(), clock=self.clock)

    def finish(self, metric: Metric | None = None, *, goal: Goals = None) -> None:
        """Go back with the micro-batches that are under way, and put the network and the figures together.

        Called by `close`; call it yourself to have every snapshot and the final network evaluated.
        """
        self._ensure_open()
        composed, records = self._ready(), self._records
        if records.finished:
            return
        try:
            self._tell_if_one_update(composed)
            composed.worker.end(between=lambda: records.shoot(composed))
            composed.regrouper.end(self._feed)
            records.shoot(composed)
            records.training.pause()
            records.timeline.leave_steps()
            records.settle(composed, metric, goal)
        except (PlesioError, PeerGoneError) as error:
            raise self._leaving(error) from None

    def _tell_if_one_update(self, composed: Composed) -> None:
        given, wanted = composed.worker.machine.given, self._records.collector.formation.setting.micro_batches
        if 0 < given < wanted:
            self._records.timeline.meter.warn(
                f"the grid's only update came at its end: one is of {wanted} micro-batches, and all were {given}"
            )

    def report(self) -> RunResult:
        """Return the run's figures: after `finish` or `close` of the whole run; before, of this worker alone."""
        return self._records.result or self._records.so_far()

    def save(self) -> None:
        """Take a checkpoint after the next micro-batch; all workers call it at the same place.

        Raises:
            ConfigError: The grid has no checkpoints.
        """
        self._ensure_open()
        if self._saver is None:
            raise ConfigError('this grid has no checkpoints; plesio.grid(..., checkpoint="FOLDER") has')
        self._saver.asked = True

    def _leaving(self, error: PlesioError | PeerGoneError) -> PlesioError:
        """Send the workers that wait for this one, once, why it cannot go on, and return that."""
        collector, worker = self._records.collector, None if self._composed is None else self._composed.worker
        if isinstance(error, PeerGoneError):
            reason = None if worker is None else worker.column.reason_from(error)
            if collector.watch.is_given_up():
                error = WorkerLostError.expelled(self.rank)
            elif reason is not None:
                error = PeerFailedError(reason)
            else:
                error = lost(error, GridPlace(self.group, self.stage), self.setting)
        if worker is not None:
            worker.leave(str(error))
        collector.leave(str(error))
        return error

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
        if self._closed:
            return
        self._closed = True
        records, collector = self._records, self._records.collector
        whole = records.result
        if error is not None and whole is None:
            records.break_off(error)
        if self._composed is not None and (whole is not None or self.setting.groups == 1):
            self._composed.regrouper.close()
        if self._saver is not None:
            self._saver.writer.close(failed=error is not None or bool(collector.lost))
        records.timeline.trace.close()
        collector.watch.close()
        self._release(whole.lost_workers if whole is not None and collector.collects else ())

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
