"""How a run with checkpoints begins on one worker: afresh, or from one of them."""

import json
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from plesio.core.errors import ConfigError
from plesio.policies import Policy
from plesio.protocol.figures import Report
from plesio.protocol.to_server import Saving
from plesio.protocol.to_worker import ServerState
from plesio.runtime.checkpoints import reading, tensors, worker
from plesio.runtime.checkpoints.folder import Folder, Manifest, faults, read_manifest
from plesio.runtime.checkpoints.part_reports import Seat
from plesio.runtime.checkpoints.saver import CheckpointSaver
from plesio.runtime.checkpoints.setting import CheckpointSetting, parse_every
from plesio.runtime.checkpoints.trained_with import changes, check_plain, records
from plesio.runtime.checkpoints.writing import Writer
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.quiescent_point import STAND, QuiescentPoint
from plesio.runtime.worker.registered import Registered

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedCheckpoint:
    """A checkpoint, as one worker reads it.

    Attributes:
        own: This process's own values; of the first that wrote, if this one did not, or held other parts.
        is_own: Whether they are its own.
    """

    path: Path
    manifest: Manifest
    own: dict[str, Any]
    is_own: bool

    @classmethod
    def find(
        cls, setting: CheckpointSetting, *, policy: str, seed: int, seat: Seat, parts: str | None = None
    ) -> "ResumedCheckpoint | None":
        """Find what a process goes on from; None to begin afresh.

        Raises:
            ConfigError: The policy or the order of samples is another, or the one that is named is damaged.
            DataError: It is no checkpoint; or there are some, and none is whole.
        """
        found = find(setting, policy=policy, seed=seed)
        if found is None:
            return None
        path, manifest = found
        name, first = worker.name_of(seat), worker.name_of(Seat(manifest.workers[0]))
        own = worker.read(path / (name if name in manifest.files else first))
        if name in manifest.files and own.get("parts") == parts:
            return cls(path=path, manifest=manifest, own=own, is_own=True)
        return cls(path=path, manifest=manifest, own=worker.read(path / first), is_own=False)

    def check(self, replica: Replica) -> list[str]:
        """Check that it is of this model and optimizer; DataError if not.

        Returns:
            What the program has set otherwise in the optimizer, in lines.
        """
        tensors.check_model(replica, reading.shapes(self.path))
        return changes(records(replica), self.manifest.optimizers)

    def load(self, replica: Replica) -> None:
        """Set parameters, buffers and the optimizer's state: of a replica in parts those that are here.

        It raises DataError if they cannot be read.
        """
        tensors.load(replica, reading.read(self.path, place=tensors.placing(replica)))
        if self.is_own:
            worker.take_own_state(replica, self.own)

    def point(self, *, same_workers: bool) -> QuiescentPoint:
        """Return where the run stood.

        Args:
            same_workers: Whether those that wrote it are those that go on; what else an exchange remembers is theirs.
        """
        manifest, stand = self.manifest, self.own["stand"]
        others = {} if same_workers else {"shares": (), "keep": False, "own": {}}
        return QuiescentPoint(
            **{**{name: stand[name] for name in STAND}, "shares": tuple(stand["shares"]), **others},
            clock=manifest.clock,
            samples=manifest.samples,
            plan=manifest.plan,
            figures=manifest.figures,
            remainder=manifest.remainder,
        )

    def report(self, rank: int) -> Report:
        """Return the totals of the worker with this rank: its own, or those of a lost one whose rank it has now."""
        if self.is_own:
            return Report(**self.own["report"])
        reports = json.loads(self.server_state())["ledger"]["reports"]
        return Report(**reports[str(rank)]) if str(rank) in reports else Report()

    def server_state(self) -> str:
        return (self.path / "books.json").read_text(encoding="utf-8")


def find(setting: CheckpointSetting, *, policy: str, seed: int, kind: str = "policy") -> tuple[Path, Manifest] | None:
    """Find the checkpoint to begin with; None to begin afresh.

    ``kind`` is the user's word for the policy, which is as it was asked for.

    Raises:
        ConfigError: It is of another policy or order of samples, or the one that is named is damaged.
        DataError: There are checkpoints, and none is whole.
    """
    if setting.resume == "no":
        return None
    if setting.resume == "auto":
        folder = Folder(setting.folder)
        latest = folder.latest()
        if latest is None:
            for cut_off in folder.unfinished()[:1]:
                _log.warning("%s was cut off while it was written and no other is there: the run begins anew", cut_off)
            return None
        path, manifest, damaged = latest
        for line in damaged:
            _log.warning("left out a damaged checkpoint: %s", line)
    else:
        path = Path(setting.resume)
        manifest = read_manifest(path)
        for fault in faults(path, manifest.files):
            raise ConfigError(f"{path} is damaged: {fault}; resume=auto takes the latest that is whole")
    for what, here, there in ((kind, policy, manifest.policy), ("seed", seed, manifest.seed)):
        if here != there:
            raise ConfigError(
                f"{path} is of a run with {what} {there}, and this one has {here}; "
                "use another folder for it, or resume=no"
            )
    return path, manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCheckpoints:
    """Checkpoints of one worker in one run.

    Attributes:
        pages: The state that server 0 begins with; worker 0 sends them.
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
            worker.set_random_states(resumed.own["random"])
        for group, saved in zip(self.saver.replica.optimizer.param_groups, options, strict=True):
            group.update(saved)
        self.saver.go_on()
