"""The records of one run: what the workers report and what the policy decided, added up into a `RunResult`.

Workers report as they train, so the records are complete up to a crash. Only this module assigns its attributes.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from plesio.core.results import Environment, Evaluation, Goal, LossPoint, RunResult, RunStatus, Staleness, WorkerTimes
from plesio.policies.events import Apply, Steer
from plesio.protocol.figures import Report, RunFigures, RunInfo, Status
from plesio.runtime.coordinator.loss_curve import LossCurve
from plesio.runtime.coordinator.odd_reports import OddReports, refusals
from plesio.runtime.coordinator.worker_figures import WorkerFigures

__all__ = ["MAX_LOSS_POINTS", "Ledger", "LedgerState", "World"]

_log = logging.getLogger(__name__)

MAX_LOSS_POINTS = 300
World = Literal["process", "virtual", "testbed"]


class LedgerState(msgspec.Struct, kw_only=True):
    """The records of a run at a checkpoint, in JSON's values; losses as few points as a result has."""

    reports: dict[int, Report] = {}
    evaluations: list[Evaluation] = []
    losses: list[LossPoint] = []
    staleness: dict[int, int] = {}
    decisions: list[dict[str, Any]] = []
    fallbacks: list[str] = []
    lost: list[int] = []
    max_lead: int = 0
    server_bytes: dict[str, int] = {}
    cross_rack_bytes: int = 0


class Ledger:
    """Adds reports and decisions up.

    Args:
        policy: The policy's spec.
        info: Names for the result.
        num_workers: Workers that began the run.
        world: Where it runs.
    """

    def __init__(self, *, policy: str, info: RunInfo, num_workers: int, world: World = "process") -> None:
        self.info = info
        self.world: World = world
        self.status: Status = "finished"
        self.error: str | None = None
        self.evaluations: list[Evaluation] = []
        self.parameters_sha256: str | None = None
        self.environment: Environment | None = None
        self.max_lead = 0
        self.lost: list[int] = []
        self.refused_peers: Counter[str] = Counter()
        self.server_bytes: Counter[str] = Counter()
        self.cross_rack_bytes = 0
        self.fallbacks: list[str] = []
        self.decisions: list[dict[str, Any]] = []
        self.samples_at_end = 0
        """Samples of all workers in collectives, by the count of the workers that leave them."""
        self.applied_samples = 0
        self.applied_positions = 0
        """Positions of the dealt orders (samples, mostly) in the applied updates."""
        self.version = 0
        """Version of the shared parameters."""
        self.racks: Mapping[int, tuple[int, ...]] = {}
        """Workers that each worker meets in collectives, where only those of its rack do; else all meet."""
        self.rack_of: tuple[int, ...] = ()
        """Number of the rack of each worker that the run began with, by rank."""
        self._policy = policy
        self._num_workers = num_workers
        self.workers = WorkerFigures()
        self._odd = OddReports(num_workers=num_workers)
        self._of_lost: tuple[Sequence[int], int] | None = None
        """Members of the last new group, and the samples that all others had trained on."""
        self._samples_on_collectives = 0
        """Samples trained on collectives, as known when the last stage on the store was entered."""
        self._staleness: Counter[int] = Counter()
        self._losses = LossCurve()
        self._started_s = 0.0
        self._before = LedgerState()
        """Records of the part of the run before it was resumed."""

    def begin(self, started_s: float, *, rack_of: Sequence[int]) -> None:
        """Take in that the run has begun: when, by the server's clock, and in which racks its workers are, by rank."""
        self._started_s, self.rack_of = started_s, tuple(rack_of)

    def elapsed_s(self, now_s: float) -> float:
        """Return the seconds that the run has taken, with those of the part before it was resumed."""
        return now_s - self._started_s

    def ran_on(self, environment: Environment) -> None:
        """Take in on what the run's first worker runs."""
        self.environment = environment

    def meet(self, racks: Mapping[int, tuple[int, ...]]) -> None:
        """Take in with whom each worker meets in collectives from now on; empty where all meet."""
        self.racks = racks

    def fail(self, error: str | None, *, status: Status = "failed") -> None:
        """Take in that the run does not end well, and why."""
        self.status, self.error = status, error

    def state(self) -> "LedgerState":
        """Return all that has been entered, to go on from."""
        reports = self.workers.totals()
        if self._of_lost is not None:  # what a lost worker said last may be more or less than what became of it
            members, of_others = self._of_lost
            gone = [worker for worker in reports if worker not in members]
            said = sum(reports[worker].samples for worker in gone)
            if lost := [worker for worker in gone if worker in self.lost]:
                first = reports[lost[0]]
                reports[lost[0]] = replace(first, samples=first.samples + of_others - said)
        times = {worker: self.workers.times(worker, report) for worker, report in reports.items()}
        return LedgerState(
            reports={worker: _without_news(report, times[worker]) for worker, report in reports.items()},
            evaluations=self.evaluations,
            losses=list(self._losses.points(MAX_LOSS_POINTS)),
            staleness=dict(self._staleness),
            decisions=self.decisions,
            fallbacks=self.fallbacks,
            lost=self.lost,
            max_lead=self.max_lead,
            server_bytes=dict(self._all_server_bytes()),
            cross_rack_bytes=self.cross_rack_bytes + self._before.cross_rack_bytes,
        )

    def go_on_from(self, state: "LedgerState") -> None:
        """Resume the run where ``state`` was taken."""
        self._before = state
        self.workers.go_on_from(state.reports)
        self.evaluations += state.evaluations
        self._staleness.update(state.staleness)
        self.decisions += state.decisions
        self.fallbacks += state.fallbacks
        self.lost += state.lost
        self.max_lead = state.max_lead
        for point in state.losses:
            self._losses.add(point.clock, at_s=point.at_s, loss=point.loss)

    def _all_server_bytes(self) -> Counter[str]:
        return Counter(self._before.server_bytes) + self.server_bytes

    def note_servers(self, *, sent: Counter[str], refused: Counter[str], cross_rack_bytes: int) -> None:
        """Record the servers' traffic in this run by class of link, and the peers that they have refused, by reason."""
        self.server_bytes, self.refused_peers, self.cross_rack_bytes = sent, refused, cross_rack_bytes

    def report(self, worker: int, report: Report) -> None:
        """Take in a worker's figures, and warn of what in them does not go with those of others."""
        self.workers.report(worker, report, meets=self.racks.get(worker, range(self._num_workers)))
        for clock, at_s, loss in report.losses:
            self._losses.add(clock, at_s=at_s, loss=loss)
        for line in report.fallbacks:
            if line not in self.fallbacks:
                self.fallbacks.append(line)
        for line in self._odd.lines(worker, report, reports=self.workers.reports, known=self.fallbacks):
            self.warn(line)

    def note(self, line: str) -> None:
        """Enter a sentence that people should read."""
        self.fallbacks.append(line)

    def warn(self, line: str) -> None:
        """Enter a sentence, and log it."""
        _log.warning(line)
        self.fallbacks.append(line)

    def evaluated(self, evaluations: Iterable[Evaluation], *, parameters_sha256: str | None) -> None:
        """Take in evaluations, and the digest of the parameters that the last one is of, where it is known."""
        self.evaluations += evaluations
        self.parameters_sha256 = parameters_sha256 or self.parameters_sha256

    def ended_early(self, worker: int, *, evaluates: bool) -> None:
        """Take in that the others go on without a worker that has ended its loop."""
        self._odd.ended_early(worker, evaluates=evaluates)

    def left(self, samples: int) -> None:
        """Take in the samples of all workers in collectives, by the count of a worker that leaves them."""
        self.samples_at_end = samples

    def led(self, lead: int) -> None:
        """Take in by how many steps a worker was ahead of the slowest one."""
        self.max_lead = max(self.max_lead, lead)

    def entered_store(self, samples: int) -> None:
        """Take in that a stage on the store begins when so many samples have been trained on."""
        self.applied_samples = self.applied_positions = samples
        self._samples_on_collectives = samples - self.workers.arrived_samples

    def regrouped(self, members: Sequence[int], *, samples: int, own: int, dropped: int) -> None:
        """Take in that workers go on in a new group.

        Args:
            members: The workers in it.
            samples: Samples that were trained on until then, and count.
            own: Those of the members among them.
            dropped: Samples that a lost worker had not handed in and that no worker will train on any more.
        """
        self._of_lost = tuple(members), samples - own
        if dropped:
            self.fallbacks.append(
                f"{dropped} samples that a lost worker had not handed in were left out: the others' loop over them "
                "had ended"
            )

    def lose(self, worker: int, *, evaluates: bool = False) -> None:
        """Take in that a worker is lost; ``evaluates``: the others had left, and it was to evaluate."""
        self.lost.append(worker)
        if evaluates and self.parameters_sha256 is None:
            why = f"worker {worker} was lost while it evaluated, when the others had left"
            self.fallbacks.append(f"nobody has evaluated the final parameters: {why}")

    def applied(self, action: Apply, *, num_samples: int, num_positions: int) -> None:
        """Take in an update of the shared parameters, with the samples and positions of the dealt orders in it."""
        self._staleness.update(action.staleness)
        self.version = action.version
        self.applied_samples += num_samples
        self.applied_positions += num_positions

    def stale(self, counts: Mapping[int, int]) -> None:
        """Count updates by the staleness with which they were applied."""
        self._staleness.update(counts)

    def steered(self, action: Steer, *, at_s: float) -> None:
        """Take in how the workers go on where that is told; what is done about an alarm is told plainly."""
        decision = {
            "at_s": at_s,
            "clock": action.clock,
            "before": action.before,
            "policy": action.policy,
            "shares": list(action.shares),
            "restore": action.restore,
            "reason": action.reason,
            "inputs": dict(action.inputs),
        }
        self.decisions.append(decision)
        if action.alarm:
            self.fallbacks.append(f"at step {action.clock}: {action.reason}")

    def upheld(self, action: Steer, *, at_s: float) -> None:
        """Take in that a review left everything as the last decision had it: its reasons are the newer ones."""
        latest = {"at_s": at_s, "clock": action.clock, "reason": action.reason, "inputs": dict(action.inputs)}
        self.decisions[-1] = {**self.decisions[-1], "latest": latest}

    def progress(self) -> RunFigures:
        """Return figures for a live display."""
        reports = self.workers.reports.values()
        total = sum(self._staleness.values())
        return RunFigures(
            policy=self._policy,
            steps=sum(report.steps for report in reports),
            samples=sum(report.samples for report in reports),
            elapsed_s=max((report.elapsed_s for report in reports), default=0.0),
            loss=self._losses.latest,
            staleness=sum(tau * n for tau, n in self._staleness.items()) / total if total else 0.0,
        )

    def result(self, *, status: RunStatus, error: str | None = None) -> RunResult:
        """Return the run's figures so far."""
        reports = self.workers.totals()
        wall_s = max((report.elapsed_s for report in reports.values()), default=0.0)
        on_store = self._samples_on_collectives + self.workers.arrived_samples
        samples = max(sum(report.samples for report in reports.values()), on_store)
        if self._of_lost is not None and self.lost:  # what one said last may be more or less than what became of it
            members, of_others = self._of_lost
            of_members = sum(reports[member].samples for member in members if member in reports)
            samples = max(of_others + of_members, on_store)
        untold = max(0, self.samples_at_end - samples) if self.lost else 0
        samples += untold
        sent = self._all_server_bytes()
        for report in reports.values():
            sent.update(report.bytes_sent)
        final = self.evaluations[-1].metric if self.evaluations else None
        name, goal = self.judged_by
        return RunResult(
            policy=self._policy,
            task=self.info.task,
            world=self.world,
            seed=self.info.seed,
            num_workers=self._num_workers,
            status=status,
            error=error,
            steps=sum(report.steps for report in reports.values()),
            samples=samples,
            wall_s=wall_s,
            virtual_s=wall_s if self.world == "virtual" else None,
            samples_per_s=samples / wall_s if wall_s > 0 else 0.0,
            metric_name=name,
            metric_goal=goal,
            final_metric=final,
            target=self.info.target,
            time_to_target_s=self._time_to_target_s(),
            bytes_sent_total=sum(sent.values()),
            bytes_sent_cross_rack=self.cross_rack_bytes + self._before.cross_rack_bytes,
            bytes_sent=dict(sent),
            workers=tuple(self.workers.times(worker, reports[worker]) for worker in sorted(reports)),
            staleness=Staleness.of(self._staleness),
            max_lead=self.max_lead,
            racks=self.rack_of,
            decisions=tuple(self.decisions),
            lost_workers=tuple(self.lost),
            refused_updates={str(worker): report.refused for worker, report in reports.items() if report.refused},
            refused_peers=dict(self.refused_peers),
            fallbacks=(*self.fallbacks, *self._untold(untold), *refusals(reports)),
            parameters_sha256=self.parameters_sha256,
            evaluations=tuple(self.evaluations),
            losses=self._losses.points(MAX_LOSS_POINTS),
            environment=self.environment,
        )

    def _untold(self, samples: int) -> list[str]:
        names = ", ".join(map(str, self.lost))
        why = f"worker {names} was lost before it had told its last steps"
        return [f"{samples} of the samples are in no worker's own figures: {why}"] if samples else []

    @property
    def judged_by(self) -> tuple[str, Goal]:
        """Name and goal of the metric: those that the latest evaluation gave, else the run's."""
        named = next((point.goals for point in reversed(self.evaluations) if point.goals), {})
        return next(iter(named.items()), (self.info.metric_name, self.info.metric_goal))

    def _time_to_target_s(self) -> float | None:
        target = self.info.target
        if target is None:
            return None
        sign = 1.0 if self.judged_by[1] == "max" else -1.0
        return next((point.at_s for point in self.evaluations if sign * point.metric >= sign * target), None)


def _without_news(report: Report, times: WorkerTimes) -> Report:
    """Return a worker's totals, with its share of the time of collectives."""
    return replace(
        report,
        wait_s=times.wait_s,
        communicate_s=times.communicate_s,
        losses=[],
        blocked=[],
        fallbacks=[],
        alike=UNSET,
        memory=UNSET,  # the process that goes on is another
        utilisation=UNSET,
    )
