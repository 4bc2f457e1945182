"""How a run with checkpoints begins on one worker: afresh, or from one of them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from plesio.policies import Policy
from plesio.protocol.to_server import Saving
from plesio.protocol.to_worker import ServerState
from plesio.runtime.checkpoints.part_reports import Seat
from plesio.runtime.checkpoints.resumed import ResumedCheckpoint
from plesio.runtime.checkpoints.saver import CheckpointSaver
from plesio.runtime.checkpoints.setting import CheckpointSetting, parse_every
from plesio.runtime.checkpoints.trained_with import check_plain, records
from plesio.runtime.checkpoints.worker import set_random_states
from plesio.runtime.checkpoints.writing import Writer
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.quiescent_point import QuiescentPoint
from plesio.runtime.worker.registered import Registered

__all__ = ["WorkerCheckpoints"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCheckpoints:
    """Checkpoints of one worker in one run.

    Attributes:
        saving: Server 0's part of it.
        pages: The state that server 0 begins with; worker 0 sends them.
        resumed: What the run goes on from; None if it begins.
        point: The quiescent point that the run goes on from.
        loads_late: The replica has yet to get its parameters and optimizer state when its exchange is made.
    """

    saver: CheckpointSaver
    saving: Saving
    pages: tuple[str, ...] = ()
    resumed: ResumedCheckpoint | None = None
    point: QuiescentPoint | None = None
    loads_late: bool = False

    @classmethod
    def begin(
        cls,
        setting: CheckpointSetting,
        replica: Replica,
        *,
        resumed: ResumedCheckpoint | None,
        policy: Policy,
        seed: int,
        rank: int,
        num_workers: int,
        timeline: WorkerTimeline,
    ) -> "WorkerCheckpoints":
        """Give the replica the parameters and the optimizer state of the checkpoint to go on from, if there is one.

        The meter goes on from the checkpoint's figures. Where the policy shards, `past` gives the replica these when it
        is in parts, so that no worker has all of the optimizer's state.

        Raises:
            ConfigError: Another job has the folder, or the optimizer has what cannot be saved.
            DataError: The checkpoint is of another model or optimizer.
        """
        check_plain(replica)
        meter = timeline.meter
        workers, seat = tuple(range(num_workers)), Seat.of(rank, replica.island)
        saver = CheckpointSaver(
            writer=Writer.of(setting, seat=seat, warn=meter.warn, callbacks=meter.callbacks),
            replica=replica,
            policy=policy.title,
            seed=seed,
            parts=replica.tensors.parts(replica.island),
            registered=Registered(None if resumed is None else resumed.own["registered"]),
            optimizers=records(replica) if resumed is None else resumed.manifest.optimizers,
            report=meter.so_far,
        )
        if replica.scaling is not None:
            saver.register("scaler", replica.scaling.scaler)
        every_s, every_steps = parse_every(setting.every)
        differences = [] if resumed is None else resumed.check(replica)
        if resumed is not None and not policy.shards:
            resumed.load(replica)
        text = "" if resumed is None else resumed.server_state()
        if saver.writer.leads(workers):
            saver.writer.take_folder()  # when nothing can be refused any more
            for line in differences:
                meter.warn(line)
        if resumed is None:
            return cls(saver=saver, saving=Saving(every_s=every_s, every_steps=every_steps))
        manifest = resumed.manifest
        # a simulation begins at 0, which is before any checkpoint
        meter.go_on_from(resumed.report(rank), after_s=max(0.0, timeline.clock.unix_s() - manifest.created_unix_s))
        pages = tuple(ServerState.pages(text))
        saving = Saving(
            every_s=every_s,
            every_steps=every_steps,
            clock=manifest.clock,
            elapsed_s=manifest.elapsed_s,
            num_pages=len(pages),
        )
        alike = resumed.is_own or replica.island is None
        point = resumed.point(same_workers=workers == manifest.workers and alike)
        pages = pages if rank == 0 else ()
        late = policy.shards
        return cls(saver=saver, saving=saving, pages=pages, resumed=resumed, point=point, loads_late=late)

    def past(self) -> WorkerPast:
        """Return the run's past, when the exchange has been made."""
        if self.resumed is None:
            return WorkerPast()
        if self.loads_late:
            self.resumed.load(self.saver.replica)
            self.saver.replica.replaced()
        optimizer = self.saver.replica.optimizer
        self.saver.replica.stepper.takes_steps_elsewhere()  # else a scheduler takes the past for a mistake
        options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        go_on = partial(self._go_on, self.resumed, options)
        return WorkerPast(self.point, values=self.resumed.own["session"], go_on=go_on)

    def _go_on(self, resumed: ResumedCheckpoint, options: list[dict[str, Any]]) -> None:
        """Go on from the checkpoint: since `begin` the program has come through loops that were over."""
        if resumed.is_own:
            set_random_states(resumed.own["random"])
        for group, saved in zip(self.saver.replica.optimizer.param_groups, options, strict=True):
            group.update(saved)
        self.saver.go_on()
