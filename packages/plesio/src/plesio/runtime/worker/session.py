"""The session: what a training loop sees of Plesio (`plesio.join` has an example).

It keeps the clock and the records. An `Exchange` shares the updates, and `Sharing` deals out the samples.
"""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar, cast

import torch
from msgspec import UNSET
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from plesio.core.arguments import checked
from plesio.core.errors import ConfigError, PlesioError
from plesio.core.logs import at_clock
from plesio.core.results import Found, RunResult
from plesio.core.within import AT_LEAST_1
from plesio.runtime.worker.evaluation import Evaluator, Goals, Metric
from plesio.runtime.worker.exchange.exchange import StepProgress
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.handover import Handover
from plesio.runtime.worker.loops import LoaderShard, Loops
from plesio.runtime.worker.meter import WorkerTimeline, number_of
from plesio.runtime.worker.one_replica import OneReplica, SharedModel
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.registered import Keeper, Stateful, register
from plesio.runtime.worker.replica_checks import explain_backward
from plesio.runtime.worker.schedules import Schedules
from plesio.runtime.worker.session_optimizer import session_optimizer
from plesio.runtime.worker.step_times import BetweenSteps, StepClock, StepTimes
from plesio.runtime.worker.whole_state import load_state, state_of_run
from plesio.runtime.worker.world import SessionParts, World, ending_of

T = TypeVar("T")
M = TypeVar("M", bound=float | Mapping[str, float])


class Session:
    """One worker's part in a run. Made by `plesio.join`; see there for the arguments.

    Attributes:
        model: The user's model, as it was passed.
        policy: The consistency policy in force.
        is_open: True until the session is closed.
        rank: This worker's number, 0 to ``num_workers - 1`` (higher for workers that join later).
        island: The ranks that are this worker together (`plesio.island`); None for one process.
        optimizer: The optimizer that `plesio.join` was given, but its ``step()`` is the session's (`SessionOptimizer`):
            for frameworks that own the loop. Of several it is a list, and each has a step of its own.
        shared: ``with session.shared:`` every worker's model has the shared parameters, where all workers enter it at
            one place: for frameworks that evaluate or save on all workers at once; `evaluate` does so on one.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        world: World,
        parts: SessionParts,
        steps: StepClock,
        timeline: WorkerTimeline,
        pacer: Pacer | None = None,
        saver: Keeper | None = None,
        handover: Handover | None = None,
    ) -> None:
        self.model, self.policy, self.rank, self.island = replica.model, parts.policy, world.rank, replica.island
        self._replica, self._world, self._exchange, self._sharing = replica, world, parts.exchange, parts.sharing
        self._steps, self._began = steps, steps.finished
        self._timeline, self._recovery, self._equality = timeline, parts.recovery, parts.equality
        self._past, self._saver = WorkerPast() if parts.past is None else parts.past, saver
        self._times = StepTimes(timeline, pacer=pacer, already_s=self._past.training_s or world.elapsed_s)
        meter, several, sharing = timeline.meter, world.num_workers > 1, parts.sharing
        self._evaluator = Evaluator(replica=replica, world=world, exchange=parts.exchange, sharing=sharing, meter=meter)
        # a handover has schedules of its own, because it may have set them before there is a session
        own = Schedules(replica.stepper.optimizers, num_workers=world.num_workers)
        self._schedules = own if handover is None else handover.schedules
        self._schedules.clock.num_workers = self._past.num_workers or world.num_workers
        self._loops = Loops(
            world=world,
            sharing=parts.sharing,
            deals=parts.deals,
            past=self._past,
            schedules=self._schedules,
            between=BetweenSteps(self._times, steps=steps, replica=replica, policy=parts.policy, saver=saver),
            timeline=timeline,
            on_whole=self._whole,
        )
        self._finished, self.is_open, self._registered = False, True, list[Stateful]()
        self._not_asked: tuple[Metric, Goals] | None = None  # what rank 0 has evaluated in this worker's place
        self._keepers = [one for one in (saver, handover) if one is not None]
        for one in self._keepers:
            one.adds(lambda: self._past.values(training_s=self._times.elapsed_s, **self._loops.so_far()))
        replica.stepper.watch(replica.parameters.values())
        self._one_replica = OneReplica(replica, parts, steps=steps, meter=meter) if several else None
        self.optimizer = session_optimizer(
            replica,
            step=self.step,
            average=lambda: self._together(lambda: self._exchange.average(self.clock + 1)),
            steps=steps,
            resumed=bool(self._past.samples),
        )
        find = partial(self._together, parts.exchange.shared)
        self.shared = SharedModel(replica, one_replica=self._one_replica, find=find, times=self._times, meter=meter)
        replica.changes.begin()  # writes up to here were the session's

    @property
    def num_workers(self) -> int:
        """Workers at the start of the run."""
        self._schedules.by_hand.asked()
        return self._world.num_workers

    @property
    def clock(self) -> int:
        """Steps that this worker has finished (a worker that joins late starts from the slowest worker's clock)."""
        return self._steps.finished

    @property
    def elapsed_s(self) -> float:
        """Training time of the run so far: evaluation does not count."""
        return self._times.elapsed_s

    @checked
    def shard(self, loader: DataLoader[Any], *, samples: Annotated[int, AT_LEAST_1] | None = None) -> LoaderShard:
        """Divide what the loader's sampler gives in an epoch over all live workers, and return this worker's batches.

        The order is the sampler's own, drawn once an epoch by the run's seed and the same on every worker. Under a
        synchronous policy it is dealt in rounds; under a relaxed one workers lease blocks of it as they go, so fast
        workers take more. The loader's ``batch_size`` is one worker's. Alone and without checkpoints the loader is
        iterated as it is.

        Args:
            loader: A loader over a map-style data set.
            samples: Train on this many samples over all workers, crossing epochs; None is one epoch.

        Returns:
            An iterable of batches in the loader's own form, with a length; iterated anew it is the next epoch.

        Raises:
            DataError: The loader cannot be dealt out, or there is less in it than there are workers.
        """
        self._ensure_open()
        return self._loops.shard(loader, samples=samples)

    @checked
    def steps_per_epoch(self, loader: DataLoader[Any]) -> int:
        """Count an epoch's rounds: each worker's batches if all are equally quick, as many as the run began with."""
        self._ensure_open()
        self._schedules.by_hand.asked()
        return self._loops.rounds_of(loader, num_workers=self._schedules.clock.num_workers)

    def accumulate(self) -> contextlib.AbstractContextManager[None]:
        """Accumulate gradients: backward passes in this context are kept on the worker until the next `step`.

        Leaving it out is correct too; DDP then only communicates in every backward pass.
        """
        self._loops.accumulates()
        return self._exchange.accumulating()

    def step(self, loss: torch.Tensor | float | None = None, *, samples: int | None = None) -> None:
        """Finish a step: exchange by the policy, step the optimizer, clear the gradients.

        Call it where ``optimizer.step()`` was. A gradient with NaN or infinity is refused: it reaches nobody's
        parameters, and is counted against this worker.

        Args:
            loss: This step's loss, for the records.
            samples: Samples of this step, over a loader of one's own; `shard` counts those of its batches.

        Raises:
            WorkerLostError: A worker is gone that the exchange cannot do without.
            TaskError: Not what `plesio.join` was given is trained now, or what the script wrote itself would be lost.
        """
        self._ensure_open()
        with self._replica.changes:
            progress = self._step(loss, samples)
        if progress is not None and (callbacks := self._timeline.meter.callbacks).called:
            callbacks.tell("on_step", progress)

    def _step(self, loss: torch.Tensor | float | None, samples: int | None) -> StepProgress | None:
        meter = self._timeline.meter
        if self._saver is not None:
            self._times.save(self._saver.take)
            why = "no checkpoint has its state and a resumed run would begin it anew"
            self._schedules.warn_unless_kept(self._registered, why=why, warn=meter.warn)
        self._replica.check_as_joined()
        self._replica.look_at_gradients(looks=self.rank == 0, warn=meter.warn)
        times, clock = self._times, self._steps.finished + 1
        times.computed(clock, ready_s=self._exchange.ready_s, rounds=self._world.rounds)
        if self._schedules.by_hand.is_due():
            self._loops.look_at_schedulers()
        num_samples = self._loops.trained(samples)
        value = None if loss is None else number_of(loss, call="session.step", what="the loss")
        progress = StepProgress(clock, num_samples, self._loops.global_samples, value, times.elapsed_s)
        meter.totals.within = "step"
        try:
            counts = self._exchange_step(progress)
        finally:
            meter.totals.within = UNSET
        self._schedules.stepped(self._world.samples_by_now)
        if not counts:
            times.repeat()
            return None
        at_clock(clock)
        times.stepped(clock, samples=num_samples, loss=value)
        if value is not None and (samples is not None or not num_samples):  # of a batch that no loop gave
            meter.drew(value)
        return progress

    def _exchange_step(self, progress: StepProgress) -> bool:
        """Exchange, and go on in a new group if the present one is no more; returns whether the step counts."""
        recovery, samples, counts = self._recovery, self._timeline.meter.totals.samples, True
        try:
            if recovery is not None:
                recovery.trained(progress.clock)
            with self._replica.true_units(progress.clock):
                self._exchange.step(progress)
            if self._equality is not None:
                self._equality.stepped()
            if recovery is None or not recovery.due:
                self._steps.finish(progress.clock)
            else:
                recovery.recover(plan=self._loops.plan, samples=samples + progress.samples)
        except RuntimeError as error:
            if recovery is None or not recovery.cuts_off(error):
                raise self._world.explain(error) or error from error
            counts = recovery.counts(progress.clock)
            recovery.recover(plan=self._loops.plan, samples=samples + (progress.samples if counts else 0))
        if recovery is not None:
            recovery.let_others_join(plan=self._loops.plan, samples=samples + (progress.samples if counts else 0))
        self._world.assure()
        return counts

    def _together(self, action: Callable[[], T]) -> T:
        """Do what all workers do together, again if the group was no more meanwhile."""
        while True:
            try:
                return action()
            except RuntimeError as error:
                if self._recovery is None or not self._recovery.cuts_off(error):
                    raise self._world.explain(error) or error from error
                self._recovery.recover(plan=self._loops.plan, samples=self._timeline.meter.totals.samples)

    @checked
    def evaluate(self, metric: Callable[[], M], *, goal: Goals = None, everywhere: bool = False) -> M | None:
        """Evaluate the shared parameters, with the training clock stopped. All workers call it at the same place.

        Args:
            metric: Called with the shared parameters in the model and the model in evaluation mode. It gives a number,
                or several by name; the run is judged by the first, or by the one that `RunInfo` names.
            goal: ``"max"`` where more of it is better, ``"min"`` where less is, or one of them for each name. By
                default a metric that is named as a loss or an error has the goal ``"min"``.
            everywhere: Whether all workers get the metric, also on the store; there the first to come evaluates.

        Returns:
            The metric; None on workers of a store run but rank 0, which go on at once unless it is for ``everywhere``.

        Raises:
            ConfigError: The result of ``metric`` is no number, or the goal is of no metric.
        """
        self._ensure_open()
        if self._past.knows_metric:
            return cast("M | None", self._past.metric())
        self._loops.settle()
        begun_s = self._timeline.now_s()
        aside = self._replica.changes.put_back(evaluates=True)
        with self._times.stopped(), aside, self._timeline.meter.within("evaluation"):
            try:
                number = self._past.num_evaluations if everywhere else None
                found = self._together(lambda: self._evaluated(metric, goal, number))
                self._not_asked = (metric, goal) if found is None else None
                return cast("M | None", self._past.evaluated(found))
            finally:
                self._timeline.evaluate(begun_s, self._timeline.now_s(), clock=self.clock)

    def _whole(self) -> None:
        """End a loop: find out a replica that has become another one, and copy parts, as no step is made again."""
        if self._equality is not None:
            with self._times.stopped(), self._replica.changes.put_back(), self._timeline.meter.within("evaluation"):
                self._together(self._equality.compare)
                if self._recovery is not None and self.policy.shards:
                    self._together(self._recovery.settle)

    def _evaluated(self, metric: Metric, goal: Goals, number: int | None) -> Found:
        if self._equality is not None:
            self._equality.compare(own_averages=self.policy.bound > 0)
        samples, at_s = self._loops.global_samples, self._times.elapsed_s
        return self._evaluator.evaluate(metric, goal, samples=samples, at_s=at_s, number=number)

    @checked
    def finish(self, metric: Metric | None = None, *, goal: Goals = None) -> None:
        """Contribute what is held back and, on rank 0, wait for the others and evaluate what they made together.

        Called by `close`. Your own call evaluates every snapshot (``snapshot_every`` of `plesio.JoinOptions`) as well.
        """
        self._ensure_open()
        if self._finished:
            return
        self._finished = True
        if self._one_replica is not None:
            self._one_replica.close()
        with self._replica.changes:
            if self._saver is not None:
                self._times.save(self._saver.take)
            self._times.leave()
            self._loops.look_at_end(none=self.clock == self._began and not self._past.samples)
            with self._timeline.meter.within("end"):
                state = self._together(self._end)
        if metric is None and self.rank > 0 and self._not_asked is not None:  # rank 0, which had evaluated, is lost
            metric, goal = self._not_asked
        if state is not None:
            self._evaluator.finish(state, metric, goal, samples=self._loops.global_samples, at_s=self._times.elapsed_s)

    def register(self, **objects: Stateful) -> None:
        """Save objects with every checkpoint, and send their states to workers that join a collective.

        Schedulers, averages, anything with ``state_dict``, each by a name.

        An object of a run that is resumed or joined goes on from its state there at once, and once more when the loop
        begins that the run was in: a scheduler may be stepped after every epoch, also after those that were over.

        Raises:
            ConfigError: A name is taken; the object is a loss scaler, which `plesio.join` takes and saves; or its state
                holds what cannot be saved.
            DataError: It does not take the state that was saved of it.
        """
        register(objects, [keeper.register for keeper in self._keepers])
        self._registered += objects.values()

    def schedule(self, scheduler: LRScheduler) -> None:
        """Have the session step ``scheduler``, by the progress of all workers: leave ``scheduler.step()`` out.

        Under every policy, and however many workers there are, it has made `steps_per_epoch` steps at an epoch's end.
        It is registered too.

        Raises:
            ConfigError: It is no scheduler, one that goes by a metric, or one of another optimizer.
        """
        name, scheduled = self._schedules.add(scheduler)
        self.register(**{name: scheduled})

    def add_callback(self, callback: Any) -> None:
        """Have a function, or an object with methods, told what happens to this worker: see `plesio.callbacks`.

        Raises ConfigError if it is neither a function nor has a method for one of the events.
        """
        self._timeline.meter.callbacks.add(callback, session=self)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run, to save it by other means. All workers call it after the same step.

        Returns:
            ``{"model": ..., "optimizer": ..., "plesio": {...}}``, copies; the first two load without Plesio. On the
            store they are the servers' state when this worker asks; in a collective this worker's replica, which
            under ``local_sgd`` is the same on all after an averaging.
        """
        self._ensure_open()
        if self._one_replica is not None and self._recovery is not None and self._recovery.meets:
            self._one_replica.taken()  # otherwise it is the servers' state
        with self._times.stopped(), self._replica.changes.put_back():
            state = partial(state_of_run, self._replica, policy=self.policy.title, num_workers=self._world.num_workers)
            return self._together(lambda: state(clock=self.clock))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin from what `state_dict` gave. All workers call it before their first step, with the same state.

        Raises:
            ConfigError: This worker has made a step, or the run was resumed from a checkpoint.
            DataError: The state is of another model or optimizer.
        """
        self._ensure_open()
        with self._replica.changes:
            load_state(self._replica, state, steps=self.clock - self._began, resumed=bool(self._past.samples))

    def save(self) -> None:
        """Ask for a checkpoint: it is taken at the next point that all workers share, some steps from now.

        Raises:
            ConfigError: The session has no checkpoints.
        """
        self._ensure_open()
        if self._saver is None:
            raise ConfigError('this session has no checkpoints; plesio.join(..., checkpoint="FOLDER") has')
        self._world.save_soon()

    def _end(self) -> State | None:
        self._exchange.finish()
        if self._equality is not None:
            self._timeline.meter.totals.replica = self._equality.at_end()
        self._world.leave()
        return self._replica.changes.at_end(self._exchange.shared(), self.policy, warn=self._timeline.meter.warn)

    def report(self) -> RunResult:
        """Return the run's figures so far, with the status ``running``; after `close` the figures of the whole run."""
        return self._world.result()

    def close(self) -> None:
        """End this worker's part; harmless when repeated. On rank 0 it waits for the others and has the final model."""
        if not self.is_open:
            return
        try:
            self.finish()
        except BaseException as error:
            self._shut(error)
            raise
        self._shut(None)

    def _shut(self, error: BaseException | None) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loops.close()
        if self._saver is not None:
            self._saver.close(failed=error is not None)
        if self._one_replica is not None:
            self._one_replica.close()
        self._replica.stepper.unwatch()
        self._exchange.close()
        self._timeline.trace.close()
        status, text = ending_of(error)
        self._world.close(status=status, error=text, in_rack=self._sharing.in_rack)
        if self._timeline.meter.callbacks.called:
            self._timeline.meter.callbacks.tell("on_close", None if error else self._world.result())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        lost = None if isinstance(error, PlesioError) else explain_backward(error) or self._world.explain(error)
        self._shut(lost or error)
        if lost is not None and isinstance(error, RuntimeError):
            raise lost from error

    def _ensure_open(self) -> None:
        if not self.is_open:
            raise ConfigError("this session is closed; plesio.join(...) opens another")
