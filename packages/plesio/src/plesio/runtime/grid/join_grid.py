"""`plesio.grid`: the one call that turns a training loop into a worker of an S x K grid."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plesio.core.arguments import checked
from plesio.core.clock import Clock, MonotonicClock, TrainingClock
from plesio.core.errors import ConfigError
from plesio.core.files import make_writable
from plesio.core.logs import introduce
from plesio.core.results import RunResult
from plesio.core.trace import TraceWriter
from plesio.core.within import ABOVE_0, AT_LEAST_1
from plesio.policies.grid import GridSetting, StageMachine, is_grid
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.checkpoints.writing import Writer
from plesio.runtime.grid.column import Column, GridPlace
from plesio.runtime.grid.cut_agreement import agreed_cut
from plesio.runtime.grid.cutting import Balance, Cut, layers_of, parts
from plesio.runtime.grid.formation import Formation, News
from plesio.runtime.grid.grid import Grid
from plesio.runtime.grid.joining import Door, join
from plesio.runtime.grid.mixer import Mixer
from plesio.runtime.grid.records import Books, Collector, Network
from plesio.runtime.grid.regrouping import Composed, Regrouper
from plesio.runtime.grid.saving import GridSaver, found
from plesio.runtime.grid.stage import Loss, Stage
from plesio.runtime.grid.stage_pacing import StagePacer
from plesio.runtime.grid.tick import StageWorker
from plesio.runtime.job import Job
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.environment import GRID_VARIABLE, Place
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.gauges import Gauges
from plesio.runtime.worker.job_handle import Ambient, JobHandle, ambient
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.peer_watch import Unwatched
from plesio.runtime.worker.timeline import Timeline

__all__ = ["grid"]

_PLAIN = JoinOptions()
_log = logging.getLogger(__name__)

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler | None]


@checked
def grid(
    stages: nn.Sequential | Sequence[nn.Module],
    optimizer_factory: OptimizerFactory,
    loss: Loss,
    *,
    setting: Annotated[GridSetting | str | None, 'a grid or its text, as in "2x4,mixing=ring"'] = None,
    groups: Annotated[int, AT_LEAST_1] | None = None,
    cuts: Sequence[Annotated[int, AT_LEAST_1]] | None = None,
    balance: Balance = "time",
    scheduler_factory: SchedulerFactory | None = None,
    clip: Annotated[float, ABOVE_0] | None = None,
    trace: Path | str | None = None,
    checkpoint: Path | str | None = None,
    every: str | float = "10 min",
    keep: Annotated[int, AT_LEAST_1] = 3,
    resume: str = "auto",
    options: JoinOptions = _PLAIN,
) -> Grid:
    """Take part in training a network that is cut into K stages, in S groups: S x K workers.

    Under torchrun's variables (``plesio run --grid 2x2``, torchrun ...) this process is one of the workers, rank
    ``s K + k`` being stage k of group s; without them it trains the whole network by itself. All begin with rank 0's
    parameters and buffers. Ranks of S K and more join a run that goes on, K at a time, when the others let them in.

    Args:
        stages: The network as a `torch.nn.Sequential`, which is cut, or as a list of modules, one a stage. What one
            layer hands on, a tensor or a tuple of tensors, is what the next is called with.
        optimizer_factory: Makes a stage's optimizer of its parameters.
        loss: ``loss(output, y)``, the mean over a micro-batch.
        setting: The grid, or its text (``"2x4,mixing=ring"``); None is what ``plesio run --grid`` says, else one group.
        groups: S, where ``setting`` is not given; K is then the number of workers over S.
        cuts: After how many layers each stage but the last ends, ``[2, 5]``; None cuts by itself.
        balance: What is balanced over the stages: measured ``time`` (in the virtual world operations, as equal
            arguments give equal results there), or ``memory`` of parameters.
        scheduler_factory: Makes a stage's learning-rate schedule of its optimizer, or None; stepped after every update.
        clip: Largest norm of a stage's gradient; None for any.
        trace: Folder for traces and ``results.json``; None for none.
        checkpoint: Folder for checkpoints, which every host sees; None for none (``PLESIO_CHECKPOINT`` names one).
        every: Between two of them: ``"10 min"``, ``"500 steps"`` (micro-batches of a group), or seconds.
        keep: How many are kept, the latest.
        resume: ``"auto"`` goes on from the latest whole one, ``"no"`` begins afresh; or the folder of one.
        options: What few need: snapshots, a pacer, names for the results, a job to run in.

    Returns:
        The grid; close it, or use it as a context manager.

    Raises:
        ConfigError: The setting cannot be read, or is for another number of workers.
        TaskError: The stages are no modules, or share weights.
        TransportError: The other workers cannot be reached, or the run that this one joins has ended.

    >>> import torch
    >>> layers = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    >>> mean_square = torch.nn.functional.mse_loss
    >>> with grid(layers, lambda weights: torch.optim.SGD(weights, lr=0.1), mean_square) as session:
    ...     _ = session.step(torch.ones(4, 2), torch.zeros(4, 1))
    >>> session.report().steps
    1
    """
    around = ambient() if options.job is None else None
    if around is not None:
        options, trace = _within(around, options), around.trace if trace is None else trace
        if around.policy is not None and is_grid(around.policy):
            setting, groups = around.policy, None
    place = Place.from_environment() if options.job is None else options.job.place
    layers, own_cut = layers_of(stages)
    cut = own_cut if cuts is None else Cut(tuple(cuts))
    make_writable(folder := None if trace is None else Path(trace), "traces")
    chosen = _setting(setting, groups=groups, num_workers=1 if place is None else place.num_workers, cut=cut)
    wishes = _Wishes(
        optimizer_factory=optimizer_factory,
        scheduler_factory=scheduler_factory,
        loss=loss,
        clip=clip,
        cut=cut if chosen.stages > 1 else None,
        balance=balance,
        options=options,
        saving=CheckpointSetting.of(checkpoint, every=every, keep=keep, resume=resume),
    )
    return _begin(layers, wishes, chosen, job=options.job, place=place, folder=folder)


def _within(around: Ambient, options: JoinOptions) -> JoinOptions:
    """What holds in the job of a virtual worker whose script names none."""
    return replace(options, job=around.job, pacer=around.pacer if options.pacer is None else options.pacer)


def _begin(
    layers: nn.Sequential,
    wishes: "_Wishes",
    setting: GridSetting,
    *,
    job: JobHandle | None,
    place: Place | None,
    folder: Path | None,
) -> Grid:
    """The session, in the job that there is, or in one of its own, which ends with it."""
    introduce(0 if place is None else place.rank)
    undo = contextlib.ExitStack()
    try:
        if job is None and place is not None:
            job = undo.enter_context(Job(place))
        return _Composer(layers, wishes, setting, job).session(folder, release=undo.close)
    except BaseException:
        undo.close()
        raise


def _setting(given: GridSetting | str | None, *, groups: int | None, num_workers: int, cut: Cut | None) -> GridSetting:
    """The grid, for as many workers as there are."""
    if given is not None and groups is not None:
        raise ConfigError("write setting or groups, not both: a setting has the groups in it")
    by_launcher = os.environ.get(GRID_VARIABLE)
    told = by_launcher if given is None else given
    if by_launcher is not None and told is not None and _parsed(told) != _parsed(by_launcher):
        spec = _parsed(told).spec
        raise ConfigError(f"the script says {spec}, and plesio run --grid says {by_launcher}; leave one of them out")
    if num_workers == 1:  # alone: the whole network in one stage, at whatever this grid would be
        chosen = GridSetting() if told is None else _parsed(told)
        flushes = chosen.flushes
        return GridSetting(
            schedule=chosen.schedule if flushes else "decoupled",
            micro_batches=chosen.micro_batches if flushes else 1,
        )
    if told is None:
        groups = 1 if groups is None else groups
        if num_workers % groups:
            raise ConfigError(f"groups={groups}: {num_workers} workers cannot be divided so; write a divisor")
        chosen = GridSetting(groups=groups, stages=num_workers // groups)
    else:
        chosen = _parsed(told)
    if groups is not None and groups != chosen.groups:
        raise ConfigError(f"groups={groups} is written in the script, and the grid is {told}; write one of the two")
    if chosen.num_workers != num_workers:
        raise ConfigError(
            f"a {chosen.groups}x{chosen.stages} grid has {chosen.num_workers} workers, and here are {num_workers}; "
            f"start {chosen.num_workers}, or write another grid"
        )
    if cut is not None and len(cut.ends) + 1 != chosen.stages:
        raise ConfigError(f"{len(cut.ends) + 1} stages are given, and the grid has {chosen.stages}; make them alike")
    return chosen


def _parsed(setting: GridSetting | str) -> GridSetting:
    return GridSetting.parse(setting) if isinstance(setting, str) else setting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wishes:
    """What a call of `grid` says about the training."""

    optimizer_factory: OptimizerFactory
    scheduler_factory: SchedulerFactory | None
    loss: Loss
    clip: Annotated[float, ABOVE_0] | None
    cut: Cut | None
    balance: Balance
    options: JoinOptions
    saving: CheckpointSetting | None


@dataclass(frozen=True, slots=True)
class _Met:
    """A worker that has come together with the others, if there are any.

    Attributes:
        collector: Knows who they are.
        door: Where newcomers wait.
        group: Those that the run began with, if this worker did.
        past: What it goes on from, if it has joined.
    """

    collector: Collector
    _: KW_ONLY
    door: Door | None = None
    group: Group | None = None
    past: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Composer:
    """Puts a worker together."""

    layers: nn.Sequential
    wishes: _Wishes
    setting: GridSetting
    job: JobHandle | None

    @property
    def _rank(self) -> int:
        return 0 if self.job is None else self.job.place.rank

    @property
    def _clock(self) -> Clock:
        return MonotonicClock() if self.job is None else self.job.clock

    def session(self, folder: Path | None, *, release: Callable[[], None]) -> Grid:
        """The session, whose network is cut at its first step."""
        job, setting, options = self.job, self.setting, self.wishes.options
        timeline = self._timeline(folder)
        try:
            met = self._meet(timeline)
        except BaseException:  # a newcomer may not be let in
            timeline.trace.close()
            raise
        group, collector = met.group, met.collector
        place = GridPlace.of(self._rank, setting)
        racks = () if group is None else _racks(group)
        around = ambient()
        if around is not None:
            around.on_meter(timeline.meter)
        books = Books(
            setting=setting,
            info=options.info,
            world="process" if job is None else job.world,
            folder=folder,
            racks=racks,
            workers=lambda: collector.known | set(range(setting.num_workers)),
            on_ended=_nobody_hears if around is None else around.on_ended,
        )

        saver, past = self._saver(collector, joined=met.past, warn=timeline.meter.warn)

        def compose(x: Any, training: TrainingClock) -> Composed:
            cut = self.wishes.cut if past is None else Cut(tuple(past["ends"]))
            if cut is None:
                balance = self.wishes.balance
                cut = agreed_cut(
                    self.layers, x, num_stages=setting.stages, balance=balance, group=group, world=books.world
                )
            return self._composed(cut, met, timeline=timeline, training=training)

        return Grid(
            self.layers,
            place=place,
            compose=compose,
            collector=collector,
            books=books,
            timeline=timeline,
            release=release,
            finished_without=(lambda lost: None) if job is None else job.finished_without,
            snapshot_every=options.snapshot_every,
            saver=saver,
            past=past,
        )

    def _meet(self, timeline: Timeline) -> _Met:
        """Come together with the others, at the beginning or in a run that goes on."""
        job, setting, step_s = self.job, self.setting, timeline.meter.mean_step_s
        if job is None:
            return _Met(Collector(None, 0, Formation.first(setting), Unwatched()))
        device = next((p.device for p in self.layers.parameters()), torch.device("cpu"))
        door = Door(job, setting, step_s=step_s, device=device)
        if job.place.late:
            it = join(job, setting, step_s=step_s, device=device)
            collector = Collector(it.links, self._rank, it.formation, it.watch, num_gathered=it.past["gathered"])
            return _Met(collector, door=door, past=it.past)
        group, links = job.group(device.type), job.links(device)
        collector = Collector(links, self._rank, Formation.first(setting), job.watch_peers(step_s))
        return _Met(collector, door=door, group=group)

    def _saver(
        self, collector: Collector, *, joined: dict[str, Any] | None, warn: Callable[[str], None]
    ) -> tuple[GridSaver | None, dict[str, Any] | None]:
        """What takes checkpoints, and what this worker goes on from: as it joins, or from one of those."""
        saving, seed = self.wishes.saving, self.wishes.options.info.seed
        if saving is None:
            return None, joined
        saving.prepare()
        past = found(saving, grid=self.setting, seed=seed, rank=self._rank) if joined is None else joined
        taken_s = 0.0 if past is None else past["training_s"]
        writer = Writer.of(saving, rank=self._rank, warn=warn)
        if self._rank == 0 and joined is None:
            writer.take_folder()
        return GridSaver(setting=saving, collector=collector, seed=seed, taken_s=taken_s, writer=writer), past

    def _timeline(self, folder: Path | None) -> Timeline:
        sent = dict if self.job is None else self.job.bytes_sent_since(self.job.bytes_sent())
        told_bytes = None if self.job is None else self.job.memory_bytes()
        meter = Meter(bytes_sent=sent, memory_bytes=told_bytes or 0, gauges=None)
        path = None if folder is None else folder / f"trace-{self._rank}.jsonl"
        header = {"worker": self._rank, "policy": self.setting.spec}
        trace = TraceWriter(path, header=header, on_failure=_log.warning, clock=self._clock)
        return Timeline(meter, trace, clock=self._clock)

    def _composed(
        self,
        cut: Cut,
        met: _Met,
        *,
        timeline: Timeline,
        training: TrainingClock,
    ) -> Composed:
        """Cut the network and put together what this worker works with; all workers do so at their first step."""
        collector, wishes = met.collector, self.wishes
        setting = collector.formation.setting
        if met.group is not None:
            _take_over_from_first(self.layers, met.group)
        stages = parts(self.layers, cut)
        place = GridPlace.of(self._rank, setting)
        if self._rank == 0 and setting.stages > 1:
            print(f"plesio: {cut.words(len(self.layers))}", file=sys.stderr, flush=True)
        layers = stages[place.stage]
        weights = [p for p in layers.parameters() if p.requires_grad]
        optimizer = wishes.optimizer_factory(weights)
        stage = Stage(
            layers,
            optimizer,
            setting=setting,
            number=place.stage,
            loss=wishes.loss,
            clip=wishes.clip,
            scheduler=None if wishes.scheduler_factory is None else wishes.scheduler_factory(optimizer),
        )
        if self.job is None or self.job.memory_bytes() is None:
            timeline.measured_by(Gauges(Replica(layers, optimizer)))
        news = News(generation=collector.formation.generation)

        def neighbours(formation: Formation, lost: Mapping[int, int]) -> Mixer | None:
            if collector.links is None or formation.setting.groups == 1:
                return None
            return Mixer(
                weights,
                formation=formation,
                links=collector.links,
                group=place.group,
                stage=place.stage,
                seed=wishes.options.info.seed,
                news=news,
                on_lost=lambda group: _hear_of_lost(group, collector=collector, timeline=timeline),
                lost=lost,
            )

        pacer = wishes.options.pacer
        worker = StageWorker(
            stage,
            StageMachine(setting, stage=place.stage),
            column=Column() if collector.links is None else Column.of(collector.links, place, setting),
            mixer=neighbours(collector.formation, {}),
            news=news,
            pacer=None if pacer is None else StagePacer(pacer, 1 / setting.stages, self._clock),
            timeline=timeline,
            training=training,
        )
        regrouper = Regrouper(
            worker,
            place=place,
            news=news,
            collector=collector,
            neighbours=neighbours,
            door=met.door,
            say=partial(_say, timeline),
        )
        return Composed(worker, Network(self.layers, stages, ends=cut.ends), regrouper)


def _nobody_hears(result: RunResult) -> None:
    """Of a worker by itself, who has the result."""


def _racks(group: Group) -> tuple[int, ...]:
    own = torch.tensor([group.rack])
    return tuple(int(rack) for rack in group.all_gather(own).wait())


def _hear_of_lost(number: int, *, collector: Collector, timeline: Timeline) -> None:
    """A group is lost: its share is not waited for any more."""
    collector.lose(number)
    _say(timeline, f"group {number} of the grid was lost: the others went on without it")


def _say(timeline: Timeline, line: str) -> None:
    """A line for the run's result."""
    timeline.meter.totals.fallbacks.append(line)
    _log.warning("%s", line)


@torch.no_grad()
def _take_over_from_first(layers: nn.Module, group: Group) -> None:
    """Begin with rank 0's parameters and buffers."""
    for tensor in (*layers.parameters(), *layers.buffers()):
        value: Tensor = tensor.detach().contiguous()
        group.broadcast(value)
        tensor.copy_(value)
