"""The checkpoint that a resumed run begins with, on one worker."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plesio.core.errors import ConfigError
from plesio.protocol.figures import Report
from plesio.runtime.checkpoints import reading, tensors, worker
from plesio.runtime.checkpoints.folder import Folder, Manifest, faults, read_manifest
from plesio.runtime.checkpoints.part_reports import Seat
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.checkpoints.trained_with import changes, records
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.quiescent_point import QuiescentPoint

__all__ = ["ResumedCheckpoint", "find"]

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

        Args:
            setting: The user's setting. Its ``resume`` is ``"auto"``: the latest that is whole, if there is any;
                ``"no"``; or the folder of one.
            policy: As it was asked for.
            seed: Of the order of samples.
            seat: This process.
            parts: `ReplicaTensors.parts`: what it holds.

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
        """Check that it is of this model and optimizer.

        Returns:
            What the program has set otherwise in the optimizer, in lines.

        Raises:
            DataError: It is of another model or optimizer.
        """
        tensors.check_model(replica, reading.shapes(self.path))
        return changes(records(replica), self.manifest.optimizers)

    def load(self, replica: Replica) -> None:
        """Set parameters, buffers and the optimizer's state: of a replica in parts those that are here.

        Raises:
            DataError: They cannot be read.
        """
        tensors.load(replica, reading.read(self.path, place=tensors.placing(replica)))
        if self.is_own:
            worker.take_own_state(replica, self.own)

    def point(self, *, same_workers: bool) -> QuiescentPoint:
        """Return where the run stood.

        Args:
            same_workers: Whether those that wrote it are those that go on; what else an exchange remembers is theirs.
        """
        manifest, own = self.manifest, self.own["stand"]
        return QuiescentPoint(
            clock=manifest.clock,
            policy=own["policy"],
            next_review=own["next_review"],
            next_clock=own["next_clock"],
            shares=tuple(own["shares"]) if same_workers else (),
            keep=own["keep"] and same_workers,
            samples=manifest.samples,
            plan=manifest.plan,
            figures=manifest.figures,
            remainder=manifest.remainder,
            own=own["own"] if same_workers else {},
            own_optimizer=own["own_optimizer"],
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
