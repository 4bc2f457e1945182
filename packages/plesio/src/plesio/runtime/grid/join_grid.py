"""`plesio.grid`: the one call that turns a training loop into a worker of an S x K grid."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plesio.core.arguments import checked
from plesio.core.clock import Clock, MonotonicClock, TrainingClock
from plesio.core.errors import ConfigError
from plesio.core.logs import introduce
from plesio.core.within import ABOVE_0, AT_LEAST_1
from plesio.policies.grid import GridSetting, is_grid
from plesio.runtime.checkpoints.part_reports import Seat
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.checkpoints.writing import Writer
from plesio.runtime.grid.collector import Collector
from plesio.runtime.grid.column import Column
from plesio.runtime.grid.cutting import Balance, NetworkCut, agreed_cut, layers_of, parts
from plesio.runtime.grid.formation import Formation, GridPlace, News
from plesio.runtime.grid.grid import Grid
from plesio.runtime.grid.joining import Door
from plesio.runtime.grid.mixer import Mixer
from plesio.runtime.grid.network import WholeNetwork
from plesio.runtime.grid.records import GridRecords, GridRun
from plesio.runtime.grid.regrouping import Composed, Regrouper
from plesio.runtime.grid.saving import GridSaver, found
from plesio.runtime.grid.stage import GridStage, Loss
from plesio.runtime.grid.tick import StageWorker
from plesio.runtime.job import Job
from plesio.runtime.join_options import JoinOptions, checkpoints_of, place_of, surrounded
from plesio.runtime.worker.environment import GRID_VARIABLE, WorkerPlace
from plesio.runtime.worker.exchange.exchange import SnapshotTaker
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.gauges import Gauges
from plesio.runtime.worker.job_handle import JobHandle, ambient
from plesio.runtime.worker.meter import Meter, WorkerTimeline
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.peer_watch import Watch

_PLAIN = JoinOptions()

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
        setting: The grid, or its text (``"2x4,mixing=ring"``); None is ``plesio run --grid``'s, else one group.
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
    options, folder, around = surrounded(options, trace, policy=setting, checkpoint=checkpoint)
    if around is not None and around.policy is not None and is_grid(around.policy):
        setting, groups = around.policy, None
    place = place_of(options)
    layers, cut = layers_of(stages, cuts)
    chosen = _setting(setting, groups=groups, num_workers=1 if place is None else place.num_workers, cut=cut)
    composer = _Composer(
        layers=layers,
        setting=chosen,
        job=options.job,
        optimizer_factory=optimizer_factory,
        scheduler_factory=scheduler_factory,
        loss=loss,
        clip=clip,
        cut=cut if chosen.stages > 1 else None,
        balance=balance,
        folder=folder,
        options=options,
        saving=checkpoints_of(around, checkpoint, every=every, keep=keep, resume=resume),
    )
    return composer.begin(place)


def _setting(
    given: GridSetting | str | None, *, groups: int | None, num_workers: int, cut: NetworkCut | None
) -> GridSetting:
    if given is not None and groups is not None:
        raise ConfigError("write setting or groups, not both: a setting has the groups in it")
    by_launcher = os.environ.get(GRID_VARIABLE)
    wanted = by_launcher if given is None else given
    if by_launcher is not None and wanted is not None and _parsed(wanted) != _parsed(by_launcher):
        spec = _parsed(wanted).spec
        raise ConfigError(f"the script says {spec}, and plesio run --grid says {by_launcher}; leave one of them out")
    if num_workers == 1:  # alone: the whole network in one stage, at whatever this grid would be
        chosen = GridSetting() if wanted is None else _parsed(wanted)
        return GridSetting(micro_batches=chosen.micro_batches)
    if wanted is None:
        groups = 1 if groups is None else groups
        if num_workers % groups:
            raise ConfigError(f"groups={groups}: {num_workers} workers cannot be divided so; write a divisor")
        chosen = GridSetting(groups=groups, stages=num_workers // groups)
    else:
        chosen = _parsed(wanted)
    if groups is not None and groups != chosen.groups:
        raise ConfigError(f"groups={groups} is written in the script, and the grid is {wanted}; write one of the two")
    if chosen.num_workers != num_workers:
        raise ConfigError(
            f"a {chosen.groups}x{chosen.stages} grid has {chosen.num_workers} workers, and here are {num_workers}; "
            f"start {chosen.num_workers}, or write another grid"
        )
    if cut is not None and len(cut.ends) + 1 != chosen.stages:
        given = f"{len(cut.ends) + 1} stages (by cuts, or one by one)"
        raise ConfigError(f"{given} are given, and the grid has {chosen.stages}; make them alike")
    return chosen


def _parsed(setting: GridSetting | str) -> GridSetting:
    return GridSetting.parse(setting) if isinstance(setting, str) else setting


@dataclass(frozen=True, slots=True)
class _Met:
    """A worker that has come together with the others, if there are any.

    Attributes:
        door: Where newcomers wait.
        group: Those that the run began with, if this worker did.
        past: What it goes on from, if it has joined.
    """

    collector: Collector
    _: KW_ONLY
    door: Door | None = None
    group: Group | None = None
    past: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composer:
    """The composer of a worker, from the arguments of a call of `grid`."""

    layers: nn.Sequential
    setting: GridSetting
    job: JobHandle | None
    optimizer_factory: OptimizerFactory
    scheduler_factory: SchedulerFactory | None
    loss: Loss
    clip: float | None
    cut: NetworkCut | None
    balance: Balance
    folder: Path | None
    options: JoinOptions
    saving: CheckpointSetting | None

    @property
    def _rank(self) -> int:
        return 0 if self.job is None else self.job.place.rank

    @property
    def _clock(self) -> Clock:
        return MonotonicClock() if self.job is None else self.job.clock

    def begin(self, place: WorkerPlace | None) -> Grid:
        """Make the session, in a job of its own, which ends with it, where the options name none."""
        introduce(0 if place is None else place.rank)
        composer, undo = self, contextlib.ExitStack()
        try:
            if self.job is None and place is not None:
                composer = replace(self, job=undo.enter_context(Job(place)))
            return composer._session(release=undo.close)
        except BaseException:
            undo.close()
            raise

    def _session(self, *, release: Callable[[], None]) -> Grid:
        """Make the session, whose network is cut at its first step."""
        job, around, timeline = self.job, ambient(), self._timeline()
        try:
            met = self._meet(timeline)
        except BaseException:  # a newcomer may not be let in
            timeline.trace.close()
            raise
        racks = () if met.group is None else met.group.all_gather(torch.tensor([met.group.rack])).wait()
        if around is not None:
            around.on_meter(timeline.meter)
        saver, values = self._saver(joined=met.past, warn=timeline.meter.warn)
        past = WorkerPast(values=values)
        records = GridRecords(
            collector=met.collector,
            run=GridRun(
                setting=self.setting,
                info=self.options.info,
                world="process" if job is None else job.world,
                folder=self.folder,
                racks=tuple(int(rack) for rack in racks),
                on_ended=(lambda result: None) if around is None else around.on_ended,
            ),
            timeline=timeline,
            training=TrainingClock(timeline.clock, already_s=past.training_s),
            snapshots=SnapshotTaker(self.options.snapshot_every),
            past=past,
        )

        def end(lost: Sequence[int]) -> None:
            if lost and job is not None:
                job.start.finished_without(lost)
            release()

        return Grid(
            self.layers,
            compose=lambda x: self._composed(x, met, records, past=values),
            records=records,
            release=end,
            saver=saver,
            past=values,
        )

    def _meet(self, timeline: WorkerTimeline) -> _Met:
        job, setting, step_s = self.job, self.setting, timeline.meter.mean_step_s
        if job is None:
            return _Met(Collector(None, 0, Formation.first(setting), Watch()))
        device = next((p.device for p in self.layers.parameters()), torch.device("cpu"))
        door = Door(job, setting, step_s=step_s, device=device)
        if job.place.late:
            collector, past = door.enter()
            return _Met(collector, door=door, past=past)
        group, links = job.group(device.type), job.links(device)
        collector = Collector(links, self._rank, Formation.first(setting), job.watch_peers(step_s))
        return _Met(collector, door=door, group=group)

    def _saver(
        self, *, joined: dict[str, Any] | None, warn: Callable[[str], None]
    ) -> tuple[GridSaver | None, dict[str, Any] | None]:
        """Make what takes checkpoints; returns what this worker goes on from, too, as it joins or is resumed."""
        saving = self.saving
        if saving is None:
            return None, joined
        saving.prepare()
        past = joined
        if joined is None:
            past = found(saving, grid=self.setting, seed=self.options.info.seed, rank=self._rank)
        writer = Writer.of(saving, seat=Seat(self._rank), warn=warn)
        if self._rank == 0 and joined is None:
            writer.take_folder()
        return GridSaver(setting=saving, taken_s=0.0 if past is None else past["training_s"], writer=writer), past

    def _timeline(self) -> WorkerTimeline:
        sent = dict if self.job is None else self.job.bytes_sent_since(self.job.bytes_sent())
        memory_bytes = None if self.job is None else self.job.memory_bytes()
        meter = Meter(bytes_sent=sent, memory_bytes=memory_bytes or 0, gauges=None)
        return WorkerTimeline.of(meter, self.folder, worker=self._rank, policy=self.setting.spec, clock=self._clock)

    def _cut(self, x: Any, group: Group | None, *, past: dict[str, Any] | None) -> NetworkCut:
        if past is not None:
            return NetworkCut(tuple(past["ends"]))
        if self.cut is not None:
            return self.cut
        world = "process" if self.job is None else self.job.world
        num_stages, balance = self.setting.stages, self.balance
        return agreed_cut(self.layers, x, num_stages=num_stages, balance=balance, group=group, world=world)

    def _stage(self, layers: nn.Sequential, setting: GridSetting, *, number: int) -> GridStage:
        optimizer = self.optimizer_factory([p for p in layers.parameters() if p.requires_grad])
        return GridStage(
            layers,
            optimizer,
            setting=setting,
            number=number,
            loss=self.loss,
            clip=self.clip,
            scheduler=None if self.scheduler_factory is None else self.scheduler_factory(optimizer),
        )

    def _composed(self, x: Any, met: _Met, records: GridRecords, *, past: dict[str, Any] | None) -> Composed:
        """Cut the network and put together what this worker works with; all workers do so at their first step."""
        cut = self._cut(x, met.group, past=past)
        collector, timeline = met.collector, records.timeline
        setting = collector.formation.setting
        if met.group is not None:
            _take_over_from_first(self.layers, met.group)
        # weights are common before they are cut apart
        stages = parts(self.layers, cut)
        place = GridPlace.of(self._rank, setting)
        if self._rank == 0 and setting.stages > 1:
            print(f"plesio: {cut.words(len(self.layers))}", file=sys.stderr, flush=True)
        layers = stages[place.stage]
        stage = self._stage(layers, setting, number=place.stage)
        late = setting.updates_late[0]
        if self._rank == 0 and late > 1 and "betas" in stage.optimizer.defaults:
            timeline.meter.warn(
                f"{type(stage.optimizer).__name__} learns far less from gradients that are {late} updates late; "
                f"write micro_batches={setting.delays[0]} or more, of smaller micro-batches, and they are one late"
            )
        if self.job is None or self.job.memory_bytes() is None:
            timeline.measured_by(Gauges(Replica(layers, stage.optimizer)))
        news = News(generation=collector.formation.generation)

        def lose(group: int) -> None:
            collector.lose(group)
            timeline.meter.warn(f"group {group} of the grid was lost: the others went on without it")

        def neighbours(formation: Formation, lost: Mapping[int, int]) -> Mixer | None:
            if collector.links is None or formation.setting.groups == 1:
                return None
            return Mixer(
                [p for p in layers.parameters() if p.requires_grad],
                formation=formation,
                links=collector.links,
                place=place,
                seed=self.options.info.seed,
                news=news,
                on_lost=lose,
                lost=lost,
            )

        # all that a stage does at a tick: passes, updates, and the mixing with its like
        worker = StageWorker(
            stage,
            tally=records.tally,
            column=Column() if collector.links is None else Column.of(collector.links, place, setting),
            mixer=neighbours(collector.formation, {}),
            news=news,
            pacer=self.options.pacer,
            timeline=timeline,
            training=records.training,
        )
        regrouper = Regrouper(
            worker,
            place=place,
            news=news,
            collector=collector,
            neighbours=neighbours,
            door=met.door,
            say=timeline.meter.warn,
        )
        return Composed(worker, WholeNetwork(self.layers, stages, ends=cut.ends), regrouper)


@torch.no_grad()
def _take_over_from_first(layers: nn.Module, group: Group) -> None:
    for tensor in (*layers.parameters(), *layers.buffers()):
        value: Tensor = tensor.detach().contiguous()
        group.broadcast(value)
        tensor.copy_(value)
