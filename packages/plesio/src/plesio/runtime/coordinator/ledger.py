"""The records of one run: what the workers report and what the policy decided, added up into a `RunResult`.

Workers report as they train, so the records are complete up to a crash. Only this module, and those of the ledger's
parts, assign their attributes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from plesio.core.results import Environment, Evaluation, LossPoint, RunResult, RunStatus, Staleness, WorkerTimes
from plesio.policies.events import Apply, Steer
from plesio.protocol.figures import Report, RunFigures, RunInfo, Status
from plesio.runtime.coordinator.fallbacks import Fallbacks, refusals
from plesio.runtime.coordinator.loss_curve import LossCurve
from plesio.runtime.coordinator.metric_history import MetricHistory
from plesio.runtime.coordinator.sample_counts import SampleCounts
from plesio.runtime.coordinator.worker_figures import WorkerFigures

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


class ServerCounts:
    """The counts of one run's servers, with those of the part before it was resumed."""

    def __init__(self) -> None:
        self.bytes_sent: Counter[str] = Counter()
        """Bytes by class of link."""
        self.refused: Counter[str] = Counter()
        """Refused peers, by reason."""
        self.cross_rack_bytes = 0
        self._sent_before: Counter[str] = Counter()
        self._crossed_before = 0

    def go_on_from(self, *, bytes_sent: dict[str, int], cross_rack_bytes: int) -> None:
        """Add what the servers had sent when the run was interrupted that is resumed now."""
        self._sent_before, self._crossed_before = Counter(bytes_sent), cross_rack_bytes
        self.bytes_sent, self.cross_rack_bytes = self._sent_before + self.bytes_sent, cross_rack_bytes

    def enter(self, *, sent: Counter[str], refused: Counter[str], cross_rack_bytes: int) -> None:
        """Set the counts since the run began, or was resumed."""
        self.bytes_sent, self.refused = self._sent_before + sent, refused
        self.cross_rack_bytes = self._crossed_before + cross_rack_bytes


class Ledger:
    """Adds reports and decisions up.

    Args:
        num_workers: Workers that began the run.
    """

    def __init__(self, *, policy: str, info: RunInfo, num_workers: int, world: World = "process") -> None:
        self._policy = policy
        self._info = info
        self._num_workers = num_workers
        self._world: World = world
        self._environment: Environment | None = None
        self._started_s = 0.0
        self.status: Status = "finished"
        self.error: str | None = None
        self.lost: list[int] = []
        self.racks: Mapping[int, tuple[int, ...]] = {}
        """Workers that each worker meets in collectives, where only those of its rack do; else all meet."""
        self.rack_of: tuple[int, ...] = ()
        """Number of the rack of each worker that the run began with, by rank."""
        self.workers = WorkerFigures()
        self.samples = SampleCounts()
        self.metric = MetricHistory(info)
        self.servers = ServerCounts()
        self.decisions: list[dict[str, Any]] = []
        """The decisions of a policy that adapts, in order."""
        self.fallbacks = Fallbacks(num_workers=num_workers)
        self._losses = LossCurve()
        self._staleness: Counter[int] = Counter()
        self._max_lead = 0

    def begin(self, started_s: float, *, rack_of: Sequence[int]) -> None:
        """Begin the run: when, by the server's clock, and in which racks its workers are, by rank."""
        self._started_s, self.rack_of = started_s, tuple(rack_of)

    def elapsed_s(self, now_s: float) -> float:
        """Return the seconds that the run has taken, with those of the part before it was resumed."""
        return now_s - self._started_s

    def ran_on(self, environment: Environment) -> None:
        self._environment = environment

    def meet(self, racks: Mapping[int, tuple[int, ...]]) -> None:
        """Set the workers that each worker meets in collectives from now on; empty where all meet."""
        self.racks = racks

    def fail(self, error: str | None, *, status: Status = "failed") -> None:
        self.status, self.error = status, error

    def state(self) -> LedgerState:
        settled = self.workers.settled()
        reports = self.samples.corrected(settled.totals(), lost=self.lost)
        times = {worker: settled.times(worker, report) for worker, report in reports.items()}
        return LedgerState(
            reports={worker: _without_news(report, times[worker]) for worker, report in reports.items()},
            evaluations=self.metric.evaluations,
            losses=list(self._losses.points(MAX_LOSS_POINTS)),
            staleness=dict(self._staleness),
            decisions=self.decisions,
            fallbacks=self.fallbacks.lines,
            lost=self.lost,
            max_lead=self._max_lead,
            server_bytes=dict(self.servers.bytes_sent),
            cross_rack_bytes=self.servers.cross_rack_bytes,
        )

    def go_on_from(self, state: LedgerState) -> None:
        self.workers.go_on_from(state.reports)
        self.servers.go_on_from(bytes_sent=state.server_bytes, cross_rack_bytes=state.cross_rack_bytes)
        self.metric.enter(state.evaluations)
        self.stale(state.staleness)
        self.decisions += state.decisions
        self.fallbacks.lines += state.fallbacks
        self.lost += state.lost
        self._max_lead = state.max_lead
        for point in state.losses:
            self._losses.add(point.clock, at_s=point.at_s, loss=point.loss)

    def report(self, worker: int, report: Report) -> None:
        """Enter a worker's figures, and warn of what in them does not go with those of others."""
        self.workers.report(worker, report, meets=self.racks.get(worker, range(self._num_workers)))
        for clock, at_s, loss in report.losses:
            self._losses.add(clock, at_s=at_s, loss=loss)
        self.fallbacks.report(worker, report, reports=self.workers.reports)

    def led(self, lead: int) -> None:
        """Enter by how many steps a worker was ahead of the slowest one."""
        self._max_lead = max(self._max_lead, lead)

    def entered_store(self, workers: Iterable[int], *, clock: int, samples: int) -> None:
        self.workers.entered_store(workers, clock=clock)
        self.samples.entered_store(samples, arrived=self.workers.arrived_samples)

    def regrouped(self, members: Sequence[int], *, samples: int, own: int, dropped: int) -> None:
        """Enter that workers go on in a new group.

        ``samples`` were trained on until then, and count, ``own`` of them by members; no worker will train any more on
        those ``dropped``.
        """
        self.samples.regrouped(members, samples=samples, own=own)
        if dropped:
            self.fallbacks.note(
                f"{dropped} samples that a lost worker had not handed in were left out: the others' loop over them "
                "had ended"
            )

    def lose(self, worker: int, *, handed_in: bool = False, evaluates: bool = False) -> None:
        """Enter that a worker is lost.

        ``handed_in``: only the updates that it had handed in count; ``evaluates``: the others had left, and it was to.
        """
        self.lost.append(worker)
        if handed_in:
            self.workers.lost_on_store(worker)
        if evaluates and self.metric.parameters_sha256 is None:
            why = f"worker {worker} was lost while it evaluated, when the others had left"
            self.fallbacks.note(f"nobody has evaluated the final parameters: {why}")

    def applied(self, action: Apply, *, num_samples: int, num_positions: int) -> None:
        """Enter an update of the shared parameters, with the samples and positions of the dealt orders in it."""
        self._staleness.update(action.staleness)
        self.samples.applied += num_samples
        self.samples.applied_positions += num_positions

    def stale(self, counts: Mapping[int, int]) -> None:
        self._staleness.update(counts)

    def steered(self, action: Steer, *, at_s: float) -> None:
        """Enter how the workers go on; what is done about an alarm is a fallback, too."""
        self.decisions.append(
            {
                "at_s": at_s,
                "clock": action.clock,
                "before": action.before,
                "policy": action.policy,
                "shares": list(action.shares),
                "restore": action.restore,
                "reason": action.reason,
                "inputs": dict(action.inputs),
            }
        )
        if action.alarm:
            self.fallbacks.note(f"at step {action.clock}: {action.reason}")

    def upheld(self, action: Steer, *, at_s: float) -> None:
        """Add newer reasons to the last decision, which a review has left in force."""
        latest = {"at_s": at_s, "clock": action.clock, "reason": action.reason, "inputs": dict(action.inputs)}
        self.decisions[-1] = {**self.decisions[-1], "latest": latest}

    def progress(self) -> RunFigures:
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
        settled = self.workers.settled()
        reports = settled.totals()
        wall_s = max((report.elapsed_s for report in reports.values()), default=0.0)
        # a lost worker's own figures may lack its last steps
        samples, unreported = self.samples.total(reports, arrived=self.workers.arrived_samples, lost=self.lost)
        names = ", ".join(map(str, self.lost))
        why = f"worker {names} was lost before it had told its last steps"
        lacking = [f"{unreported} of the samples are in no worker's own figures: {why}"] if unreported else []
        # each end counts what it has sent itself
        sent = self.servers.bytes_sent.copy()
        for report in reports.values():
            sent.update(report.bytes_sent)
        name, goal = self.metric.judged_by
        return RunResult(
            policy=self._policy,
            task=self._info.task,
            world=self._world,
            seed=self._info.seed,
            num_workers=self._num_workers,
            status=status,
            error=error,
            steps=sum(report.steps for report in reports.values()),
            samples=samples,
            wall_s=wall_s,
            virtual_s=wall_s if self._world == "virtual" else None,
            samples_per_s=samples / wall_s if wall_s > 0 else 0.0,
            metric_name=name,
            metric_goal=goal,
            final_metric=self.metric.final,
            target=self._info.target,
            time_to_target_s=self.metric.time_to_target_s,
            bytes_sent_total=sum(sent.values()),
            bytes_sent_cross_rack=self.servers.cross_rack_bytes,
            bytes_sent=dict(sent),
            workers=tuple(settled.times(worker, reports[worker]) for worker in sorted(reports)),
            staleness=Staleness.of(self._staleness),
            max_lead=self._max_lead,
            racks=self.rack_of,
            decisions=tuple(self.decisions),
            lost_workers=tuple(self.lost),
            refused_updates={str(worker): report.refused for worker, report in reports.items() if report.refused},
            refused_peers=dict(self.servers.refused),
            fallbacks=(*self.fallbacks.lines, *lacking, *refusals(reports)),
            parameters_sha256=self.metric.parameters_sha256,
            evaluations=tuple(self.metric.evaluations),
            losses=self._losses.points(MAX_LOSS_POINTS),
            environment=self._environment,
        )


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
