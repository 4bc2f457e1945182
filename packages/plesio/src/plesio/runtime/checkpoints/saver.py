"""Takes checkpoints: copies at a quiescent point, which `plesio.runtime.checkpoints.writing` writes later."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from plesio.protocol.figures import Report
from plesio.protocol.to_worker import ServerState
from plesio.runtime.checkpoints import reading, tensors, worker
from plesio.runtime.checkpoints.folder import HashedFile, Manifest, OptimizerRecord
from plesio.runtime.checkpoints.part_reports import PartReport, Seat
from plesio.runtime.checkpoints.trained_with import check_plain
from plesio.runtime.checkpoints.writing import CheckpointPart, Writer
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.quiescent_point import STAND, QuiescentPoint
from plesio.runtime.worker.registered import Registered, Stateful


@dataclass(slots=True, kw_only=True)
class CheckpointSaver:
    """Takes the checkpoints of one worker in one run."""

    writer: Writer
    replica: Replica
    policy: str
    seed: int
    parts: str | None = None
    registered: Registered = field(default_factory=Registered)
    optimizers: tuple[OptimizerRecord, ...] = ()
    report: Callable[[], Report]
    _session: Callable[[], dict[str, Any]] = dict
    _pending: "_Pending | None" = None

    def save(self, point: QuiescentPoint, *, server_state: Callable[[], ServerState]) -> None:
        """Prepare to take a checkpoint here; see `plesio.runtime.worker.registered.Keeper`."""
        self._pending = _Pending(point, server_state() if self.writer.seat.worker == point.workers[0] else None)

    def take(self) -> bool:
        """Take the checkpoint that is to be taken, if there is one: copy all, and write it behind training.

        Returns whether there was one.

        Called between two steps, when the program has done all that belongs to the one before (stepped its scheduler)
        and has drawn nothing for the next.
        """
        if self._pending is None:
            return False
        pending, self._pending = self._pending, None
        self._compare_registered()
        self.writer.wait()  # else copies would come faster than the disk takes them
        try:
            part = self._copied(*pending)
        except Exception as error:  # the program's own objects are asked for their states
            point = pending.point
            part = CheckpointPart(clock=point.clock, workers=point.workers, failure=error)
        self.writer.write(part)
        return True

    def _copied(self, point: QuiescentPoint, server_state: ServerState | None) -> CheckpointPart:
        check_plain(self.replica)
        report = self.report()
        own = {
            "stand": {name: getattr(point, name) for name in STAND},
            "random": worker.random_states(),
            "registered": self.registered.states(),
            "session": self._session(),
            "report": msgspec.to_builtins(report),
            "parts": self.parts,
            **worker.own_state(self.replica, optimizer=point.own_optimizer),
        }
        share, finish = self._share(point), None
        if server_state is not None and share is not None and self.writer.leads(point.workers):
            finish = partial(self._finish, point=point, share=share, server_state=server_state)
        return CheckpointPart(
            clock=point.clock, workers=point.workers, own=own, report=report, share=share, finish=finish
        )

    def _share(self, point: QuiescentPoint) -> tensors.Share | None:
        seat = self.writer.seat
        number, num_shares, rank = point.workers.index(seat.worker), len(point.workers), seat.rank
        if self.replica.is_cut:
            number, num_shares, rank = 0, 1, number
        elif point.own_optimizer:
            # where workers step by themselves, the optimizer's state that is common to all is the leading one's
            if number > 0:
                return None
            num_shares = 1
        return tensors.Share(number, tensors.state_of(self.replica), num_shares=num_shares, rank=rank)

    def _finish(
        self,
        folder: Path,
        reports: Mapping[Seat, PartReport],
        *,
        point: QuiescentPoint,
        share: tensors.Share,
        server_state: ServerState,
    ) -> Manifest:
        """Write what is common to all workers; returns the manifest of it."""
        contents = share.finish(folder, [place for report in reports.values() for place in report.places])
        if self.writer.reads_back:
            reading.check(folder)
        records = json.loads(server_state.text)
        # what a worker has done by here it may not have reported to the server yet
        of_workers = {str(seat): one.report for seat, one in reports.items() if seat.rank == 0}
        records["ledger"]["reports"] |= msgspec.to_builtins(of_workers)
        with HashedFile(folder / "books.json") as file:
            file.write(json.dumps(records).encode())
        return Manifest(
            policy=self.policy,
            stage=point.policy,
            clock=point.clock,
            samples=point.samples,
            elapsed_s=server_state.elapsed_s,
            num_workers=len(point.workers),
            workers=point.workers,
            layout=self.replica.tensors.digest(),
            seed=self.seed,
            optimizers=self.optimizers,
            plan=point.plan,
            figures=point.figures,
            remainder=point.remainder,
            files={"books.json": file.written, ".metadata": contents},
        )

    def adds(self, session: Callable[[], dict[str, Any]]) -> None:
        self._session = session

    def register(self, name: str, one: Stateful) -> None:
        """Save ``one`` with the rest from now on; it goes on from its state in the checkpoint, if there is one."""
        self.registered.add(name, one)

    def go_on(self) -> None:
        """Have what is registered go on from the checkpoint, whatever has been done to it since."""
        self.registered.go_on()

    def _compare_registered(self) -> None:
        """Tell what the checkpoint that the run goes on from has and the program has not, and the other way round."""
        if self.registered.before is None:
            return
        before, now = self.registered.before.keys(), self.registered.objects.keys()
        for name in sorted(before - now):
            self.writer.warn(
                f'the checkpoint has a state of "{name}", which the program has not registered: it is left out'
            )
        for name in sorted(now - before):
            self.writer.warn(f'the checkpoint has no state of "{name}", which began anew')

    def close(self, *, failed: bool = False) -> None:
        """Return when the last checkpoint has been written, or has failed to be; see `Writer.close`."""
        if not failed:
            self._compare_registered()
        self.writer.close(failed=failed)


class _Pending(NamedTuple):
    point: QuiescentPoint
    server_state: ServerState | None
    """None on a worker that does not lead."""
