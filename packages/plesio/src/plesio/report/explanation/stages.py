"""The stages of a run whose policy changes by a schedule (``switch:``), which predicts nothing.

A stage on a collective ends after the same step of all workers. On the store workers are not equally far: the stage
ends at the clock of the furthest one, and how many steps each made is counted from its updates in the event log. What a
step took is the stage's training time over the steps that a worker made on average, of those that stayed.
"""

import statistics
from collections import Counter

from plesio.core.errors import DataError
from plesio.core.results import RunResult
from plesio.policies import Arrived, EventLog, LeaveReason, Left, Steer, Switch, parse_policy
from plesio.report.explanation.model import PolicySpan
from plesio.report.explanation.spans import RecordedClock, slack_of


class StoreSteps:
    """Steps that each worker made on the store, and until when."""

    def __init__(self, log: EventLog) -> None:
        self._arrivals: list[tuple[int, Arrived]] = []
        """Each with the clock since which the policy was in force under which it came."""
        self.lost: set[int] = set()
        since = 0
        for entry in log.entries:
            match entry.event:
                case Arrived():
                    self._arrivals.append((since, entry.event))
                case Left(worker=worker, reason=LeaveReason.LOST | LeaveReason.REPLACED):
                    self.lost.add(worker)
            since = max([since, *(action.clock for action in entry.actions if isinstance(action, Steer))])

    def by_worker(self, begin: int, end: int) -> dict[int, int]:
        """Count each worker's steps under what came into force from clock ``begin`` on and before ``end``."""
        steps: Counter[int] = Counter()
        for since, arrived in self._arrivals:
            if begin <= since < end:
                steps[arrived.worker] += arrived.num_steps
        return dict(sorted(steps.items()))

    def furthest(self, begin: int) -> int:
        """Return the clock of the furthest worker under what came into force at ``begin``; without updates that."""
        return max((arrived.clock for since, arrived in self._arrivals if since == begin), default=begin)


def read_schedule(
    log: EventLog, run: RunResult, *, policy: Switch, steps: StoreSteps
) -> tuple[tuple[PolicySpan, ...], RecordedClock]:
    """Find the stages that had a step, and when each of their steps was finished.

    The last stage has what the result counts beyond the others' steps.

    Raises:
        DataError: The log or the result leaves out when the stages were.
    """
    if log.num_whole is not None:
        raise DataError(
            f"the events of {run.policy} leave out updates from entry {log.num_whole + 1} on, where the log "
            "reached its limit (log_bytes of JoinOptions), and with them the steps of each stage"
        )
    steers = [action for entry in log.entries for action in entry.actions if isinstance(action, Steer)]
    specs = [policy.first.spec, *(steer.policy for steer in steers)]
    begins = [0, *(steer.clock for steer in steers)]
    # on collectives only the run knows how many steps there were: what no earlier stage has made is the last one's
    rest = run.steps
    stages: list[tuple[str, int, int]] = []
    for spec, begin, until in zip(specs, begins, [*begins[1:], None], strict=True):
        on_store = parse_policy(spec).exchange == "store"
        end = steps.furthest(begin) if on_store else begin + max(0, rest) // run.num_workers
        end = end if until is None else min(end, until)
        rest -= sum(steps.by_worker(begin, end).values()) if on_store else (end - begin) * run.num_workers
        if end > begin:
            stages.append((spec, begin, end))
    if stages and not run.losses:
        raise DataError(
            f"{run.policy}, seed {run.seed}, recorded no losses, and with them the time of each stage; "
            "give session.step the loss"
        )
    times = RecordedClock(run, num_steps=stages[-1][2] if stages else 0)
    spans = []
    for spec, begin, end in stages:
        step_s = (times.at_s(end) - times.at_s(begin)) / _steps_made(begin, end, steps=steps)
        spans.append(PolicySpan(begin=begin, end=end, policy=spec, slack=slack_of(spec), step_s=step_s))
    return tuple(spans), times


def _steps_made(begin: int, end: int, *, steps: StoreSteps) -> float:
    """Count the steps that a worker which stayed made on average; on a collective each made all of them."""
    made = steps.by_worker(begin, end)
    stayed = [num_steps for worker, num_steps in made.items() if worker not in steps.lost] or list(made.values())
    return statistics.fmean(stayed) if any(stayed) else end - begin
