"""Checkpoints of a process on its own: no other is under way after a step, so one is taken where it is due."""

import json
from collections.abc import Callable

import msgspec

from plesio.core.results import Found
from plesio.protocol.plans import PlanFigures
from plesio.protocol.to_worker import ServerState
from plesio.runtime.checkpoints.beginning import WorkerCheckpoints
from plesio.runtime.coordinator.ledger import LedgerState
from plesio.runtime.worker.exchange.exchange import LocalExchange, StepProgress
from plesio.runtime.worker.loading import BatchSource, SynchronousBatches
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.quiescent_point import QuiescentPoint
from plesio.runtime.worlds.alone import AloneWorld


class AloneSaving:
    """Deals the samples, and takes a checkpoint after a step when one is due.

    Args:
        policy: Spec of what it would run under with others.
    """

    in_rack = False

    def __init__(
        self,
        exchange: LocalExchange,
        *,
        checkpoints: WorkerCheckpoints,
        world: AloneWorld,
        policy: str,
        timeline: WorkerTimeline,
    ) -> None:
        self._checkpoints = checkpoints
        self._world = world
        self._policy = policy
        self._now_s = timeline.now_s
        self._began_s = self._now_s() - checkpoints.saving.elapsed_s
        self._taken_s = self._now_s()
        self._taken_clock = checkpoints.saving.clock
        self._plan = 0
        self._figures: PlanFigures | None = None
        self._batches: SynchronousBatches | None = None
        if (point := checkpoints.point) is not None:
            point.begin_rounds(world.rounds)
            assert checkpoints.resumed is not None, "a quiescent point is of a checkpoint"
            world.go_on_from(
                msgspec.convert(json.loads(checkpoints.resumed.server_state())["ledger"], LedgerState, strict=False)
            )
        exchange.after_step(self._stepped)

    def batch_source(self, figures: PlanFigures, *, plan: int) -> BatchSource:
        self._plan, self._figures = plan, figures
        self._batches = SynchronousBatches(
            figures.whole(), batch_size=figures.batch_size, plan=plan, rounds=self._world.rounds
        )
        return self._batches

    def share_metric(self, find: Callable[[], Found], *, number: int | None) -> Found:
        return find()

    def _stepped(self, progress: StepProgress) -> None:
        past_s, num_steps = self._now_s() - self._taken_s, progress.clock - self._taken_clock
        if self._world.was_asked_to_save() or self._checkpoints.saving.due(past_s=past_s, num_steps=num_steps):
            self._taken_s, self._taken_clock = self._now_s(), progress.clock
            self._checkpoints.saver.save(self._point(progress.clock), server_state=self._server_state)

    def _point(self, clock: int) -> QuiescentPoint:
        source = self._batches
        return QuiescentPoint(
            clock=clock,
            policy=self._policy,
            next_review=0,
            next_clock=0,
            samples=self._world.rounds.global_samples,
            plan=None if source is None else self._plan,
            figures=None if source is None else self._figures,
            remainder=None if source is None else source.remainder(),
            workers=(0,),
        )

    def _server_state(self) -> ServerState:
        text = json.dumps({"ledger": msgspec.to_builtins(self._world.ledger_state())})
        return ServerState(text=text, left=0, elapsed_s=self._now_s() - self._began_s)
