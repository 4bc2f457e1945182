"""The records of one run: what the workers report and what the policy decided, added up into a `RunResult`.

Workers send `Report`s of what is new since their last one (`plesio.runtime.worker.meter`), so the records are complete
up to a crash.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from plesio.core.results import Environment, Evaluation, Goal, LossPoint, RunResult, RunStatus, Staleness, WorkerTimes
from plesio.core.trace import split_blocked
from plesio.policies.events import Apply, Steer
from plesio.protocol.figures import Report, RunFigures, RunInfo, Status
from plesio.runtime.coordinator.loss_curve import LossCurve
from plesio.runtime.coordinator.odd_reports import SAME_BATCHES, Likeness, draw_alike, refusals

__all__ = ["MAX_LOSS_POINTS", "Ledger", "LedgerState", "World"]

_log = logging.getLogger(__name__)

MAX_LOSS_POINTS = 300
MOST_OPEN = 16_384
"""Collectives that not all who met have reported; of a worker that is lost there may never come more."""
World = Literal["process", "virtual", "testbed"]


class LedgerState(msgspec.Struct, kw_only=True):
    """What the records of a run were at a checkpoint, in JSON's values; losses as few points as a result has."""

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
        self.racks: Mapping[int, tuple[int, ...]] = {}
        """Of each worker, who meets it in collectives where only those of its rack do; else all meet."""
        self.rack_of: tuple[int, ...] = ()
        """Number of the rack of each worker that the run began with, by rank."""
        self._policy = policy
        self._num_workers = num_workers
        self._reports: dict[int, Report] = {}
        self._likeness = Likeness(num_workers=num_workers)
        self._arrived: dict[int, tuple[int, int]] = {}
        self._ended_early: dict[int, bool] = {}
        """Workers that the others went on without, and whether the final parameters were to be theirs."""
        self._of_lost: tuple[Sequence[int], int] | None = None
        """Who was there when workers last formed a new group, and the samples that all others had trained on."""
        self._samples_on_collectives = 0
        """As known when the last stage on the store was entered."""
        self._staleness: Counter[int] = Counter()
        self._losses = LossCurve()
        self._blocked: dict[tuple[int, int], dict[int, float]] = {}
        """By clock, and the first of those who meet."""
        self._wait_s: Counter[int] = Counter()
        self._communicate_s: Counter[int] = Counter()
        self._started_s = 0.0
        self._before = LedgerState()
        """Of the part of the run before it was resumed."""

    def begin(self, started_s: float, *, rack_of: Sequence[int]) -> None:
        """Take in that the run has begun: when, by the server's clock, and in which racks its workers are, by rank."""
        self._started_s, self.rack_of = started_s, tuple(rack_of)

    def elapsed_s(self, now_s: float) -> float:
        """Seconds that the run has taken, those of the part before it was resumed among them."""
        return now_s - self._started_s

    def meet(self, racks: Mapping[int, tuple[int, ...]]) -> None:
        """Take in with whom each worker meets in collectives from now on; empty where all meet."""
        self.racks = racks

    def fail(self, error: str | None, *, status: Status = "failed") -> None:
        """Take in that the run does not end well, and why."""
        self.status, self.error = status, error

    def state(self) -> "LedgerState":
        """All that has been entered, to go on from."""
        for met in list(self._blocked):
            self._split(met)
        reports = {worker: self._report_of(worker) for worker in self._workers()}
        if self._of_lost is not None:  # what a lost worker said last may be more or less than what became of it
            members, of_others = self._of_lost
            gone = [worker for worker in reports if worker not in members]
            said = sum(reports[worker].samples for worker in gone)
            if lost := [worker for worker in gone if worker in self.lost]:
                first = reports[lost[0]]
                reports[lost[0]] = replace(first, samples=first.samples + of_others - said)
        times = {worker: self._times(worker, report) for worker, report in reports.items()}
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
        """The run is resumed where ``state`` was taken."""
        self._before = state
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
        """What the servers have sent so far in this run, by class of link, and whom they have turned away, and why."""
        self.server_bytes, self.refused_peers, self.cross_rack_bytes = sent, refused, cross_rack_bytes

    def report(self, worker: int, report: Report) -> None:
        """Take in a worker's figures."""
        self._reports[worker] = report
        for clock, at_s, loss in report.losses:
            self._losses.add(clock, at_s=at_s, loss=loss)
        rack = self.racks.get(worker, range(self._num_workers))
        for clock, blocked_s in report.blocked:
            # a step may be blocked twice: its gradients, and then its parameters
            blocked = self._blocked.setdefault((clock, rack[0]), {})
            blocked[worker] = blocked.get(worker, 0.0) + blocked_s
            if len(blocked) == len(rack):
                self._split((clock, rack[0]))
        while len(self._blocked) > MOST_OPEN:
            self._split(next(iter(self._blocked)))
        for line in report.fallbacks:
            if line not in self.fallbacks:
                self.fallbacks.append(line)
        self._compare_draws()
        self._compare_replicas(worker, report)
        for line in self._likeness.differences(worker, report):
            _log.warning(line)
            self.fallbacks.append(line)
        for ended in [one for one in self._ended_early if report.clock > self.latest(one).clock]:
            self._note_unequal(ended, worker)

    def _compare_replicas(self, worker: int, report: Report) -> None:
        """Tell of a replica that ends as another one than those of workers that have made as many steps."""
        for other, before in self._reports.items():
            if before.replica is UNSET or report.replica is UNSET or before.clock != report.clock:
                continue
            different = [name for name, bits in report.replica.items() if before.replica.get(name) != bits]
            if different:
                line = (
                    f'"{different[0]}" differs on workers {min(worker, other)} and {max(worker, other)} at the end of '
                    "the run, where it is to be equal; the result has worker 0's"
                )
                _log.warning(line)
                self.fallbacks.append(line)
                return

    def latest(self, worker: int) -> Report:
        """Return a worker's latest report."""
        return self._reports.get(worker, Report())

    def ended_early(self, worker: int, *, evaluates: bool) -> None:
        """Take in that the others go on without a worker that has ended its loop; a line says so if they do train."""
        self._ended_early[worker] = evaluates

    def _note_unequal(self, ended: int, worker: int) -> None:
        evaluates, steps = self._ended_early.pop(ended), self.latest(ended).steps
        final = f", so the final parameters are worker {worker}'s" if evaluates else ""
        line = (
            f"worker {ended} ended its loop after {steps} steps and the others went on without it{final}: give all "
            "workers equally many steps (session.shard does where each batch is stepped on; to end a loop early, go by "
            "session.evaluate(..., everywhere=True), which all have)"
        )
        _log.warning(line)
        self.fallbacks.append(line)

    def _compare_draws(self) -> None:
        """Warn once where all workers draw the same batches."""
        if SAME_BATCHES not in self.fallbacks and draw_alike(self._reports, num_workers=self._num_workers):
            _log.warning(SAME_BATCHES)
            self.fallbacks.append(SAME_BATCHES)

    def arrived(self, worker: int, *, num_steps: int, num_samples: int) -> None:
        """Take in an update that reached the store: it counts even if its worker never reports it."""
        steps, samples = self._arrived.get(worker, (0, 0))
        self._arrived[worker] = (steps + num_steps, samples + num_samples)

    def entered_store(self, samples: int) -> None:
        """Take in that a stage on the store begins when so many samples have been trained on."""
        self.applied_samples = self.applied_positions = samples
        self._samples_on_collectives = samples - sum(arrived for _, arrived in self._arrived.values())

    def regrouped(self, members: Sequence[int], *, samples: int, own: int, dropped: int) -> None:
        """Take in that workers go on in a new group.

        Args:
            members: Who.
            samples: Samples that were trained on until then, and count.
            own: Those of the members among them.
            dropped: Samples that a lost worker had not handed in and that nobody will train on any more.
        """
        self._of_lost = tuple(members), samples - own
        if dropped:
            self.fallbacks.append(
                f"{dropped} samples that a lost worker had not handed in were left out: the others' loop over them "
                "had ended"
            )

    def lose(self, worker: int, *, evaluates: bool) -> None:
        """Take in that a worker is lost; ``evaluates``: the others had left, and it was to evaluate."""
        self.lost.append(worker)
        if evaluates and self.parameters_sha256 is None:
            why = f"worker {worker} was lost while it evaluated, when the others had left"
            self.fallbacks.append(f"nobody has evaluated the final parameters: {why}")

    def applied(self, action: Apply) -> None:
        """Take in an update of the shared parameters."""
        self._staleness.update(action.staleness)
        self.version = action.version

    def stale(self, counts: Mapping[int, int]) -> None:
        """So many updates were applied with each staleness."""
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

    def recent_step_s(self) -> float:
        """Median step of the slowest worker lately; 0 before anyone has reported."""
        return max((report.recent_step_s for report in self._reports.values()), default=0.0)

    def progress(self) -> RunFigures:
        """Figures for a live display."""
        reports = self._reports.values()
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
        """The run's figures as they stand."""
        for met in list(self._blocked):
            self._split(met)
        reports = {worker: self._report_of(worker) for worker in self._workers()}
        wall_s = max((report.elapsed_s for report in reports.values()), default=0.0)
        arrived = sum(samples for _, samples in self._arrived.values())
        samples = max(sum(report.samples for report in reports.values()), self._samples_on_collectives + arrived)
        if self._of_lost is not None and self.lost:  # what one said last may be more or less than what became of it
            members, of_others = self._of_lost
            of_members = sum(reports[member].samples for member in members if member in reports)
            samples = max(of_others + of_members, self._samples_on_collectives + arrived)
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
            workers=tuple(self._times(worker, reports[worker]) for worker in sorted(reports)),
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

    def _report_of(self, worker: int) -> Report:
        """A worker's last report; of a lost worker the steps that its updates prove may be more than it told."""
        report = self._reports.get(worker, Report())
        steps, samples = self._arrived.get(worker, (0, 0))
        before = self._before.reports.get(worker)
        if before is not None:
            if worker not in self._reports:
                return before  # it has said nothing since; when it does, it tells the totals of both parts
            steps, samples = steps + before.steps, samples + before.samples
        return replace(report, steps=max(report.steps, steps), samples=max(report.samples, samples))

    def _workers(self) -> list[int]:
        return sorted({*self._reports, *self._arrived, *self._before.reports})

    def _split(self, met: tuple[int, int]) -> None:
        for worker, (wait_s, communicate_s) in split_blocked(self._blocked.pop(met)).items():
            self._wait_s[worker] += wait_s  # type: ignore[assignment]
            self._communicate_s[worker] += communicate_s  # type: ignore[assignment]

    def _times(self, worker: int, report: Report) -> WorkerTimes:
        return WorkerTimes(
            worker=worker,
            compute_s=report.compute_s,
            wait_s=report.wait_s + self._wait_s[worker],
            communicate_s=report.communicate_s + self._communicate_s[worker],
            steps=report.steps,
            samples=report.samples,
            peak_memory_bytes=report.peak_memory_bytes,
            memory=report.memory or None,
            utilisation=report.utilisation or None,
        )

    def _time_to_target_s(self) -> float | None:
        target = self.info.target
        if target is None:
            return None
        sign = 1.0 if self.judged_by[1] == "max" else -1.0
        return next((point.at_s for point in self.evaluations if sign * point.metric >= sign * target), None)


def _without_news(report: Report, times: WorkerTimes) -> Report:
    """A worker's totals, with its share of what collectives took."""
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
