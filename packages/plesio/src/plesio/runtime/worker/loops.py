"""A session's loops over the data: each is a plan of samples, numbered as it begins, and comes to this worker in part.

A process on its own that keeps no checkpoint has no other to share with: its loader is iterated as it is, and its
batches are counted.
"""

import functools
import sys
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Subset

from plesio.core.errors import ConfigError, DataError
from plesio.core.units import counted
from plesio.protocol.figures import MOST_LOOKS
from plesio.protocol.plans import PlanFigures, num_rounds
from plesio.runtime.worker.loading import BatchSource, Fed, Given, shard
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.order import Order, subset_digest
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.schedules import Schedules
from plesio.runtime.worker.sharing import Sharing
from plesio.runtime.worker.step_times import BetweenSteps
from plesio.runtime.worker.stream import Stream, check_stream, is_stream
from plesio.runtime.worker.world import World

T = TypeVar("T")

_LEFT_OUT = (
    "a batch was given and left no gradient (no backward pass followed it, or its gradients were cleared), and its "
    "samples are counted with the next step all the same; to leave samples out, multiply their loss by 0 (where "
    "workers wait for each other, all must step on every batch)"
)
_COLLECTIVE = (
    "the script calls torch.distributed between two batches, and under {policy} workers are given unequally many: one "
    "with more of them would wait for ever; call it after the loop, or train under bsp or local_sgd"
)
_PROGRESS_BARS = ("tqdm", "rich", "alive_progress", "progressbar")
"""Packages that ask for the length of a loop for themselves, and not for a schedule."""
_NO_STEP = "the session has ended without a step: call session.step(loss) where optimizer.step() was"


class LoaderShard:
    """A worker's batches of a loader. Each iteration is a loop of its own: another epoch.

    ``asked`` is called when the script asks for the length.
    """

    def __init__(
        self, begin: Callable[[], Iterator[Any]], length: Callable[[], int], *, asked: Callable[[], None] = lambda: None
    ) -> None:
        self._begin, self._length, self._asked = begin, length, asked

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __len__(self) -> int:
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] not in _PROGRESS_BARS:
            self._asked()
        return self._length()


class Loops:
    """The loops over data in one worker's session.

    Args:
        world: Has this rank's rounds, the samples of all workers by the latest news, and the seed of their order.
        deals: True if there are others to share with, or a checkpoint to resume from.
        timeline: Tells the time, the user what is not as the script asks, and the records what is to be alike.
        on_whole: Called when a loop that was dealt has come to its end, which all workers of a collective do alike.
    """

    def __init__(
        self,
        *,
        world: World,
        sharing: Sharing,
        deals: bool,
        past: WorkerPast,
        schedules: Schedules,
        between: BetweenSteps,
        timeline: WorkerTimeline,
        on_whole: Callable[[], None],
    ) -> None:
        self._world, self._rounds, self._seed = world, world.rounds, world.info.seed
        self._sharing, self._deals, self._past = sharing, deals, past
        self._schedules, self._between = schedules, between
        self._now_s = timeline.now_s
        self._meter, self._warn = timeline.meter, timeline.meter.warn
        self._warn_of_all = functools.partial(self._warn, aloud=self._rounds.rank == 0)
        """Takes a line on what is alike on all workers, so that one says it."""
        self._on_whole = on_whole
        self._loaders = Fed()
        self._num_plans = 0
        self._source: BatchSource | None = None
        self._own = past.samples
        """Samples of all workers, as if each had as many as this one counts in its own loop."""
        self._exact = True
        """True if the number of samples of all workers was known at the last step."""
        self._stream: Stream | None = None
        self._left_stream: dict[str, Any] | None = None
        """The place in the latest stream, when its loop was left."""
        self._size = self._samples = 0
        """Positions of the order, and samples, in the batches given since the last step."""
        self._gave = False
        self._stepped = 0
        """Steps that this loop has had."""
        self._left: Callable[[], None] | None = None
        """Ends a loop that the script has left with a batch that it may yet step on, and gives back what it has not."""
        self._keeps = False
        """True if gradients have been accumulated since the last step."""
        self._subsets: set[int] = set()
        """Identities of subsets that this worker has reported."""
        self.global_samples: int | None = past.samples
        """Samples that all workers have trained on, if that is known here."""

    @property
    def plan(self) -> int:
        """The loop that the worker is in, or else the next one."""
        within = self._source is not None or self._stream is not None
        return self._num_plans - 1 if within else self._num_plans

    def look_at_end(self, *, none: bool) -> None:
        """Tell the user of batches that no step has followed, and of schedules whose changes were not reached."""
        self.settle()
        if line := self._without_step(none=none):
            self._warn(line)
        self._schedules.by_hand.at_end(num_workers=self._rounds.num_workers, warn=self._warn_of_all)

    def _without_step(self, *, none: bool) -> str:
        """Describe what no step has followed: all batches if there was ``none``, or this worker's last ones.

        Empty where steps were made as they should be, where others were quicker and no batch was left, and alone,
        where the script trains on as much as without a session.
        """
        if none:
            return "" if self._num_plans > 0 and not self._gave else _NO_STEP
        if not self._samples or self._rounds.num_workers == 1:
            return ""
        return (
            f"no session.step followed the last {counted(self._samples, 'sample')} that a worker was given, so nothing "
            "was trained on them; when gradients are accumulated, step once more after the loop, whose len() is exact "
            "only where workers step together; to validate, let the function of session.evaluate go through the loader "
            "itself"
        )

    def stream_position(self) -> dict[str, Any] | None:
        """Return this worker's position in the latest stream, for a run that resumes from here."""
        return self._left_stream if self._stream is None else {"plan": self.plan, **self._stream.position()}

    def so_far(self) -> dict[str, Any]:
        """Return what a run that resumes from here needs of the loops."""
        return {"stream": self.stream_position(), "num_workers": self._schedules.clock.num_workers}

    def shard(self, loader: DataLoader[Any], *, samples: int | None) -> LoaderShard:
        _check(loader)
        if not self._deals and samples is None:
            return LoaderShard(lambda: self._as_it_is(loader), lambda: len(loader))
        if is_stream(loader):
            check_stream(loader, samples=samples, rounds=self._rounds)
            return self._shard(lambda: self._streamed(loader), lambda: len(loader) // self._rounds.num_workers)
        if hasattr(loader, "state_dict"):
            self._warn(
                f"the state_dict() of this {type(loader).__name__} does not follow what session.shard deals out; "
                "plesio.join(..., checkpoint=...) saves the place in the data"
            )
        order = Order(loader, seed=self._seed)
        figures = self._figures(order, samples)
        return self._shard(
            lambda: self._dealt(Order(loader, seed=self._seed), samples),
            lambda: num_rounds(figures, num_workers=self._rounds.num_workers),
        )

    def _shard(self, begin: Callable[[], Iterator[Any]], length: Callable[[], int]) -> LoaderShard:
        return LoaderShard(begin, length, asked=lambda: self._schedules.by_hand.asked(by_length=True))

    def rounds_of(self, loader: DataLoader[Any], *, num_workers: int) -> int:
        _check(loader)
        if not self._deals:
            return len(loader)
        if is_stream(loader):
            return len(loader) // num_workers
        return num_rounds(self._figures(Order(loader, seed=self._seed), None), num_workers=num_workers)

    def _figures(self, order: Order, samples: int | None, *, epoch: int | None = None) -> PlanFigures:
        return order.figures(samples=samples, epoch=epoch, num_workers=self._rounds.num_workers)

    def look_at_schedulers(self) -> None:
        """Look at the schedulers that the script steps and rates that it sets; at steps on batches dealt out."""
        self._schedules.note_rates(self._past.num_evaluations, report=self._meter.has_alike)
        if self._samples and self._deals:
            warn = self._warn_of_all
            self._schedules.by_hand.stepped(loop=self.plan, num_workers=self._rounds.num_workers, warn=warn)

    def trained(self, own: object = None) -> int:
        """Count a step on the samples given since the last one, or that the script counts; return their number.

        Raises:
            ConfigError: They are counted here, or that is no number of samples.
        """
        if self._schedules.clock.is_new:
            self._schedules.begin_steps()
        if own is not None:
            self.settle()  # it is a step on the script's own samples
        size, samples = self._size, self._samples
        self._size = self._samples = 0
        self._stepped += 1
        self._keeps = False
        if own is not None:
            if samples:
                raise ConfigError("session.shard counts the samples of its batches: leave samples= out of session.step")
            if not isinstance(own, int) or isinstance(own, bool) or own < 1:
                raise ConfigError(f"session.step(samples={own!r}) is no number of samples; write those of this step")
            self._own += own * self._rounds.num_workers  # this worker has no report of the others' own batches
            self.global_samples = self._own
            return own
        if self._source is not None and size:
            self.global_samples = self._source.trained(size)
            self._exact = self.global_samples is not None
        if self._stream is not None:
            self._own += samples * self._stream.trained()
            self.global_samples = self._own
        if self._left is not None:
            self.settle()
        return samples

    def settle(self) -> None:
        """End the loop that the script has left, if there is one; what it has not stepped on by now goes back."""
        left, self._left = self._left, None
        if left is not None:
            left()

    def accumulates(self) -> None:
        """Take note of a backward pass that is kept; under fsdp parameters have no gradient before one is reduced."""
        self._keeps = True

    def close(self) -> None:
        """End the processes of loaders that persist."""
        self._loaders = Fed()

    def _check_turn(self) -> None:
        """Refuse a loop that begins where its batches would be counted with those of something else: ConfigError."""
        if self._meter.totals.within == "metric":
            raise ConfigError(
                "session.shard deals out samples to train on, to all workers, and session.evaluate may run on one "
                "alone: let its function go through the loader itself"
            )
        self.settle()
        if self._source is not None or self._stream is not None:
            raise ConfigError(
                "a loop over session.shard(...) begins while another is under way, and one is dealt out at a time: to "
                "train on two data sets together, make them one (torch.utils.data.StackDataset or ConcatDataset); to "
                "validate, let the function of session.evaluate go through the loader itself"
            )

    def _dealt(self, order: Order, samples: int | None) -> Iterator[Any]:
        self._check_turn()
        self._between.look_at_others(self._warn_of_all)
        plan, self._num_plans = self._num_plans, self._num_plans + 1
        if self._past.is_over(plan):
            if order.is_drawn:
                order.positions(plan)  # a sampler may remember how often it was asked
            return
        figures = self._figures(order, samples, epoch=plan)
        if order.is_drawn and self._rounds.num_workers > 1 and (digest := order.digest(plan)) is not None:
            self._meter.has_alike("order", plan, [digest])
        dataset = order.loader.dataset
        if isinstance(dataset, Subset) and self._rounds.num_workers > 1 and id(dataset) not in self._subsets:
            self._subsets.add(id(dataset))
            self._meter.has_alike("subset", plan, [subset_digest(dataset)])
        # a loader may draw so many before the training loop asks for them
        self._rounds.draw_ahead(order.loader.num_workers * ((order.loader.prefetch_factor or 2) + 1))
        self._schedules.clock.begin(figures)
        self._stepped = 0
        self._source = source = self._sharing.batch_source(figures, plan=plan)
        batches = shard(
            order,
            plan=plan,
            source=source,
            loaders=self._loaders,
            now_s=self._now_s,
            on_waited=self._between.waited,
            on_begun=lambda: self._begun(plan),
        )
        whole = False
        try:
            while True:
                given = self._between.fetch(batches, source=source)
                if given is None:
                    whole = True
                    break
                self._gave = True
                self._schedules.clock.given += 1
                self._size += given.size  # several batches make one step when gradients are accumulated
                self._samples += given.samples
                stepped = self._stepped
                calls = self._between.num_collectives() if self._between.unequal else 0
                yield given.batch
                if stepped == self._stepped:
                    self._look_at_last()
                if self._between.unequal and calls != self._between.num_collectives():
                    self._warn(_COLLECTIVE.format(policy=self._between.policy))
        finally:
            self._left = functools.partial(self._end, batches, whole=whole)
            self._leave(whole=whole)
        self._on_whole()

    def _leave(self, *, whole: bool) -> None:
        """End the loop: at once, or when it is known whether a step follows on what was given last.

        ``next(iter(session.shard(loader)))`` leaves it before its first step, and a step is made all the same.
        """
        if whole or not self._samples or (self._stepped and not self._between.has_gradients()):
            self.settle()

    def _end(self, batches: Generator[Given], *, whole: bool) -> None:
        batches.close()
        self._source = None
        if not whole:  # what was given and not stepped on goes back
            self._size = self._samples = 0
        self._schedules.end(self._world.samples, whole=whole, exact=self._exact)

    def _streamed(self, loader: DataLoader[Any]) -> Iterator[Any]:
        self._check_turn()
        self._between.look_at_others(self._warn_of_all)
        plan, self._num_plans = self._num_plans, self._num_plans + 1
        if self._past.is_over(plan):
            return
        self._stream = stream = Stream(
            loader,
            seed=self._seed,
            epoch=plan,
            rounds=self._rounds,
            past=self._past.stream(plan),
            warn=self._warn,
            on_digest=lambda look, digest: self._meter.has_alike("stream", plan * MOST_LOOKS + look, [digest]),
        )
        batches = stream.batches()
        self._stepped = 0
        self._schedules.clock.begin(None)
        self._past.begun(plan)
        whole = False
        try:
            while True:
                batch = self._between.fetch(batches)
                if batch is None:
                    whole = True
                    return
                self._schedules.clock.given += 1
                self._gave = True
                self._samples += _size(batch, loader)
                stepped = self._stepped
                yield batch
                if stepped == self._stepped:
                    self._look_at_last()
        finally:
            batches.close()
            self._schedules.end(0, whole=whole, exact=True)
            self._left_stream = {**(self.stream_position() or {}), "state": None}
            self._stream = None

    def _look_at_last(self) -> None:
        """Warn if the last batch has left no gradient; no step has followed it.

        Before the first step a script may fetch ahead, to copy a batch to the device while it trains on another.
        """
        if self._samples and self._stepped and not self._keeps and not self._between.has_gradients():
            self._warn(_LEFT_OUT)

    def _begun(self, plan: int) -> None:
        self._past.begun(plan)
        self._between.save()

    def _as_it_is(self, loader: DataLoader[Any]) -> Iterator[Any]:
        self.settle()
        self._between.look_at_others(self._warn_of_all)
        batches, sizes = iter(loader), _sizes(loader)
        self._stepped = 0
        self._schedules.clock.begin(None)
        while True:
            self._between.begin()
            try:
                batch = next(batches)
            except StopIteration:
                self._schedules.end(0, whole=True, exact=True)
                return
            samples = next(sizes) or _size(batch, loader)
            self._samples += samples
            self._schedules.clock.given += 1
            self.global_samples = (self.global_samples or 0) + samples
            stepped = self._stepped
            try:
                yield batch
            except GeneratorExit:
                self._left = self._end_as_it_is
                self._leave(whole=False)
                raise
            if stepped == self._stepped:
                self._look_at_last()

    def _end_as_it_is(self) -> None:
        self.global_samples = (self.global_samples or 0) - self._samples  # no step is made of these
        self._samples = 0
        self._schedules.end(0, whole=False, exact=True)


def _check(loader: object) -> None:
    if not isinstance(loader, DataLoader):
        raise DataError(f"session.shard takes a torch.utils.data.DataLoader, and this is a {type(loader).__name__}")


def _sizes(loader: DataLoader[Any]) -> Iterator[int]:
    """Yield the size of each of the loader's batches if its sampler has sizes; else 0."""
    batches = loader.batch_sampler
    if type(batches) is BatchSampler and isinstance(batches.sampler, Sized):
        left, most = len(batches.sampler), batches.batch_size
        while left > 0:
            yield min(left, most)
            left -= most
    yield from repeat(0)


def _size(batch: Any, loader: DataLoader[Any]) -> int:
    """Return the number of samples in a batch that the loader gave: of its tensors, or else of its texts."""
    return num_samples(batch) or _num_texts(batch) or loader.batch_size or 1


def num_samples(batch: Any) -> int:
    """Return the length of the first tensor or array in a batch; 0 where there is none."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return len(batch) if batch.ndim else 1
    return next((size for part in _parts(batch) if (size := num_samples(part))), 0)


def _num_texts(batch: Any) -> int:
    """Return the length of the first list of texts in a batch; 0 where there is none."""
    parts = _parts(batch)
    if not isinstance(batch, dict) and parts and all(isinstance(part, str | bytes) for part in parts):
        return len(parts)
    return next((size for part in parts if (size := _num_texts(part))), 0)


def _parts(batch: Any) -> Sequence[Any]:
    return list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
